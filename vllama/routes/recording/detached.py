"""Detached streams: responses that go on without their clients (docs/decisions)."""

from __future__ import annotations

import asyncio
from collections import Counter

from vllama.accounts.keys.ring import KeyRing
from vllama.base.errors import NotFound
from vllama.dialects.events import EndedRow
from vllama.net.http.request import DETACH_HEADER, Request
from vllama.routes.in_use import InUse
from vllama.routes.recording.running import RunningRequest
from vllama.routes.recording.stage import Stage

MAX_BYTES = 64 * 1024 * 1024  # of all streams
MAX_STREAMS = 8  # of a key; while all of them run, its next response ends with its client
STORED_S = 600.0  # from the end of a response
PIECE_BYTES = 64 * 1024


class DetachedStream:
    """One response."""

    def __init__(self, running: RunningRequest) -> None:
        self.key = running.owner, running.id
        self.running: RunningRequest | None = running
        self.row: EndedRow | None = None  # once it has ended
        self.status, self.content_type, self.body, self.is_whole = 0, b"", bytearray(), False
        self.changed = asyncio.Event()  # cleared by each reader before it waits

    async def send(self, request: Request, at: int) -> None:
        """Send what there is from the byte `at` on, and what comes, as a response to `request`."""
        request.watch(self.changed.set)
        try:
            while not request.disconnected:
                if self.status and not request.status:
                    request.start(self.status, self.content_type)
                if part := bytes(self.body[at : at + PIECE_BYTES]):
                    at += len(part)
                    request.write(part)
                    await request.wait_until_drained()
                elif self.running is None:
                    return request.end() if self.is_whole else request.fail()
                else:
                    self.changed.clear()
                    await self.changed.wait()
        finally:
            request.unwatch(self.changed.set)


class DetachedStreams(Stage):
    """The streams of all keys, in memory; of those that have ended the latest comes last."""

    def __init__(self, in_use: InUse, keys: KeyRing) -> None:
        self._in_use, self._keys = in_use, keys
        self._streams: dict[tuple[str, str], DetachedStream] = {}  # by owner and id
        self._sizes = Counter[str]()  # in bytes, by owner

    async def admitted(self, running: RunningRequest) -> None:
        """Detach a request that asks for it, once all of it has come."""
        request, guards = running.request, self._in_use.now.guards
        may_read = self._keys.is_required or (guards.loopback and guards.is_own_origin(request))
        if DETACH_HEADER not in request.headers or running.route.stream is None or not may_read:
            return
        request.put_back(await request.body())
        stream = DetachedStream(running)
        self._drop(self._streams.get(stream.key, stream))  # an earlier one of the same id
        own = self.list_streams(running.owner)
        if len(own) >= MAX_STREAMS:
            first = min(own, key=lambda one: one.running is not None)
            if first.running is not None:
                return
            self._drop(first)
        self._streams[stream.key] = stream
        request.detached = lambda part: self._store(stream, request, part)

    def ended(self, running: RunningRequest, row: EndedRow) -> None:
        """Note the end of a stream, which is then stored for a while."""
        stream = self._streams.get((running.owner, running.id))
        if stream is None or stream.running is not running:
            return
        stream.running, stream.row, stream.is_whole = None, row, running.request.done
        self._streams[stream.key] = self._streams.pop(stream.key)
        stream.changed.set()
        asyncio.get_running_loop().call_later(STORED_S, self._drop, stream)

    def _store(self, stream: DetachedStream, request: Request, part: bytes) -> None:
        """Store a part; where there is no room, the key that has most gives way."""
        if stream.running is None:
            return
        stream.status = stream.status or request.status or 200  # 0 with a sign of life
        stream.content_type = request.content_type
        stream.body += part
        self._sizes[stream.key[0]] += len(part)
        stream.changed.set()
        while self._sizes.total() > MAX_BYTES:
            own = self.list_streams(self._sizes.most_common(1)[0][0])
            self._drop(min(own, key=lambda one: (one.running is not None, -len(one.body))))

    def _drop(self, stream: DetachedStream) -> None:
        """Forget a stream; one that runs is stopped, for nobody could read it."""
        if self._streams.get(stream.key) is not stream:
            return
        del self._streams[stream.key]
        self._sizes[stream.key[0]] -= len(stream.body)
        if stream.running is not None:  # soon: this may happen while it writes
            asyncio.get_running_loop().call_soon(stream.running.end)
            stream.running = None
            stream.changed.set()

    def list_streams(self, owner: str) -> list[DetachedStream]:
        """Return the streams of an owner."""
        return [one for one in self._streams.values() if one.key[0] == owner]

    def find(self, owner: str, id_: str) -> DetachedStream:
        """Return a stream. Raises NotFound, also if it is another owner's."""
        if (stream := self._streams.get((owner, id_))) is None:
            raise NotFound(f"no stream '{id_[:80]}' is stored", hint="list them: GET /api/streams")
        return stream
