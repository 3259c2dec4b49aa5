"""The context of a log line: the request and the model that it belongs to.

Both are context variables of the running task, so that no function has to pass them on. The gateway
sets them for a request, the scheduler for an instance; the log and calls to engines read them.
`Outcome` has the words in which the log, metrics, traces, captures and events say how one ended.
"""

from __future__ import annotations

import itertools
import logging
from contextvars import ContextVar
from typing import Literal

MAX_LENGTH = 128
Outcome = Literal["ok", "error", "aborted", "stopped"]
"""`ok`; `error`, also within a stream whose status was 200; `aborted` by a client that left;
`stopped` by an administrator (`vllama stop --request`, or the page)."""

model: ContextVar[str] = ContextVar("model", default="")
requested: ContextVar[str] = ContextVar("requested", default="")
"""The model as a client named it, which may not be there: for rows, not for labels of metrics."""


class Trace:
    """The identity of a request: `id` for the client, `name` for engines.

    They differ if another running request has the same id, because some engines refuse a second
    request with the same name.
    """

    __slots__ = ("_calls", "id", "name")

    def __init__(self, id_: str, name: str = "") -> None:
        self.id = id_
        self.name = name or id_
        self._calls = itertools.count(1)

    def next_call(self) -> str:
        """Return the id of the next call to an engine; the first has the name of the request."""
        number = next(self._calls)
        return self.name if number == 1 else f"{self.name}-{number}"


trace: ContextVar[Trace | None] = ContextVar("trace", default=None)


def is_usable_id(id_: str) -> bool:
    """Return whether a client's id is safe in logs and headers: short, and one printable word."""
    return 0 < len(id_) <= MAX_LENGTH and id_.isascii() and id_.isprintable() and " " not in id_


port = 0
"""Port of this server, which the start sets: several servers may write to one log."""


def set_level(*, debug: bool) -> None:
    """Log our own lines from level INFO (DEBUG), those of libraries from WARNING (INFO)."""
    logging.getLogger().setLevel(logging.INFO if debug else logging.WARNING)
    logging.getLogger("vllama").setLevel(logging.DEBUG if debug else logging.INFO)
