"""Engines that send more than an answer, or more than one may have; over real sockets."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from tests.chat.replies import collected
from tests.dialects.test_ollama_write import chat
from tests.dialects.test_openai_write import PLAIN, VLLM
from tests.dialects.test_responses_write import reply as responses_reply
from tests.loops import in_uvloop
from tests.net.relay.test_fast_path import REPLIES
from vllama.base.errors import BadRequest, ContextOverflow, UpstreamError, VllamaError
from vllama.chat.bodies import MAX_DIGITS, MAX_NAMES, MAX_VALUES
from vllama.chat.engine.deltas import MAX_TEXT
from vllama.chat.engine.events import decode_event
from vllama.chat.engine.generate import GenerateReader
from vllama.chat.engine.traits import Traits, VectorStyle
from vllama.chat.filters import MAX_SCANNED
from vllama.chat.parsers.call_values import object_of
from vllama.chat.request import Call
from vllama.dialects.blocks import Block, BlockKind
from vllama.dialects.ollama.embeddings import MAX_VECTOR_BYTES, decode_embeddings
from vllama.dialects.rerank import read_scores
from vllama.net.upstream.connection import MAX_OVERHEAD_BYTES, MUCH_BYTES, ConnectionLost
from vllama.net.upstream.pool import Upstream
from vllama.routes.prompts.tokenizer import MAX_ANSWER_BYTES, fetch_field
from vllama.supervise.spec import Endpoint

LIMIT_S = 60.0
SIZED = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"


class Engine:
    """Answers every request with `answer`, and counts its connections."""

    def __init__(self, answer: Callable[[int], bytes]) -> None:
        self.answer = answer
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        number = 0
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(self.answer(number := number + 1))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def running(
    answer: Callable[[int], bytes], most_bytes: float = 1_000_000
) -> AsyncIterator[tuple[Engine, Upstream]]:
    engine = Engine(answer)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    upstream = Upstream(Endpoint(host="127.0.0.1", port=port), most_answer_bytes=most_bytes)
    try:
        async with asyncio.timeout(LIMIT_S):
            yield engine, upstream
    finally:
        for writer in engine.writers:
            writer.close()
        upstream.close()
        server.close()


@pytest.mark.parametrize("first", [SIZED, CHUNKED], ids=["sized", "chunked"])
@pytest.mark.parametrize(
    "more",
    [
        SIZED,
        CHUNKED,
        CHUNKED[:-9],
        b"junk",
        b"\0",
        b"2\r\nno\r\n0\r\n\r\n",
        b"data: no\n\n",
        b"HTTP/1.1",
    ],
)
@in_uvloop
async def test_what_follows_an_answer_is_dropped_with_its_connection(
    first: bytes, more: bytes
) -> None:
    async with running(lambda _: first + more) as (engine, upstream):
        for number in range(1, 4):
            answer = await upstream.fetch(Call(path="/", body=b""))
            assert (answer.status, answer.body) == (200, b"ok")
            assert engine.connections == number


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-5\r\n",
        b"no HTTP at all\n",
    ],
    ids=["upgrade", "length", "chunk", "text"],
)
def test_what_is_no_answer_is_a_lost_connection(answer: bytes) -> None:
    unexpected: list[object] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, row: unexpected.append(row))
        async with running(lambda _: answer) as (_, upstream):
            with pytest.raises(ConnectionLost, match="sent invalid HTTP"):
                await upstream.fetch(Call(path="/", body=b""))

    uvloop.run(run())
    assert not unexpected


HEAD = b"HTTP/1.1 200 OK\r\n"
BEGUN = HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n"


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (HEAD, b"a: b\r\n"),
        (HEAD + b"a: ", b"b"),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        (BEGUN + b"1;", b"a"),
        (BEGUN + b"0\r\n", b"a: b\r\n"),
        (BEGUN + b"0\r\na: ", b"b"),
    ],
    ids=["headers", "header", "interim heads", "extension", "trailers", "trailer"],
)
@in_uvloop
async def test_what_is_no_part_of_an_answer_has_a_limit(begun: bytes, more: bytes) -> None:
    endless = begun + more * (4 * MAX_OVERHEAD_BYTES // len(more))
    async with running(lambda _: endless, math.inf) as (_, upstream):
        with pytest.raises(ConnectionLost, match="unexpected data after"):
            await upstream.fetch(Call(path="/", body=b""))


@pytest.mark.parametrize("body", [b"", b"no", b"[]", b"{", b"\xff"])
@in_uvloop
async def test_an_answer_that_is_no_object_is_the_engines_error(body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with running(lambda _: head + body) as (_, upstream):
        with pytest.raises(UpstreamError):
            await fetch_field(upstream, "/tokenize", {}, "tokens", list[int])


@in_uvloop
async def test_an_idle_connection_with_unread_bytes_is_not_used() -> None:
    async with running(lambda _: SIZED) as (engine, upstream):
        await upstream.fetch(Call(path="/", body=b""))
        await upstream.fetch(Call(path="/", body=b""))
        assert engine.connections == 1
        connection = upstream.idle[0]
        connection._transport.pause_reading()  # as if the loop had not come to it yet
        engine.writers[0].write(SIZED.replace(b"ok", b"no"))
        await engine.writers[0].drain()
        assert (await upstream.fetch(Call(path="/", body=b""))).body == b"ok"
        assert engine.connections == 2 and connection.closed


@in_uvloop
async def test_a_whole_answer_has_a_limit() -> None:
    def answer(number: int) -> bytes:
        size = 1_000_000 * number - 500_000
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (size, bytes(size))

    async with running(answer) as (_, upstream):
        assert len((await upstream.fetch(Call(path="/", body=b""))).body) == 500_000
        with pytest.raises(UpstreamError, match="larger than 128 MiB") as caught:
            await upstream.fetch(Call(path="/", body=b""))
        assert caught.value.status == 502


@in_uvloop
async def test_others_have_their_turn_between_large_reads() -> None:
    size = 60 * MUCH_BYTES

    def answer(_: int) -> bytes:
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (size, bytes(size))

    async with running(answer, 2 * size) as (_, upstream):
        turns, reads = 0, []
        connection = await upstream.connect()
        received = connection.data_received

        class Counts:
            """Notes in which turn of the loop a read came."""

            done = asyncio.get_running_loop().create_future()

            has_begun = False
            wants_headers = False

            def on_head(self, status: int, headers: object) -> None:
                pass

            def on_data(self, data: bytes) -> None:
                if len(data) > MUCH_BYTES:
                    reads.append(turns)

            on_last = on_data

            def on_end(self) -> None:
                self.done.set_result(None)

        assert received
        counts = Counts()
        connection.request(b"GET / HTTP/1.1\r\n\r\n", counts)  # type: ignore[arg-type]
        while not counts.done.done():
            await asyncio.sleep(0)
            turns += 1
        assert len(reads) == len(set(reads))
        connection.release()


# -- what events and answers hold ------------------------------------------------------------------


def chunk(**delta: object) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode()


@pytest.mark.parametrize("kind", REPLIES)
def test_nothing_comes_after_the_end_of_a_stream(kind: str) -> None:
    reply = REPLIES[kind]()
    end = b'data: {"choices":[{"index":0,"delta":{},"text":"","finish_reason":"stop"}]}\n\n'
    out = reply.feed(chunk(content="yes"), 1) + reply.feed(end + b"data: [DONE]\n\n", 2)
    out += reply.feed(chunk(content="never"), 3) + reply.feed(chunk(content="never"), 4)
    out += reply.feed(chunk(content="never"), 5) + reply.finish(6)
    assert b"never" not in out


@pytest.mark.parametrize(
    ("event", "kind", "status"),
    [
        ({"error": {"message": "Grammar error", "code": 400}}, BadRequest, 400),
        ({"object": "error", "message": "Grammar error", "code": 422}, BadRequest, 400),
        ({"error": {"message": "maximum context length", "code": 400}}, ContextOverflow, 400),
        ({"error": {"message": "overloaded", "code": 503}}, UpstreamError, 503),
        ({"error": {"message": "it failed", "code": 500}}, UpstreamError, 502),
        ({"error": {"message": "it failed", "code": "bad"}}, UpstreamError, 502),
        ({"error": "it failed"}, UpstreamError, 502),
    ],
)
def test_an_error_in_a_stream_keeps_its_status(event: Any, kind: type, status: int) -> None:
    with pytest.raises(VllamaError) as caught:
        decode_event(json.dumps(event).encode())
    assert (type(caught.value), caught.value.status) == (kind, status)


def test_an_event_of_too_many_values_is_refused() -> None:
    for piece, count in (
        ('{"index":0}', MAX_NAMES),
        ("1", MAX_VALUES),
        ("9" * 500, MAX_DIGITS // 500),
    ):
        payload = '{"choices":[],"x":[' + f"{piece}," * count + piece + "]}"
        with pytest.raises(UpstreamError, match="too many values"):
            decode_event(payload.encode())
    text = "{[:," * MAX_VALUES
    assert decode_event(chunk(content=text)[len("data: ") :]).text == text


WHOLE = {"ollama": lambda: chat(traits=VLLM, stream=False), "v1": lambda: collected(PLAIN, VLLM)}


@pytest.mark.parametrize("kind", WHOLE)
def test_tool_calls_of_an_answer_have_a_limit(kind: str) -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    reply = WHOLE[kind]()
    with pytest.raises(UpstreamError, match="too many tool calls"):
        for start in range(0, 3000, 100):
            calls = [call | {"index": start + n} for n in range(100)]
            reply.feed(chunk(tool_calls=calls), start)


def test_vectors_of_an_answer() -> None:
    tokens = [[2.0, 2.0]] * 3 + [[6.0, 10.0]]
    body = json.dumps({"data": [{"embedding": tokens}]}).encode()
    traits = Traits(context_length=8, vector_style=VectorStyle.PER_TOKEN)
    assert decode_embeddings(body, traits)[0] == [pytest.approx([0.6, 0.8])]
    for odd in ([[1.0], [1.0, 2.0]], [0.1] * MAX_VECTOR_BYTES, "AAAA" * MAX_VECTOR_BYTES):
        with pytest.raises(UpstreamError):
            decode_embeddings(json.dumps({"data": [{"embedding": odd}]}).encode(), traits)


def test_a_call_is_looked_for_in_the_beginning_of_an_answer_only() -> None:
    call = '\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    for size, found in ((10, True), (MAX_SCANNED, False)):
        reply = chat(tools=True, stream=False)
        reply.feed(chunk(content="a" * size), 1)
        reply.feed(chunk(content=call), 2)
        reply.feed(end, 3)
        message = json.loads(reply.finish(4))["message"]
        assert ("tool_calls" in message, "<tool_call>" in message["content"]) == (found, not found)


@pytest.mark.parametrize("kind", ["text", "arguments", "arguments that are collected"])
def test_a_stream_that_is_written_again_at_its_end_has_a_limit(kind: str) -> None:
    def half(sign: str) -> dict[str, object]:
        text = sign * (MAX_TEXT // 2 + 1)
        call = {"index": 0, "function": {"name": "f", "arguments": text}}
        return {"content": text} if kind == "text" else {"tool_calls": [call]}

    reply = chat(traits=VLLM) if kind.endswith("collected") else responses_reply()
    reply.feed(chunk(**half("a")), 1)
    with pytest.raises(UpstreamError, match="more than 16000000 characters"):
        reply.feed(chunk(**half("b")), 2)
    again = chat(traits=VLLM) if kind.endswith("collected") else responses_reply()
    with pytest.raises(UpstreamError, match="more than 16000000 characters"):
        for number in range(3):  # arguments that are repeated are held
            again.feed(chunk(**half("a")), number)


@pytest.mark.parametrize(
    "value", ["[" + "[]," * MAX_NAMES + "1]", "[" + "1," * (MAX_VALUES + 1) + "1]"]
)
def test_arguments_of_too_many_values_are_text(value: str) -> None:
    assert object_of('{"a": [1]}') == {"a": [1]}
    assert object_of(f'{{"a": {value}}}') is None
    assert not Block(kind=BlockKind.CALL, index=0, parts=[f'{{"a": {value}}}']).complete


def test_lines_and_scores_of_too_many_values_are_refused() -> None:
    rows = b'{"index": 0, "relevance_score": 1},' * MAX_NAMES
    with pytest.raises(UpstreamError, match="cannot read the scores"):
        read_scores(b'{"results": [' + rows[:-1] + b"]}", 1)
    with pytest.raises(UpstreamError, match="too many values"):
        GenerateReader().feed(b'{"logprobs": [' + b"[]," * MAX_NAMES + b"1]}\n")


@pytest.mark.parametrize("tokens", [b"[1.5]", b"[" + b"1," * (MAX_ANSWER_BYTES // 2) + b"1]"])
@in_uvloop
async def test_tokens_of_an_engine_are_integers_and_no_more_than_a_text_has(tokens: bytes) -> None:
    body = b'{"tokens": %b}' % tokens
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with running(lambda _: head + body, math.inf) as (_, upstream):
        with pytest.raises(UpstreamError):
            await fetch_field(upstream, "/tokenize", {}, "tokens", list[int])
