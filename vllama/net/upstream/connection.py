"""One connection to an engine: an `asyncio.Protocol` that pushes.

`data_received` passes the bytes of one read to a sink in the same callback. A queue would cost a
task switch per token (measured: 19 µs per token here, 105 µs and more with a general HTTP client).
"""

from __future__ import annotations

import asyncio
import math
import select
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import httptools

from vllama.base.errors import EngineCrashed, EngineError, UpstreamError
from vllama.net.http.framing import split_whole_chunks
from vllama.supervise.spec import Endpoint

# The spelling of engines. With any other spelling the parser sees all bytes, which is only slower.
CHUNKED = b"ncoding: chunked\r\n"
MUCH_BYTES = 64 * 1024  # in one read: others have a turn before the next
MAX_OVERHEAD_BYTES = 1024 * 1024
"""Read in a row without a byte of a body: of heads, extensions of chunks, and trailers."""
MAX_ANSWER_BYTES = 128 * 1024 * 1024
"""Of an answer that is not streamed."""
AGAIN = "try again; after a crash the engine is restarted"
AGAIN_ELSEWHERE = "try again later; if it persists, check that server"


class ConnectionLost(EngineCrashed):
    """The connection to the engine failed.

    `unsent`: the engine cannot have started on the request, because it could not be reached or had
    closed an idle connection. Such a request may be sent again without further ado; any other may
    have crashed the engine, so the rules of `routes.inference.lease` hold for it.
    """

    def __init__(self, message: str, *, unsent: bool, hint: str | None = AGAIN) -> None:
        super().__init__(message, hint=hint)
        self.unsent = unsent


class AnswerTooLarge(UpstreamError):
    """A whole answer has more bytes than the server keeps in memory."""

    def __init__(self) -> None:
        super().__init__(
            f"cannot use the engine's response: it is larger than {MAX_ANSWER_BYTES >> 20} MiB",
            hint="use streaming",
        )


class Sink(Protocol):
    """The receiver of one answer; called from the connection's callbacks, so it must not block."""

    @property
    def has_begun(self) -> bool:
        """True once a token has come."""

    @property
    def wants_headers(self) -> bool:
        """True if it is given the headers of every response, and not of failures only."""

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Handle the status and the headers, in lower case."""

    def on_data(self, data: bytes) -> None:
        """Handle all body bytes of one read."""

    def on_last(self, data: bytes) -> None:
        """Handle the body bytes of the read that ends the answer; `on_end` follows."""

    def on_end(self) -> None:
        """Handle the end of a complete answer."""

    def on_lost(self, error: EngineError) -> None:
        """Handle the loss of the connection, or a refusal of the answer, before the end."""


class FastPath(asyncio.Protocol):
    """A protocol that temporarily receives the reads of a connection (`net.fast_path`)."""

    __slots__ = ()

    @property
    def tokens(self) -> int:
        """The number of tokens that it has passed on."""
        raise NotImplementedError

    def settle(self) -> None:
        """Account for everything that it has passed on."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an answer: `mark` changes whenever bytes of it have arrived.

    `begun`: at least its head has. `held`: its client does not read, so reading from the engine is
    paused. `has_tokens`: so far as its sink knows.
    """

    begun: bool
    mark: int
    held: bool = False
    has_tokens: bool = False


class Pool:
    """The connections to one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.idle: list[Connection] = []
        self.live: set[Connection] = set()
        self.stopping = False

    def make_loss(self, reason: str, *, unsent: bool) -> ConnectionLost:
        """Return the error of a lost connection; a stop of the server is given as the reason."""
        if self.stopping:
            return ConnectionLost("cannot continue: server stopping", unsent=False, hint=None)
        return ConnectionLost(f"cannot continue: {reason}", unsent=unsent, hint=self.hint)

    @property
    def hint(self) -> str:
        """The advice after a lost connection."""
        return AGAIN_ELSEWHERE if self.endpoint.is_elsewhere else AGAIN


class Connection(asyncio.Protocol):
    """One keep-alive connection; one answer at a time."""

    __slots__ = (
        "_answered", "_between_chunks", "_complete", "_headers", "_held", "_keep",
        "_overhead_bytes", "_parser", "_parts", "_pool", "_reads", "_reused", "_room_bytes",
        "_sink", "_transport", "_unread", "closed", "fast_path",
    )  # fmt: skip

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.fast_path: FastPath | None = None
        self._headers: dict[str, str] = {}
        self._reads = 0
        self._room_bytes = math.inf  # for the rest of the answer
        self._overhead_bytes = 0
        self._held = False
        self._transport: asyncio.Transport | None = None
        self._unread: select.poll | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._sink: Sink | None = None
        self._parts: list[bytes] = []
        self._between_chunks = False
        self._answered = False
        self._reused = False
        self._complete = False
        self._keep = False
        self.closed = False

    # -- use ----------------------------------------------------------------------------------

    def request(self, data: bytes, sink: Sink, most_bytes: float = math.inf) -> None:
        """Send a request, and pass its answer to `sink`, unless it has more than `most_bytes`."""
        self._sink, self._room_bytes = sink, most_bytes
        self._reads, self._held, self._headers = 0, False, {}
        self._overhead_bytes = 0
        self._reused = self._parser is not None
        self._answered = self._complete = self._keep = self._between_chunks = False
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        assert self._transport is not None
        self._transport.write(data)

    def pause(self) -> None:
        """Stop reading, because the client does not keep up."""
        self._held = True
        if self._transport and not self.closed:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        self._held = False
        if self._transport and not self.closed:
            self._transport.resume_reading()

    @property
    def is_clean(self) -> bool:
        """True while the engine has sent nothing since its last response."""
        if self.closed or self._transport is None:
            return False
        if self._unread is None:
            self._unread = select.poll()
            socket = self._transport.get_extra_info("socket")
            self._unread.register(socket.fileno(), select.POLLIN)
        return not self._unread.poll(0)

    @property
    def mark(self) -> tuple[object, int] | None:
        """A value that each byte of a response changes; None while none is awaited."""
        return None if self._sink is None or self._held else (self._sink, self._count_reads())

    def _count_reads(self) -> int:
        return self._reads + (self.fast_path.tokens if self.fast_path is not None else 0)

    @property
    def progress(self) -> Progress | None:
        """The progress of the present answer; None if there is none."""
        if self._sink is None:
            return None
        return Progress(self._reads > 0, self._count_reads(), self._held, self._sink.has_begun)

    def divert(self, path: FastPath | None) -> None:
        """Let `path` receive the reads of this response from now on; None ends that."""
        if self.fast_path is not None:
            self.fast_path.settle()
        if self._transport and not self.closed:
            self._transport.set_protocol(path or self)
            self.fast_path = path

    def release(self) -> None:
        """Return the connection to the pool, or abort it if the answer is incomplete."""
        self._sink = None
        if self.fast_path is not None:
            self.divert(None)
        if (
            self._complete
            and self._keep
            and self._pool.endpoint.keeps_connections
            and not self.closed
        ):
            self._pool.idle.append(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection at once, which makes the engine stop generating."""
        self._sink = None
        if self._transport and not self.closed:
            self._transport.abort()
        self.closed = True

    # -- asyncio.Protocol ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._pool.live.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse one read and push its body bytes to the sink at once.

        Most reads consist of whole chunks. They are split here and never reach the parser, because
        its callbacks would cost more than all the rest. It is between two chunks before and after,
        so its state remains right.
        """
        sink = self._sink
        if self._complete and sink is not None:
            self._keep = False  # the engine sends more than its answer
            return
        self._reads += 1
        self._room_bytes -= len(data)
        if self._room_bytes < 0 and sink is not None:
            self.abort()
            sink.on_lost(AnswerTooLarge())
            return
        if len(data) > MUCH_BYTES and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)
        if self._between_chunks and sink is not None:
            bodies, rest = split_whole_chunks(data)
            if not rest:
                self._overhead_bytes = 0
                sink.on_data(bodies[0] if len(bodies) == 1 else b"".join(bodies))
                return
            self._parts += bodies
            data = rest
        parser = self._parser
        if parser is None or sink is None:
            self.abort()
            return
        try:
            if not self._answered:
                self._answered = True
                data = self._parse_head(parser, data)
            if data:
                parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._keep = False
            if not self._complete:
                self._lose(f"{self._pool.endpoint.title} sent invalid HTTP ({error})")
                return
        if data and not data.endswith(b"\r\n"):
            self._between_chunks = False  # the read ends within a chunk or its size
        parts = self._parts
        self._overhead_bytes = 0 if parts else self._overhead_bytes + len(data)
        if self._overhead_bytes > MAX_OVERHEAD_BYTES and not self._complete:
            self._lose(f"{self._pool.endpoint.title} sent unexpected data after its response")
            return
        # a call of the sink may abort the connection, which removes the sink
        if parts and self._sink is not None:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            if self._complete:
                self._sink.on_last(body)
            else:
                self._sink.on_data(body)
        if self._complete and self._sink is not None:
            self._sink.on_end()

    def _read_on(self) -> None:
        if self._transport is not None and not (self._held or self.closed):
            self._transport.resume_reading()

    def _parse_head(self, parser: httptools.HttpResponseParser, data: bytes) -> bytes:
        """Parse the head and collect the whole chunks after it; return the remaining bytes."""
        start = data.find(b"\r\n\r\n") + 4
        if start < 4 or data.find(CHUNKED, 0, start) < 0:
            return data
        parser.feed_data(data[:start])
        self._parts, rest = split_whole_chunks(data[start:])
        self._between_chunks = True
        return rest

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss to the sink if its answer is incomplete."""
        self.closed = True
        self._pool.live.discard(self)
        if self in self._pool.idle:
            self._pool.idle.remove(self)
        if not self._complete:
            self._lose(f"the connection to {self._pool.endpoint.title} was lost")

    def abort_answer(self, reason: str) -> None:
        """Abort the present answer: its engine hangs and is about to be stopped, or is gone."""
        self._lose(reason, unsent=False)

    def _lose(self, reason: str, *, unsent: bool | None = None) -> None:
        sink = self._sink
        if unsent is None:
            unsent = self._reused and not self._answered
        self.abort()
        if sink is not None:
            sink.on_lost(self._pool.make_loss(reason, unsent=unsent))

    # -- httptools ----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """End the parsing of a read that goes on after the answer; the rest is dropped."""
        if self._complete:
            raise ValueError

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the headers that the sink wants."""
        if self._parser is None or self._sink is None:
            return
        if self._sink.wants_headers or self._parser.get_status_code() >= 300:
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Pass the status to the sink."""
        if self._parser is not None and self._sink is not None:
            self._sink.on_head(self._parser.get_status_code(), self._headers)

    def on_body(self, body: bytes) -> None:
        """Collect a part of the body."""
        self._parts.append(body)

    def on_chunk_header(self) -> None:
        """Note that a chunk has begun."""
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        """Note that a chunk has ended, including its line feed."""
        self._between_chunks = True

    def on_message_complete(self) -> None:
        """Note the end, and keep-alive, which the parser reports only in this callback."""
        if self._parser is not None and self._parser.get_status_code() >= 200:
            self._complete, self._keep = True, self._parser.should_keep_alive()
