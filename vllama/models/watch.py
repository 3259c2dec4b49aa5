"""The files and folders that a look-up rests on, to see at once when one changes.

The stores call `rest_on` for each path before they read it. A path has another signature when the
file is edited, replaced or removed, or when a file in the folder comes, goes or is renamed.
"""

from __future__ import annotations

import os
import time
from contextvars import ContextVar
from operator import eq
from pathlib import Path

MAX_PATHS = 500  # a result that rests on more is never reused; a signature takes 1 to 2 µs
FRESH_NS = 2_000_000_000  # changes in one tick of a file system look alike; FAT's takes 2 s


def sign(path: str | Path) -> tuple[int, int, int, int] | None:
    """Return inode, size and times of a file or folder, following links; None if it is missing."""
    try:
        status = os.stat(path)  # noqa: PTH116 - runs for each request, and is quicker
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Watch:
    """The signatures of the paths of a look-up, which runs inside a `with` block."""

    def __init__(self) -> None:
        self.signed: dict[str, tuple[int, int, int, int] | None] = {}
        self._began_ns = time.time_ns()
        self._is_exact = True

    def __enter__(self) -> Watch:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
        latest_ns = max((each[3] for each in self.signed.values() if each), default=0)
        is_settled = latest_ns < self._began_ns - FRESH_NS
        self._is_exact = is_settled and len(self.signed) <= MAX_PATHS

    def holds(self) -> bool:
        """Return whether the same look-up would have the same result now."""
        return self._is_exact and all(map(eq, map(sign, self.signed), self.signed.values()))


_current: ContextVar[Watch | None] = ContextVar("watch", default=None)


def rest_on(*paths: Path) -> None:
    """Add paths to the watch of the running look-up."""
    if (watch := _current.get()) is not None:
        watch.signed |= {path: sign(path) for path in map(str, paths) if path not in watch.signed}
