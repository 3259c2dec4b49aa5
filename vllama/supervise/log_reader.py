"""Reads logs from disk: lists them, reads them, and follows them.

Works whether or not the server runs. A writer may rotate a log while it is read (`logs.rotate`, and
the server's own log by renaming): a new rotated file contains everything that was in the log
before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from vllama.supervise.logs import (
    LINE_LIMIT_BYTES,
    NAME_FILE,
    LineSplitter,
    get_rotated_path,
    list_attempts,
    slug,
)

READ_BYTES = 256 * 1024
_REPLICA = re.compile(r"-\d+$")


class Logbook:
    """The logs of the engines in one folder."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir

    def list_names(self) -> list[str]:
        """Return the names of all models that have logs."""
        return sorted(
            read for path in self._log_dir.glob(f"*/{NAME_FILE}") if (read := _read(path))
        )

    def find(self, *wanted: str) -> list[str]:
        """Return the names of the logs of the first of `wanted` that has any, ignoring case.

        A model with replicas has several (`NAME-1`, `NAME-2`).
        """
        known = self.list_names()
        for wanted_name in wanted:
            same = [name for name in known if name.lower() == wanted_name.lower()]
            replicas = [
                name
                for name in known
                if _REPLICA.search(name) and _REPLICA.sub("", name).lower() == wanted_name.lower()
            ]
            if same or replicas:
                return same or replicas
        return []

    def list_attempts(self, name: str) -> list[Path]:
        """Return the logs of all attempts to run a model, the oldest first."""
        return list_attempts(self._log_dir / slug(name))


class Reader:
    """Reads one log from its beginning, and continues where it stopped."""

    def __init__(self, path: Path, *, line_bytes: int = LINE_LIMIT_BYTES) -> None:
        self.path = path
        self._splitter = LineSplitter(line_bytes)
        self._rotated = _identify(get_rotated_path(path))
        self._offset = 0

    def read_all(self) -> Iterator[str]:
        """Yield all lines, those of the rotated file first."""
        self._rotated = _identify(get_rotated_path(self.path))
        if self._rotated:
            yield from self._read_lines(get_rotated_path(self.path), 0)
        yield from self.read_new()

    def read_new(self) -> Iterator[str]:
        """Yield the lines that have been added since the last call."""
        now = _identify(get_rotated_path(self.path))
        if now != self._rotated and now is not None:
            self._rotated = now
            yield from self._read_lines(get_rotated_path(self.path), self._offset)
            self._offset = 0
        yield from self._read_lines(self.path, self._offset)

    def flush(self) -> list[str]:
        """Return the last line even if it has no line feed, for a log that is complete."""
        return self._splitter.flush()

    def _read_lines(self, path: Path, offset: int) -> Iterator[str]:
        try:
            with path.open("rb") as file:
                file.seek(offset)
                while data := file.read(READ_BYTES):
                    offset += len(data)
                    if path == self.path:
                        self._offset = offset
                    yield from self._splitter.feed(data)
        except FileNotFoundError:  # being renamed, or pruned
            return


def _identify(path: Path) -> tuple[int, int] | None:
    """Return values that differ for another file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
