"""One HTTP request as the handlers see it; the only module that spells ASGI messages.

Raw ASGI on purpose: a token costs one `send()`, and nothing stands between it and the socket.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec

from vllama.errors import BadRequest
from vllama.gateway.direct import end_with_connection, hold_head
from vllama.tracing import sane

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_BODY_BYTES = 128 * 1024 * 1024
JSON = b"application/json; charset=utf-8"
QUEUE_HEADER = b"x-vllama-queue-position"

# wall time that never goes back: durations in replies are differences of these
EPOCH_NS = time.time_ns() - time.monotonic_ns()


def now_ns() -> int:
    """Return nanoseconds since the Unix epoch, monotonic within this process."""
    return EPOCH_NS + time.monotonic_ns()


class BodyTooLarge(BadRequest):
    """The request's body exceeds the limit."""

    status = 413


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


class Request:
    """A request and the means to answer it once."""

    __slots__ = (
        "headers",
        "id",
        "method",
        "number",
        "path",
        "queue_position",
        "receive",
        "send",
        "started_ns",
        "status",
        "version",
    )

    def __init__(
        self,
        scope: Mapping[str, Any],
        receive: Receive,
        send: Send,
        number: str,
    ) -> None:
        """`number` is no other request's; `id` is the client's own name for it, if it has one."""
        self.method: str = scope["method"]
        self.version: str = scope.get("http_version", "1.1")
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.receive = receive
        self.send = send
        self.number = number
        given = self.header(b"x-request-id")
        self.id = given if given and sane(given) else number
        self.started_ns = now_ns()
        self.status = 0  # 0 until the head of the answer is out
        self.queue_position = 0  # the place in a model's queue that it began at; 0: it did not wait

    def header(self, name: bytes) -> str:
        """Return a header's text, "" if absent; `name` in lower case."""
        return self.headers.get(name, b"").decode("latin-1")

    async def body(self, limit_bytes: int = MAX_BODY_BYTES) -> bytes:
        """Read the whole body. Raises BodyTooLarge, ClientGone."""
        announced = self.header(b"content-length")
        if announced.isdigit() and int(announced) > limit_bytes:
            raise BodyTooLarge(f"cannot read the request: its body exceeds {limit_bytes} bytes")
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > limit_bytes:
                raise BodyTooLarge(f"cannot read the request: its body exceeds {limit_bytes} bytes")
            parts.append(part)
            if not message.get("more_body"):
                self.started_ns = now_ns()  # a slow upload is not our work
                return b"".join(parts)

    async def gone(self) -> None:
        """Return when the client has closed its connection. The body must have been read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def head(
        self,
        status: int,
        content_type: bytes,
        length: int | None,
        extra: Mapping[str, str] | None = None,
    ) -> Message:
        """Return the message that starts the answer; `length` None: chunked, or until the end."""
        self.status = status
        if length is None and self.version == "1.0":
            end_with_connection(self.send)
        headers = [(b"content-type", content_type), (b"x-request-id", self.id.encode())]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        if self.queue_position:
            headers.append((QUEUE_HEADER, str(self.queue_position).encode()))
        for name, value in (extra or {}).items():
            headers.append((name.encode(), value.encode("latin-1", "replace")))
        return {"type": "http.response.start", "status": status, "headers": headers}

    async def respond(
        self,
        status: int,
        body: bytes,
        content_type: bytes = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a whole answer; to HEAD only its head."""
        if self.method != "HEAD":
            hold_head(self.send)
        await self.send(self.head(status, content_type, len(body), headers))
        shown = b"" if self.method == "HEAD" else body
        await self.send({"type": "http.response.body", "body": shown})

    async def json(self, status: int, value: object) -> None:
        """Send `value` as JSON."""
        await self.respond(status, msgspec.json.encode(value))

    async def text(self, status: int, value: str) -> None:
        """Send plain text."""
        await self.respond(status, value.encode(), b"text/plain; charset=utf-8")
