"""An HTTP request as handlers see it, with the methods that answer it.

`start` makes the head, `write` sends a part of the body, and `end` the last part; they write
directly to the client's socket. The head waits for the first part of the body, so that both are
sent in one packet. A handler that writes faster than its client reads is notified (`Writes`), or
waits in `wait_until_drained`.

A request that the server makes itself has no socket (`Request.without_socket`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol, Self

import msgspec
from msgspec import Struct

from vllama.base import executors
from vllama.base.clock import now_ns
from vllama.base.errors import VllamaError
from vllama.base.log_context import is_usable_id
from vllama.net.http.budget import BuffersFull
from vllama.net.http.content_encoding import MAX_BODY_BYTES, BodyTooLarge, decompress
from vllama.net.http.framing import FRAME, make_first_lines
from vllama.net.http.heads import Head

BUFFER_BYTES = 64 * 1024  # of a body that the handler has not read yet; then reading stops
JSON = b"application/json; charset=utf-8"
QUEUE_HEADER = b"x-vllama-queue-position"
RESUMED_HEADER = "x-vllama-resumed"
DETACH_HEADER = b"x-vllama-detach"

_BODILESS = (204, 304)
CLIENT_CLOSED = 499  # nginx's status for it
HALF_CLOSED = (
    "cannot continue: the client has closed its side of the connection, which cancels its request; "
    "keep it open until the response is complete"
)


def _check_size(size_bytes: int, limit_bytes: int | None) -> None:
    if limit_bytes is not None and size_bytes > limit_bytes:
        raise BodyTooLarge(f"cannot read the request: its body exceeds {limit_bytes} bytes")


class ClientGone(Exception):
    """The client has closed its connection, so no answer is possible."""


class Writes(Protocol):
    """A writer that is notified when its client does not keep up."""

    @property
    def is_waiting(self) -> bool:
        """True while a response that has begun waits for an engine."""

    def pause(self) -> None:
        """Stop writing for now."""

    def resume(self) -> None:
        """Write again."""


class Recorder(Protocol):
    """A recorder of a response while it is sent; see `Request.recorder`."""

    def take_head(self, content_type: bytes) -> None:
        """Note the head of the answer; its status is that of the request."""

    def take_part(self, part: bytes) -> None:
        """Note a part of the body, without the frames of HTTP."""

    def take_chunk(self, chunk: bytes) -> None:
        """Note a part of the body, framed as a chunk."""


class Socket(Protocol):
    """The connection that a request came on: what it uses of a `connection.ClientConnection`."""

    write: Callable[[bytes], None]
    paused: bool

    @property
    def persists(self) -> bool: ...
    def date(self) -> bytes: ...
    def resume_reading(self) -> None: ...
    def on_answered(self, request: Request) -> None: ...
    def abort(self) -> None: ...
    def charge(self, owner: str) -> None: ...
    def hold(self, body_bytes: int) -> bool: ...
    def let_go(self) -> None: ...
    def check_room(self, size_bytes: int) -> None: ...


class Request:
    """A request, and its answer."""

    __slots__ = (
        "_chunked", "_client", "_continues", "_head", "_leaving", "_more", "_parts", "_refused",
        "_size", "_waiter", "_wrap", "before_end", "client_host", "content_type", "detached",
        "disconnected", "done", "endless", "extra", "failure", "headers", "id", "keep_alive",
        "mask", "method", "number", "path", "query", "queue_position", "recorder", "sink",
        "started_ns", "status", "trailer", "version", "writes",
    )  # fmt: skip

    def __init__(self, client: Socket | None, head: Head, host: str = "") -> None:
        """`host` is the address of the client, or of the last proxy before us."""
        self._client = client
        self.sink = bytearray()  # the body of the answer, where there is no socket
        self.client_host = host
        self.method, self.path, self.version, self.keep_alive, headers, self.query = head
        self.headers = headers
        self.number = self.id = ""
        self.started_ns = now_ns()
        self.status = 0  # 0 until the head of the answer is made
        self.queue_position = 0  # the initial position in a model's queue; 0: it did not wait
        self.extra: list[tuple[bytes, bytes]] = []  # additional headers of the answer
        self.trailer = b""  # the lines after the last chunk
        self.done = False  # the answer has ended
        self.failure: VllamaError | None = None  # of the answer, even after a status of 200
        self.disconnected = False  # the client has disconnected
        self.endless = False  # the answer ends only when the client disconnects
        self.content_type = b""  # of the answer
        self.detached: Callable[[bytes], None] | None = None  # takes one that outlives its client
        self.writes: Writes | None = None
        self.recorder: Recorder | None = None
        self.before_end: Callable[[], None] | None = None  # called before the last byte is written
        # changes what the server says of itself to what the client may know
        self.mask: Callable[[bytes], bytes] = bytes
        self._head = b""
        self._chunked = False
        # after a sign of life: makes an error's body an event of the stream
        self._wrap: Callable[[bytes], bytes] | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._more = True
        self._refused = False  # the body does not fit into the budget
        self._continues = b"expect" in headers and headers[b"expect"].lower() == b"100-continue"
        self._waiter: asyncio.Future[None] | None = None
        self._leaving: list[Callable[[], None]] = []

    @classmethod
    def without_socket(cls, path: str, body: bytes, host: str) -> Self:
        """Return a request of the server's own, with a JSON body.

        `sink` takes the body of the response; its status and headers are in `status` and `extra`.
        `host` stands in lists where other requests have the address of their client.
        """
        headers = {b"content-type": b"application/json", b"content-length": b"%d" % len(body)}
        request = cls(None, Head("POST", path, "1.1", True, headers), host)
        request.put_back(body)
        request.complete()
        return request

    def identify(self, number: str) -> None:
        """Set the unique number of the request; `id` is the client's own, or else the number."""
        self.number = number
        given = self.header(b"x-request-id") if b"x-request-id" in self.headers else ""
        self.id = given if given and is_usable_id(given) else number

    def header(self, name: bytes) -> str:
        """Return a header's text, "" if absent; `name` in lower case."""
        return self.headers.get(name, b"").decode("latin-1")

    def read_query(self) -> dict[str, str]:
        """Return the parameters in the target, the last of equal names."""
        from urllib.parse import parse_qsl  # rarely needed, and slow to import

        pairs = parse_qsl(self.query.decode("utf-8", "replace"), keep_blank_values=True)
        return dict(pairs)

    # -- the body -----------------------------------------------------------------------------

    def charge(self, owner: str) -> None:
        """Count what is held for the connection as an API key's, too."""
        if self._client is not None:
            self._client.charge(owner)

    async def body(self, limit_bytes: int = MAX_BODY_BYTES) -> bytes:
        """Read the whole body; it is decompressed from then on.

        Raises BodyTooLarge, ClientGone, and what `decompress` does.
        """
        body = await self._read_body(limit_bytes)
        if encoding := self.headers.pop(b"content-encoding", b"").decode("latin-1"):
            body = await executors.codec.run(decompress, body, encoding, limit_bytes)
            self.headers[b"content-length"] = b"%d" % len(body)
        return body

    async def _read_body(self, limit_bytes: int) -> bytes:
        if not self._more and len(self._parts) == 1 and self._size < min(limit_bytes, BUFFER_BYTES):
            return self._parts.pop()  # it arrived together with the head, as most bodies do
        body = bytearray()  # many pieces would leave holes in memory
        async for piece in self._pieces(limit_bytes):
            body += piece
        return bytes(body)

    def put_back(self, body: bytes) -> None:
        """Let a body that was read whole be read again."""
        self._parts, self._size = [body] if body else [], len(body)

    async def pieces(self, limit_bytes: int | None = None) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; one with a limit whole, if it is compressed.

        Raises BodyTooLarge, BuffersFull, ClientGone.

        A body with a limit counts as held until the answer begins, one without until its next
        piece is wanted.
        """
        if limit_bytes is not None and b"content-encoding" in self.headers:
            yield await self.body(limit_bytes)
            return
        async for piece in self._pieces(limit_bytes):
            yield piece

    async def _pieces(self, limit_bytes: int | None) -> AsyncIterator[bytes]:
        announced = self.header(b"content-length")
        if announced.isdigit() and limit_bytes is not None:
            _check_size(int(announced), limit_bytes)
            if self._more and self._client is not None:
                self._client.check_room(int(announced))
        size = 0
        while piece := await self._read_piece():
            size += len(piece)
            _check_size(size, limit_bytes)
            yield piece
            if limit_bytes is None and self._client is not None:
                self._client.let_go()
        self.started_ns = now_ns()  # a slow upload does not count as the server's time

    async def _read_piece(self) -> bytes:
        """Return the buffered part of the body, b"" after the last. Raises ClientGone."""
        while not self._refused and not self._parts and self._more:
            if self.disconnected:
                raise ClientGone
            if self._continues and self._client is not None:
                self._continues = False
                self._client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await self._wait()
        if self._refused:
            raise BuffersFull
        parts, self._parts, self._size = self._parts, [], 0
        if self._client is not None:
            self._client.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def feed(self, data: bytes) -> bool:
        """Buffer a part of the body; return False if the buffer is full."""
        if self.done or self._refused:
            return True  # the rest of the body is dropped
        self._parts.append(data)
        self._size += len(data)
        self._wake()
        client = self._client
        if client is not None and not client.hold(len(data)):
            self._refused = True
            self._parts.clear()
            client.let_go()  # at once: others are growing, too
            return True
        return self._size < BUFFER_BYTES

    def complete(self) -> None:
        """Note that the body has ended."""
        self._more = False
        self._wake()

    # -- the client ---------------------------------------------------------------------------

    def note_disconnect(self) -> None:
        """Note that the client has disconnected, or closed its side: it may still read."""
        if self.disconnected or self.detached is not None:
            return
        self.disconnected = True
        self._wake()
        for callback in tuple(self._leaving):
            callback()

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the client disconnects, at once if it has, until `unwatch`."""
        self._leaving.append(callback)
        if self.disconnected:
            callback()

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Do not call `callback` any more."""
        self._leaving.remove(callback)

    async def wait_for_disconnect(self) -> None:
        """Wait until the client has disconnected."""
        while not self.disconnected:
            await self._wait()

    async def wait_until_drained(self) -> None:
        """Wait until the client has read most of the written bytes, or has disconnected."""
        while self.paused and not self.disconnected:
            await self._wait()

    def set_paused(self, paused: bool) -> None:
        """Notify the writer whether the client keeps up."""
        self._wake()
        if self.writes is None:
            return
        if paused and self.paused:
            self.writes.pause()
        else:
            self.writes.resume()

    async def _wait(self) -> None:
        """Wait until the next `_wake`; several tasks may wait at once."""
        if self._waiter is None or self._waiter.done():
            self._waiter = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._waiter)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def set_header(self, name: str, value: str) -> None:
        """Set a header of the answer, before `start`; a later value replaces an earlier one."""
        line = (name.encode(), value.encode("latin-1", "replace"))
        self.extra = [*(old for old in self.extra if old[0] != line[0]), line]

    def tell_at_end(self, name: str, value: str) -> None:
        """Set a header, or a trailer of an answer that has begun; for `before_end`."""
        if not self._chunked:
            self.set_header(name, value)
        else:
            self.trailer += f"{name}: {value}\r\n".encode("latin-1", "replace")

    # -- the answer ---------------------------------------------------------------------------

    def start(
        self,
        status: int,
        content_type: bytes,
        length: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Begin the answer; `length` in bytes, None if it is not known yet."""
        self.status, self.content_type = status, self.content_type or content_type
        if self.recorder is not None:
            self.recorder.take_head(content_type)
        client = self._client
        if client is None or self._wrap is not None:
            return  # a sink takes the body alone; the head of a stream may be out
        client.let_go()
        first_lines = make_first_lines(status, content_type)
        lines = [first_lines, client.date(), b"x-request-id: %b\r\n" % self.id.encode()]
        for name, value in self.extra:
            lines.append(b"%b: %b\r\n" % (name, value))
        if self.queue_position:
            lines.append(b"%b: %d\r\n" % (QUEUE_HEADER, self.queue_position))
        if headers:
            for text, content in headers.items():
                lines.append(f"{text}: {content}\r\n".encode("latin-1", "replace"))
        if length is not None:
            if status not in _BODILESS:
                lines.append(b"content-length: %d\r\n" % length)
        elif self.version == "1.0":
            self.keep_alive = False  # HTTP/1.0 has no chunks: the body ends with the connection
        else:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        if not (self.keep_alive and client.persists):
            self.keep_alive = False
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)

    @property
    def paused(self) -> bool:
        """True while the client does not keep up, and is waited for."""
        return self._client is not None and self._client.paused and self.detached is None

    def get_chunk_writer(self) -> Callable[[bytes], None] | None:
        """Return a writer of framed chunks of the body; None if it is not being sent in chunks."""
        client, ends_here = self._client, self.done or self.method == "HEAD"
        if client is None or not self._chunked or self._head or ends_here or self.detached:
            return None
        write, recorder = client.write, self.recorder
        if recorder is None:
            return write

        take_chunk = recorder.take_chunk

        def record(chunk: bytes) -> None:
            take_chunk(chunk)
            write(chunk)

        return record

    def write(self, body: bytes) -> None:
        """Write a part of the body, after the head."""
        if not body or self.done or self.method == "HEAD":
            return
        if self.recorder is not None:
            self.recorder.take_part(body)
        if self._client is None:
            self.sink.extend(body)
            return
        self._send(self._client, body)

    def _send(self, client: Socket, body: bytes) -> None:
        if self.detached is not None:
            self.detached(body)
        head, self._head = self._head, b""
        if self._chunked:
            body = b"".join((head, FRAME[len(body)], body, b"\r\n"))
        elif head:
            body = head + body
        client.write(body)

    def show_life(self, content_type: bytes, sign: bytes, wrap: Callable[[bytes], bytes]) -> None:
        """Send a sign of a stream that waits, with the head before the first.

        Until the stream begins, `status` stays 0; the body of an error is then sent as `wrap` makes
        it.
        """
        if self._client is None or self.done or self.paused:
            return
        if not (self.status or self._wrap):
            recorder, self.recorder = self.recorder, None  # the response itself is recorded
            self.start(200, content_type)
            self.status, self.recorder, self._wrap = 0, recorder, wrap
        self._send(self._client, sign)

    def end(self, body: bytes = b"") -> None:
        """Write the last part of the body, and end the answer."""
        if self.done:
            return
        if self._wrap is not None and self.status >= 400:
            body = self._wrap(body)
        self._note_end()
        if self.recorder is not None and body:
            self.recorder.take_part(body)
        if self.detached is not None:
            self.detached(body)
        head, self._head = self._head, b""
        if self.method == "HEAD":
            body = head
        elif not self._chunked:
            body = head + body
        elif body:
            body = b"".join((head, FRAME[len(body)], body, b"\r\n0\r\n", self.trailer, b"\r\n"))
        else:
            body = b"".join((head, b"0\r\n", self.trailer, b"\r\n"))
        self.done = True
        self._parts.clear()
        if self._client is None:
            self.sink.extend(body)
            return
        self._client.write(body)
        self._client.on_answered(self)

    def _note_end(self) -> None:
        """Call `before_end`, once."""
        if self.before_end is not None:
            note, self.before_end = self.before_end, None
            note()

    def fail(self) -> None:
        """End an answer that its handler has not ended; a partial body must not look complete."""
        if self.status or self._wrap:
            if self._client is not None:
                self._client.abort()
            return
        self.keep_alive = False
        if self.disconnected:
            self.respond(CLIENT_CLOSED, msgspec.json.encode({"error": HALF_CLOSED}))
        else:
            self.text(500, "internal error")

    def respond(
        self,
        status: int,
        body: bytes,
        content_type: bytes = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a complete answer; for HEAD only its head. Raises BuffersFull."""
        if self._client is not None:
            self._client.check_room(len(body))
        self.status = status
        self._note_end()  # which may set headers
        self.start(status, content_type, len(body), headers)
        self.end(body)

    def json(self, status: int, value: Struct) -> None:
        """Send `value` as JSON, masked."""
        self.respond(status, self.mask(msgspec.json.encode(value)))

    def text(self, status: int, value: str) -> None:
        """Send plain text."""
        self.respond(status, value.encode(), b"text/plain; charset=utf-8")
