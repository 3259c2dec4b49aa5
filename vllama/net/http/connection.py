"""The connection of a client: HTTP/1.1, from bytes to requests that are answered one by one.

The parser is httptools (llhttp). This module adds what else RFC 9112 requires of a server:
persistent connections (section 9.3), pipelining (section 9.3.2), limits, and an orderly close.
docs/decisions/0017 says why no other HTTP server stands between vllama and the socket.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from vllama.net.http.budget import GRANTED_BYTES, RETRY_AFTER_S, Budget, BuffersFull
from vllama.net.http.content_encoding import MAX_BODY_BYTES
from vllama.net.http.heads import (
    MAX_HEADERS,
    NO_HTTP,
    NO_PATH,
    NO_ROOM,
    SINGLE,
    TOO_LARGE,
    TOO_SLOW,
    Head,
    Refusal,
    find_refusal,
    read_target,
)
from vllama.net.http.listener import Certificate
from vllama.net.http.request import Request

MAX_HEAD_BYTES = 1024 * 1024  # the limit of Go's net/http
LINGER_S = 0.5  # time for a client to read why it is refused, as in Go's net/http
LINGER_BYTES = 8 * 1024 * 1024  # that a client may send meanwhile
_WITHOUT_BODY = ("GET", "HEAD")
_FRAMING = frozenset((b"content-length", b"transfer-encoding"))


class Acceptor(Protocol):
    """The part of a `server.Server` that its connections use."""

    budget: Budget
    certificate: Certificate | None
    draining: bool
    clients: dict[ClientConnection, None]

    def admit(self, client: ClientConnection) -> None: ...
    def run(self, request: Request) -> None: ...
    def is_running(self, request: Request) -> bool: ...
    def note_refusal(self, refusal: Refusal, host: str) -> None: ...
    def date(self) -> bytes: ...


class ClientConnection(asyncio.Protocol):
    """The connection of one client."""

    __slots__ = (
        "_body_bytes", "_body_follows", "_body_parts", "_closing", "_headers",
        "_held_bytes", "_ignoring", "_in_head", "_mark", "_overhead_bytes", "_owner", "_parser",
        "_received_bytes", "_receiving", "_refusal", "_requests", "_resuming", "_server",
        "_stopped", "_transport", "_twice", "_url", "host", "in_request_head", "paused",
        "quiet_since_s", "write",
    )  # fmt: skip

    def __init__(self, server: Acceptor) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._requests: deque[Request] = deque()  # the first one is being answered
        self._receiving: Request | None = None  # the request whose body has not ended
        self._closing = False
        self._ignoring = False  # no further request is accepted, and all input is dropped
        self._refusal: Refusal | None = None  # to be sent after the answers to earlier requests
        self._stopped = False  # reading has stopped, because enough is buffered
        self._in_head = True
        self._body_follows = False  # although the parser has ended the request: see `_resume`
        self._resuming = False
        self._overhead_bytes = 0  # read since the last end of a head or byte of a body
        self._received_bytes = self._body_bytes = 0  # ever, and of bodies that are still held
        self._held_bytes, self._owner = 0, ""  # its part of the budget, and the key it counts for
        self._mark = (0, 0)
        self._url = b""
        self._twice = False  # a header of `SINGLE` has occurred twice
        self._headers: dict[bytes, bytes] = {}
        self._body_parts: list[bytes] = []  # of the present read
        self.in_request_head = False  # a request has begun, and its head has not ended
        self.paused = False
        self.quiet_since_s = time.monotonic()  # or the time of the last byte of a body

    @property
    def quiet(self) -> bool:
        """True while no request is being received or answered."""
        return not self._requests

    @property
    def starved(self) -> bool:
        """True while it waits for the rest of a body that the client does not send."""
        return self._receiving is not None and not self._stopped

    @property
    def finished(self) -> bool:
        """True once all responses are sent and only the peer's close is awaited."""
        return self._closing and not self._transport.get_write_buffer_size()

    @property
    def persists(self) -> bool:
        """True if the response that begins now may promise that another request is accepted."""
        return not self._server.draining or len(self._requests) > 1

    # -- the answers --------------------------------------------------------------------------

    def date(self) -> bytes:
        """Return the Date line of a head."""
        return self._server.date()

    def resume_reading(self) -> None:
        """Read again, because the buffered bytes have been consumed."""
        if self._stopped and not self._closing and len(self._requests) < 2:
            self._stopped = False
            self.quiet_since_s = time.monotonic()
            self._transport.resume_reading()

    def on_answered(self, request: Request) -> None:
        """Start the next request after the end of an answer, or wait for one, or close."""
        if self._requests and self._requests[0] is request:
            self._requests.popleft()
        if self.paused:
            self.count()
        if not request.keep_alive:
            if self._receiving is request:
                self._linger(MAX_BODY_BYTES)
            else:
                self.close()
            return
        if self._requests:
            self._start_next()
        elif self._refusal is not None:
            self._write_refusal(self._refusal)
            return
        else:
            self.quiet_since_s = time.monotonic()
        self.resume_reading()

    def _start_next(self) -> None:
        """Start the first request once the client has taken the answers before it."""
        if not self.paused:
            self._server.run(self._requests[0])

    def close(self) -> None:
        """Close after all written bytes have been sent."""
        if not self._closing:
            self._closing = True
            self._transport.close()

    def close_if_idle(self) -> None:
        """Close unless a request has begun; closing a socket with unread input would reset it."""
        if self._requests or self.in_request_head or self._closing:
            return
        unread = select.poll()
        unread.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        if not unread.poll(0):
            self.close()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._transport.abort()

    # -- the budget ---------------------------------------------------------------------------

    def count(self) -> bool:
        """Update this client's part of the budget; return False if it does not fit."""
        held_bytes = self._body_bytes
        if self.in_request_head:
            held_bytes += self._overhead_bytes
        if self.paused:
            held_bytes += self._transport.get_write_buffer_size()
        budget = self._server.budget
        budget.count(held_bytes - self._held_bytes, self._owner)
        self._held_bytes = held_bytes
        return held_bytes <= GRANTED_BYTES or budget.fits(0, self._owner)

    def charge(self, owner: str) -> None:
        """Count what is held as that of an API key from now on."""
        self._server.budget.count(-self._held_bytes, self._owner)
        self._server.budget.count(self._held_bytes, owner)
        self._owner = owner

    def hold(self, body_bytes: int) -> bool:
        """Count bytes of a body until `let_go`; return False if they do not fit."""
        self._body_bytes += body_bytes
        return self.count()

    def let_go(self) -> None:
        """Count the bodies no longer: an answer begins, or nothing of them is kept."""
        if self._held_bytes:
            self._body_bytes = 0
            self.count()

    def check_room(self, size_bytes: int) -> None:
        """Raise BuffersFull if a body or an answer of this size does not fit."""
        if size_bytes > GRANTED_BYTES and not self._server.budget.fits(size_bytes, self._owner):
            raise BuffersFull

    def drop_if_stalled(self) -> None:
        """Close if much is held for a client that has hardly sent or read since the last call.

        A request that waits for its model is not stalled.
        """
        self.count()
        before = self._mark
        unsent_bytes = self._transport.get_write_buffer_size() if self.paused else 0
        self._mark = (self._received_bytes // GRANTED_BYTES, unsent_bytes // GRANTED_BYTES)
        if self._held_bytes <= GRANTED_BYTES or self._mark != before:
            return
        if self.paused:
            self.abort()
        elif self.starved or self.in_request_head:
            self.refuse(TOO_SLOW)

    def _write_in_pieces(self, data: bytes) -> None:
        """Write through TLS, where a write of any size counts as sent if none waits before it."""
        for start in range(0, len(data), GRANTED_BYTES):
            self._transport.write(data[start : start + GRANTED_BYTES])

    # -- asyncio.Protocol ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self.write: Callable[[bytes], None] = self._transport.write
        if self._server.certificate:
            self._transport.set_write_buffer_limits(GRANTED_BYTES)
            self.write = self._write_in_pieces
        peer = self._transport.get_extra_info("peername")  # unknown once the connection is lost
        self.host = str(peer[0]) if isinstance(peer, tuple) else ""
        self._server.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the running requests; whatever they still write is dropped."""
        self._closing = True
        self.write = _drop  # from now on uvloop's `write` raises
        self._server.clients.pop(self, None)
        for request in tuple(self._requests):
            request.note_disconnect()
        self._requests.clear()
        self.paused = self.in_request_head = False
        self.let_go()

    def eof_received(self) -> bool:
        """Answer all requests before closing (`printf … | nc`); False closes at once.

        An end of the input may also mean that the client has disconnected, and then generation must
        stop. As in Go's server, handlers that watch for disconnects end, and all others answer.
        GET and HEAD are always answered, since their handlers generate nothing, unless the answer
        is endless.
        """
        if not self._requests or self._receiving is not None or self._server.certificate:
            return False  # TLS has no half-closed connections
        self._ignoring = True
        self._requests[-1].keep_alive = False  # earlier requests are answered first
        for request in tuple(self._requests):
            if request.method not in _WITHOUT_BODY or request.endless:
                request.note_disconnect()
        return True

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than the server writes."""
        self.paused = True
        self.count()
        if self._requests:
            self._requests[0].set_paused(True)

    def resume_writing(self) -> None:
        """Note that the client has caught up."""
        self.paused = False
        self.count()
        if self._requests and not self._server.is_running(self._requests[0]):
            self._start_next()
        elif self._requests:
            self._requests[0].set_paused(False)

    def data_received(self, data: bytes) -> None:
        """Parse a read, and pass on what it has of a body."""
        if self._ignoring:
            self._overhead_bytes += len(data)
            if self._closing and self._overhead_bytes > 0:
                self.abort()
            return
        rest: bytes | memoryview = data
        try:
            while rest:
                try:
                    self._parser.feed_data(rest)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    # unsupported, so the header is ignored, as RFC 9110, section 7.8 allows
                    rest = memoryview(rest)[upgrade.args[0] :]
                    self._resume()
        except httptools.HttpParserError:
            self.refuse(NO_HTTP)
            return
        self._pass_body()
        if self._receiving is not None:
            self.quiet_since_s = time.monotonic()
        self._received_bytes += len(data)
        self._overhead_bytes += len(data)
        if self._overhead_bytes > MAX_HEAD_BYTES:
            self.refuse(TOO_LARGE)
        elif self.in_request_head and not self.count():
            self.refuse(NO_ROOM)

    def _resume(self) -> None:
        """Continue after a request that asks for another protocol.

        The parser considers everything that follows as that protocol, even the body of the request
        (Java's client sends `upgrade: h2c` with every POST). A new parser therefore gets a head
        with only the framing of the body, and then the body.
        """
        self._parser = httptools.HttpRequestParser(self)
        if self._body_follows:
            self._body_follows, self._resuming = False, True
            framing = b"".join(
                b"%b: %b\r\n" % (name, self._headers[name])
                for name in _FRAMING & self._headers.keys()
            )
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % framing)

    def refuse(self, refusal: Refusal) -> None:
        """Send a refusal after the answers to earlier requests, then close.

        Everything that the client sends from now on is dropped.
        """
        if self._closing or self._ignoring:
            return
        self._ignoring = True
        self._server.note_refusal(refusal, self.host)
        broken, self._receiving = self._receiving, None
        if self._requests and self._requests[0] is not broken:
            self._refusal = refusal
            if self._requests[-1] is broken:
                self._requests.pop()  # its answer has not been started
            if self._stopped:
                self._stopped = False
                self._transport.resume_reading()
        elif broken is not None and broken.status:
            self.close()  # its answer has begun, so no status can be sent
        else:
            self._write_refusal(refusal)

    def _write_refusal(self, refusal: Refusal) -> None:
        again = b"retry-after: %d\r\n" % RETRY_AFTER_S if refusal.status.startswith(b"503") else b""
        self.write(
            b"HTTP/1.1 %b\r\n%bcontent-type: text/plain; charset=utf-8\r\n"
            b"%bcontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (refusal.status, self.date(), again, len(refusal.reason), refusal.reason)
        )
        self._linger(LINGER_BYTES)

    def _linger(self, most_bytes: int) -> None:
        """Close in a moment; drop what the client sends until then, `most_bytes` at most.

        Closing at once with unread input would make the system reset the connection, and the
        client would lose its answer.
        """
        if self._closing or not self._transport.can_write_eof():
            self.close()
            return
        self.resume_reading()
        self._closing = self._ignoring = True
        self._overhead_bytes = -most_bytes
        self.write = _drop  # from now on uvloop's `write` raises
        self._transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self._transport.close)

    # -- httptools ----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._url, self._twice = b"", False
        self._headers = {}
        self.in_request_head = True
        self.quiet_since_s = time.monotonic()

    def on_url(self, url: bytes) -> None:
        """Collect a part of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; trailers, and headers beyond the limit, are dropped."""
        if self._in_head and len(self._headers) <= MAX_HEADERS:
            name = name.lower()
            self._twice |= name in SINGLE and name in self._headers
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        """Begin a request, unless its head is refused."""
        self._in_head = self.in_request_head = False
        self._overhead_bytes = 0
        if self._resuming:
            self._resuming = False
            return
        if self._ignoring:
            return
        if self._parser.should_upgrade():
            self._body_follows = not _FRAMING.isdisjoint(self._headers)
        version = self._parser.get_http_version()
        refusal = find_refusal(version, self._headers, twice=self._twice)
        if refusal is not None:
            self.refuse(refusal)
            return
        path, authority, query = read_target(self._url)
        method = self._parser.get_method().decode()
        if method == "CONNECT" or not path.startswith("/"):
            self.refuse(NO_PATH)
            return
        if authority:
            self._headers[b"host"] = authority
        head = Head(
            method,
            path,
            version,
            version != "1.0" and self._parser.should_keep_alive(),
            self._headers,
            query,
        )
        request = self._receiving = Request(self, head, self.host)
        self._requests.append(request)
        if len(self._requests) == 1:
            self._start_next()
        else:
            self._stop_reading()

    def on_body(self, data: bytes) -> None:
        """Collect a part of a body; a read may have 40,000 of them, in chunks of one byte."""
        self._body_parts.append(data)

    def _pass_body(self) -> None:
        """Pass what a read has of a body to its request."""
        if not self._body_parts:
            return
        self._overhead_bytes = 0
        data = b"".join(self._body_parts)
        self._body_parts.clear()
        if self._receiving is not None and not self._receiving.feed(data):
            self._stop_reading()

    def on_message_complete(self) -> None:
        """Note the end of a request."""
        self._pass_body()
        if self._body_follows:
            return
        self._in_head = True
        if self._receiving is not None:
            self._receiving.complete()
            if not self._receiving.keep_alive:
                self._ignoring = True  # RFC 9112, section 9.6
            self._receiving = None

    def _stop_reading(self) -> None:
        if not self._stopped and not self._closing:
            self._stopped = True
            self._transport.pause_reading()


def _drop(data: object) -> None:
    """Drop bytes for a closed connection; replaces its `write`."""
