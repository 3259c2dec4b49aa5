"""One HTTP request as the handlers see it, and the means to answer it once.

Answering is plain calls: `start` says how, `write` adds to the body, `end` ends it, and nothing
stands between them and the client's socket. The head waits for the first of the body, so that both
go out in one piece. Whoever writes more than a client reads is told by `pause` and `resume`
(`hold`), or waits in `drained`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import msgspec

from vllama.errors import BadRequest
from vllama.http.chunked import FRAME
from vllama.log_context import is_usable_id

if TYPE_CHECKING:
    from vllama.errors import VllamaError
    from vllama.http.connection import Client
    from vllama.http.head_cache import Head

MAX_BODY_BYTES = 48 * 1024 * 1024  # 36 MB of images; what is made of it takes twice as much more
HELD_BYTES = 64 * 1024  # of a body that nobody has asked for yet; then its sender has to wait
JSON = b"application/json; charset=utf-8"
QUEUE_HEADER = b"x-vllama-queue-position"

# wall time that never goes back: durations in replies are differences of these
EPOCH_NS = time.time_ns() - time.monotonic_ns()

_REASONS = {
    100: b"Continue", 200: b"OK", 201: b"Created", 204: b"No Content",
    301: b"Moved Permanently", 307: b"Temporary Redirect", 400: b"Bad Request",
    401: b"Unauthorized", 403: b"Forbidden", 404: b"Not Found", 405: b"Method Not Allowed",
    413: b"Content Too Large", 422: b"Unprocessable Content", 429: b"Too Many Requests",
    431: b"Request Header Fields Too Large", 499: b"Client Closed Request",
    500: b"Internal Server Error",
    501: b"Not Implemented", 502: b"Bad Gateway", 503: b"Service Unavailable",
    504: b"Gateway Timeout", 507: b"Insufficient Storage",
}  # fmt: skip
_BODILESS = (204, 304)
CLIENT_CLOSED = 499  # as nginx says it
HALF_CLOSED = (
    "cannot go on: the client has closed its side of the connection, which ends what runs for it; "
    "keep that open until the answer has come"
)


def now_ns() -> int:
    """Return nanoseconds since the Unix epoch, monotonic within this process."""
    return EPOCH_NS + time.monotonic_ns()


@lru_cache(maxsize=256)
def _beginning(status: int, content_type: bytes) -> bytes:
    """Return the first lines of a head; an answer without a body may be without a type."""
    reason = _REASONS.get(status, b"-")
    line = b"HTTP/1.1 %d %b\r\n" % (status, reason)
    return line + (b"content-type: %b\r\n" % content_type if content_type else b"")


class BodyTooLarge(BadRequest):
    """The request's body exceeds the limit."""

    status = 413


def _check_size(size_bytes: int, limit_bytes: int | None) -> None:
    if limit_bytes is not None and size_bytes > limit_bytes:
        raise BodyTooLarge(f"cannot read the request: its body exceeds {limit_bytes} bytes")


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


class Writes(Protocol):
    """Whoever wants to know when its client does not keep up."""

    def hold(self) -> None:
        """Write no more for now."""
        ...

    def go_on(self) -> None:
        """Write again."""
        ...


class Request:
    """A request and the means to answer it once."""

    __slots__ = (
        "_chunked",
        "_client",
        "_continues",
        "_head",
        "_leaving",
        "_more",
        "_parts",
        "_size",
        "_waiter",
        "done",
        "extra",
        "failure",
        "headers",
        "id",
        "keep_alive",
        "left",
        "method",
        "number",
        "path",
        "queue_position",
        "started_ns",
        "status",
        "version",
        "writes",
    )

    def __init__(self, client: Client, head: Head) -> None:
        self._client = client
        self.method, self.path, self.version, self.keep_alive, self.headers = head
        headers = head.headers
        self.number = self.id = ""
        self.started_ns = now_ns()
        self.status = 0  # 0 until the head of the answer is made
        self.queue_position = 0  # the place in a model's queue that it began at; 0: it did not wait
        self.extra: list[tuple[bytes, bytes]] = []  # more headers of the answer
        self.done = False  # its answer has ended
        self.failure: VllamaError | None = None  # what it ended with, maybe after a status of 200
        self.left = False  # its client has gone
        self.writes: Writes | None = None
        self._head = b""
        self._chunked = False
        self._parts: list[bytes] = []
        self._size = 0
        self._more = True
        self._continues = b"expect" in headers and headers[b"expect"].lower() == b"100-continue"
        self._waiter: asyncio.Future[None] | None = None
        self._leaving: list[Callable[[], None]] = []

    def identify(self, number: str) -> None:
        """Give it a number that no other request has; its `id` is the client's own, or that."""
        self.number = number
        given = self.header(b"x-request-id") if b"x-request-id" in self.headers else ""
        self.id = given if given and is_usable_id(given) else number

    def header(self, name: bytes) -> str:
        """Return a header's text, "" if absent; `name` in lower case."""
        return self.headers.get(name, b"").decode("latin-1")

    # -- what is asked ------------------------------------------------------------------------

    async def body(self, limit_bytes: int = MAX_BODY_BYTES) -> bytes:
        """Read the whole body. Raises BodyTooLarge, ClientGone."""
        if not self._more and len(self._parts) == 1 and self._size < min(limit_bytes, HELD_BYTES):
            return self._parts.pop()  # it came with its head, as most do
        parts = [piece async for piece in self.pieces(limit_bytes)]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def pieces(self, limit_bytes: int | None = None) -> AsyncIterator[bytes]:
        """Give the body as it comes. Raises BodyTooLarge, ClientGone."""
        announced = self.header(b"content-length")
        if announced.isdigit():
            _check_size(int(announced), limit_bytes)
        size = 0
        while piece := await self._piece():
            size += len(piece)
            _check_size(size, limit_bytes)
            yield piece
        self.started_ns = now_ns()  # a slow upload is not our work

    async def _piece(self) -> bytes:
        """Return what has come, b"" after the last. Raises ClientGone."""
        while not self._parts and self._more:
            if self.left:
                raise ClientGone
            if self._continues:
                self._continues = False
                self._client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await self._wait()
        parts, self._parts, self._size = self._parts, [], 0
        self._client.read_on()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def feed(self, data: bytes) -> bool:
        """Take a piece of the body; False if there is more now than shall be kept."""
        if self.done:
            return True  # what is sent after the answer is of no use to anybody
        self._parts.append(data)
        self._size += len(data)
        self._wake()
        return self._size < HELD_BYTES

    def complete(self) -> None:
        """Note that the body has ended."""
        self._more = False
        self._wake()

    # -- the client ---------------------------------------------------------------------------

    def leave(self) -> None:
        """Note that the client has gone, or has nothing more to say: it may still read."""
        if self.left:
            return
        self.left = True
        self._wake()
        for tell in tuple(self._leaving):
            tell()

    def watch(self, tell: Callable[[], None]) -> None:
        """Call `tell` when the client goes, at once if it has gone, until `unwatch`."""
        self._leaving.append(tell)
        if self.left:
            tell()

    def unwatch(self, tell: Callable[[], None]) -> None:
        """Call `tell` no more."""
        self._leaving.remove(tell)

    async def gone(self) -> None:
        """Return when the client has closed its connection."""
        while not self.left:
            await self._wait()

    async def drained(self) -> None:
        """Wait until the client has read most of what was written, or has gone."""
        while self._client.paused and not self.left:
            await self._wait()

    def flow(self, *, paused: bool) -> None:
        """Hear that the client does not keep up, or does again."""
        self._wake()
        if self.writes is None:
            return
        if paused:
            self.writes.hold()
        else:
            self.writes.go_on()

    async def _wait(self) -> None:
        """Wait until something has happened; there may be several who do."""
        if self._waiter is None or self._waiter.done():
            self._waiter = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._waiter)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def tell(self, name: str, value: str) -> None:
        """Add a header to the answer that is to come; the last of one name counts."""
        line = (name.encode(), value.encode("latin-1", "replace"))
        self.extra = [*(old for old in self.extra if old[0] != line[0]), line]

    # -- the answer ---------------------------------------------------------------------------

    def start(
        self,
        status: int,
        content_type: bytes,
        length: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Begin the answer; `length` in bytes, None if it is not known yet."""
        self.status = status
        beginning = _beginning(status, content_type)
        lines = [beginning, self._client.date(), b"x-request-id: %b\r\n" % self.id.encode()]
        for name, value in self.extra:
            lines.append(b"%b: %b\r\n" % (name, value))
        if self.queue_position:
            lines.append(b"%b: %d\r\n" % (QUEUE_HEADER, self.queue_position))
        if headers:
            for text, worth in headers.items():
                lines.append(f"{text}: {worth}\r\n".encode("latin-1", "replace"))
        if length is not None:
            if status not in _BODILESS:
                lines.append(b"content-length: %d\r\n" % length)
        elif self.version == "1.0":
            self.keep_alive = False  # which knows no chunks: the end is that of the connection
        else:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)

    @property
    def paused(self) -> bool:
        """Whether the client does not keep up."""
        return self._client.paused

    def in_chunks(self) -> Client | None:
        """Return the connection if the body is on its way, in chunks: who writes there frames."""
        ready = self._chunked and not self._head and not self.done
        return self._client if ready and self.method != "HEAD" else None

    def write(self, body: bytes) -> None:
        """Write a part of the body, after the head."""
        if not body or self.done or self.method == "HEAD":
            return
        head, self._head = self._head, b""
        if self._chunked:
            body = b"".join((head, FRAME[len(body)], body, b"\r\n"))
        elif head:
            body = head + body
        self._client.write(body)

    def end(self, body: bytes = b"") -> None:
        """Write the last part of the body; nothing comes after it."""
        if self.done:
            return
        head, self._head = self._head, b""
        if self.method == "HEAD":
            body = head
        elif not self._chunked:
            body = head + body
        elif body:
            body = b"".join((head, FRAME[len(body)], body, b"\r\n0\r\n\r\n"))
        else:
            body = head + b"0\r\n\r\n"
        self.done = True
        self._parts.clear()
        self._client.write(body)
        self._client.answered(self)

    def fail(self) -> None:
        """End an answer that nobody has ended: what is there must not look whole."""
        if self.status:
            self._client.abort()
            return
        self.keep_alive = False
        if self.left:
            self.json(CLIENT_CLOSED, {"error": HALF_CLOSED})
        else:
            self.text(500, "internal error")

    def respond(
        self,
        status: int,
        body: bytes,
        content_type: bytes = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a whole answer; to HEAD only its head."""
        self.start(status, content_type, len(body), headers)
        self.end(body)

    def json(self, status: int, value: object) -> None:
        """Send `value` as JSON."""
        self.respond(status, msgspec.json.encode(value))

    def text(self, status: int, value: str) -> None:
        """Send plain text."""
        self.respond(status, value.encode(), b"text/plain; charset=utf-8")
