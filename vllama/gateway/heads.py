"""Heads of requests that came before, so that they need not be parsed again.

A client sends the same head with every request, but for the length of the body. The parser's calls
for it and for each of its headers are a tenth of what a short request costs here. Only a request
that has come in one read, and that says no more of its body than its length, is found or learnt.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_KNOWN = 512
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
