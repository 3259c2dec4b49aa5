"""The first lines of an answer's head: its status (RFC 9110, section 15) and its body's type."""

from __future__ import annotations

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
