"""Requests of the server's own: their body, and where their response goes."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllama.net.http.content_encoding import BodyTooLarge
from vllama.net.http.request import BUFFER_BYTES, Request


def make(body: bytes = b"{}") -> tuple[Request, bytearray]:
    request = Request.without_socket("/v1/completions", body, "batch")
    return request, request.sink


@pytest.mark.parametrize("size", [0, 2, BUFFER_BYTES, 3 * BUFFER_BYTES])
def test_its_body_is_read_whole_and_again(size: int) -> None:
    async def read() -> None:
        body = b"x" * size
        request, _ = make(body)
        assert request.header(b"content-length") == str(size)
        assert await request.body() == body
        request.put_back(body)
        assert await request.body() == body
        assert await request.body() == b""
        with pytest.raises(BodyTooLarge):
            await make(b"x" * 10)[0].body(limit_bytes=9)

    asyncio.run(read())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=5), st.binary(max_size=50), st.booleans())
def test_the_sink_takes_the_body_alone(parts: list[bytes], last: bytes, is_sized: bool) -> None:
    request, sink = make()
    request.set_header("x-vllama-resumed", "1")
    request.start(200, b"text/plain", sum(map(len, parts)) + len(last) if is_sized else None)
    assert request.get_chunk_writer() is None and not request.paused
    for part in parts:
        request.write(part)
    assert not request.done
    request.end(last)
    request.end(b"nothing more")
    request.write(b"nothing more")
    assert (request.status, bytes(sink), request.done) == (200, b"".join(parts) + last, True)
    assert request.extra == [(b"x-vllama-resumed", b"1")]


def test_a_response_that_fails_is_not_done() -> None:
    request, sink = make()
    request.start(200, b"text/plain")
    request.write(b"half")
    request.fail()
    assert not request.done and bytes(sink) == b"half"
    request, sink = make()
    request.fail()
    assert (request.status, request.done, bytes(sink)) == (500, True, b"internal error")


def test_it_can_be_stopped() -> None:
    async def play() -> None:
        request, _ = make()
        left: list[bool] = []
        request.watch(lambda: left.append(True))
        waiting = asyncio.create_task(request.wait_for_disconnect())
        await asyncio.sleep(0)
        request.note_disconnect()
        await waiting
        assert left == [True] and request.disconnected

    asyncio.run(play())
