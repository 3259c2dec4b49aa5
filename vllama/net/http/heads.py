"""The heads of requests: their content, their target, and why one is refused."""

from __future__ import annotations

from typing import NamedTuple

import httptools

MAX_HEADERS = 1000
"""In one head: each header costs memory, beyond the limit on the size of the head."""
PERCENT = b"%"[0]  # a number, which `in` finds faster: see chat/event_template.py


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
NO_PATH = Refusal(b"400 Bad Request", b"The target of the request is not a path on this server.")
_TWICE = Refusal(b"400 Bad Request", b"A header that may occur only once occurs twice.")
_NO_HOST = Refusal(b"400 Bad Request", b"The request has no Host header, or an empty one.")
_VERSION = Refusal(b"505 HTTP Version Not Supported", b"The supported version of HTTP is 1.1.")
_CODING = Refusal(b"501 Not Implemented", b"The only supported transfer coding is chunked.")
_EXPECT = Refusal(b"417 Expectation Failed", b"The only supported expectation is 100-continue.")
SINGLE = frozenset(
    (b"host", b"origin", b"transfer-encoding", b"authorization", b"x-api-key", b"content-type")
)
"""Headers that decide about access, framing or the form of a body. Two of them could mean one thing
to a proxy, and another to this server.
"""


def find_refusal(version: str, headers: dict[bytes, bytes], *, twice: bool) -> Refusal | None:
    """Return why a head that the parser accepts is refused (RFC 9110 and 9112), or None.

    `twice`: a header of `SINGLE` occurs more than once.
    """
    if version not in ("1.0", "1.1"):
        return _VERSION  # RFC 9110, section 15.6.6
    if twice:
        return _TWICE  # RFC 9112, section 3.2 for Host
    if not headers.get(b"host", b"" if version == "1.1" else b"-"):
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
