"""A client's connection: HTTP/1.1 from its bytes to requests, one answered after the other.

The parser is httptools (llhttp); what is kept here is what RFC 9112 asks of a server beyond it:
persistent connections (section 9.3), pipelining (section 9.3.2), limits, and the end of it all. See
docs/decisions/0017 for why there is no server of others between us and the socket.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from vllama.http.head_cache import (
    MAX_HEADERS,
    NO_HTTP,
    SINGLE,
    TOO_LARGE,
    Head,
    Refusal,
    cut,
    read_target,
    write_refusal,
)
from vllama.http.request import Request

if TYPE_CHECKING:
    from vllama.http.server import Server

MAX_HEAD_BYTES = 1024 * 1024  # as Go's net/http
LINGER_S = 0.5  # for a client to read why it is refused; as Go's net/http
_WITHOUT_BODY = ("GET", "HEAD")
_FRAMING = frozenset((b"content-length", b"transfer-encoding"))


class Client(asyncio.Protocol):
    """One connection, from its first byte to its last."""

    __slots__ = (
        "_asked",
        "_body_follows",
        "_closing",
        "_deaf",
        "_head",
        "_headers",
        "_in_head",
        "_overhead_bytes",
        "_parser",
        "_receiving",
        "_refusal",
        "_resuming",
        "_server",
        "_stopped",
        "_transport",
        "_twice",
        "_url",
        "asking",
        "paused",
        "quiet_since_s",
        "write",
    )

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._asked: deque[Request] = deque()  # the first one is being answered
        self._receiving: Request | None = None  # its body has not ended
        self._closing = False
        self._deaf = False  # no further request is taken: what still comes is dropped
        self._refusal: Refusal | None = None  # to be answered after all that was asked before
        self._stopped = False  # reading, since more has come than shall be kept
        self._in_head = True
        self._body_follows = False  # although the parser has ended the request: see `_resume`
        self._resuming = False
        self._overhead_bytes = 0  # read since there was a head's end, or something of a body
        self._url = b""
        self._twice = False  # one of `SINGLE` has come again
        self._headers: dict[bytes, bytes] = {}
        self._head: Head  # the last one that the parser has seen
        self.asking = False  # a request has begun whose head has not ended
        self.paused = False
        self.quiet_since_s = time.monotonic()  # or since a body's last byte has come

    @property
    def quiet(self) -> bool:
        """Whether it waits for a request."""
        return not self._asked

    @property
    def starved(self) -> bool:
        """Whether it waits for the rest of a body, and not because reading has stopped."""
        return self._receiving is not None and not self._stopped

    # -- the answers --------------------------------------------------------------------------

    def date(self) -> bytes:
        """Return the line of the head that tells the time."""
        return self._server.date()

    def read_on(self) -> None:
        """Read again, what had come is taken."""
        if self._stopped and not self._closing and len(self._asked) < 2:
            self._stopped = False
            self.quiet_since_s = time.monotonic()
            self._transport.resume_reading()

    def answered(self, request: Request) -> None:
        """Go on with the next request, or wait for one, or close."""
        if self._asked and self._asked[0] is request:
            self._asked.popleft()
        if not request.keep_alive or self._server.stopping:
            self.close()
            return
        if self._asked:
            self._server.run(self._asked[0])
        elif self._refusal is not None:
            self._write_refusal(self._refusal)
            return
        else:
            self.quiet_since_s = time.monotonic()
        self.read_on()

    def close(self) -> None:
        """Close when what was written has gone out."""
        if not self._closing:
            self._closing = True
            self._transport.close()

    def turn_away(self, why: Refusal) -> None:
        """Answer nothing more than why not, after what was asked before; then close."""
        self._refuse(why)

    def abort(self) -> None:
        """Cut it."""
        self._closing = True
        self._transport.abort()

    # -- asyncio.Protocol ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self.write = self._transport.write
        self._server.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell those who are answering; what they still write is dropped."""
        self._closing = True
        self.write = _drop  # uvloop's own raises from now on
        self._server.clients.pop(self, None)
        for request in tuple(self._asked):
            request.leave()
        self._asked.clear()

    def eof_received(self) -> bool:
        """Keep the connection until what was asked is answered (`printf … | nc`); False closes it.

        It may also be how a client leaves, which must end what only it waits for: handlers that
        watch for that end, as with Go's server, and the others answer. Those of GET make nothing.
        """
        if not self._asked or self._receiving is not None or self._server.certificate:
            return False  # TLS knows no half of a connection
        self._deaf = True
        self._asked[-1].keep_alive = False  # those before it are answered first
        for request in tuple(self._asked):
            if request.method not in _WITHOUT_BODY:
                request.leave()
        return True

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than we write."""
        self.paused = True
        if self._asked:
            self._asked[0].flow(paused=True)

    def resume_writing(self) -> None:
        """Note that it has caught up."""
        self.paused = False
        if self._asked:
            self._asked[0].flow(paused=False)

    def data_received(self, data: bytes) -> None:
        """Parse what has come, unless it is known."""
        if self._deaf:
            return
        fresh = self._in_head and not (self.asking or self._asked or self._closing)
        found = cut(data) if fresh else None
        if found is not None and (head := self._server.heads.get(found)) is not None:
            self._begin(head)
            if found.body:
                self.on_body(found.body)
            self.on_message_complete()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # not spoken here, so it is a request like any other (RFC 9110 §7.8)
            self._resume(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self._refuse(NO_HTTP)
            return
        if self._receiving is not None:
            self.quiet_since_s = time.monotonic()
        self._overhead_bytes += len(data)
        if self._overhead_bytes > MAX_HEAD_BYTES:
            self._refuse(TOO_LARGE)
        if found is not None and len(self._asked) == 1 and self._receiving is None:
            self._server.heads.learn(found, self._head)

    def _resume(self, rest: bytes) -> None:
        """Go on after a request that asks for another protocol.

        The parser takes what follows for that protocol, also the request's own body (Java's client
        sends `upgrade: h2c` with every POST), so that a new one is told how the body is framed.
        """
        self._parser = httptools.HttpRequestParser(self)
        if self._body_follows:
            self._body_follows, self._resuming = False, True
            framing = b"".join(
                b"%b: %b\r\n" % (name, self._headers[name])
                for name in _FRAMING & self._headers.keys()
            )
            rest = b"POST / HTTP/1.1\r\n%b\r\n%b" % (framing, rest)
        if rest and not self._closing:
            self.data_received(rest)

    def _refuse(self, found: Refusal) -> None:
        """Answer what is no request after all that came before it; then close."""
        if self._closing or self._deaf:
            return
        self._deaf = True
        broken, self._receiving = self._receiving, None
        if self._asked and self._asked[0] is not broken:
            self._refusal = found
            if self._asked[-1] is broken:
                self._asked.pop()  # it has not been begun
            if self._stopped:
                self._stopped = False
                self._transport.resume_reading()
        elif broken is not None and broken.status:
            self.close()  # in the midst of its answer
        else:
            self._write_refusal(found)

    def _write_refusal(self, found: Refusal) -> None:
        self.write(
            b"HTTP/1.1 %b\r\n%bcontent-type: text/plain; charset=utf-8\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b"
            % (found.status, self.date(), len(found.why), found.why)
        )
        if self._closing or not self._transport.can_write_eof():
            self.close()
            return
        # closed at once, the system would throw the answer away with what still comes
        self._closing = True
        self.write = _drop  # uvloop's own raises from now on
        self._transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self._transport.close)

    # -- httptools ----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._url, self._twice = b"", False
        self._headers = {}
        self.asking = True
        self.quiet_since_s = time.monotonic()

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those after a body are of no interest, nor too many of them."""
        if self._in_head and len(self._headers) <= MAX_HEADERS:
            name = name.lower()
            self._twice |= name in SINGLE and name in self._headers
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        """Start to answer, or let it wait for its turn."""
        self._in_head = self.asking = False
        self._overhead_bytes = 0
        if self._resuming:
            self._resuming = False
            return
        if self._deaf:
            return
        if self._parser.should_upgrade():
            self._body_follows = not _FRAMING.isdisjoint(self._headers)
        version = self._parser.get_http_version()
        refused = write_refusal(version, self._headers, twice=self._twice)
        if refused is not None:
            self._refuse(refused)
            return
        path, authority = read_target(self._url)
        if authority:
            self._headers[b"host"] = authority
        self._head = Head(
            self._parser.get_method().decode(),
            path,
            version,
            version != "1.0" and self._parser.should_keep_alive(),
            self._headers,
        )
        self._begin(self._head)

    def _begin(self, head: Head) -> None:
        request = self._receiving = Request(self, head)
        self._asked.append(request)
        if len(self._asked) == 1:
            self._server.run(request)
        else:
            self._stop_reading()

    def on_body(self, data: bytes) -> None:
        """Hand on a piece of a body."""
        self._overhead_bytes = 0
        if self._receiving is not None and not self._receiving.feed(data):
            self._stop_reading()

    def on_message_complete(self) -> None:
        """Note the end of a request."""
        if self._body_follows:
            return
        self._in_head = True
        if self._receiving is not None:
            self._receiving.complete()
            if not self._receiving.keep_alive:
                self._deaf = True  # what follows its last request is of no interest (RFC 9112 §9.6)
            self._receiving = None

    def _stop_reading(self) -> None:
        if not self._stopped and not self._closing:
            self._stopped = True
            self._transport.pause_reading()


def _drop(data: object) -> None:
    """Stand for the `write` of a connection that has closed."""
