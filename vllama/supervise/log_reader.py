"""Reads the logs on disk: whose there are, their last lines, and what is being added.

Knows no process: works with the server up or down. Safe beside a writer who puts a full log aside
(`logs.rotate`, and the server's own log by renaming): a new file aside says that it holds all that
the log held before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from vllama.supervise.logs import (
    LINE_LIMIT_BYTES,
    NAME_FILE,
    LineSplitter,
    aside,
    list_attempts,
    slug,
)

READ_BYTES = 256 * 1024
_REPLICA = re.compile(r"-\d+$")


class Logbook:
    """The logs of the engines in one folder."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir

    def names(self) -> list[str]:
        """Return the names of all models that have logs."""
        return sorted(
            read for path in self._log_dir.glob(f"*/{NAME_FILE}") if (read := _read(path))
        )

    def find(self, *wanted: str) -> list[str]:
        """Return the names that the first of `wanted` which has logs means, in any case.

        More than one: the replicas of a model (`NAME-1`, `NAME-2`), of which it is the name.
        """
        known = self.names()
        for one in wanted:
            same = [name for name in known if name.lower() == one.lower()]
            members = [
                name
                for name in known
                if _REPLICA.search(name) and _REPLICA.sub("", name).lower() == one.lower()
            ]
            if same or members:
                return same or members
        return []

    def attempts(self, name: str) -> list[Path]:
        """Return the logs of all attempts to run a model that are kept, the oldest first."""
        return list_attempts(self._log_dir / slug(name))


class Reader:
    """Reads one log, from its beginning, and goes on where it stopped."""

    def __init__(self, path: Path, *, line_bytes: int = LINE_LIMIT_BYTES) -> None:
        self.path = path
        self._splitter = LineSplitter(line_bytes)
        self._aside = _state(aside(path))
        self._offset = 0

    def everything(self) -> Iterator[str]:
        """Yield the lines that there are now, those put aside first."""
        self._aside = _state(aside(self.path))
        if self._aside:
            yield from self._lines(aside(self.path), 0)
        yield from self.more()

    def more(self) -> Iterator[str]:
        """Yield the lines that have come since."""
        now = _state(aside(self.path))
        if now != self._aside and now is not None:
            self._aside = now
            yield from self._lines(aside(self.path), self._offset)
            self._offset = 0
        yield from self._lines(self.path, self._offset)

    def rest(self) -> list[str]:
        """Return the last line, if it did not end: for a log to which nothing is added any more."""
        return self._splitter.flush()

    def _lines(self, path: Path, offset: int) -> Iterator[str]:
        try:
            with path.open("rb") as file:
                file.seek(offset)
                while data := file.read(READ_BYTES):
                    offset += len(data)
                    if path == self.path:
                        self._offset = offset
                    yield from self._splitter.feed(data)
        except FileNotFoundError:  # between two names, or pruned
            return


def _state(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
