"""The event stream: what has changed, the subscribers, and what they are sent.

Every event is encoded once, whoever reads it. A subscriber that does not keep up is sent nothing,
so that nothing is kept for it beyond its socket's buffer: it gets a new snapshot once it has caught
up, and is disconnected if it does not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec

from vllama import __version__
from vllama.base.errors import ShuttingDown
from vllama.dialects.events import (
    ChangedLibrary,
    ChangedModels,
    ChangedPulls,
    ChangedRequests,
    EventData,
    ModelRow,
    PullRow,
    RequestRow,
    Snapshot,
)
from vllama.machine.detect import read_cpu_use
from vllama.net.http.request import Request
from vllama.routes.catalog import Catalog
from vllama.routes.events.activity import HOUR_S, INTERVAL_S, Activity, History
from vllama.routes.events.rows import add_conversations, make_rows
from vllama.routes.pulls import Pulls
from vllama.routes.recording.running import RunningRequests
from vllama.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from vllama.scheduler.slot_cache.cache import SlotCache

log = logging.getLogger(__name__)

TICK_S = 0.5
STALL_S = 10.0  # a subscriber that has read nothing for so long is disconnected
KEEP_ALIVE_S = 2.0  # a head takes a node that says nothing for lost: `targets.nodes.node`
KEEP_ALIVE = b": keep-alive\n\n"
CONTENT_TYPE = b"text/event-stream"

Row = TypeVar("Row")
Event = tuple[str, str, EventData]
"""The topic, name and data of an event."""

TOPICS = ("models", "requests", "pulls", "samples", "marks")
"""What can be subscribed to: the lists of a snapshot."""


@dataclass(slots=True, eq=False)
class RowChanges:
    """Changes since the last call: rows are compared, so nobody has to report changes."""

    _scheduler: Scheduler
    _running: RunningRequests
    _activity: Activity
    _pulls: Pulls
    _history: History
    _catalog: Catalog
    _slot_cache: SlotCache | None
    _models: Mapping[str, ModelRow] = field(default_factory=dict)
    _requests: Mapping[str, RequestRow] = field(default_factory=dict)
    # requests in the snapshots since the last call
    _shown: set[str] = field(default_factory=set)
    _pulled: Mapping[str, PullRow] = field(default_factory=dict)
    _ended: int = 0
    _marked: int = 0
    _sampled: int = 0
    _listed: int = 0

    def make_snapshot(self, topics: frozenset[str]) -> Snapshot:
        """Return everything about `topics`."""
        now_s = time.time()
        marks = self._scheduler.marks
        requests = self._list_requests() if "requests" in topics else None
        self._shown.update(requests or ())
        return Snapshot(
            time=round(now_s, 3),
            version=__version__,
            models=list(self._list_models().values()) if "models" in topics else None,
            requests=None if requests is None else list(requests.values()),
            ended=None if requests is None else self._activity.list_ended(),
            pulls=self._pulls.list_rows() if "pulls" in topics else None,
            samples=self._history.list_samples() if "samples" in topics else None,
            marks=marks.list_since(now_s - HOUR_S) if "marks" in topics else None,
        )

    def collect(self) -> list[Event]:
        """Return the events since the last call."""
        found: list[Event] = []
        models, requests = self._list_models(), self._list_requests()
        pulled = {row.name: row for row in self._pulls.list_rows()}
        rows, gone = _compare(self._models, models)
        if rows or gone:
            found.append(("models", "models", ChangedModels(models=rows, gone=gone)))
        if self._listed != self._catalog.lists:
            count = len(self._catalog.listed)
            found.append(("models", "library", ChangedLibrary(count=count)))
        new, _ = _compare(self._requests, requests)
        left = sorted((self._requests.keys() | self._shown) - requests.keys())
        ended = self._activity.list_after(self._ended)
        if new or ended or left:
            changed = ChangedRequests(requests=new, ended=ended, gone=left)
            found.append(("requests", "requests", changed))
        if moved := _compare(self._pulled, pulled)[0]:
            found.append(("pulls", "pulls", ChangedPulls(pulls=moved)))
        for mark in self._scheduler.marks.list_after(self._marked):
            found.append(("marks", "mark", mark))
        for sample in self._history.list_after(self._sampled):
            found.append(("samples", "sample", sample))
        self._models, self._requests, self._pulled = models, requests, pulled
        self._shown.clear()
        self._ended, self._marked = self._activity.count, self._scheduler.marks.count
        self._sampled, self._listed = self._history.count, self._catalog.lists
        return found

    def _list_models(self) -> dict[str, ModelRow]:
        rows = make_rows(self._scheduler.list_models(), self._scheduler.list_failures())
        add_conversations(rows.values(), self._slot_cache)
        return rows

    def _list_requests(self) -> dict[str, RequestRow]:
        rows = self._running.list_rows(self._scheduler.list_queue_places())
        return {row.id: row for row in rows}


def _compare(before: Mapping[str, Row], now: Mapping[str, Row]) -> tuple[list[Row], list[str]]:
    """Return the rows that are new or changed, and the keys of those that are gone."""
    rows = [row for key, row in now.items() if before.get(key) != row]
    return rows, [key for key in before if key not in now]


class Subscriber:
    """A client that reads the stream; `ended` is set when it has left or was disconnected."""

    def __init__(self, request: Request, topics: frozenset[str]) -> None:
        self.request = request
        self.topics = topics
        self.ended = asyncio.Event()
        self.written_s = time.monotonic()
        self.stalled_s: float | None = None  # since when it does not keep up

    def write(self, data: bytes) -> None:
        """Write to its socket."""
        self.written_s = time.monotonic()
        self.request.write(self.request.mask(data))

    def end(self, *, stalled: bool = False) -> None:
        """End its stream; a client that does not read could not be sent the end."""
        if stalled:
            self.request.fail()
        else:
            self.request.end()
        self.ended.set()


class Hub:
    """Sends what changes to all subscribers, as long as `run` runs."""

    def __init__(
        self,
        changes: RowChanges,
        history: History,
        catalog: Catalog,
        *,
        tick_s: float = TICK_S,
        stall_s: float = STALL_S,
    ) -> None:
        self._changes = changes
        self.history = history
        self._catalog = catalog
        self._tick_s = tick_s
        self._stall_s = stall_s
        self._subscribers: set[Subscriber] = set()
        self._snapshots: dict[frozenset[str], bytes] = {}  # of this tick
        self._wanted = asyncio.Event()
        self._number = 0  # of the latest event
        self._closed = False

    def subscribe(self, request: Request, topics: frozenset[str]) -> Subscriber:
        """Begin the answer to `request` with a snapshot. Raises ShuttingDown."""
        if self._closed:
            raise ShuttingDown("cannot stream events: the server is stopping")
        if not self._subscribers:
            self._changes.collect()  # the snapshot tells all that came before
            self._snapshots.clear()
        subscriber = Subscriber(request, topics)
        request.endless = True
        request.start(200, CONTENT_TYPE)
        subscriber.write(self._encode_snapshot(topics))
        self._subscribers.add(subscriber)
        self._wanted.set()
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Forget a subscriber; a second call does nothing."""
        self._subscribers.discard(subscriber)

    def close(self) -> None:
        """End all streams, and begin no others."""
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.end()

    async def run(self) -> None:
        """Publish changes and take samples until canceled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publish(), name="events")
            group.create_task(self._take_samples(), name="samples")

    async def _publish(self) -> None:
        while True:
            if not self._subscribers:
                self._wanted.clear()
                await self._wanted.wait()
            await asyncio.sleep(self._tick_s)
            try:
                if self._catalog.is_outdated:
                    await self._catalog.look()
                self._send(self._changes.collect())
            except Exception:
                # boundary: a fault in what is shown must not end the server
                log.exception("cannot publish events")

    async def _take_samples(self) -> None:
        read_cpu_use()  # it tells what was in use since the call before, of this thread
        while True:
            try:
                await self.history.take(watched=bool(self._subscribers))
                if self._subscribers:
                    await self._catalog.look()
            except Exception:
                # boundary: as above
                log.exception("cannot take a sample")
            await asyncio.sleep(INTERVAL_S)

    def _send(self, events: list[Event]) -> None:
        """Send `events` to all who keep up."""
        self._snapshots.clear()
        encoded = [(topic, self._encode(name, data)) for topic, name, data in events]
        by_topics: dict[frozenset[str], bytes] = {}
        now_s = time.monotonic()
        for subscriber in tuple(self._subscribers):
            topics = subscriber.topics
            if subscriber.request.paused:
                subscriber.stalled_s = subscriber.stalled_s or now_s
                if now_s - subscriber.stalled_s >= self._stall_s:
                    subscriber.end(stalled=True)
                    self.unsubscribe(subscriber)
                continue
            if subscriber.stalled_s is not None:
                subscriber.stalled_s = None
                subscriber.write(self._encode_snapshot(topics))
                continue
            if topics not in by_topics:
                by_topics[topics] = b"".join(part for topic, part in encoded if topic in topics)
            if by_topics[topics]:
                subscriber.write(by_topics[topics])
            elif now_s - subscriber.written_s >= KEEP_ALIVE_S:
                subscriber.write(KEEP_ALIVE)

    def _encode_snapshot(self, topics: frozenset[str]) -> bytes:
        if topics not in self._snapshots:
            snapshot = self._changes.make_snapshot(topics)
            self._snapshots[topics] = self._encode("snapshot", snapshot)
        return self._snapshots[topics]

    def _encode(self, name: str, data: object) -> bytes:
        self._number += 1
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (
            self._number,
            name.encode(),
            msgspec.json.encode(data),
        )
