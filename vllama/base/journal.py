"""Files of lines that are only appended to: each is whole or not there; a bad one costs itself."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from vllama.base import private

T = TypeVar("T")
log = logging.getLogger("vllama.files")
FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC  # for `append`


def append(descriptor: int, lines: bytes, *, sync: bool = False) -> None:
    """Append lines, all of them or none; `sync`: wait for the disk. Raises OSError.

    A stump, which only a crash leaves, is ended first, so that it spoils no line.
    """
    size_bytes = os.fstat(descriptor).st_size
    if size_bytes and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
        lines = b"\n" + lines
    try:
        rest = memoryview(lines)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if sync:
            os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):  # otherwise the next call ends the stump
            os.ftruncate(descriptor, size_bytes)
        raise


def append_to(path: Path, lines: bytes) -> None:
    """Append lines to a private file, and wait for the disk. Raises OSError."""
    descriptor = os.open(path, FLAGS, private.FILE)
    try:
        append(descriptor, lines, sync=True)
    finally:
        os.close(descriptor)


def read_lines(lines: Iterable[bytes], read: Callable[[bytes], T]) -> tuple[list[T], list[bytes]]:
    """Return the results of `read` for each line, and the lines that it cannot read."""
    found: list[T] = []
    unreadable: list[bytes] = []
    for line in lines:
        try:
            if line := line.removesuffix(b"\n"):
                found.append(read(line))
        except (ValueError, RecursionError):
            unreadable.append(line)
    return found, unreadable


def put_aside(journal: Path, lines: Sequence[bytes], file: Path) -> None:
    """Store lines of a journal that cannot be read in another file, and warn. Raises OSError."""
    append_to(file, b"".join(line + b"\n" for line in lines))
    count = "1 line" if len(lines) == 1 else f"{len(lines)} lines"
    log.warning("cannot read %s of '%s'; moved to '%s'", count, journal, file)
