"""The log of `vllama serve`: on stderr as text or as JSON lines, and as JSON lines in a file.

The file is what `vllama logs` reads. Several servers may write to one: each line goes out in one
piece, and whoever finds it full puts it aside.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from vllama import tracing
from vllama.supervise.logs import aside

SHOWN = {"shown": True}
"""`extra` of a record that the terminal has been told already."""
MAX_BYTES = 8 * 1024 * 1024


def set_up_logging(*, debug: bool, log_format: str, file: Path | None = None) -> None:
    """Send the log to stderr, and to `file`, in the folders that it needs."""
    # what no line of ours shows need not be looked up with every request (logging's HOWTO)
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handlers: list[logging.Handler] = [_Stderr()]
    handlers[0].setFormatter(_Json() if log_format == "json" else _Text())
    if file is not None:
        handlers.append(LogFile(file))
    root = logging.getLogger()
    for old in root.handlers:
        if isinstance(old, LogFile):
            old.close()
    root.handlers[:] = handlers
    tracing.set_level(debug=debug)


def entry(record: logging.LogRecord) -> dict[str, object]:
    """Return a record as what a line of JSON holds; what is not known is left out.

    `ts` is UTC in RFC 3339, `exception` a traceback as text.
    """
    fields: dict[str, object] = {
        "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "msg": record.getMessage(),
    }
    if request := tracing.trace.get():
        fields["request_id"] = request.id
    if model := tracing.model.get():
        fields["model"] = model
    if record.exc_info:
        fields["exception"] = logging.Formatter().formatException(record.exc_info)
    return fields


def as_text(fields: dict[str, Any]) -> str:
    """Return what a line of JSON holds as a line for people: the time is a local one."""
    when = datetime.fromisoformat(fields["ts"]).astimezone()
    return _line(
        f"{when:%Y-%m-%d %H:%M:%S},{when.microsecond // 1000:03d}",
        str(fields["level"]).upper(),
        str(fields["logger"]),
        str(fields["msg"]),
        str(fields.get("request_id", "")),
        str(fields.get("exception", "")),
    )


def _line(when: str, level: str, logger: str, text: str, request: str, exception: str) -> str:
    line = f"{when} {level:7} {logger}: {text}"
    if request:
        line += f" [{request}]"
    return f"{line}\n{exception}" if exception else line


class _Stderr(logging.Handler):
    """Writes to what `sys.stderr` is at that moment: a live display puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "shown", False):
            return
        try:
            sys.stderr.write(self.format(record) + "\n")  # is flushed with the line
        except (OSError, ValueError):  # the reader is gone; nothing is left to tell it
            pass


class LogFile(logging.Handler):
    """Appends lines of JSON to a file, which is put aside when it is full.

    A file that cannot be written to is no reason to serve nobody: the lines are lost.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        super().__init__()
        self._path = str(path)  # looked at with every line
        self._aside = aside(path)
        self._max_bytes = max_bytes
        self._file: int | None = None
        self._identity = (0, 0)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        line = _encoded(entry(record)) + b"\n"
        with contextlib.suppress(OSError):
            size = self._size()
            if size is not None and size + len(line) > self._max_bytes:
                self._put_aside()
            os.write(self._opened(), line)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        super().close()

    def _size(self) -> int | None:
        """Return the size of our file; None, and let go of it, if another is in its place now."""
        try:
            found = os.stat(self._path)  # noqa: PTH116
            if (found.st_dev, found.st_ino) == self._identity:
                return found.st_size
        except FileNotFoundError:
            pass
        if self._file is not None:
            os.close(self._file)
            self._file = None
        return None

    def _opened(self) -> int:
        if self._file is None:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)  # noqa: PTH103, PTH120
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600)
            found = os.fstat(self._file)
            self._identity = (found.st_dev, found.st_ino)
        return self._file

    def _put_aside(self) -> None:
        """Move the file away, unless another server has done that a moment ago."""
        fcntl.flock(self._opened(), fcntl.LOCK_EX)  # until it is closed
        if self._size() is not None:
            os.replace(self._path, self._aside)  # noqa: PTH105
            self._size()


def _encoded(fields: dict[str, object]) -> bytes:
    try:
        return msgspec.json.encode(fields)
    except UnicodeEncodeError:  # a file's name that is no text
        return json.dumps(fields).encode()


class _Json(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return _encoded(entry(record)).decode()


class _Text(logging.Formatter):
    """One line for people; the second's text is kept, lines come many a second."""

    def __init__(self) -> None:
        super().__init__()
        self._second, self._shown = -1, ""

    def format(self, record: logging.LogRecord) -> str:
        request = tracing.trace.get()
        return _line(
            self.formatTime(record),
            record.levelname,
            record.name,
            record.getMessage(),
            request.id if request else "",
            self.formatException(record.exc_info) if record.exc_info else "",
        )

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        second = int(record.created)
        if second != self._second:
            self._second = second
            self._shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._shown},{int(record.msecs):03d}"
