"""Saved slots of llama-server, made to fit an engine with another number of slots.

A file has 32-bit words: magic, version, number of tokens, the tokens; then the number of slots, and
of each slot the number of its cells and their contents (llama.cpp's `state_seq_save_file`, and
`llama_kv_cache::state_write`). Only the saved slot has cells, and any slot can take them.
"""

from __future__ import annotations

from mmap import ACCESS_READ, mmap
from pathlib import Path

MAGIC = b"qsgg"  # LLAMA_STATE_SEQ_MAGIC
WORD, MOST = 4, 256


def fit_slots(path: Path, slots: int) -> None:
    """Rewrite a file for an engine with so many slots. Raises OSError, ValueError."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        head = (3 + _read_word(data, 2)) * WORD
        before, at = _read_word(data, head // WORD), head // WORD + 1
        used = next((n for n in range(min(before, MOST)) if _read_word(data, at + n)), before)
        end = len(data) - (before - 1 - used) * WORD
        if data[:WORD] != MAGIC or used == before or any(data[end:]):
            raise ValueError("not the file of one slot")
        path.unlink()  # it can be read until it is closed
        with memoryview(data) as view, path.open("wb") as fitted:
            fitted.write(view[:head])
            fitted.write(slots.to_bytes(WORD, "little"))
            fitted.write(view[(at + used) * WORD : end])
            fitted.write(bytes((slots - 1) * WORD))


def _read_word(data: mmap, number: int) -> int:
    return int.from_bytes(data[number * WORD : (number + 1) * WORD], "little")
