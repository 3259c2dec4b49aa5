"""The log of `vllama serve`: on stderr as text or as JSON lines, and as JSON lines in a file.

The file is what `vllama logs` reads. Several servers may write to one: each line goes out in one
piece, and whoever finds it full puts it aside.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from vllama import log_context, private
from vllama.supervise.logs import aside

SHOWN = {"shown": True}
"""`extra` of a record that the terminal has been told already."""
MAX_BYTES = 8 * 1024 * 1024
DELAY_S = 0.05
MAX_LINES = 1000


def set_up_logging(*, debug: bool, log_format: str, file: Path | None = None) -> None:
    """Send the log to stderr, and to `file`, in the folders that it needs."""
    # what no line of ours shows need not be looked up with every request (logging's HOWTO)
    logging._srcfile = None
    logging.setLogRecordFactory(Record)
    writers: list[Writer] = [Stderr(as_json if log_format == "json" else Text().line)]
    if file is not None:
        writers.append(LogFile(file))
    root = logging.getLogger()
    for old in root.handlers:
        old.close()
    root.handlers[:] = [Log(writers)]
    log_context.set_level(debug=debug)


_NOT_LOOKED_UP = dict.fromkeys(
    (
        "pathname", "filename", "module", "funcName", "processName", "threadName", "taskName",
        "exc_text", "stack_info",
    )
) | dict.fromkeys(("lineno", "process", "thread", "relativeCreated"), 0)  # fmt: skip


class Record(logging.LogRecord):
    """A record of what is said and when, not of the place in the code; made with every request."""

    def __init__(
        self,
        name: str,
        level: int,
        pathname: str,
        lineno: int,
        msg: object,
        args: Any,
        exc_info: Any,
        func: str | None = None,
        sinfo: str | None = None,
        **others: Any,
    ) -> None:
        """As the base class does, which looks up the rest."""
        self.__dict__.update(_NOT_LOOKED_UP)
        self.name, self.msg, self.exc_info = name, msg, exc_info
        # a mapping alone stands for names in the message
        self.args = args[0] if len(args) == 1 and isinstance(args[0], dict) else args
        self.levelno, self.levelname = level, logging.getLevelName(level)
        self.created = time.time()
        self.msecs = self.created % 1 * 1000


class Line:
    """One record, with what only its own moment knows. `created_s`: Unix time."""

    __slots__ = ("created_s", "exception", "level", "logger", "model", "request", "shown", "text")

    def __init__(self, record: logging.LogRecord) -> None:
        request = log_context.trace.get()
        self.created_s = record.created
        self.level = record.levelname
        self.logger = record.name
        self.text = record.getMessage()
        self.request = request.id if request else ""
        self.model = log_context.model.get()
        self.shown: bool = getattr(record, "shown", False)
        failed = record.exc_info
        self.exception = logging.Formatter().formatException(failed) if failed else ""


class Writer(Protocol):
    """Where lines go."""

    def write(self, lines: Sequence[Line]) -> None:
        """Write them, in one go. Nothing that goes wrong with that may be raised."""
        ...

    def close(self) -> None:
        """Write no more."""
        ...


class Log(logging.Handler):
    """Writes what an event loop logs in batches: writing a request's line costs more than its text.

    At most `DELAY_S` later, at once from a warning on, and outside of a loop. What a killed process
    has not written is lost.
    """

    def __init__(self, writers: Sequence[Writer]) -> None:
        super().__init__()
        self._writers = writers
        self._lines: list[Line] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record, or write it with those before it."""
        self._lines.append(Line(record))
        loop = asyncio._get_running_loop()
        if loop is None or record.levelno >= logging.WARNING or len(self._lines) >= MAX_LINES:
            self.flush()
        elif len(self._lines) == 1:
            loop.call_later(DELAY_S, self.flush)

    def flush(self) -> None:
        """Write everything."""
        self.acquire()
        try:
            lines, self._lines = self._lines, []
            if lines:
                for writer in self._writers:
                    writer.write(lines)
        finally:
            self.release()

    def close(self) -> None:
        """Write the rest, then no more."""
        self.flush()
        for writer in self._writers:
            writer.close()
        super().close()


def as_json(line: Line) -> str:
    """Return a line of JSON; what is not known is left out.

    `ts` is UTC in RFC 3339, `exception` a traceback as text.
    """
    fields: dict[str, object] = {
        "ts": datetime.fromtimestamp(line.created_s, UTC).isoformat(timespec="microseconds"),
        "level": line.level.lower(),
        "logger": line.logger,
        "msg": line.text,
    }
    if line.request:
        fields["request_id"] = line.request
    if line.model:
        fields["model"] = line.model
    if line.exception:
        fields["exception"] = line.exception
    try:
        return msgspec.json.encode(fields).decode()
    except UnicodeEncodeError:  # a file's name that is no text
        return json.dumps(fields)


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
    line = f"{when} {level:7} {logger}: {_printable(text)}"
    if request:
        line += f" [{request}]"
    return "\n".join((line, *map(_printable, exception.splitlines())))


def _printable(text: str) -> str:
    """Escape what would forge a line or steer a terminal: anybody may ask for any path."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


class Stderr:
    """Writes to what `sys.stderr` is at that moment: a live display puts itself in its place."""

    def __init__(self, form: Callable[[Line], str]) -> None:
        self._form = form

    def write(self, lines: Sequence[Line]) -> None:
        """Write what the terminal has not been told already."""
        text = "".join(f"{self._form(line)}\n" for line in lines if not line.shown)
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):  # the reader is gone; nothing is left to tell it
            pass

    def close(self) -> None:
        """Leave it open: it is not ours."""


class LogFile:
    """Appends lines of JSON to a file, which is put aside when it is full.

    A file that cannot be written to is no reason to serve nobody: the lines are lost.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = str(path)  # looked at with every batch
        self._aside = aside(path)
        self._max_bytes = max_bytes
        self._file: int | None = None
        self._identity = (0, 0)

    def write(self, lines: Sequence[Line]) -> None:
        """Write lines, all to the same file."""
        data = "".join(f"{as_json(line)}\n" for line in lines).encode()
        with contextlib.suppress(OSError):
            size = self._size()
            if size is not None and size + len(data) > self._max_bytes:
                self._put_aside()
            os.write(self._opened(), data)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

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
            private.make_folder(Path(self._path).parent)
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


class Text:
    """Lines for people; the second's text is kept, lines come many a second."""

    def __init__(self) -> None:
        self._second, self._shown = -1, ""

    def line(self, line: Line) -> str:
        """Return one."""
        second = int(line.created_s)
        if second != self._second:
            self._second = second
            self._shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        when = f"{self._shown},{int(line.created_s % 1 * 1000):03d}"
        return _line(when, line.level, line.logger, line.text, line.request, line.exception)
