"""Batches: rows that run while nobody else asks their model.

`store` keeps files and batches on disk, `rows` reads and checks what is to run, `lane` decides when
a row may run, and `runner` has the server itself answer them. What clients see is in
`routes.openai.batches`.
"""
