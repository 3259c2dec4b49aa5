"""The files of engines that keep the blocks of their cache by themselves (vLLM), and their bound.

Such an engine removes no file, and computes anew what is gone. So the files that were written or
read longest ago are removed, from time to time; engines may write more until the next time. All
functions block.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from vllama.plan.resources import BLOCKS

FILLED = 0.9
"""So much of the bound is left after a removal, for what engines write until the next one."""


class BlockFile(NamedTuple):
    """A file; `used_at` is when it was written or read last, in Unix seconds."""

    used_at: float
    size_bytes: int
    path: Path
    model: str


def trim_blocks(folder: Path, most_bytes: int, shares: Mapping[str, int]) -> Counter[str]:
    """Remove the oldest files above `most_bytes`; return the bytes of each model that are left.

    `shares` are the bounds that models have of their own.
    """
    found = sorted(_walk(folder))
    for model, most in shares.items():
        found = [each for each in found if each.model != model] + _trim(
            [each for each in found if each.model == model], most
        )
    sizes = Counter[str]()
    for block in _trim(sorted(found), most_bytes):
        sizes[block.model] += block.size_bytes
    return sizes


def _trim(oldest_first: list[BlockFile], most_bytes: int) -> list[BlockFile]:
    """Remove files above a bound; return what is left."""
    total, kept = sum(each.size_bytes for each in oldest_first), []
    most = most_bytes * FILLED if total > most_bytes else most_bytes
    for block in oldest_first:
        if total > most:
            with suppress(OSError):
                block.path.unlink()
                total -= block.size_bytes
                continue
        kept.append(block)
    return kept


def measure_blocks(folder: Path) -> dict[str, tuple[int, float]]:
    """Return the bytes of each model, and when one of them was written or read last."""
    found: dict[str, tuple[int, float]] = {}
    for block in _walk(folder):
        size, used_at = found.get(block.model, (0, 0.0))
        found[block.model] = size + block.size_bytes, max(used_at, block.used_at)
    return found


def remove_blocks(folder: Path, model: str) -> None:
    """Remove all files of a model."""
    shutil.rmtree(folder / BLOCKS / quote(model, safe=""), ignore_errors=True)


def _walk(folder: Path) -> Iterator[BlockFile]:
    for place in (folder / BLOCKS).glob("*"):
        for root, _, names in os.walk(place):
            for name in names:
                path = Path(root, name)
                with suppress(OSError):  # it was removed, or renamed
                    stat = path.stat()
                    used_at = max(stat.st_mtime, stat.st_atime)
                    yield BlockFile(used_at, stat.st_size, path, unquote(place.name))
