"""HTTP client of the engines: a pool of connections for each endpoint, and complete answers.

A pool is unbounded, because the scheduler already limits the requests of each engine. Idle
connections are reused last in, first out. All transport failures are `ConnectionLost`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vllama.accounts.keys.key import FORWARDED
from vllama.base.errors import EngineError, UpstreamError, VllamaError, describe_connection_error
from vllama.base.log_context import trace
from vllama.chat.filters import CallSource
from vllama.chat.request import Call
from vllama.chat.writer import JSON
from vllama.net.upstream.connection import (
    MAX_ANSWER_BYTES,
    Connection,
    ConnectionLost,
    Pool,
    Progress,
)
from vllama.observe.tracing import setup
from vllama.supervise.probe import reach
from vllama.supervise.spec import Endpoint

if TYPE_CHECKING:
    from vllama.observe.tracing.request_trace import CallSpan

CONNECT_LIMIT_S = 5.0


class CrashReports(Protocol):
    """An engine's words about its own death (`routes.inference.engine_log`)."""

    def explain(self, error: VllamaError) -> VllamaError:
        """Replace an engine's error by the cause of its crash, if it has crashed."""

    def begin(self) -> Callable[[], bool]:
        """Note the time before a request is sent; return whether the engine was dead by then."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer; its headers only if it is a failure."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class _Collector:
    """The sink of `fetch`: collects the body, then wakes the waiting task.

    It has enough of a stream after `most_events`.
    """

    has_begun = False  # it knows no tokens
    wants_headers = False

    def __init__(self, most_events: float) -> None:
        self._events_left = most_events
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.parts: list[bytes] = []

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers

    def on_data(self, data: bytes) -> None:
        self.parts.append(data)
        self._events_left -= data.count(b"data:")
        if self._events_left < 0:
            self.on_end()

    on_last = on_data

    def on_end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def on_lost(self, error: EngineError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Upstream(Pool):
    """The client of one endpoint, with what is known of the engine there."""

    def __init__(
        self,
        endpoint: Endpoint,
        call_sources: dict[str, CallSource] | None = None,
        most_answer_bytes: float = MAX_ANSWER_BYTES,
    ) -> None:
        """`call_sources` are those of its models, which outlive the pool.

        Whole answers have `most_answer_bytes` at most, streams any number.
        """
        super().__init__(endpoint)
        self.call_sources = {} if call_sources is None else call_sources
        self.most_answer_bytes = most_answer_bytes
        self.request_id_header: str | None = None  # from the engine's traits
        self.crashes: CrashReports | None = None
        self.grammars: Any = None  # of `routes.inference.engine_log`
        self.adapters: dict[Path, str] = {}  # those that the engine has loaded, by its names
        self.tells_counts = True  # False once an answer had none
        self.prompt_tokens_per_s: float | None = None  # the slowest so far
        self._heads: dict[str, bytes] = {}  # the heads of JSON requests, by path
        self.users = 0  # requests that have or will have an answer from it
        self.check: asyncio.Task[None] | None = None  # whether it still works for nobody

    async def connect(self) -> Connection:
        """Return an idle connection or a new one. Raises ConnectionLost."""
        while self.idle:
            connection = self.idle.pop()
            if connection.is_clean:
                return connection
            connection.abort()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                is_unix = self.endpoint.socket
                make = loop.create_unix_connection if is_unix else loop.create_connection
                _, connection = await reach(self.endpoint, partial(make, lambda: Connection(self)))
        except (OSError, TimeoutError) as error:
            text = f"cannot reach {self.endpoint.title}: {describe_connection_error(error)}"
            raise ConnectionLost(text, unsent=True, hint=self.hint) from error
        return connection

    def hide_key(self, text: bytes) -> bytes:
        """Return the server's words about a failure, without the key that it was sent."""
        key = self.endpoint.api_key
        return text.replace(key.encode(), b"***") if key else text

    def begin_call(self, call: Call) -> CallSpan | None:
        """Begin the span of a call; None if the client's request is not traced."""
        if (traced := setup.trace.get()) is None:
            return None
        where = self.endpoint
        return traced.begin_call(f"{where.url}{call.path}", where.host, where.port)

    def encode(self, call: Call, span: CallSpan | None = None) -> bytes:
        """Return the bytes of a POST, with the id of the client's request that causes it.

        `span` names the trace that the call belongs to. Raises BadRequest, see `Call.encode`.
        """
        head = self._heads.get(call.path) if call.content_type == JSON else self._head(call)
        if head is None:
            head = self._heads[call.path] = self._head(call)
        header = self.request_id_header
        request = trace.get() if header else None
        request_id = f"{header}: {request.next_call()}\r\n".encode("latin-1") if request else b""
        tracing = span.headers if span is not None else b""
        body = call.encode()
        parts = (head, request_id, tracing, len(body), body)
        return b"%b%b%bcontent-length: %d\r\n\r\n%b" % parts

    def _head(self, call: Call) -> bytes:
        """Return the part of the head that all such calls share."""
        first = self.make_head("POST", call.path)
        return first + f"content-type: {call.content_type}\r\n".encode("latin-1")

    def make_head(self, method: str, path: str) -> bytes:
        """Return the first lines of a request, with the key; headers and an empty line follow."""
        where = self.endpoint
        more = f"authorization: Bearer {where.api_key}\r\n" if where.api_key else ""
        if where.is_node:
            more += f"{FORWARDED.decode()}: 1\r\n"
        return (
            f"{method} {where.prefix}{path} HTTP/1.1\r\nhost: {where.host}:{where.port}\r\n{more}"
        ).encode("latin-1")

    async def fetch(
        self, call: Call, *, most_events: float = math.inf, limit_s: float | None = None
    ) -> Answer:
        """Send a call and return the complete answer, or that of a stream up to `most_events`.

        Raises ConnectionLost, UpstreamError; with status 504 after `limit_s`.
        """
        with self.begin_call(call) or nullcontext() as span:
            try:
                async with asyncio.timeout(limit_s):
                    answer = await self._exchange(self.encode(call, span), most_events)
            except TimeoutError:
                raise UpstreamError(f"no response within {limit_s:g} s", status=504) from None
            if span is not None:
                span.note_answer(answer.status)
            return answer

    async def get(self, path: str) -> Answer:
        """GET a path and return the complete answer. Raises ConnectionLost, UpstreamError."""
        return await self._exchange(self.make_head("GET", path) + b"\r\n")

    async def _exchange(self, request: bytes, most_events: float = math.inf) -> Answer:
        connection = await self.connect()
        collector = _Collector(most_events)
        try:
            connection.request(request, collector, self.most_answer_bytes)
            await collector.done
            body = b"".join(collector.parts)
            if collector.status >= 400:
                body = self.hide_key(body)
            return Answer(collector.status, body, collector.headers)
        finally:
            connection.release()

    def abort_answers(self, reason: str, numbers: Collection[int] | None = None) -> None:
        """Abort the running answers of these connections, or all, with an error that says why."""
        for connection in list(self.live):
            chosen = numbers is None or id(connection) in numbers
            if chosen and connection.progress is not None:
                connection.abort_answer(reason)

    def close(self) -> None:
        """Close all idle connections."""
        for connection in list(self.idle):
            connection.abort()
        self.idle.clear()


class AnswerWatch:
    """Tells which of the answers that were running when it was made have sent nothing since."""

    def __init__(self, connections: Iterable[Connection]) -> None:
        self._marks = {each: each.mark for each in connections if each.mark is not None}

    def list_silent(self) -> list[Connection]:
        """Return the connections without a byte since; not those whose clients do not read."""
        return [each for each, mark in self._marks.items() if each.mark == mark]

    def end_silent(self, reason: str) -> None:
        """End their answers with an error that gives `reason`."""
        for connection in self.list_silent():
            connection.abort_answer(reason)


class Upstreams:
    """The pools of all endpoints. Every restart of an engine has a new endpoint, so pools without
    connections and users are dropped.

    An endpoint that is used has one pool: nobody would watch or end the answers of a second one.
    """

    def __init__(self) -> None:
        self._pools: dict[Endpoint, Upstream] = {}
        self._call_sources: dict[str, dict[str, CallSource]] = {}  # by the endpoint's URL

    @contextmanager
    def use_pool(self, endpoint: Endpoint) -> Iterator[Upstream]:
        """Yield the pool of `endpoint`, which is kept meanwhile."""
        pool = self.hold(endpoint)
        try:
            yield pool
        finally:
            pool.users -= 1

    def hold(self, endpoint: Endpoint) -> Upstream:
        """Return the pool of `endpoint` with one more user; the caller lowers `users` when done."""
        pool = self._pools.get(endpoint)
        if pool is None:
            self._drop_unused()
            sources = self._call_sources.setdefault(endpoint.url, {})
            pool = self._pools[endpoint] = Upstream(endpoint, sources)
        pool.users += 1
        return pool

    def _drop_unused(self) -> None:
        """Drop pools that nobody uses and that have no connection: their engines may have ended."""
        for endpoint, pool in list(self._pools.items()):
            if not (pool.users or pool.live):
                del self._pools[endpoint]

    def read_progress(self, endpoint: Endpoint) -> dict[int, Progress]:
        """Return the progress of the answers from `endpoint`, by the id of their connections."""
        pool = self._pools.get(endpoint)
        live = ((id(item), item.progress) for item in pool.live) if pool else ()
        return {number: progress for number, progress in live if progress is not None}

    def watch_answers(self, url: str) -> AnswerWatch:
        """Return a watch over all running answers from the server at `url`."""
        pools = (pool for pool in self._pools.values() if pool.endpoint.url == url)
        return AnswerWatch(connection for pool in pools for connection in pool.live)

    def abort_answers(
        self, endpoint: Endpoint, reason: str, numbers: Collection[int] | None = None
    ) -> None:
        """Abort answers from `endpoint` with an error that gives `reason`; None: all of them.

        `numbers` are those of `read_progress`.
        """
        if (pool := self._pools.get(endpoint)) is not None:
            pool.abort_answers(reason, numbers)

    def mark_stopping(self) -> None:
        """Note that the server stops all engines, so that errors of answers give that reason."""
        for pool in self._pools.values():
            pool.stopping = True

    def close(self) -> None:
        """Close all idle connections."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
