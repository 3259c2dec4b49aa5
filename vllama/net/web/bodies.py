"""Bodies of answers, read with limits of size and pace.

A server may compress its answer without being asked, and a few kilobytes of zstd can expand to
gigabytes. So the HTTP library decodes nothing here.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

from vllama.base.errors import SourceError
from vllama.net.web.connections import ConnectionBroken, StreamedResponse

LEAST_BYTES_PER_S = 1024
"""A slower connection was probably forgotten by its server; a new one may do better."""
SLOW_AFTER_S = 15.0


class Pace:
    """The speed of a transfer, measured over spans of `span_s`."""

    def __init__(self, span_s: float) -> None:
        self._span_s, self._since_s, self._bytes = span_s, time.monotonic(), 0

    def add(self, count: int) -> str:
        """Count bytes that have come; return what to say of a transfer that only drips, else ""."""
        self._bytes += count
        passed_s = time.monotonic() - self._since_s
        if passed_s < self._span_s:
            return ""
        if self._bytes < LEAST_BYTES_PER_S * passed_s:
            return f"only {self._bytes} bytes received in {passed_s:.0f} s"
        self._since_s, self._bytes = time.monotonic(), 0
        return ""


GZIP = {"accept-encoding": "gzip"}
"""The header for requests whose answers `read_body` reads."""


def read_body(response: StreamedResponse, most_bytes: int) -> bytes:
    """Return the body of a streamed answer, of at most `most_bytes`.

    Raises SourceError if it is longer, damaged or has another encoding, and ConnectionBroken.
    """
    body = bytearray()
    for piece in _decode(response, most_bytes + 1):
        body += piece
        if len(body) > most_bytes:
            raise SourceError(f"cannot read {find_place(response)}: its response is too large")
    return bytes(body)


def iter_raw(response: StreamedResponse) -> Iterator[bytes]:
    """Yield the body as it comes. Raises ConnectionBroken, and SourceError if it only drips."""
    pace, left = Pace(SLOW_AFTER_S), response.length
    while piece := response.read():
        if left is not None:
            left -= len(piece)
        if slow := pace.add(len(piece)):
            raise SourceError(f"cannot read {find_place(response)}: {slow}")
        yield piece
    if left:
        raise ConnectionBroken("the connection was closed early")


def _decode(response: StreamedResponse, most_bytes: int) -> Iterator[bytes]:
    """Yield the body in pieces of at most `most_bytes`."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        yield from iter_raw(response)
        return
    if encoding not in ("gzip", "x-gzip"):
        raise SourceError(
            f"cannot read {find_place(response)}: unexpected compression {encoding[:40]!r}"
        )
    unpacked, received = zlib.decompressobj(wbits=31), 0
    for packed in iter_raw(response):
        received += len(packed)  # a limit for endless empty blocks, which decompress to nothing
        if unpacked.eof or received > most_bytes:
            break
        try:
            yield unpacked.decompress(packed, most_bytes)
        except zlib.error as error:
            raise SourceError(f"cannot read {find_place(response)}: its gzip is damaged") from error
    if not unpacked.eof:
        raise SourceError(f"cannot read {find_place(response)}: its gzip is truncated")


def find_place(response: StreamedResponse) -> str:
    """Return the address that has answered as it may be shown: without password and query."""
    parts = urlsplit(response.url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
