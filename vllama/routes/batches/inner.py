"""A request that the server asks itself: through the same handlers, keys and limits as others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from vllama.base.errors import EngineCrashed
from vllama.net.http.heads import Head
from vllama.net.http.request import RESUMED_HEADER, Request

if TYPE_CHECKING:
    from vllama.accounts.keys.key import Key
    from vllama.net.http.connection import Client

Answer: TypeAlias = "Callable[[Request, Key | None], Awaitable[None]]"
"""Serves a request as if it had shown a key."""


class _Kept:
    """Stands in the place of a client's connection, and keeps the answer."""

    host = "batch"
    paused = False
    persists = True

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        self.data += data

    def hold(self, size_bytes: int) -> bool:
        return True

    def check_room(self, size_bytes: int) -> None: ...
    def let_go(self) -> None: ...
    def resume_reading(self) -> None: ...
    def abort(self) -> None: ...
    def answered(self, request: Request) -> None: ...
    def date(self) -> bytes:
        return b""


def make_request(path: str, body: bytes) -> tuple[Request, _Kept]:
    """Return a request with a JSON body, and what will have its answer."""
    client = _Kept()
    headers = {
        b"content-type": b"application/json",
        b"content-length": b"%d" % len(body),
    }
    request = Request(cast("Client", client), Head("POST", path, "1.1", True, headers))
    request.feed(body)
    request.complete()
    return request, client


class Answered(NamedTuple):
    """A status and a body; `may_repeat`: its engine died, and nobody has asked it again."""

    status: int
    body: bytes
    may_repeat: bool = False


async def ask(answer: Answer, request: Request, client: _Kept, key: Key | None) -> Answered | None:
    """Have a request answered; return None if it was stopped."""
    await answer(request, key)
    if request.disconnected or not request.done:
        return None
    head, _, body = bytes(client.data).partition(b"\r\n\r\n")
    died = isinstance(request.failure, EngineCrashed)
    return Answered(request.status, body, died and RESUMED_HEADER.encode() not in head)
