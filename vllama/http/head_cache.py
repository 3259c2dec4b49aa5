"""Heads of requests: what they say, what is refused, and those that came before.

The latter need not be parsed again. A client sends the same head with every request, but for the
length of the body. The parser's calls for it and for each of its headers are a tenth of what a
short request costs here. Only a request that has come in one read, and that says no more of its
body than its length, is found or learnt.
"""

from __future__ import annotations

from typing import NamedTuple

import httptools

MAX_KNOWN = 512
MAX_HEADERS = 1000  # in one head, which may be long: each of them costs memory of its own
PERCENT = b"%"[0]  # a number: see chat/event_template.py
MAX_HEAD_BYTES = 4096
_END = b"\r\n\r\n"
_LENGTH = b"ength: "
_NAME = b"\r\ncontent-l"  # what stands before that, in whatever case
_MAX_DIGITS = 9
_NOT_LEARNT = frozenset((b"transfer-encoding", b"upgrade", b"expect"))


class Head(NamedTuple):
    """What the parser said of one. `headers`: names in lower case; of several the last."""

    method: str
    path: str
    version: str
    keep_alive: bool
    headers: dict[bytes, bytes]


class Refusal(NamedTuple):
    """Why a head is not answered by a handler: the status with its reason, and a sentence."""

    status: bytes
    why: bytes


NO_HTTP = Refusal(b"400 Bad Request", b"Invalid HTTP request received.")
TOO_LARGE = Refusal(
    b"431 Request Header Fields Too Large",
    b"The request's head, or what follows its body, is too large.",
)
TOO_SLOW = Refusal(b"408 Request Timeout", b"Nothing more came of the request.")
TOO_MANY_CLIENTS = Refusal(b"503 Service Unavailable", b"Too many connections; try again later.")
_TWICE = Refusal(
    b"400 Bad Request", b"The request has several Host, Origin or Transfer-Encoding headers."
)
_NO_HOST = Refusal(b"400 Bad Request", b"The request has no Host header.")
_VERSION = Refusal(b"505 HTTP Version Not Supported", b"The version of HTTP spoken here is 1.1.")
_CODING = Refusal(b"501 Not Implemented", b"The only transfer coding known here is chunked.")
_EXPECT = Refusal(b"417 Expectation Failed", b"The only expectation known here is 100-continue.")
SINGLE = frozenset((b"host", b"origin", b"transfer-encoding"))
"""Headers that say who asks, and where a body ends: of two, a proxy may have read the other."""


def write_refusal(version: str, headers: dict[bytes, bytes], *, twice: bool) -> Refusal | None:
    """Return what is wrong with a head that the parser takes (RFC 9110 and 9112); None: nothing.

    `twice`: it has one of `SINGLE` more than once.
    """
    if version not in ("1.0", "1.1"):
        return _VERSION  # RFC 9110 §15.6.6
    if twice:
        return _TWICE  # RFC 9112 §3.2 for Host
    if b"host" not in headers and version == "1.1":
        return _NO_HOST  # RFC 9112 §3.2
    if headers.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
        return _CODING  # RFC 9112 §6.1
    if headers.get(b"expect", b"100-continue").strip().lower() != b"100-continue":
        return _EXPECT  # RFC 9110 §10.1.1
    return TOO_LARGE if len(headers) > MAX_HEADERS else None


def read_target(target: bytes) -> tuple[str, bytes]:
    """Return the decoded path of a request's target (RFC 3986 §2.1), and its authority if any.

    `*` stays. The form for proxies, `http://authority/path`, is the one with an authority, which
    then stands for the Host header (RFC 9112 §3.2.2).
    """
    authority = b""
    if not target.startswith(b"/"):
        try:
            url = httptools.parse_url(target)
        except httptools.HttpParserInvalidURLError:
            pass
        else:
            target, authority = url.path or b"/", url.host or b""
            if b":" in authority:
                authority = b"[%b]" % authority
            if authority and url.port:
                authority = b"%b:%d" % (authority, url.port)
    path = target.partition(b"?")[0].partition(b"#")[0]
    if PERCENT not in path:
        return path.decode("utf-8", "replace"), authority
    from urllib.parse import unquote_to_bytes  # seldom needed, and slow to import

    return unquote_to_bytes(path).decode("utf-8", "replace"), authority


class Cut(NamedTuple):
    """A read that looks like a whole request: `key` is its head without the `digits`."""

    key: bytes
    digits: bytes
    body: bytes


def cut(read: bytes) -> Cut | None:
    """Take a read apart; None if it cannot be one request."""
    end = read.find(_END) + 4
    if not 4 <= end <= MAX_HEAD_BYTES:
        return None
    at = read.find(_LENGTH, 0, end)
    if at < 0:
        return Cut(read, b"", b"") if end == len(read) else None
    at += 7
    stop = read.find(b"\r\n", at, end)
    digits = read[at:stop]
    if not digits.isdigit() or len(digits) > _MAX_DIGITS or int(digits) != len(read) - end:
        return None
    return Cut(read[:at] + read[stop:end], digits, read[end:])


class Heads:
    """The heads that are known."""

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}

    def get(self, found: Cut) -> Head | None:
        """Return what the parser would say of the head."""
        head = self._known.get(found.key)
        if head is None or not found.digits:
            return head
        method, path, version, keep_alive, headers = head
        headers = headers | {b"content-length": found.digits}
        return Head(method, path, version, keep_alive, headers)

    def learn(self, found: Cut, head: Head) -> None:
        """Keep what the parser has said of the head, if it will say so of the next one."""
        headers = head.headers
        if not _NOT_LEARNT.isdisjoint(headers):
            return
        if headers.get(b"content-length", b"") != found.digits:
            return
        if found.digits:
            before = found.key[: found.key.find(_LENGTH)]
            if before[-len(_NAME) :].lower() != _NAME:
                return
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[found.key] = head
