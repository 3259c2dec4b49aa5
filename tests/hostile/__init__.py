"""What an attacker sends: files, answers of registries and hubs, requests.

All of it is made by code. Every entry asserts what is refused, and that no more was read, allocated
or done for it than a bound that is counted, never timed.
"""
