"""HTTP client of the engines: a pool of connections for each endpoint, and complete answers.

A pool is unbounded, because the scheduler already limits the requests of each engine. Idle
connections are reused last in, first out. All transport failures are `ConnectionLost`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vllama.chat.reply import JSON, CountsReader
from vllama.errors import UpstreamError, VllamaError
from vllama.log_context import trace
from vllama.supervise.spec import Endpoint
from vllama.tracing.current import begin_call
from vllama.upstream.connection import Connection, ConnectionLost, Progress

if TYPE_CHECKING:
    from vllama.chat.request import Call
    from vllama.tracing.request_trace import CallSpan

MAX_ANSWER_BYTES = 256 * 1024 * 1024
CONNECT_LIMIT_S = 5.0


class LoggedCounts(Protocol):
    """A source of token counts other than the engine's answer, such as its log."""

    def begin(self) -> CountsReader:
        """Start counting for a request that is about to be sent."""
        ...


class CrashReports(Protocol):
    """What an engine says about its own death (`routes.crashes`)."""

    def explain(self, error: VllamaError) -> VllamaError:
        """Replace an engine's error by the cause of its crash, if it has crashed."""
        ...

    def begin(self) -> Callable[[], bool]:
        """Note the time before a request is sent; return whether the engine was dead by then."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer."""

    status: int
    body: bytes


class _Collector:
    """The sink of `fetch`: collects the body, then wakes the waiting task."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.parts: list[bytes] = []
        self._size = 0

    def on_head(self, status: int) -> None:
        self.status = status

    def on_data(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES and not self.done.done():
            self.done.set_exception(UpstreamError("cannot use the engine's answer: too large"))
        self.parts.append(data)

    on_last = on_data

    def on_end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def on_lost(self, error: ConnectionLost) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Upstream:
    """The connections to one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.request_id_header: str | None = None  # from the engine's traits
        self.crashes: CrashReports | None = None
        self.counts: LoggedCounts | None = None
        self.tells_counts = True  # in its stream or its log; False once an answer had none
        self._heads: dict[str, bytes] = {}  # the heads of JSON requests, by path
        self.idle: list[Connection] = []
        self.live: set[Connection] = set()
        self.stopping = False

    def lost(self, reason: str, *, unsent: bool) -> ConnectionLost:
        """Return the error of a lost connection; a stop of the server is given as the reason."""
        if self.stopping:
            return ConnectionLost("cannot go on: the server is stopping", unsent=False, hint=None)
        return ConnectionLost(f"cannot go on: {reason}", unsent=unsent)

    async def connect(self) -> Connection:
        """Return an idle connection or a new one. Raises ConnectionLost."""
        while self.idle:
            connection = self.idle.pop()
            if not connection.closed:
                return connection
        loop = asyncio.get_running_loop()
        where = self.endpoint
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(self),
                    where.host,
                    where.port,
                    ssl=True if where.scheme == "https" else None,
                )
        except (OSError, TimeoutError) as error:
            raise ConnectionLost(
                f"cannot reach the engine: {error or 'timed out'}", unsent=True
            ) from error
        return connection

    def begin_call(self, call: Call) -> CallSpan | None:
        """Begin the span of a call; None if the client's request is not traced."""
        where = self.endpoint
        return begin_call(f"{where.url}{call.path}", where.host, where.port)

    def encode(self, call: Call, span: CallSpan | None = None) -> bytes:
        """Return the bytes of a POST, with the id of the client's request that causes it.

        `span` names the trace that the call belongs to.
        """
        head = self._heads.get(call.path) if call.content_type == JSON else self._head(call)
        if head is None:
            head = self._heads[call.path] = self._head(call)
        header = self.request_id_header
        request = trace.get() if header else None
        request_id = f"{header}: {request.next_call()}\r\n".encode("latin-1") if request else b""
        tracing = span.headers if span is not None else b""
        return b"%b%b%bcontent-length: %d\r\n\r\n%b" % (
            *(head, request_id, tracing),
            *(len(call.body), call.body),
        )

    def _head(self, call: Call) -> bytes:
        """Return the part of the head that all such calls share."""
        first = self._first_lines("POST", call.path)
        return first + f"content-type: {call.content_type}\r\n".encode("latin-1")

    def _first_lines(self, method: str, path: str) -> bytes:
        where = self.endpoint
        auth = f"authorization: Bearer {where.api_key}\r\n" if where.api_key else ""
        return (
            f"{method} {where.prefix}{path} HTTP/1.1\r\nhost: {where.host}:{where.port}\r\n{auth}"
        ).encode("latin-1")

    async def fetch(self, call: Call) -> Answer:
        """Send a call and return the complete answer. Raises ConnectionLost, UpstreamError."""
        span = self.begin_call(call)
        if span is None:
            return await self._exchange(self.encode(call))
        with span:
            answer = await self._exchange(self.encode(call, span))
            span.note_answer(answer.status)
            return answer

    async def get(self, path: str) -> Answer:
        """GET a path and return the complete answer. Raises ConnectionLost, UpstreamError."""
        return await self._exchange(self._first_lines("GET", path) + b"\r\n")

    async def _exchange(self, request: bytes) -> Answer:
        connection = await self.connect()
        collector = _Collector()
        try:
            connection.request(request, collector)
            await collector.done
            return Answer(collector.status, b"".join(collector.parts))
        finally:
            connection.release()

    def abort_answers(self, reason: str) -> None:
        """Abort all running answers with an error that gives `reason`."""
        for connection in list(self.live):
            if connection.progress is not None:
                connection.abort_answer(reason)

    def close(self) -> None:
        """Close all idle connections."""
        for connection in list(self.idle):
            connection.abort()
        self.idle.clear()


class Upstreams:
    """The pools of all endpoints. Every restart of an engine has a new endpoint, so pools without
    connections are dropped.
    """

    def __init__(self) -> None:
        self._pools: dict[Endpoint, Upstream] = {}

    def get_pool(self, endpoint: Endpoint) -> Upstream:
        """Return the pool of `endpoint`."""
        pool = self._pools.get(endpoint)
        if pool is None:
            self._drop_unused()
            pool = self._pools[endpoint] = Upstream(endpoint)
        return pool

    def _drop_unused(self) -> None:
        """Drop pools without a connection: their engines may have ended."""
        for endpoint, pool in list(self._pools.items()):
            if not pool.live:
                del self._pools[endpoint]

    def read_progress(self, endpoint: Endpoint) -> dict[int, Progress]:
        """Return the progress of the answers from `endpoint`, by the id of their connections."""
        pool = self._pools.get(endpoint)
        live = ((id(item), item.progress) for item in pool.live) if pool else ()
        return {number: progress for number, progress in live if progress is not None}

    def abort_answers(self, endpoint: Endpoint, reason: str) -> None:
        """Abort all answers from `endpoint` with an error that gives `reason`."""
        if (pool := self._pools.get(endpoint)) is not None:
            pool.abort_answers(reason)

    def mark_stopping(self) -> None:
        """Note that the server stops all engines, so that errors of answers give that reason."""
        for pool in self._pools.values():
            pool.stopping = True

    def close(self) -> None:
        """Close all idle connections."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
