"""A folder of captures: written by one server, read by commands, and never larger than agreed.

Files are named `TIME-ID.json`, so that their order is that of the requests. Other files in the
folder are left alone.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from vllama.base import private
from vllama.base.errors import VllamaError
from vllama.base.left_out import read_each
from vllama.observe.captures.format import (
    Capture,
    Summary,
    encode_capture,
    read_capture,
    read_summary,
)

NAME = re.compile(r"\d{8}T\d{9}Z-(?P<id>[0-9a-f]+-\d+)\.json")
MAX_FOLDER_BYTES = 1024**3


def make_name(capture: Summary) -> str:
    """Return the name of a capture's file."""
    stamp = re.sub(r"\D", "", capture.received_at[:23])
    return f"{stamp[:8]}T{stamp[8:]}Z-{capture.id}.json"


def list_files(folder: Path) -> list[Path]:
    """Return the files of captures, the oldest first; none if there is no such folder."""
    try:
        found = (path for path in folder.iterdir() if NAME.fullmatch(path.name))
        return sorted(path for path in found if not path.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def list_summaries(folder: Path, most: int | None = None) -> Iterator[Summary]:
    """Yield captures without their bodies, the newest first; damaged ones are skipped."""
    paths = reversed(list_files(folder))
    found = read_each(paths, lambda path: read_summary(path.read_bytes(), path.name))
    return islice(found, most if most is None else max(0, most))


def find_capture(folder: Path, id_: str) -> Capture | None:
    """Return a capture by its id, else the newest one that has this as the client's own id.

    Raises VllamaError if it cannot be read, ConfigError if it is damaged.
    """
    files = list_files(folder)
    found = next((path for path in files if _get_id(path) == id_), None)
    if found is None:
        same = (one.id for one in list_summaries(folder) if one.request_id == id_)
        wanted = next(same, None)
        found = next((path for path in files if _get_id(path) == wanted), None)
    return open_capture(found) if found is not None else None


def open_capture(path: Path) -> Capture:
    """Read a capture's file. Raises VllamaError, ConfigError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise VllamaError(f"cannot read the capture '{path}': {error.strerror or error}") from None
    return read_capture(content, str(path))


def _get_id(path: Path) -> str:
    named = NAME.fullmatch(path.name)
    return named["id"] if named else ""


class CaptureFolder:
    """The folder that a server writes into. Its methods block, for a thread."""

    def __init__(
        self, folder: Path, *, most: int | None = None, limit_bytes: int = MAX_FOLDER_BYTES
    ) -> None:
        """`folder` is made with the first capture; `most` None: as many as `limit_bytes` hold."""
        self.path = folder
        self._most, self._limit_bytes = most, limit_bytes
        self._files: deque[tuple[Path, int]] | None = None  # with their sizes, the oldest first
        self._refused: set[Path] = set()
        self._size_bytes = 0

    def write(self, capture: Capture) -> None:
        """Write a capture, then remove the oldest ones beyond the limits. Raises OSError.

        Requests that were refused before an engine saw them take at most half of the places.
        """
        private.make_folder(self.path)
        if self._files is None:
            sizes = read_each(list_files(self.path), lambda path: (path, path.stat().st_size))
            self._files = deque(sizes)
            self._size_bytes = sum(size for _, size in self._files)
            if self._most is not None:  # a server that keeps fewer deletes none of an earlier one's
                self._most = max(self._most, len(self._files))
        files = self._files
        path, content = self.path / make_name(capture), encode_capture(capture)
        refused = capture.engine is None and 400 <= capture.answer.status < 500
        if refused and self._most is not None and len(self._refused) >= max(1, self._most // 2):
            self._remove(files, next(one for one in files if one[0] in self._refused))
        self._make_room(files, len(content))
        private.replace(path, content)
        files.append((path, len(content)))
        self._size_bytes += len(content)
        if refused:
            self._refused.add(path)

    def _make_room(self, files: deque[tuple[Path, int]], size_bytes: int) -> None:
        """Remove the oldest captures, so that one more of this size stays within the limits."""
        while files and (
            (self._most is not None and len(files) >= self._most)
            or self._size_bytes + size_bytes > self._limit_bytes
        ):
            self._remove(files, files[0])

    def _remove(self, files: deque[tuple[Path, int]], one: tuple[Path, int]) -> None:
        files.remove(one)
        path, size_bytes = one
        self._size_bytes -= size_bytes
        self._refused.discard(path)
        path.unlink(missing_ok=True)
