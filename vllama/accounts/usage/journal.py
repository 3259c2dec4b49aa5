"""The journal of a running server: one line for each request, written before its answer ends.

A line costs the event loop one `write` into the page cache of the kernel, which outlives a process
that is killed. The database gets the lines in batches; how many bytes of a journal it has is part
of the same transaction, so no line is ever counted twice or lost.

A server locks its journal. Another server that can lock it knows that its owner has ended.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vllama.base import private

SUFFIX = ".journal"


class Journal:
    """A file that is only appended to. All methods raise OSError."""

    def __init__(self, path: Path) -> None:
        """Create the file, and lock it until `close`."""
        self.path = path
        new = path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(new, flags, private.FILE)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        new.rename(path)  # only now, since one that is not locked seems to be abandoned
        self.size_bytes = 0
        self._is_cut = False

    def append(self, line: bytes) -> None:
        """Add a line."""
        if self._is_cut:
            line = b"\n" + line
        written = os.write(self._fd, line)
        self.size_bytes += written
        self._is_cut = written < len(line)
        if self._is_cut:
            raise OSError(f"only {written} of {len(line)} bytes could be written")

    def close(self) -> None:
        """Close the file, and remove it."""
        self.path.unlink(missing_ok=True)
        os.close(self._fd)


@contextmanager
def take_over(path: Path) -> Iterator[bytes | None]:
    """Return the content of an abandoned journal; it is removed unless the context raises.

    None for a journal whose server runs, or that another server has just taken over.
    """
    try:
        file = private.open_file(path)
    except FileNotFoundError:
        yield None
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield file.read() if path.exists() else None
        path.unlink(missing_ok=True)
