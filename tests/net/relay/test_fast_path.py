"""The straight way from socket to socket says what the long way says, in any cut of the stream."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chat.replies import streamed
from tests.chat.test_event_template import END, EVENTS, event
from tests.dialects.test_ollama_write import chat, generate
from tests.dialects.test_openai_write import PLAIN, VLLM
from tests.loops import in_loop
from vllama.chat.request import Call
from vllama.net.fast_path import RewritePath
from vllama.net.http.heads import Head
from vllama.net.http.request import Request
from vllama.net.relay import Relay
from vllama.net.relay_types import RelayState
from vllama.net.upstream.connection import Connection
from vllama.net.upstream.pool import Upstream
from vllama.supervise.spec import Endpoint

ENGINE = Endpoint(host="127.0.0.1", port=1)
REPLIES = {
    "chat": lambda: chat(traits=VLLM),
    "generate": lambda: generate(traits=VLLM),
    "v1": lambda: streamed(PLAIN, VLLM),
    "v1, as they are": lambda: streamed(PLAIN, VLLM),
}


class Transport(asyncio.Transport):
    """A socket's end that keeps what is written, and passes on what is read as uvloop does."""

    quiet: socket.socket

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.protocol: asyncio.BaseProtocol | None = None
        self.paused = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None:
        self.written.append(b"(cut)")

    def get_extra_info(self, name: str) -> socket.socket:
        return self.quiet


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Give all transports one socket on which nothing is sent."""
    Transport.quiet, other = socket.socketpair()
    with Transport.quiet, other:
        yield


class Client:
    """The connection of a client that keeps up."""

    paused = False
    persists = True

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.write = self.written.append

    def date(self) -> bytes:
        return b""

    def read_on(self) -> None:
        pass

    def on_answered(self, request: Request) -> None:
        pass

    def let_go(self) -> None:
        pass

    def check_room(self, size_bytes: int) -> None:
        pass


def asked(client: Client) -> Request:
    """Return a request of which the client has had the head of the answer."""
    request = Request(
        client,  # type: ignore[arg-type]
        Head("POST", "/", "1.1", True, {}),
    )
    request.start(200, b"text/plain")
    request.write(b"-")
    client.written.clear()
    return request


class Stream:
    """An engine's connection, a relay and a client, without sockets."""

    def __init__(self, kind: str) -> None:
        self.client = Client()
        self.reply = REPLIES[kind]()
        self.request = asked(self.client)
        self.relay = Relay(self.request, self.reply, whole=False, headers={})
        self.engine = Transport()
        self.connection = Connection(Upstream(ENGINE))
        self.connection.connection_made(self.engine)
        self.engine.set_protocol(self.connection)
        self.relay._connection = self.connection
        self.relay._state = RelayState.AWAITING_HEAD  # as `run` leaves it
        self.connection.request(b"", self.relay)
        self.read(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")

    @property
    def on_fast_path(self) -> bool:
        return isinstance(self.engine.protocol, RewritePath)

    def read(self, data: bytes) -> None:
        self.engine.protocol.data_received(data)  # type: ignore[union-attr]

    def told(self) -> list[bytes]:
        """Return the bodies of the chunks that the client got; each must be framed right."""
        bodies = []
        for chunk in self.client.written:
            size, _, rest = chunk.partition(b"\r\n")
            assert len(rest) == int(size, 16) + 2 and rest.endswith(b"\r\n")
            bodies.append(rest[:-2])
        return bodies


def framed(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def timeless(out: bytes) -> list[object]:
    values = []
    for line in out.splitlines():
        line = line.removeprefix(b"data: ")
        if line and line != b"[DONE]":
            value = json.loads(line)
            value.pop("created_at", None)
            values.append(value)
    return values


@pytest.mark.parametrize("kind", REPLIES)
@given(events=st.lists(EVENTS, max_size=12), data=st.data())
def test_the_fast_path_says_what_the_reply_says(kind: str, events: list[bytes], data) -> None:
    if kind == "v1, as they are":  # an Ollama's
        mark = b'"system_fingerprint":"fp_ollama","model"'
        events = [body.replace(b'"model"', mark, 1) for body in events]
    chunks = [framed(body) for body in [*events, b": ping\n\n", *events, END, b"data: [DONE]\n\n"]]
    raw = b"".join(chunks)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    whole = data.draw(st.booleans())  # one read for each chunk, or cut anywhere
    bounds = [0, *cuts, len(raw)]
    reads = chunks if whole else [raw[a:b] for a, b in pairwise(bounds)]
    stream = Stream(kind)
    for read in reads:
        if read:
            stream.read(read)
    straight = REPLIES[kind]()
    plain = b"".join(
        straight.feed(body, 1) for body in [*events, *events, END, b"data: [DONE]\n\n"]
    )
    assert timeless(b"".join(stream.told())) == timeless(plain)
    assert stream.reply.tally.usage == straight.tally.usage
    if kind == "generate":
        assert stream.reply.writer.text == straight.writer.text


def test_a_read_may_end_within_the_size_of_a_chunk() -> None:
    stream = Stream("chat")
    raw = b"".join(framed(event(text)) for text in ("a", "b", "c" * 300, "d"))
    cut = raw.index(b"c" * 300)
    cut = raw.rindex(b"\r\ndata", 0, cut) - 1  # its last digit is in the next read
    for read in (raw[:cut], raw[cut:]):
        stream.read(read)
    texts = [line["message"]["content"] for line in timeless(b"".join(stream.told()))]  # type: ignore[index]
    assert texts == ["a", "b", "c" * 300, "d"]


@pytest.mark.parametrize("kind", REPLIES)
def test_plain_tokens_take_the_fast_path(kind: str) -> None:
    stream = Stream(kind)
    for text in "abc":
        stream.read(framed(event(text)))
    assert stream.on_fast_path
    stream.read(framed(event("d")) + framed(event("ef")) + framed(event("g")))
    assert len(stream.told()) == 4  # one write for a read
    stream.connection.release()
    assert stream.engine.protocol is stream.connection


def test_an_engine_waits_for_a_slow_client() -> None:
    stream = Stream("chat")
    for text in "ab":
        stream.read(framed(event(text)))
    assert stream.on_fast_path
    stream.client.paused = True
    stream.request.writes = stream.relay
    stream.request.set_paused(True)
    assert not stream.on_fast_path and stream.engine.paused
    stream.read(framed(event("c")))  # was read before the pause
    assert len(stream.told()) == 3 and not stream.on_fast_path
    stream.client.paused = False
    stream.request.set_paused(False)
    assert not stream.engine.paused
    stream.read(framed(event("d")))
    assert len(stream.told()) == 4 and stream.on_fast_path


def test_an_error_in_the_stream_ends_the_fast_path() -> None:
    stream = Stream("chat")
    for text in "ab":
        stream.read(framed(event(text)))
    stream.read(framed(b'data: {"error": {"message": "no memory"}}\n\n'))
    assert not stream.on_fast_path
    stream.read(framed(event("c")))
    assert len(stream.told()) == 2


@pytest.mark.parametrize("step", ["feed", "finish"])
@in_loop
async def test_a_bug_in_an_answer_reaches_its_request(step: str) -> None:
    # it is made in the engine's callbacks, where nobody would hear of it
    stream = Stream("chat")
    stream.read(b"0\r\n\r\n")  # the answer that the stream began with
    stream.relay = Relay(asked(stream.client), stream.reply, whole=False, headers={})
    pool = stream.connection._pool
    pool.idle.append(stream.connection)
    setattr(stream.reply, step, lambda *_: 1 / 0)
    running = asyncio.create_task(stream.relay.run(pool, Call(path="/", body=b"")))
    await asyncio.sleep(0)
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    stream.read(head + framed(END) + b"0\r\n\r\n")
    with pytest.raises(ZeroDivisionError):
        await running


@pytest.mark.parametrize("kind", REPLIES)
@pytest.mark.parametrize("together", [True, False], ids=["in one read", "in two reads"])
def test_an_engines_error_stands_though_its_connection_is_lost(kind: str, together: bool) -> None:
    stream = Stream(kind)
    said = framed(event("a"))
    fault = framed(b'data: {"error":{"message":"out of quota","code":429}}\n\n')
    for read in (said + fault,) if together else (said, fault):
        stream.read(read)
    stream.connection.connection_lost(None)
    assert "out of quota" in str(stream.relay._error)
