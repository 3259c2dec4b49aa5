"""Saved slots of llama-server, made to fit an engine with another number of slots.

A file consists of 32-bit words: magic, version, number of tokens, the tokens; then the number of
slots, and of each slot the number of its cells and their contents (`llama-context.cpp`,
`state_seq_save_file`, and `llama-kv-cache.cpp`, `state_write`). Only the saved slot has cells. Any
slot can take them, but an engine rejects a file with another number of slots.
"""

from __future__ import annotations

from mmap import ACCESS_READ, mmap
from pathlib import Path
from struct import pack, unpack_from

MAGIC = b"qsgg"  # LLAMA_STATE_SEQ_MAGIC
WORD, MOST_SLOTS = 4, 256


def fit_slots(path: Path, slots: int) -> None:
    """Rewrite a file for an engine with so many slots. Raises OSError, ValueError."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        magic, _, tokens = unpack_from("<4s2I", data)
        head = (3 + tokens) * WORD
        (before,) = unpack_from("<I", data, head)
        counts = unpack_from(f"<{min(before, MOST_SLOTS)}I", data, head + WORD)
        used = next((number for number, count in enumerate(counts) if count), before)
        end = len(data) - (before - 1 - used) * WORD
        if magic != MAGIC or used == before or any(data[end:]):
            raise ValueError("not the file of one slot")
        path.unlink()  # it can be read until it is closed
        with memoryview(data) as view, path.open("wb") as fitted:
            fitted.write(view[:head])
            fitted.write(pack("<I", slots))
            fitted.write(view[head + (1 + used) * WORD : end])
            fitted.write(bytes((slots - 1) * WORD))
