"""Bodies of answers, read with a limit on what they become when decompressed.

A server may compress what nobody asked it to, and a few kilobytes of zstd are gigabytes of blanks:
nothing here is left to the HTTP library to decode.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import httpx2

from vllama.errors import SourceError

GZIP = {"accept-encoding": "gzip"}
"""The header to ask with."""


def read_body(response: httpx2.Response, most_bytes: int) -> bytes:
    """Return the body of a streamed answer that has not been read.

    Raises SourceError for one that is longer, damaged or encoded in another way; what the HTTP
    library raises.
    """
    body = bytearray()
    for piece in _decoded(response, most_bytes + 1):
        body += piece
        if len(body) > most_bytes:
            raise SourceError(f"cannot read {_place(response)}: its answer is too long")
    return bytes(body)


def _decoded(response: httpx2.Response, most_bytes: int) -> Iterator[bytes]:
    """Yield the body in pieces of at most `most_bytes`."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        yield from response.iter_raw()
        return
    if encoding not in ("gzip", "x-gzip"):
        raise SourceError(
            f"cannot read {_place(response)}: it is compressed as {encoding[:40]!r}, "
            "which nobody asked for"
        )
    unpacked, received = zlib.decompressobj(wbits=31), 0
    for packed in response.iter_raw():
        received += len(packed)  # empty blocks become nothing, however many there are
        if unpacked.eof or received > most_bytes:
            break
        try:
            yield unpacked.decompress(packed, most_bytes)
        except zlib.error as error:
            raise SourceError(f"cannot read {_place(response)}: its gzip is damaged") from error
    if not unpacked.eof:
        raise SourceError(f"cannot read {_place(response)}: its gzip has no end")


def _place(response: httpx2.Response) -> str:
    return str(response.url.copy_with(query=None, userinfo=b""))
