"""The subscribers of the event stream, and what they are sent.

Every event is encoded once, whoever reads it. A subscriber that does not keep up is sent nothing,
so that nothing is kept for it beyond its socket's buffer: it gets a new snapshot once it has caught
up, and is disconnected if it does not.
"""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec

from vllama.base.errors import ShuttingDown
from vllama.net.http.request import Request
from vllama.routes.events.activity import INTERVAL_S, History
from vllama.routes.events.changes import Changes, Disk, Event

log = logging.getLogger(__name__)

TICK_S = 0.5
STALL_S = 10.0  # a subscriber that has read nothing for so long is disconnected
KEEP_ALIVE_S = 2.0  # a head takes a node that says nothing for lost: `targets.nodes.node`
KEEP_ALIVE = b": keep-alive\n\n"
CONTENT_TYPE = b"text/event-stream"


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
        changes: Changes,
        history: History,
        disk: Disk,
        *,
        tick_s: float = TICK_S,
        stall_s: float = STALL_S,
    ) -> None:
        self._changes = changes
        self._history = history
        self._disk = disk
        self._tick_s = tick_s
        self._stall_s = stall_s
        self._subscribers: set[Subscriber] = set()
        self._snapshots: dict[frozenset[str], bytes] = {}  # of this tick
        self._wanted = asyncio.Event()
        self._number = 0  # of the latest event
        self._closed = False

    @property
    def subscribers(self) -> int:
        """How many clients read the stream."""
        return len(self._subscribers)

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
        """Publish changes and take samples until cancelled."""
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
                if self._disk.is_outdated:
                    await self._disk.look()
                self._send(self._changes.collect())
            except Exception:
                # boundary: a fault in what is shown must not end the server
                log.exception("cannot publish events")

    async def _take_samples(self) -> None:
        while True:
            try:
                await self._history.take(watched=bool(self._subscribers))
                if self._subscribers:
                    await self._disk.look()
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
