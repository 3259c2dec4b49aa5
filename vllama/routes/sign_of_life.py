"""Signs of life of a stream that waits for a token: balancers cut what is silent for a minute.

The head goes out with the first sign, with status 200, though `Request.status` stays 0: until the
response's own first byte another engine or node may still be tried, and an error has its status in
log and metrics. In the stream it is the dialect's event.

Streams of Ollama's API get a line with an empty text, which its clients take for a token of
nothing; a head alone would be silence again. Other dialects get a comment or Anthropic's `ping`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from msgspec import json

from vllama.accounts.keys.key import FORWARDED
from vllama.base.clock import now_ns
from vllama.base.errors import VllamaError
from vllama.base.units import rfc3339_utc
from vllama.chat.framing import DONE, frame_event
from vllama.chat.writer import EVENT_STREAM
from vllama.dialects.ollama.write import NDJSON
from vllama.net.http.request import Request
from vllama.routes.route import Dialect

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

COMMENT = b": waiting for the next token\n\n"
PING = b'event: ping\ndata: {"type": "ping"}\n\n'


@contextmanager
def show_life(gateway: Gateway, request: Request, model: str, *, streams: bool) -> Iterator[None]:
    """Send a sign whenever a stream has waited for a token for `early_head_s`, here to a client.

    A server that forwards to this one sends its own.
    """
    every_s = gateway.in_use.config.early_head_s
    if every_s is None or not streams or FORWARDED in request.headers:
        yield
        return
    dialect = gateway.running.of(request).route.dialect
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []

    def beat() -> None:
        timers[:] = [loop.call_later(every_s, beat)]
        if request.status == 0 or (request.writes is not None and request.writes.is_waiting):
            kind, sign = make_sign(dialect, request.path, model)
            request.show_life(kind.encode(), sign, partial(write_error_event, dialect))

    timers.append(loop.call_later(every_s, beat))
    try:
        yield
    finally:
        timers[0].cancel()


def make_sign(dialect: Dialect, path: str, model: str) -> tuple[str, bytes]:
    """Return the content type of a stream, and a sign of life in it."""
    if dialect is Dialect.OLLAMA:
        head = {"model": model, "created_at": rfc3339_utc(now_ns()), "done": False}
        text = {"message": {"role": "assistant", "content": ""}}
        said = text if path == "/api/chat" else {"response": ""}
        return NDJSON, json.encode(head | said) + b"\n"
    return EVENT_STREAM, PING if dialect is Dialect.ANTHROPIC else COMMENT


def write_error_event(dialect: Dialect, body: bytes) -> bytes:
    """Return the body of an error as a dialect's stream has it, with the stream's end."""
    if dialect is Dialect.ANTHROPIC:
        return b"event: error\ndata: %b\n\n" % body
    if dialect is Dialect.RESPONSES:
        told = json.decode(body)["error"]
        fields = {"type": "error", "code": told["code"], "message": told["message"], "param": None}
        return b"event: error\ndata: %b\n\n" % json.encode(fields)
    if dialect is Dialect.OPENAI:
        return frame_event(body) + frame_event(DONE)
    return body + b"\n"


def fail_stream(request: Request, dialect: Dialect, error: VllamaError) -> None:
    """End a stream that has begun with an error of its dialect."""
    request.failure = error
    if not request.done:
        body = json.encode(dialect.make_error(error))
        request.end(request.mask(write_error_event(dialect, body)))
