"""OpenAI's `POST /v1/responses`, whose clients may compress what they send.

See docs/reference/ollama-api.md#responses.
"""

from __future__ import annotations

import secrets
import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from vllama.base import executors
from vllama.base.errors import BadRequest
from vllama.chat.go_json import encode_json
from vllama.dialects.openai.read import read_chat
from vllama.dialects.responses.answer_types import (
    DeletedResponse,
    InputItems,
    ResponseEvent,
    WholeResponse,
)
from vllama.dialects.responses.items import list_items, make_input_items
from vllama.dialects.responses.read import continue_from, parse_responses
from vllama.dialects.responses.write import ResponsesWriter
from vllama.net.http.request import MAX_BODY_BYTES, BodyTooLarge, Request
from vllama.routes.openai import bodies
from vllama.routes.openai.common import check_blocks, find_v1_model, read_truncate, relay_blocks
from vllama.routes.response_store import Record
from vllama.routes.route import Dialect, Framing, Parameter, Route, RouteKind, Stream, Task

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

RESPONSES, INPUT_ITEMS, CANCEL = "/v1/responses/", "/input_items", "/cancel"
MAX_FRAMES = 1000
"""Of zstd, or members of gzip, in one body; programs that compress in parallel make some."""
_READ_BYTES = 64 * 1024
_PIECE_BYTES = 1024 * 1024


class UnknownEncoding(BadRequest):
    """A body in an encoding that is not known here."""

    status = 415


async def responses(gateway: Gateway, request: Request) -> None:
    """Continue a conversation, in items and events."""
    body, encoding = await request.body(), request.header(b"content-encoding")
    if encoding:
        body = await executors.codec.run(decompress, body, encoding)
    asked = parse_responses(body)
    store, owner, seed = gateway.responses, identify_owner(gateway, request), secrets.token_hex(12)
    own = make_input_items(asked.input, seed)
    earlier = await store.chain(asked.previous, owner) if asked.previous else []
    if earlier:
        asked = continue_from(asked, [item for record in earlier for item in record.items], own)

    def keep(response: dict[str, Any]) -> None:
        record = Record(
            id=response["id"], owner=owner, previous=asked.previous, input=own, response=response
        )
        store.keep(record, after=earlier)

    truncate = read_truncate(request, asked.extras, default=asked.truncate)
    chat = read_chat(
        asked.chat, asked.extras, truncate=truncate, assumed={"temperature": 1.0}, may_be_empty=True
    )
    entry = await find_v1_model(gateway, asked.model)
    make = partial(
        ResponsesWriter,
        seed=seed,
        created_ns=request.started_ns,
        echo=asked.echo,
        names=asked.names,
        keep=None if asked.store is False else keep,
    )
    checked = check_blocks(entry, chat, has_tools=bool(asked.echo["tools"]))
    await relay_blocks(gateway, request, checked, make, ignored=asked.ignored)
    if asked.store:
        await store.save(f"resp_{seed}", owner, earlier)


async def get_response(gateway: Gateway, request: Request) -> None:
    """Return a response that was kept."""
    identity = request.path.removeprefix(RESPONSES)
    record = await gateway.responses.find(identity, identify_owner(gateway, request))
    request.respond(200, encode_json(record.response))


async def list_input_items(gateway: Gateway, request: Request) -> None:
    """List the input of a response, the newest item first."""
    identity = request.path.removeprefix(RESPONSES).removesuffix(INPUT_ITEMS)
    owner = identify_owner(gateway, request)
    *earlier, last = await gateway.responses.chain_of(identity, owner)
    before = [item for record in earlier for item in record.items]
    request.respond(200, encode_json(list_items([*before, *last.input])))


async def cancel_response(gateway: Gateway, request: Request) -> None:
    """Refuse to cancel a response, since none is made in the background."""
    identity = request.path.removeprefix(RESPONSES).removesuffix(CANCEL)
    await gateway.responses.find(identity, identify_owner(gateway, request))
    raise BadRequest("Cannot cancel a synchronous response.")


async def delete_response(gateway: Gateway, request: Request) -> None:
    """Forget a response."""
    identity = request.path.removeprefix(RESPONSES)
    await gateway.responses.remove(identity, identify_owner(gateway, request))
    request.json(200, DeletedResponse(identity, "response", deleted=True))


def identify_owner(gateway: Gateway, request: Request) -> str:
    """Return whose responses a request may see: the owner of its key, "" on a server without."""
    key = gateway.running.of(request).access
    return key.owner if key is not None else ""


def decompress(body: bytes, encoding: str, limit_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return a body as it was before its `Content-Encoding`: zstd (Codex), gzip or none.

    Frames in a row are joined (RFC 8878 §3, RFC 1952 §2.2). Raises UnknownEncoding, BodyTooLarge
    beyond `limit_bytes`, BadRequest for what is broken or has more than `MAX_FRAMES`.
    """
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "zstd" | "gzip" as known:
            make, broken = _zstd() if known == "zstd" else (_Gunzip, zlib.error)
        case other:
            raise UnknownEncoding(f"cannot read the request: unknown encoding '{other[:80]}'")
    try:
        return _joined(body, make, limit_bytes)
    except broken:
        raise BadRequest(f"cannot read the request: its body is not valid {known}") from None


class _Decompressor(Protocol):
    """What zstd's has, for one frame."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gunzip:
    """The same for gzip: zlib gives back the input that it has not used."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._member.unconsumed_tail

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        return self._member.decompress(self._member.unconsumed_tail + data, max_length)


def _zstd() -> tuple[Callable[[], _Decompressor], type[Exception]]:
    """Return what makes a decompressor of one frame, and the error that it raises."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.ZstdDecompressor, zstd.ZstdError


def _joined(body: bytes, make: Callable[[], _Decompressor], limit_bytes: int) -> bytes:
    """Return all frames decompressed.

    The body is handed on in small pieces, since a frame's end makes a copy of what follows it; and
    small pieces are taken, so that a bomb needs little more memory than the limit.
    """
    out = bytearray()
    frame, frames, at = make(), 1, 0
    rest = b""
    while rest or at < len(body) or not (frame.needs_input or frame.eof):
        if not rest and (frame.needs_input or frame.eof):
            rest = body[at : at + _READ_BYTES]
            at += _READ_BYTES
        if frame.eof:
            frame, frames = make(), frames + 1
            if frames > MAX_FRAMES:
                raise BadRequest(
                    f"cannot read the request: its body has more than {MAX_FRAMES} frames"
                )
        out += frame.decompress(rest, _PIECE_BYTES)
        if len(out) > limit_bytes:
            raise BodyTooLarge(f"cannot read the request: its body exceeds {limit_bytes} bytes")
        rest = frame.unused_data
    if not frame.eof:
        raise BadRequest("cannot read the request: its compressed body ends too early")
    return bytes(out)


_api = partial(Route, dialect=Dialect.RESPONSES, answer=WholeResponse)
_kept = partial(
    _api,
    kind=RouteKind.OWN,
    parameters=(Parameter("id", "the response's id, such as `resp_1a2b`"),),
)
ROUTES = (
    _api(
        "POST /v1/responses",
        responses,
        RouteKind.MODEL,
        task=Task.CHAT,
        body=bodies.RESPONSE,
        stream=Stream(Framing.NAMED_EVENTS, ResponseEvent),
        errors=(415,),
    ),
    _kept(f"GET {RESPONSES}{{id}}", get_response),
    _kept(f"GET {RESPONSES}{{id}}{INPUT_ITEMS}", list_input_items, answer=InputItems),
    _kept(f"DELETE {RESPONSES}{{id}}", delete_response, answer=DeletedResponse),
    _kept(f"POST {RESPONSES}{{id}}{CANCEL}", cancel_response),
)
