"""HTTP client of the engines: a pool of connections for each, and whole answers.

The pool is unbounded; idle connections are reused last in, first out. All transport failures are
`ConnectionLost`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from vllama.chat.reply import JSON, CountsReader
from vllama.errors import UpstreamError, VllamaError
from vllama.log_context import trace
from vllama.supervise.spec import Endpoint
from vllama.upstream.connection import Connection, ConnectionLost, Progress

if TYPE_CHECKING:
    from vllama.chat.request import Call

Explain: TypeAlias = Callable[[VllamaError], VllamaError]
"""Turns an error of an engine into that of its crash, if it is one."""

MAX_ANSWER_BYTES = 256 * 1024 * 1024
CONNECT_LIMIT_S = 5.0


class LoggedCounts(Protocol):
    """Token counts that are read elsewhere than in the engine's answer."""

    def begin(self) -> CountsReader:
        """Begin to count for a request that is about to be sent."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    body: bytes


class _Collector:
    """Sink of `fetch`: keeps the body, wakes one waiter."""

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
        self.request_id_header: str | None = None  # as its engine's traits say
        self.explain: Explain | None = None  # see `routes.crashes`
        self.counts: LoggedCounts | None = None
        self.tells_counts = True  # in its stream or its log, as far as is known
        self._heads: dict[str, bytes] = {}  # of JSON, by path
        self.idle: list[Connection] = []
        self.live: set[Connection] = set()
        self.stopping = False

    def lost(self, reason: str, *, unsent: bool) -> ConnectionLost:
        """Return the error of a lost connection; when we are stopping, that is the reason."""
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

    def encode(self, call: Call) -> bytes:
        """Return the bytes of a POST, with the id of the request that it is made for."""
        head = self._heads.get(call.path) if call.content_type == JSON else self._head(call)
        if head is None:
            head = self._heads[call.path] = self._head(call)
        header = self.request_id_header
        asked = trace.get() if header else None
        identity = f"{header}: {asked.next_call()}\r\n".encode("latin-1") if asked else b""
        return b"%b%bcontent-length: %d\r\n\r\n%b" % (head, identity, len(call.body), call.body)

    def _head(self, call: Call) -> bytes:
        """Return what the heads of such calls begin with."""
        where = self.endpoint
        auth = f"authorization: Bearer {where.api_key}\r\n" if where.api_key else ""
        return (
            f"POST {where.prefix}{call.path} HTTP/1.1\r\nhost: {where.host}:{where.port}\r\n"
            f"{auth}content-type: {call.content_type}\r\n"
        ).encode("latin-1")

    async def fetch(self, call: Call) -> Answer:
        """Send a call and return the whole answer. Raises ConnectionLost, UpstreamError."""
        connection = await self.connect()
        collector = _Collector()
        try:
            connection.request(self.encode(call), collector)
            await collector.done
            return Answer(collector.status, b"".join(collector.parts))
        finally:
            connection.release()

    def cut(self, reason: str) -> None:
        """End all answers, for the reason given."""
        for connection in list(self.live):
            if connection.progress is not None:
                connection.cut(reason)

    def close(self) -> None:
        """Cut all idle connections."""
        for connection in list(self.idle):
            connection.abort()
        self.idle.clear()


class Upstreams:
    """The pools of all endpoints; an endpoint that is not used any more is dropped."""

    def __init__(self) -> None:
        self._pools: dict[Endpoint, Upstream] = {}

    def to(self, endpoint: Endpoint) -> Upstream:
        """Return the pool of `endpoint`."""
        pool = self._pools.get(endpoint)
        if pool is None:
            self.forget_closed()
            pool = self._pools[endpoint] = Upstream(endpoint)
        return pool

    def forget_closed(self) -> None:
        """Drop pools without a live connection: their engines may have gone."""
        for endpoint, pool in list(self._pools.items()):
            if not pool.live:
                del self._pools[endpoint]

    def traffic(self, endpoint: Endpoint) -> dict[int, Progress]:
        """Return how far the answers from `endpoint` are, by a number that stays theirs."""
        pool = self._pools.get(endpoint)
        live = ((id(item), item.progress) for item in pool.live) if pool else ()
        return {number: progress for number, progress in live if progress is not None}

    def cut(self, endpoint: Endpoint, reason: str) -> None:
        """End all answers from `endpoint`, for the reason given."""
        if (pool := self._pools.get(endpoint)) is not None:
            pool.cut(reason)

    def stopping(self) -> None:
        """Note that engines are about to be stopped, for the errors of those still answering."""
        for pool in self._pools.values():
            pool.stopping = True

    def close(self) -> None:
        """Cut everything that is idle."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
