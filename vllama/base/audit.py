"""The audit log: a JSON line for each administrative act, in a file that is only appended to."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeAlias

from vllama.base import journal, private
from vllama.base.units import rfc3339_local

FILE_NAME, OWNER = "audit.jsonl", "owner"
log = logging.getLogger(__name__)
actor: ContextVar[str] = ContextVar("actor", default="")
"""The name of the request's key, or `OWNER` in a server; "" in a command."""


Row: TypeAlias = Mapping[str, Any] | None


def record(data_dir: Path, act: str, subject: str, old: Row = None, new: Row = None) -> None:
    """Append an act, with the values that differ; if that fails, log it as an error."""
    import psutil  # few commands act

    before, after = old or {}, new or {}
    line = {
        "time": rfc3339_local(time.time()),
        "who": actor.get() or f"command as {psutil.Process().username()}",
        "act": act,
        "subject": subject,
        "before": {name: value for name, value in before.items() if after.get(name) != value},
        "after": {name: value for name, value in after.items() if before.get(name) != value},
    }
    text = json.dumps(line, default=str)
    values = json.dumps([line["before"], line["after"]], default=str)[1:-1]
    log.info("audit: %s: %s %s: %s", line["who"], act, subject, values)
    try:
        private.make_folder(data_dir)
        with private.lock_folder(data_dir):
            journal.append_to(data_dir / FILE_NAME, f"{text}\n".encode())
    except OSError as error:
        log.error("cannot write the audit log: %s; it is without: %s", error, text)
