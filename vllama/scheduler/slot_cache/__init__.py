"""Conversations that outlive their engine's process: saved and restored by the engine itself.

`store` keeps the files and their records within bounds, `conversations` decides what one engine
saves and gets back, and `cache` does so for all engines of the server. See
docs/decisions/0035-the-engine-s-own-slots-on-disk.md.
"""
