"""Bodies that a client has compressed: zstd, gzip and deflate, bounded in memory and in time."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import Protocol

from vllama.base.errors import BadRequest

MAX_BODY_BYTES = 48 * 1024 * 1024
"""36 MB of images; decoding takes twice as much memory again."""
MAX_FRAMES = 1000
"""Of zstd, or members of gzip, in one body; programs that compress in parallel make some."""
_READ_BYTES = 64 * 1024
_PIECE_BYTES = 1024 * 1024


class BodyTooLarge(BadRequest):
    """The request's body exceeds the limit."""

    status = 413


class UnknownEncoding(BadRequest):
    """A body in an encoding that is not known here."""

    status = 415


def decompress(body: bytes, encoding: str, limit_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return a body as it was before its `Content-Encoding`: zstd (Codex), gzip, deflate or none.

    Frames in a row are joined (RFC 8878 §3, RFC 1952 §2.2). Raises UnknownEncoding, BodyTooLarge
    beyond `limit_bytes`, BadRequest for what is broken or has more than `MAX_FRAMES`.
    """
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "zstd" as known:
            make, broken = _zstd()
        case "gzip" | "x-gzip" as known:
            make, broken = _Inflate, zlib.error
        case "deflate" as known:  # in zlib's format; some clients leave its head out
            is_whole = len(body) > 1 and body[0] & 15 == 8 and not (body[0] * 256 + body[1]) % 31
            wbits = zlib.MAX_WBITS if is_whole else -zlib.MAX_WBITS
            make, broken = partial(_Inflate, wbits), zlib.error
        case other:
            raise UnknownEncoding(
                f"cannot read the request: unknown encoding '{other[:80]}', "
                "not gzip, deflate or zstd"
            )
    try:
        return _join(body, make, limit_bytes)
    except broken:
        raise BadRequest(f"cannot read the request: its body is not valid {known}") from None


class _Decompressor(Protocol):
    """The interface of zstd's decompressor, for one frame."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Inflate:
    """The same for gzip and deflate: zlib gives back the input that it has not used."""

    def __init__(self, wbits: int = 16 + zlib.MAX_WBITS) -> None:
        self._member = zlib.decompressobj(wbits=wbits)

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
    """Return a maker of decompressors of one frame, and the error that they raise."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.ZstdDecompressor, zstd.ZstdError


def _join(body: bytes, make: Callable[[], _Decompressor], limit_bytes: int) -> bytes:
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
        raise BadRequest("cannot read the request: its compressed body is truncated")
    return bytes(out)
