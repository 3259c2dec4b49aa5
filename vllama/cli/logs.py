"""The log of `vllama serve` on stderr, as text or as JSON lines."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime


def set_up_logging(*, debug: bool, log_format: str) -> None:
    """Send the log to stderr: our own from INFO (DEBUG) on, others' warnings (INFO)."""
    # what no line of ours shows need not be looked up with every request (logging's HOWTO)
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = _Stderr()
    handler.setFormatter(_Json() if log_format == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if debug else logging.WARNING)
    logging.getLogger("vllama").setLevel(logging.DEBUG if debug else logging.INFO)


class _Stderr(logging.Handler):
    """Writes to what `sys.stderr` is at that moment: a live display puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")  # is flushed with the line
        except (OSError, ValueError):  # the reader is gone; nothing is left to tell it
            pass


class _Json(logging.Formatter):
    """One object a line: time, level, logger, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class _Text(logging.Formatter):
    """One line for people; the second's text is kept, lines come many a second."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self._second, self._shown = -1, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        second = int(record.created)
        if second != self._second:
            self._second = second
            self._shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._shown},{int(record.msecs):03d}"
