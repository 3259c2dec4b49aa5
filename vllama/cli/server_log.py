"""The log of `vllama serve`: on stderr as text or as JSON lines, and as JSON lines in a file.

The file is what `vllama logs` reads. Several servers may write to one file.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import NamedTuple

from vllama.base import journal, log_context, private
from vllama.base.log_lines import name_component, text_line
from vllama.observe.tracing.setup import trace
from vllama.supervise.logs import get_rotated_path

SHOWN = {"shown": True}
"""`extra` of a record that the terminal has shown already."""
MAX_BYTES = 8 * 1024 * 1024
MAX_RECORDS = 1000
DELAY_S = 0.05


def set_up_logging(*, debug: bool, log_format: str, file: Path | None = None) -> None:
    """Send the log to stderr, and to `file`, whose folders are made."""
    # no line of ours shows these, so they need not be found out with every request (logging HOWTO)
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    formatter = JsonFormatter() if log_format == "json" else TextFormatter()
    outlets = [Outlet(formatter, write_stderr, skips_shown=True)]
    if file is not None:
        outlets.append(Outlet(JsonFormatter(), LogFile(file).write))
    root = logging.getLogger()
    for old in root.handlers:
        old.close()
    root.handlers[:] = [BatchHandler(*outlets)]
    log_context.set_level(debug=debug)


class Outlet(NamedTuple):
    """Destination and format of lines; `skips_shown`: without those marked `SHOWN`."""

    formatter: logging.Formatter
    write: Callable[[str], None]
    skips_shown: bool = False

    def write_records(self, records: Iterable[logging.LogRecord]) -> None:
        """Write the lines of records in one piece."""
        lines = [
            f"{self.formatter.format(record)}\n"
            for record in records
            if not (self.skips_shown and getattr(record, "shown", False))
        ]
        if lines:
            self.write("".join(lines))


class BatchHandler(MemoryHandler):
    """Formats and writes records in batches: writing a line costs more than making it.

    In an event loop a record waits for at most `DELAY_S`; from a warning on, and without a loop,
    none waits. What a killed process has not written is lost.
    """

    def __init__(self, *outlets: Outlet) -> None:
        super().__init__(MAX_RECORDS, flushLevel=logging.WARNING)
        self.addFilter(add_context)
        self._outlets = outlets

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record, or write it with those before it."""
        loop = asyncio._get_running_loop()
        if loop is not None and not self.buffer:
            loop.call_later(DELAY_S, self.flush)
        super().emit(record)
        if loop is None:
            self.flush()

    def flush(self) -> None:
        """Write everything that waits, in one piece."""
        self.acquire()
        try:
            records, self.buffer = self.buffer, []
            for outlet in self._outlets:
                outlet.write_records(records)
        finally:
            self.release()


def add_context(record: logging.LogRecord) -> bool:
    """Note for which request and of which model a record is; only its own moment knows that."""
    request = log_context.trace.get()
    record.request_id = request.id if request else ""
    record.model = log_context.model.get()
    if (span := trace.get()) is not None:
        record.trace_id, record.span_id = span.trace_id, span.span_id
    return True


_encode = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` would make one for each line


class JsonFormatter(logging.Formatter):
    """One JSON object a line; what is not known is left out.

    `ts` is UTC in RFC 3339, `port` is that of the server, `exception` a traceback as text. The
    `fields` of a message that is no text stand beside them, under their own names.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "component": name_component(record.name),
            **({"port": log_context.port} if log_context.port else {}),
            "pid": os.getpid(),
            "msg": record.getMessage(),
            **getattr(record.msg, "fields", {}),
        }
        for name in ("request_id", "model", "trace_id", "span_id"):
            if value := getattr(record, name, ""):
                fields[name] = value
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return _encode(fields)


class TextFormatter(logging.Formatter):
    """Lines for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and those of a traceback."""
        return text_line(
            self.formatTime(record),
            record.levelname,
            name_component(record.name),
            record.getMessage(),
            getattr(record, "request_id", ""),
            self.formatException(record.exc_info) if record.exc_info else "",
        )


def write_stderr(text: str) -> None:
    """Write to what `sys.stderr` is at that moment: a live display puts itself in its place."""
    with contextlib.suppress(OSError, ValueError):  # the reader has gone; nobody else can be told
        sys.stderr.write(text)
        sys.stderr.flush()


class LogFile:
    """A log file that several servers append to; whoever finds it full puts it aside.

    It is opened for each batch, of which there are few a second: so there is no file to lose when
    another server puts it aside. One that cannot be written to is no reason to serve nobody: the
    lines are lost.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path, self._max_bytes = path, max_bytes

    def write(self, text: str) -> None:
        """Append lines, all to the same file and in one piece."""
        data = text.encode(errors="backslashreplace")  # which JSON reads as the same character
        with contextlib.suppress(OSError):
            private.make_folder(self._path.parent)
            while not self._append(data):
                pass

    def _append(self, data: bytes) -> bool:
        """Append to the file that is there now; False if it has just been put aside."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        file = os.open(self._path, flags, private.FILE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            ours = os.fstat(file)
            if not self._path.exists() or not os.path.samestat(ours, self._path.stat()):
                return False
            if ours.st_size and ours.st_size + len(data) > self._max_bytes:
                self._path.replace(get_rotated_path(self._path))
                return False
            journal.append(file, data)
        finally:
            os.close(file)
        return True
