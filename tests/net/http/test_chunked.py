"""Taking HTTP chunks apart beside the parser."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.net.http.framing import FRAME, FRAME_WITHIN, split_whole_chunks
from vllama.net.upstream.connection import Connection, ConnectionLost
from vllama.net.upstream.pool import Upstream
from vllama.supervise.spec import Endpoint

HEADS = (
    b"HTTP/1.1 200 OK\r\ndate: now\r\ntransfer-encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding:chunked\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
)


class Taken:
    """What a sink is told."""

    def __init__(self) -> None:
        self.status, self.body, self.ended = 0, b"", False

    has_begun = False
    wants_headers = False

    def on_head(self, status: int, headers: object) -> None:
        self.status = status

    def on_data(self, data: bytes) -> None:
        self.body += data

    on_last = on_data

    def on_end(self) -> None:
        self.ended = True

    def on_lost(self, error: ConnectionLost) -> None:
        raise error


class Nowhere(asyncio.Transport):
    """A transport that sends nothing."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take it."""


def chunk(body: bytes) -> bytes:
    """Frame one chunk."""
    return b"%x\r\n%b\r\n" % (len(body), body)


@given(st.lists(st.binary(min_size=1, max_size=40)), st.binary(max_size=40), st.data())
def test_whole_ones_are_taken_and_the_rest_is_left(bodies, last, data) -> None:
    framed = chunk(last) if last else b"0\r\n\r\n"
    cut = data.draw(st.integers(0, len(framed) - 1))
    read = b"".join(map(chunk, bodies)) + framed[:cut]
    found, rest = split_whole_chunks(read)
    assert found == bodies and rest == framed[:cut]


def test_what_is_unusual_is_left() -> None:
    for odd in (
        b"-3\r\nabc\r\n",
        b"12",
        b"0\r\n\r\n",
        b"3;x=y\r\nabc\r\n",
        b"zz\r\nabc\r\n",
        b"\r\n",
        b"",
        b"aaaaaaaaaaaa",
        b"0\r\n\r\n",
        b"0\r\n\r\n0\r\n\r\n",
    ):
        assert split_whole_chunks(odd) == ([], odd)


@pytest.mark.parametrize("head", HEADS)
@given(st.lists(st.lists(st.binary(min_size=1, max_size=40)), min_size=1, max_size=3), st.data())
def test_answers_of_one_connection_come_whole_however_they_are_cut(head, answers, data) -> None:
    connection = Connection(Upstream(Endpoint(host="127.0.0.1", port=1)))
    connection.connection_made(Nowhere())
    for bodies in answers:
        taken = Taken()
        connection.request(b"", taken)
        sent = head + b"".join(map(chunk, bodies)) + b"0\r\n\r\n"
        cuts = data.draw(st.lists(st.integers(1, len(sent) - 1), unique=True, max_size=4))
        for start, end in pairwise([0, *sorted(cuts), len(sent)]):
            connection.data_received(sent[start:end])
        assert (taken.status, taken.body, taken.ended) == (200, b"".join(bodies), True)
        connection.release()
        assert connection in connection._pool.idle
        connection._pool.idle.clear()


@pytest.mark.parametrize(
    "read, bodies, rest",
    [
        (b"5\r\na\r\nbc\r\n", [b"a\r\nbc"], b""),
        (b"A\r\n0123456789\r\n", [b"0123456789"], b""),
        (b"001\r\na\r\n", [b"a"], b""),
        (b"1\r\na\r\n0\r\n\r\n", [b"a"], b"0\r\n\r\n"),
        (b"1\r\na\r\n1\r\nb\r\n1", [b"a", b"b"], b"1"),
        (b"1\r\na\r\n0\r\nx: y\r\n\r\n", [b"a"], b"0\r\nx: y\r\n\r\n"),
        (b"1\r\na\r\n0\r\n\r\n1\r\na\r\n", [b"a"], b"0\r\n\r\n1\r\na\r\n"),
    ],
)
def test_what_else_is_a_chunk(read, bodies, rest) -> None:
    assert split_whole_chunks(read) == (bodies, rest)


def test_the_frame_of_a_whole_chunk_is_known_by_its_length() -> None:
    for size in (1, 9, 15, 16, 255, 256, 4095, 4096, 65535, 65536):
        assert FRAME_WITHIN[len(FRAME[size]) + size + 2] == FRAME[size]
    assert FRAME_WITHIN[0] == FRAME_WITHIN[4] == FRAME_WITHIN[21] == b"?"
