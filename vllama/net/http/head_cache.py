"""The heads of requests: their content, their refusal, and a cache of parsed heads.

A client sends the same head with every request, except for the length of the body. The calls of the
parser for the head and each header are a tenth of the cost of a short request, so known heads are
not parsed again. Only a request that arrives in one read, and whose body has a length and no other
framing, is looked up or cached.
"""

from __future__ import annotations

from typing import NamedTuple

import httptools

MAX_CACHED = 512
MAX_HEADERS = (
    1000  # in one head: each header costs memory, beyond the limit on the size of the head
)
PERCENT = b"%"[0]  # a number, which `in` finds faster: see chat/event_template.py
MAX_HEAD_BYTES = 4096
_END = b"\r\n\r\n"
_LENGTH = b"ength: "
_NAME = b"\r\ncontent-l"  # the bytes before `_LENGTH`, in lower case
_MAX_DIGITS = 9
_NOT_CACHED = frozenset((b"transfer-encoding", b"upgrade", b"expect"))


class Head(NamedTuple):
    """A parsed head; `headers` has names in lower case, and the last of equal names.

    `query` is what follows the `?` of the target, as it was sent.
    """

    method: str
    path: str
    version: str
    keep_alive: bool
    headers: dict[bytes, bytes]
    query: bytes = b""


class Refusal(NamedTuple):
    """An answer without a handler: the status line, and the reason in a sentence."""

    status: bytes
    reason: bytes


NO_HTTP = Refusal(b"400 Bad Request", b"Invalid HTTP request received.")
TOO_LARGE = Refusal(
    b"431 Request Header Fields Too Large",
    b"The request's head, or what follows its body, is too large.",
)
TOO_SLOW = Refusal(b"408 Request Timeout", b"The rest of the request did not arrive.")
NO_ROOM = Refusal(b"503 Service Unavailable", b"Other requests fill the buffers; try again soon.")
TOO_MANY_CLIENTS = Refusal(b"503 Service Unavailable", b"Too many connections; try again later.")
_TWICE = Refusal(
    b"400 Bad Request", b"The request has several Host, Origin or Transfer-Encoding headers."
)
_NO_HOST = Refusal(b"400 Bad Request", b"The request has no Host header.")
_VERSION = Refusal(b"505 HTTP Version Not Supported", b"The supported version of HTTP is 1.1.")
_CODING = Refusal(b"501 Not Implemented", b"The only supported transfer coding is chunked.")
_EXPECT = Refusal(b"417 Expectation Failed", b"The only supported expectation is 100-continue.")
SINGLE = frozenset((b"host", b"origin", b"transfer-encoding"))
"""Headers that decide about access or framing. Two of them could mean one thing to a proxy, and
another to this server.
"""


def find_refusal(version: str, headers: dict[bytes, bytes], *, twice: bool) -> Refusal | None:
    """Return why a head that the parser accepts is refused (RFC 9110 and 9112), or None.

    `twice`: a header of `SINGLE` occurs more than once.
    """
    if version not in ("1.0", "1.1"):
        return _VERSION  # RFC 9110, section 15.6.6
    if twice:
        return _TWICE  # RFC 9112, section 3.2 for Host
    if b"host" not in headers and version == "1.1":
        return _NO_HOST  # RFC 9112, section 3.2
    if headers.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
        return _CODING  # RFC 9112, section 6.1
    if headers.get(b"expect", b"100-continue").strip().lower() != b"100-continue":
        return _EXPECT  # RFC 9110, section 10.1.1
    return TOO_LARGE if len(headers) > MAX_HEADERS else None


def read_target(target: bytes) -> tuple[str, bytes, bytes]:
    """Return the decoded path of a request's target (RFC 3986, section 2.1), authority and query.

    The authority is empty except in the form for proxies, `http://authority/path`, where it
    replaces the Host header (RFC 9112, section 3.2.2). `*` is returned unchanged.
    """
    authority = b""
    if not target.startswith(b"/"):
        try:
            url = httptools.parse_url(target)
        except httptools.HttpParserInvalidURLError:
            pass
        else:
            target = b"%b?%b" % (url.path or b"/", url.query or b"")
            authority = url.host or b""
            if b":" in authority:
                authority = b"[%b]" % authority
            if authority and url.port:
                authority = b"%b:%d" % (authority, url.port)
    path, _, query = target.partition(b"#")[0].partition(b"?")
    if PERCENT not in path:
        return path.decode("utf-8", "replace"), authority, query
    from urllib.parse import unquote_to_bytes  # rarely needed, and slow to import

    return unquote_to_bytes(path).decode("utf-8", "replace"), authority, query


class ReadParts(NamedTuple):
    """A read that looks like a whole request; `key` is its head without the `digits`."""

    key: bytes
    digits: bytes
    body: bytes


def split_read(read: bytes) -> ReadParts | None:
    """Split a read into its parts; None if it cannot be exactly one request."""
    end = read.find(_END) + 4
    if not 4 <= end <= MAX_HEAD_BYTES:
        return None
    at = read.find(_LENGTH, 0, end)
    if at < 0:
        return ReadParts(read, b"", b"") if end == len(read) else None
    at += 7
    stop = read.find(b"\r\n", at, end)
    digits = read[at:stop]
    if not digits.isdigit() or len(digits) > _MAX_DIGITS or int(digits) != len(read) - end:
        return None
    return ReadParts(read[:at] + read[stop:end], digits, read[end:])


class HeadCache:
    """The cache of parsed heads, emptied when it is full."""

    def __init__(self) -> None:
        self._heads: dict[bytes, Head] = {}

    def get(self, parts: ReadParts) -> Head | None:
        """Return the head as the parser would, or None if it is not cached."""
        head = self._heads.get(parts.key)
        if head is None or not parts.digits:
            return head
        method, path, version, keep_alive, headers, query = head
        headers = headers | {b"content-length": parts.digits}
        return Head(method, path, version, keep_alive, headers, query)

    def add(self, parts: ReadParts, head: Head) -> None:
        """Cache a parsed head, if equal bytes always have the same meaning."""
        headers = head.headers
        if not _NOT_CACHED.isdisjoint(headers):
            return
        if headers.get(b"content-length", b"") != parts.digits:
            return
        if parts.digits:
            before = parts.key[: parts.key.find(_LENGTH)]
            if before[-len(_NAME) :].lower() != _NAME:
                return
        if len(self._heads) >= MAX_CACHED:
            self._heads.clear()
        self._heads[parts.key] = head
