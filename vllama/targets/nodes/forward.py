"""A request sent on to a node as it is, and the node's answer sent back without being read.

The node tells the tokens of an answer in a header or trailer. A stream is passed on event by event,
so that an error, or what another node goes on with, can follow the last whole one; any other answer
is collected first, so that another node can still give it.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from vllama.accounts.keys.key import (
    CLIENT_HEADER,
    FAILURE_HEADER,
    FORWARDED,
    REPLAYS_HEADER,
    SEED_HEADER,
    USAGE_HEADER,
)
from vllama.base.clock import now_ns
from vllama.base.errors import EngineError, ModelNotFound, UpstreamError, VllamaError
from vllama.chat.engine.events import Timings
from vllama.chat.replay import Departed
from vllama.chat.request import Usage
from vllama.net.http.framing import FRAME_WITHIN
from vllama.net.http.request import DETACH_HEADER, ClientGone, Request
from vllama.net.upstream.connection import Connection, FastPath
from vllama.net.upstream.pool import Upstream
from vllama.targets.nodes.sent_events import SentEvents

NOT_PASSED = frozenset({
    b"accept-encoding", b"authorization", b"connection", b"content-length", b"cookie", b"expect",
    b"host", b"keep-alive", b"origin", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    b"x-api-key", b"x-request-id", CLIENT_HEADER, DETACH_HEADER, FORWARDED, SEED_HEADER,
})  # fmt: skip
NOT_RETURNED = frozenset({
    "connection", "content-length", "content-type", "date", "keep-alive", "server",
    "transfer-encoding", "x-request-id", FAILURE_HEADER, REPLAYS_HEADER, USAGE_HEADER,
})  # fmt: skip
STREAMS = {"application/x-ndjson": b"\n", "text/event-stream": b"\n\n"}  # an event's end by type


class NodeRefuses(UpstreamError):
    """A node has answered a request with an error of its own; others it may answer.

    `pass_on` gives the client that answer, where no other node has a better one.
    """

    def __init__(self, title: str, status: int, pass_on: Callable[[], None]) -> None:
        super().__init__(f"cannot use {title}: it returned status {status}", status=status)
        self.pass_on = pass_on


class ForwardTally:
    """Counts of a forwarded response, as `chat.reply.Tally` counts a relayed one."""

    streams = True
    finish_reason = None  # it would have to be looked for in the answer
    timings = Timings()  # as would these

    def __init__(self) -> None:
        self.first_token_ns: int | None = None
        self.last_token_ns = 0
        self.ended = False
        self.lines = 0
        self.told: Usage | None = None  # by the node, at the end

    @property
    def has_begun(self) -> bool:
        """True if the node has begun to answer."""
        return self.first_token_ns is not None or self.told is not None

    @property
    def usage(self) -> Usage:
        """The tokens that the node tells of; as many as were passed on if it has told nothing."""
        return self.told or Usage(completion_tokens=self.lines, estimated=True)


class Forward:
    """One forwarded answer: the sink of its connection."""

    wants_headers = True

    def __init__(self, request: Request, client: str) -> None:
        """`client` is the client's key, as `name_client` names it."""
        self._request = request
        self.seed = secrets.token_hex(12)
        self._own = {CLIENT_HEADER: client, b"x-request-id": request.id, SEED_HEADER: self.seed}
        self._connection: Connection | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self._headers: Mapping[str, str] = {}  # of the answer
        self._last: Mapping[str, str] = {}  # of the node that has answered last; trailers, too
        self.sent = SentEvents()
        self._parts: list[bytes] = []
        self.rest = b""  # an event that has not ended
        self._error: VllamaError | None = None
        self.tally = ForwardTally()

    @property
    def is_waiting(self) -> bool:
        """True while another node makes again what the client has."""
        return bool(self.sent.left)

    def may_resume(self, error: VllamaError) -> bool:
        """Return whether another node may go on with a stream that `error` has ended."""
        is_lost = isinstance(error, EngineError) and not isinstance(error, Departed)
        return is_lost and self.sent.is_complete

    async def run(self, pool: Upstream, body: bytes, *, may_refuse: bool = False) -> None:
        """Send the request and its answer; called again, the rest of a stream that was lost.

        Raises ClientGone, Departed, and what ended the answer. `may_refuse`: another node may
        answer in the place of one that has an error of its own, raised as NodeRefuses then.
        """
        request = self._request
        if request.status:
            self.sent.rewind()
            self._done, self._error = asyncio.get_running_loop().create_future(), None
            self.rest = b""
        connection = self._connection = await pool.connect()
        try:
            request.writes = self
            request.watch(self._leave)
            if not self._done.done():
                connection.request(make_request(pool, request, body, self._own), self, math.inf)
            await self._done
            if self._error is not None:
                raise self._error
            if not self.tally.ended:
                raise ClientGone
            if self.is_waiting:
                raise Departed
            if self.status == 401:  # the client's own key was checked here
                raise EngineError(f"cannot use {pool.endpoint.title}: it rejected the key")
            # 404: it has no model of its list
            if may_refuse and (self.status >= 500 or self.status == ModelNotFound.status):
                raise NodeRefuses(pool.endpoint.title, self.status, self._finish)
            self._finish()
        finally:
            request.writes = None
            request.unwatch(self._leave)
            connection.release()

    @property
    def has_begun(self) -> bool:
        """True if the node has begun to answer."""
        return self.tally.has_begun

    # -- sink ---------------------------------------------------------------------------------

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Store the status and the headers; another node has to give the same answer."""
        self._last = headers
        if self._request.status:
            if status != self.status or headers.get(REPLAYS_HEADER) != self.sent.build:
                self.on_lost(Departed())
            return
        self.status, self._headers = status, dict(headers)
        kind = self._headers.get("content-type", "").partition(";")[0]
        self.sent.end, self.sent.build = STREAMS.get(kind, b""), headers.get(REPLAYS_HEADER)

    def on_data(self, data: bytes) -> None:
        """Write whole events of a stream; collect any other answer."""
        if self._error is not None:
            return
        end = self.sent.end
        if not end:
            self._parts.append(data)
            return
        if self.tally.first_token_ns is None:
            self.tally.first_token_ns = now_ns()
        if self.rest or not data.endswith(end):
            before, found, self.rest = (self.rest + data).rpartition(end)
            data = before + found
        try:
            data = self.sent.take(data)
        except Departed as error:
            self.on_lost(error)
            return
        if not data:
            return
        self.note(data)
        request = self._request
        if not request.status:
            self._start()
        request.write(data)
        if request.paused:
            self.pause()
        connection = self._connection
        if connection is not None and connection.fast_path is None:
            write = request.get_chunk_writer()
            if write is not None:
                connection.divert(_Passage(connection, self, write))

    on_last = on_data

    def note(self, events: bytes) -> None:
        """Take note of events that are passed on."""
        self.tally.last_token_ns = now_ns()
        self.tally.lines += 1
        self.sent.add(events)

    def on_end(self) -> None:
        """Make `run` end the response."""
        self.tally.ended = True
        with suppress(KeyError, msgspec.MsgspecError):  # an older node
            self.tally.told = msgspec.json.decode(self._last[USAGE_HEADER], type=Usage)
        self._wake()

    def on_lost(self, error: EngineError) -> None:
        """Make `run` raise the error."""
        self._error = error
        self._wake()

    def pause(self) -> None:
        """Pause reading, because the client does not keep up."""
        if self._connection:
            self._connection.pause()

    def resume(self) -> None:
        """Read again."""
        if self._connection:
            self._connection.resume()

    def end(self, error: VllamaError) -> bool:
        """End the answer with `error`, for an operator."""
        self._error = error
        self._wake()
        return True

    def _leave(self) -> None:
        if self._connection:
            self._connection.abort()
        self._wake()

    def _wake(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    # -- the answer ---------------------------------------------------------------------------

    def _start(self, length: int | None = None) -> None:
        given = {name: text for name, text in self._headers.items() if name not in NOT_RETURNED}
        kind = self._headers.get("content-type", "application/json").encode("latin-1")
        self._request.start(self.status, kind, length, given)

    def _finish(self) -> None:
        request = self._request
        if self.sent.end:
            if not request.status:
                self._start()
            if FAILURE_HEADER in self._last:
                request.failure = UpstreamError(self._last[FAILURE_HEADER])
            request.end(self.rest)
            return
        body = b"".join(self._parts)
        self._start(len(body))
        request.end(body)

    # -- what is counted ----------------------------------------------------------------------

    @property
    def tokens(self) -> int:
        """The tokens of the answer, of a stream that goes on about as many as its reads."""
        return self.tally.usage.completion_tokens

    @property
    def span_ns(self) -> int:
        """Time from the first part of a stream to the last."""
        tally = self.tally
        return tally.last_token_ns - (tally.first_token_ns or 0) if tally.lines else 0


class _Passage(FastPath):
    """Copies a read that is one chunk with whole events; all else goes to the connection."""

    __slots__ = ("_connection", "_forward", "_write")

    def __init__(
        self, connection: Connection, forward: Forward, write: Callable[[bytes], None]
    ) -> None:
        self._connection, self._forward, self._write = connection, forward, write

    @property
    def tokens(self) -> int:
        """The reads so far, by this path or not."""
        return self._forward.tokens

    def data_received(self, data: bytes) -> None:
        """Pass a chunk on as it is."""
        frame = FRAME_WITHIN[len(data)]
        is_whole = data.endswith(self._forward.sent.end + b"\r\n") and data.startswith(frame)
        if is_whole and not self._forward.rest:
            self._forward.note(data[len(frame) : -2])
            self._write(data)
        else:
            self._connection.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss to the connection."""
        self._connection.connection_lost(exc)


def make_request(pool: Upstream, request: Request, body: bytes, own: Mapping[bytes, str]) -> bytes:
    """Return the bytes of a request to a node: the client's, with `own` headers and the key."""
    target = request.path + (f"?{request.query.decode('latin-1')}" if request.query else "")
    lines = [pool.make_head(request.method, target)]
    lines += [
        b"%b: %b\r\n" % (name, value)
        for name, value in request.headers.items()
        if name not in NOT_PASSED
    ]
    lines += [b"%b: %b\r\n" % (x, y.encode("latin-1", "replace")) for x, y in own.items() if y]
    lines.append(b"content-length: %d\r\n\r\n%b" % (len(body), body))
    return b"".join(lines)
