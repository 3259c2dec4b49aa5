"""An engine's output: log files on disk, and the latest lines in memory.

The engine itself appends to its log file (O_APPEND), so that this program can never block it. The
size of the file is limited by copying it and truncating it in place. Knows no process.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path

from vllama.base import private

OWN_LOG = "vllama.log"
"""The name of vllama's own log, in the folder with the logs of engines."""
NAME_FILE = "name"
RING_LINES = 2000
LINE_LIMIT_BYTES = 4096
_READ_BYTES = 256 * 1024
_BACKLOG_BYTES = 4 * 1024 * 1024

_BREAK = re.compile(rb"[\r\n]+")
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_ERROR = re.compile(r"Error|Exception")


def slug(name: str) -> str:
    """Return a file name for `name`: readable, unique for each name, and not `OWN_LOG`."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80]
    if plain and plain == name and not plain.startswith(OWN_LOG):
        return plain
    return f"{plain or 'x'}-{zlib.crc32(name.encode()):08x}"


def open_log(log_dir: Path, name: str, *, now_s: float, keep: int = 5) -> Path:
    """Create the log of one attempt, prune all but the newest `keep` logs, and return its path.

    The path is `<log_dir>/<slug>/<UTC time>-<number>.log`; the numbers continue from one load of a
    model to the next. The file `name` in the same folder contains the name. Raises OSError.
    """
    folder = log_dir / slug(name)
    private.make_folder(folder)
    with private.create(folder / NAME_FILE) as file:
        file.write(name.encode())
    before = list_attempts(folder)
    number = read_number(before[-1]) + 1 if before else 1
    started = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    path = folder / f"{started}-{number:04d}.log"
    path.touch(mode=0o600)
    for old in before[: max(0, len(before) + 1 - keep)]:
        old.unlink(missing_ok=True)
        get_rotated_path(old).unlink(missing_ok=True)
    return path


def list_attempts(folder: Path) -> list[Path]:
    """Return the logs of all attempts in a folder, the oldest first."""
    return sorted(folder.glob("*-*.log"), key=lambda path: (read_number(path), path.name))


def read_number(path: Path) -> int:
    """Return the number of the attempt from the name of its log; 0 for any other file."""
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def get_rotated_path(path: Path) -> Path:
    """Return the path of the older part of a log, which exists if the log became too long."""
    return path.with_name(path.name + ".1")


class LineSplitter:
    r"""Splits bytes into lines at \n and \r; pure.

    Drops blank lines and terminal escapes, cuts long lines, and replaces undecodable bytes.
    """

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._rest = b""
        self._limit_bytes = limit_bytes

    @property
    def partial(self) -> str:
        """The last line, which has not ended yet."""
        return _clean_line(self._rest, self._limit_bytes)

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes."""
        *whole, self._rest = _BREAK.split(self._rest + data)
        if len(self._rest) > self._limit_bytes:
            self._rest = self._rest[: self._limit_bytes + 1]  # too long already
        return [text for line in whole if (text := _clean_line(line, self._limit_bytes))]

    def flush(self) -> list[str]:
        """Return the last line, even without a line feed."""
        return self.feed(b"\n")


def _clean_line(line: bytes, limit_bytes: int) -> str:
    text = line[:limit_bytes].decode("utf-8", "replace")
    text = _ESCAPES.sub("", text).rstrip()
    return f"{text} …" if len(line) > limit_bytes else text


class LogRing:
    """The latest lines of one attempt, and the first that names an error or exception."""

    def __init__(self, limit: int = RING_LINES) -> None:
        self._lines: deque[str] = deque(maxlen=limit)
        self.first_error: str | None = None
        self.total = 0
        self.on_line: Callable[[str], object] | None = None

    def append(self, line: str) -> None:
        """Add a line, and drop the oldest if the ring is full."""
        self._lines.append(line)
        self.total += 1
        if self.first_error is None and _ERROR.search(line):
            self.first_error = line
        if self.on_line is not None:
            self.on_line(line)

    def tail(self, n: int) -> tuple[str, ...]:
        """Return the last `n` lines, oldest first."""
        return tuple(self._lines)[-n:] if n > 0 else ()


class Tailer:
    """Fills a ring from a growing file, whose size it polls every `interval_s`."""

    def __init__(
        self,
        path: Path,
        ring: LogRing,
        *,
        max_bytes: int = 8 * 1024 * 1024,
        interval_s: float = 0.1,
        on_line: Callable[[str], object] | None = None,
    ) -> None:
        self.path = path
        self.ring = ring
        self.interval_s = interval_s
        self.read_bytes = 0
        self._max_bytes = max_bytes
        self._on_line = on_line
        self._splitter = LineSplitter()
        self._offset = 0
        self._reported = ""

    def newest(self) -> str:
        """Return the latest line, even if it has not ended (a progress bar)."""
        return self._splitter.partial or next(iter(self.ring.tail(1)), "")

    async def run(self) -> None:
        """Read until canceled; the owner then calls `finish`."""
        while True:
            more = self.read()
            if self._offset > self._max_bytes:
                self._rotate()
            await asyncio.sleep(0 if more else self.interval_s)

    def read(self) -> bool:
        """Read the appended bytes up to a limit; return whether there may be more."""
        size = _get_size(self.path)
        if size < self._offset:  # the file was truncated
            self._offset = 0
        if size - self._offset > _BACKLOG_BYTES:  # too much to read: skip to the end
            self.read_bytes += size - _READ_BYTES - self._offset
            self._offset = size - _READ_BYTES
        return self._read_up_to(self.path, size)

    def finish(self) -> None:
        """Read the rest, including a last line without a line feed."""
        while self.read():
            pass
        for line in self._splitter.flush():
            self.ring.append(line)

    def slow_down(self, interval_s: float) -> None:
        """Poll the file every `interval_s` from now on, and report no more lines."""
        self.interval_s = interval_s
        self._on_line = None

    def _rotate(self) -> None:
        copied = rotate(self.path)
        while self._read_up_to(
            get_rotated_path(self.path), copied
        ):  # the bytes since the last read
            pass
        self._offset = 0

    def _read_up_to(self, path: Path, end: int) -> bool:
        wanted = min(end - self._offset, _READ_BYTES)
        if wanted <= 0:
            return False
        with path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(wanted)
        self._offset += len(data)
        self.read_bytes += len(data)
        for line in self._splitter.feed(data):
            self.ring.append(line)
        newest = self.newest()
        if self._on_line is not None and newest and newest != self._reported:
            self._reported = newest
            self._on_line(newest)
        return len(data) == _READ_BYTES


def rotate(path: Path) -> int:
    """Copy the log and truncate it in place; return how many bytes were copied.

    Output between the last read and the truncation, in a few microseconds, is lost. The copy is
    renamed last, so that a reader who sees a new copy knows that it is complete.
    """
    copied = 0
    copy = path.with_name(path.name + ".new")
    with path.open("rb") as source, private.create(copy) as target:
        while data := source.read(_READ_BYTES):
            copied += target.write(data)
        os.truncate(path, 0)
    copy.replace(get_rotated_path(path))
    return copied


def _get_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
