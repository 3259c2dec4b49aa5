"""The log of `vllama serve` on stderr, as text or as JSON lines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


def set_up_logging(*, debug: bool, log_format: str) -> None:
    """Send the log to stderr: our own from INFO (DEBUG) on, others' warnings (INFO)."""
    handler = _Stderr()
    handler.setFormatter(_Json() if log_format == "json" else _text_form())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if debug else logging.WARNING)
    logging.getLogger("vllama").setLevel(logging.DEBUG if debug else logging.INFO)


class _Stderr(logging.Handler):
    """Writes to what `sys.stderr` is at that moment: a live display puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
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


def _text_form() -> logging.Formatter:
    return logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
