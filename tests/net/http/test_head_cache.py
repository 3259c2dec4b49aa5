"""Heads that are known are what the parser would say of them."""

from __future__ import annotations

import asyncio
import math

import pytest

from vllama.net.http.budget import Budget
from vllama.net.http.connection import Client
from vllama.net.http.head_cache import MAX_CACHED, Head, HeadCache, ReadParts, split_read
from vllama.net.http.request import Request

POST = b"POST /api/chat?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\nX-Y: z\r\n\r\n%b"

LOWER = b"POST / HTTP/1.1\r\nHost: a\r\ncontent-length: %d\r\n\r\n%b"

UPGRADE = (
    b"POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n"
    b"Content-Length: 2\r\n\r\n{}"
)


class Asked:
    """A server that keeps what is asked, and `heads` between connections."""

    def __init__(self) -> None:
        self.heads = HeadCache()
        self.clients: dict[Client, None] = {}
        self.draining = False
        self.requests: list[Request] = []
        self.certificate = None
        self.budget = Budget(math.inf)

    def run(self, request: Request) -> None:
        self.requests.append(request)

    def admit(self, client: Client) -> None:
        self.clients[client] = None

    @staticmethod
    def date() -> bytes:
        return b""


class Sent(asyncio.Transport):
    """A transport that goes nowhere."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take it."""

    def close(self) -> None:
        """Do nothing."""

    def pause_reading(self) -> None:
        """Do nothing."""


def said(server: Asked, *reads: bytes) -> list[tuple[Head, bytes]]:
    """Send reads through a new connection; return what the server is asked."""
    client = Client(server)  # type: ignore[arg-type]
    client.connection_made(Sent())
    server.requests.clear()
    for read in reads:
        client.data_received(read)
    return [
        (Head(r.method, r.path, r.version, r.keep_alive, r.headers), b"".join(r._parts))
        for r in server.requests
        if not r._more
    ]


@pytest.mark.parametrize(
    "first, second, known",
    [
        (POST % (2, b"{}"), POST % (13, b'{"model":"m"}'), True),
        (LOWER % (2, b"{}"), LOWER % (2, b"[]"), True),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", True),
        (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n", True),
        (POST % (0, b""), POST % (3, b"abc"), True),
        # another header, another order, another end
        (POST % (2, b"{}"), POST.replace(b"X-Y", b"X-Z") % (2, b"{}"), False),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nX-Strength: 2\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: a\r\nX-Strength: 2\r\n\r\nab",
            False,
        ),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nX-Strength: 2\r\nContent-Length: 2\r\n\r\nab",
            b"POST / HTTP/1.1\r\nHost: a\r\nX-Strength: 3\r\nContent-Length: 2\r\n\r\nab",
            False,
        ),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nX-Strength: 2\r\nContent-Length:2\r\n\r\nab",
            b"POST / HTTP/1.1\r\nHost: a\r\nX-Strength: 3\r\nContent-Length:2\r\n\r\nabc",
            False,
        ),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
            False,
        ),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n",
            False,
        ),
        (
            UPGRADE,
            UPGRADE,
            False,
        ),
    ],
)
def test_the_second_is_read_as_if_it_were_the_first(first, second, known) -> None:
    server = Asked()
    said(server, first)
    found = split_read(second)
    assert (found is not None and server.heads.get(found) is not None) is known
    assert said(server, second) == said(Asked(), second)


def test_only_whole_requests_are_cut() -> None:
    whole = POST % (3, b"abc")
    assert split_read(whole) is not None
    for read in (whole[:-1], whole + b"d", whole + whole, whole[:20], b"", b"\r\n\r\n" * 2):
        assert split_read(read) is None
    for digits in (b"+3", b"3 ", b"0x3", b"", b"3333333333"):
        assert split_read(whole.replace(b": 3", b": " + digits)) is None


def test_a_head_that_is_known_need_not_come_first() -> None:
    server = Asked()
    whole = POST % (2, b"{}")
    said(server, whole)
    # it may come in pieces, or twice
    assert said(server, whole[:-1], b"}") == said(Asked(), whole)
    for reads in ((whole + whole,), (whole, whole)):
        assert len(said(server, *reads)) == 1, "the second waits for the first one's answer"


def test_not_more_are_kept_than_a_server_needs() -> None:
    heads = HeadCache()
    for number in range(MAX_CACHED + 1):
        head = Head("GET", f"/{number}", "1.1", True, {})
        heads.add(ReadParts(b"%d" % number, b"", b""), head)
    assert len(heads._heads) == 1
