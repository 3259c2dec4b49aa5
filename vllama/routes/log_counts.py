"""Token counts that an engine tells in its log, where the stream of an answer carries none.

The engine prints them before it sends the event with the `finish_reason`, so they are in the log
when that event is here: the log is read then, on the spot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from vllama.chat.engine.events import EngineUsage
from vllama.chat.reply import CountsReader
from vllama.scheduler.instance import Lease
from vllama.scheduler.process import Part
from vllama.supervise.logs import LogRing

log = logging.getLogger(__name__)


def find_logged_counts(lease: Lease) -> LoggedCounts | None:
    """Return the counts in the log of a lease's engine, None if it has none there."""
    read = lease.traits.logged_usage
    part = lease.instance.find_part(lease.endpoint) if read is not None else None
    return LoggedCounts(part, read) if part is not None and read is not None else None


class LoggedCounts:
    """The counts of one engine's answers, which it makes one at a time."""

    def __init__(self, part: Part, read: Callable[[Sequence[str]], EngineUsage | None]) -> None:
        self._part = part
        self._read = read
        self._warned = False

    def begin(self) -> CountsReader:
        """Note how far the log is, before a request is sent; return what reads its counts."""
        ring = self._output()
        start = ring.total if ring is not None else 0
        told: list[EngineUsage | None] = []

        def counts() -> EngineUsage | None:
            if not told:  # read once: later lines are another request's
                now = self._output()
                lines = now.tail(now.total - start) if now is not None and now is ring else ()
                told.append(self._read(lines))
                if told[0] is None and not self._warned:
                    self._warned = True
                    log.warning("cannot count tokens: the engine's log has no counts")
            return told[0]

        return counts

    def _output(self) -> LogRing | None:
        try:
            return self._part.output()
        except OSError as error:
            log.warning("cannot read the engine's log: %s", error)
            return None
