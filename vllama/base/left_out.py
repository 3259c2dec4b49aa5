"""One bad item of a list costs itself and a line in the log, never the list."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from vllama.base.errors import VllamaError

T = TypeVar("T")
log = logging.getLogger("vllama.files")
FAULTS = (OSError, ValueError, RecursionError, VllamaError)
"""The errors of reading one item; those of JSON and of UTF-8 are among them."""


def read_each(paths: Iterable[Path], read: Callable[[Path], T]) -> Iterator[T]:
    """Yield the results of `read` for each path; warn once of one that is there and unreadable."""
    for path in paths:
        try:
            found = read(path)
        except FAULTS as error:
            if os.path.lexists(path):  # otherwise it was just removed
                note(show_path(path), explain(error))
        else:
            yield found


@lru_cache(maxsize=4096)
def note(name: str, reason: str, level: int = logging.WARNING) -> None:
    """Log, once for each reason, that an item is left out."""
    log.log(level, "ignored: %s: %s", name, reason)


def explain(error: Exception) -> str:
    """Return why an item cannot be read."""
    if isinstance(error, OSError):
        return f"unreadable ({error.strerror or error})"
    return str(error)


def show_path(path: Path | str) -> str:
    """Return a path as UTF-8, as JSON and terminals want it; on disk it may be any bytes."""
    return os.fsencode(path).decode(errors="replace")
