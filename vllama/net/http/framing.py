"""The bytes around an answer's body: the first lines of its head, and chunks.

These are its status (RFC 9110, section 15) and its body's type. Chunks (RFC 9112, section 7.1) are
split and framed without the parser.
The frame of each length is computed once, because the chunks of streams have few different lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

_REASONS = {
    100: b"Continue", 200: b"OK", 201: b"Created", 202: b"Accepted", 204: b"No Content",
    301: b"Moved Permanently", 307: b"Temporary Redirect", 400: b"Bad Request",
    401: b"Unauthorized", 403: b"Forbidden", 404: b"Not Found", 405: b"Method Not Allowed",
    413: b"Content Too Large", 422: b"Unprocessable Content", 429: b"Too Many Requests",
    431: b"Request Header Fields Too Large", 499: b"Client Closed Request",
    500: b"Internal Server Error",
    501: b"Not Implemented", 502: b"Bad Gateway", 503: b"Service Unavailable",
    504: b"Gateway Timeout", 507: b"Insufficient Storage",
}  # fmt: skip


@lru_cache(maxsize=256)
def make_first_lines(status: int, content_type: bytes) -> bytes:
    """Return the first lines of a head; an answer without a body may be without a type."""
    reason = _REASONS.get(status, b"-")
    line = b"HTTP/1.1 %d %b\r\n" % (status, reason)
    if content_type:
        line += b"content-type: %b\r\n" % content_type
    if content_type.startswith(b"text/event-stream"):
        line += b"cache-control: no-cache\r\n"  # no proxy may keep events back
    return line


MAX_FRAMES = 8192
NO_FRAME = b"?"  # no chunk begins with this


class _FrameTable(dict[int, bytes]):
    """A table of a function of the length; a lookup costs no function call."""

    def __init__(self, compute: Callable[[int], bytes]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, size: int) -> bytes:
        """Compute a missing frame."""
        line = self._compute(size)
        if len(self) < MAX_FRAMES:
            self[size] = line
        return line


def _make_frame_within(size: int) -> bytes:
    lines = (b"%x\r\n" % (size - digits - 4) for digits in range(1, 8) if size > digits + 4)
    return next((line for line in lines if size == len(line) + int(line, 16) + 2), NO_FRAME)


FRAME = _FrameTable(lambda size: b"%x\r\n" % size)
"""The line before the body of a chunk, by the size of the body in bytes."""

FRAME_WITHIN = _FrameTable(_make_frame_within)
"""The first line of a chunk, by the total size of the chunk; `NO_FRAME` if no chunk has that size.

The line has the form of all engines: lower case, without leading zeros or an extension.
"""


def unframe(chunk: bytes) -> bytes:
    """Return the body of one whole chunk."""
    return chunk[chunk.index(b"\n") + 1 : -2]


def split_whole_chunks(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the bodies of the whole chunks at the beginning of `data`, and the remaining bytes.

    The last chunk (which is empty), a chunk with an extension, and anything else unusual remains.
    """
    parts = data.split(b"\r\n")
    rest = parts.pop()
    bodies = parts[1::2]
    # the usual read: whole chunks with sizes in lower case and without CRLF in their bodies
    if not rest and [b"%x" % len(body) for body in bodies] == parts[::2]:
        if b"" not in bodies:
            return bodies, b""
        if bodies.index(b"") == len(bodies) - 1:
            return bodies[:-1], b"0\r\n\r\n"
    return _split_one_by_one(data)


def _split_one_by_one(data: bytes) -> tuple[list[bytes], bytes]:
    bodies = []
    start, size = 0, len(data)
    while start < size:
        end = data.find(b"\r\n", start + 1, start + 10)
        try:
            length = int(data[start:end], 16) if end > 0 else 0
        except ValueError:
            break
        following = end + 4 + length
        if length <= 0 or following > size:
            break
        bodies.append(data[end + 2 : following - 2])
        start = following
    return bodies, data[start:]
