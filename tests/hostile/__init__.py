"""What an attacker sends: files, answers of registries and hubs, requests, what a model writes.

All of it is made by code. Every entry asserts what is refused, and that no more was read, allocated
or done for it than a bound that is counted, never timed. Templates are in
`tests/chat/templates/jinja`, where the worker is that renders them.
"""
