"""The downloads that are under way: several clients join one, and everybody can see how far it is.

A download ends with the last client that waits for it, as with Ollama, unless one of them has asked
for it to go on in the background. Only some run at once, and fewer of one registry, so that one
that is slow leaves room for others; the rest wait for their turn.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from vllama.base import executors
from vllama.base.errors import Cancelled, VllamaError
from vllama.base.units import rfc3339_local
from vllama.dialects.events import PullRow
from vllama.models.names.ref import ModelRef
from vllama.models.types import Bundle, Progress, PullEvent
from vllama.observe.metrics.server_metrics import Metrics

log = logging.getLogger(__name__)

MAX_ENDED = 10
WAITING = "waiting for other downloads"
END_LIMIT_S = 2.0
"""For the thread of a canceled download; one that a silent server holds is left to its limits."""

Download = Callable[[Progress, threading.Event], Bundle]
"""Downloads a model in a thread, until its event is set."""


class Pull:
    """One download; it belongs to the loop, while a thread does the work."""

    def __init__(
        self, ref: ModelRef, download: Download, metrics: Metrics, on_end: Callable[[Pull], None]
    ) -> None:
        """Start it, or have it wait; `on_end` is called at its end. Raises QueueFull."""
        self.name = ref.display
        self._metrics = metrics
        self.background = False
        self.cancelled = False
        self._status = "pulling manifest"
        self._error: str | None = None
        self._ended_s: float | None = None
        self._files: dict[str, PullEvent] = {}
        self._told: dict[str, PullEvent] = {}  # the newest of each status, for clients that join
        self._followers: set[asyncio.Queue[PullEvent | None]] = set()
        self._cancel = threading.Event()
        self._on_end = on_end
        self._loop = loop = asyncio.get_running_loop()

        def report(event: PullEvent) -> None:
            loop.call_soon_threadsafe(self._take, event)

        work = partial(download, report, self._cancel)
        self._job = executors.downloads.start(work, group=ref.host or "")
        self._job.result.add_done_callback(self._end)
        if self._job.waits:
            self._take(PullEvent(status=WAITING))

    async def follow(self, tell: Callable[[PullEvent], Awaitable[None]]) -> Bundle:
        """Await `tell` for what has been reported so far and for each further step.

        Return the model. Raises what the download raises. A download that nobody follows any more,
        and that is not in the background, is stopped and waited for.
        """
        queue: asyncio.Queue[PullEvent | None] = asyncio.Queue()
        for told in self._told.values():
            queue.put_nowait(told)
        if self._job.result.done():
            queue.put_nowait(None)
        self._followers.add(queue)
        try:
            while (event := await queue.get()) is not None:
                await tell(event)
            return self._job.result.result()
        finally:
            self._followers.discard(queue)
            if not self._followers and not self.background:
                self.cancel()
                await asyncio.wait({self._job.result})

    def cancel(self) -> None:
        """Stop it, unless it has ended; what has been downloaded is kept for the next time."""
        if self._job.result.done():
            return
        self.cancelled = True
        self._cancel.set()
        if executors.downloads.withdraw(self._job):
            self._give_up()
        else:
            self._loop.call_later(END_LIMIT_S, self._give_up)

    def _give_up(self) -> None:
        if not self._job.result.done():
            self._job.result.set_exception(Cancelled("cannot continue: canceled"))

    def describe(self) -> PullRow:
        """Return its row."""
        files = self._files.values()
        return PullRow(
            name=self.name,
            status=self._status,
            completed=sum(file.completed_bytes or 0 for file in files),
            total=sum(file.total_bytes or 0 for file in files),
            error=self._error,
            ended_at=rfc3339_local(self._ended_s) if self._ended_s else None,
        )

    def _take(self, event: PullEvent) -> None:
        self._status = event.status
        self._told.pop(WAITING, None)
        self._told[event.status] = event
        if event.digest:
            before = self._files.get(event.digest)
            if before is not None:  # else it says what an earlier download has left
                more = (event.completed_bytes or 0) - (before.completed_bytes or 0)
                self._metrics.download_bytes.add((), max(0, more))
            self._files[event.digest] = event
        for queue in self._followers:
            queue.put_nowait(event)

    def _end(self, task: asyncio.Future[Bundle]) -> None:
        self._ended_s = time.time()
        # to look at it also keeps asyncio from reporting an error that nobody has waited for
        error = None if task.cancelled() else task.exception()
        if self.cancelled:
            self._status = "cancelled"
        elif error is not None:
            self._status = "failed"
            self._error = "internal error; check the server's log"
            if isinstance(error, VllamaError):
                self._error = error.sentence()
            elif not self._followers:
                log.error("pull of %r: unexpected error", self.name, exc_info=error)
        outcome = "cancelled" if self.cancelled else "ok" if error is None else "error"
        self._metrics.downloads.add((outcome,))
        for queue in self._followers:
            queue.put_nowait(None)
        self._on_end(self)


class Pulls:
    """All downloads that are under way, and the last that have ended."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._running: dict[tuple[str, bool], Pull] = {}
        self._ended: deque[Pull] = deque(maxlen=MAX_ENDED)

    def join(self, name: str, download: Download, *, insecure: bool = False) -> Pull:
        """Return the download of `name` that is under way; else start `download`.

        Raises InvalidModelRef, QueueFull.
        """
        ref = ModelRef.parse(name)
        key = (ref.display, insecure)
        pull = self._running.get(key)
        if pull is None or pull.cancelled:

            def forget(ended: Pull) -> None:
                if self._running.get(key) is ended:
                    del self._running[key]
                self._ended.append(ended)

            pull = self._running[key] = Pull(ref, download, self._metrics, forget)
        return pull

    def cancel_all(self) -> None:
        """Stop all of them, those in the background too."""
        for pull in self._running.values():
            pull.cancel()

    def find(self, name: str) -> Pull | None:
        """Return the download of `name` that is under way. Raises InvalidModelRef."""
        shown = ModelRef.parse(name).display
        return next((pull for (key, _), pull in self._running.items() if key == shown), None)

    def list_rows(self) -> list[PullRow]:
        """Return the rows of all, those that go on last; a name occurs once."""
        rows = [pull.describe() for pull in (*self._ended, *self._running.values())]
        return list({row.name: row for row in rows}.values())
