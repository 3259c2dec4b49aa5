"""OpenAI's `POST /v1/responses` (contract §1.9), whose clients may compress what they send."""

from __future__ import annotations

import sys
import zlib
from functools import partial
from typing import TYPE_CHECKING

from vllama.errors import BadRequest
from vllama.gateway.anthropic import chat_model, prepared, relay_blocks, seed_of
from vllama.gateway.http import MAX_BODY_BYTES, BodyTooLarge, Request
from vllama.translate.responses_in import parse_responses
from vllama.translate.responses_out import ResponsesReply

if TYPE_CHECKING:
    from vllama.gateway.app import Gateway


class UnknownEncoding(BadRequest):
    """A body in an encoding that is not known here."""

    status = 415


async def responses(gateway: Gateway, request: Request) -> None:
    """Serve `POST /v1/responses`."""
    body = decompress(await request.body(), request.header(b"content-encoding"))
    asked = parse_responses(body)
    entry = await chat_model(gateway, asked.model)
    chat = prepared(entry, asked.chat, asked.extras)
    make = partial(
        ResponsesReply,
        seed=seed_of(request),
        created_ns=request.started_ns,
        echo=asked.echo,
        names=asked.names,
    )
    await relay_blocks(
        gateway,
        request,
        entry,
        chat,
        make,
        extras=asked.extras,
        truncate=asked.truncate,
        ignored=asked.ignored,
    )


def decompress(body: bytes, encoding: str, limit_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return a body as it was before its `Content-Encoding`: zstd (Codex), gzip or none.

    Raises UnknownEncoding, BodyTooLarge beyond `limit_bytes`, BadRequest for what is broken.
    """
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "zstd":
            out, complete = _unzstd(body, limit_bytes + 1)
        case "gzip":
            out, complete = _gunzip(body, limit_bytes + 1)
        case other:
            raise UnknownEncoding(f"cannot read the request: unknown encoding '{other[:80]}'")
    if len(out) > limit_bytes:
        raise BodyTooLarge(f"cannot read the request: its body exceeds {limit_bytes} bytes")
    if not complete:
        raise BadRequest("cannot read the request: its compressed body ends too early")
    return out


def _unzstd(body: bytes, most_bytes: int) -> tuple[bytes, bool]:
    """Return at most `most_bytes` of all frames, and whether the last one is complete."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    out = bytearray()
    complete = False
    while body and len(out) < most_bytes:
        decompressor = zstd.ZstdDecompressor()
        try:
            out += decompressor.decompress(body, max_length=most_bytes - len(out))
        except zstd.ZstdError:
            raise BadRequest("cannot read the request: its body is not valid zstd") from None
        complete = decompressor.eof
        body = decompressor.unused_data if complete else b""
    return bytes(out), complete


def _gunzip(body: bytes, most_bytes: int) -> tuple[bytes, bool]:
    """Return at most `most_bytes`, and whether that was all."""
    decompressor = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        out = decompressor.decompress(body, most_bytes)
    except zlib.error:
        raise BadRequest("cannot read the request: its body is not valid gzip") from None
    return out, decompressor.eof
