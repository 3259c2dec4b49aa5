"""The server's side of HTTP/1.1, over real sockets, with small applications instead of ours."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from vllama.gateway import client as client_module
from vllama.gateway import serve as serve_module
from vllama.gateway.client import path_of
from vllama.gateway.http import HELD_BYTES, ClientGone, Request
from vllama.gateway.inference import unless_gone
from vllama.gateway.serve import Server

App = Callable[[Request], Awaitable[None]]
LIMIT_S = 240.0
HOST = b"host: localhost\r\n"


class Running:
    """A server, and connections to it."""

    def __init__(self, server: Server, listener: socket.socket, task: asyncio.Task[None]) -> None:
        self.server, self.task = server, task
        self.address = listener.getsockname()
        self.writers: list[asyncio.StreamWriter] = []

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        self.writers.append(writer)
        return reader, writer

    async def said(self, *pieces: bytes) -> bytes:
        """Send pieces, one after the other, and return all that is answered until the end."""
        reader, writer = await self.open()
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read()


@asynccontextmanager
async def running(app: App, *, drain_s: float = LIMIT_S) -> AsyncIterator[Running]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    server = Server(app, drain_s=drain_s)  # type: ignore[arg-type]
    task = asyncio.create_task(server.serve(listener))
    made = Running(server, listener, task)
    try:
        async with asyncio.timeout(LIMIT_S):
            yield made
    finally:
        for writer in made.writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        server.stop(now=True)
        await task


async def until(happened: Callable[[], object]) -> None:
    """Let the loop turn until something has happened."""
    while not happened():  # noqa: ASYNC110 (nobody could set an event)
        await asyncio.sleep(0)


async def echo(request: Request) -> None:
    """Answer with what was asked."""
    body = await request.body()
    request.text(200, f"{request.method} {request.path} {body.decode()}")


def bodies(answers: bytes) -> list[bytes]:
    """Take apart answers that have a length."""
    found = []
    while answers:
        head, _, rest = answers.partition(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        found.append(rest[:size])
        answers = rest[size:]
    return found


def post(path: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"POST %b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n%b" % (
        path, HOST, lines, len(body), body,
    )  # fmt: skip


CHUNKED = (
    b"POST /c%20d?x=1 HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n"
    b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\ntrailer: x\r\n\r\n"
)
CLOSE = b"connection: close"
CHUNK = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n"


def beyond(asked: bytes, more: bytes) -> bytes:
    """Return what is asked and so much more of it that the last byte is too much."""
    size = client_module.MAX_HEAD_BYTES + 1
    return (asked + more * (size // len(more)))[:size]


@given(st.lists(st.integers(0, 400), max_size=6))
def test_any_cut_of_what_is_asked(cuts: list[int]) -> None:
    asked = post(b"/a", b"one") + CHUNKED + b"GET /b HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n\r\n"
    places = sorted(cut % len(asked) for cut in cuts)
    pieces = [asked[a:b] for a, b in zip([0, *places], [*places, None], strict=True)]

    async def run() -> None:
        async with running(echo) as server:
            answer = await server.said(*pieces)
        assert bodies(answer) == [b"POST /a one", b"POST /c d abcde", b"GET /b "]
        assert answer.count(b"connection: close") == 1

    asyncio.run(run())


def test_answers_come_in_the_order_of_the_questions() -> None:
    async def run() -> None:
        go, begun = asyncio.Event(), []

        async def app(request: Request) -> None:
            begun.append(request.path)
            if request.path == "/slow":
                await go.wait()
            request.text(200, request.path)

        async with running(app) as server:
            reader, writer = await server.open()
            writer.write(
                b"GET /slow HTTP/1.1\r\n\r\nGET /fast HTTP/1.1\r\nconnection: close\r\n\r\n"
            )
            await until(lambda: begun)
            go.set()
            assert bodies(await reader.read()) == [b"/slow", b"/fast"]
            assert begun == ["/slow", "/fast"]

    asyncio.run(run())


def test_a_body_is_waved_through() -> None:
    async def run() -> None:
        async with running(echo) as server:
            reader, writer = await server.open()
            writer.write(
                b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n"
                b"connection: close\r\n\r\n"
            )
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"hi")
            assert (await reader.read()).endswith(b"POST / hi")

    asyncio.run(run())


@pytest.mark.parametrize("asked", [
    post(b"/up", b"hi", b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c"),
    CHUNKED.replace(HOST, b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"),
    b"GET /up HTTP/1.1\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n",
])  # fmt: skip
def test_who_wants_another_protocol_gets_this_one(asked: bytes) -> None:
    async def run() -> None:
        async with running(echo) as server:
            answer = await server.said(asked + post(b"/next", b"more", CLOSE))
        first, second = bodies(answer)
        assert first in (b"POST /up hi", b"POST /c d abcde", b"GET /up ")
        assert second == b"POST /next more"

    asyncio.run(run())


@pytest.mark.parametrize(("asked", "status"), [
    (b"nonsense\r\n\r\n", b"400"),
    (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
    (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", b"400"),
    (beyond(b"GET / HTTP/1.1\r\nlong: ", b"x"), b"431"),
    (beyond(CHUNK + b"0\r\nlong: ", b"x"), b"431"),
    (beyond(CHUNK + b"0\r\n", b"x"), b"431"),
    (beyond(CHUNK + b"0\r\n", b"many: x\r\n"), b"431"),
    (beyond(CHUNK + b"1;", b"x"), b"431"),
])  # fmt: skip
def test_what_is_no_request(asked: bytes, status: bytes) -> None:
    async def run() -> None:
        async with running(echo) as server:
            answer = await server.said(asked)
        assert answer.split()[1] == status
        assert b"connection: close" in answer and answer.count(b"HTTP/1.1") == 1

    asyncio.run(run())


def test_a_head_has_no_body() -> None:
    async def run() -> None:
        async with running(echo) as server:
            answer = await server.said(b"HEAD /x HTTP/1.1\r\nconnection: close\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"content-length: 8" in head and not body

    asyncio.run(run())


def test_an_answer_always_has_an_end() -> None:
    async def forgets(request: Request) -> None:
        if request.path == "/begun":
            request.start(200, b"text/plain")
            request.write(b"half")
        if request.path == "/raises":
            raise RuntimeError

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with running(forgets) as server:
            for path in (b"/nothing", b"/raises"):
                answer = await server.said(b"GET %b HTTP/1.1\r\n\r\n" % path)
                assert answer.split()[1] == b"500" and b"connection: close" in answer
            cut = await server.said(b"GET /begun HTTP/1.1\r\n\r\n")
            assert cut.endswith(b"4\r\nhalf\r\n")  # and not the chunk that ends a body

    asyncio.run(run())


class Counted:
    """Writes while its client keeps up."""

    def __init__(self, request: Request) -> None:
        self.held = self.went_on = 0
        self.request = request

    def hold(self) -> None:
        self.held += 1

    def go_on(self) -> None:
        self.went_on += 1


def test_a_client_that_does_not_read() -> None:
    size = 64 * 1024
    writers: list[Counted] = []

    async def floods(request: Request) -> None:
        counted = request.writes = Counted(request)
        writers.append(counted)
        request.start(200, b"text/plain")
        sent = 0
        while not counted.held:
            request.write(b"x" * size)
            sent += 1
        await request.drained()
        assert counted.went_on == 1 and not request.paused
        request.end(b"%d" % sent)

    async def run() -> None:
        async with running(floods) as server:
            reader, writer = await server.open()
            writer.write(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")
            await until(lambda: writers and writers[0].held)
            answer = await reader.read()
            assert answer.endswith(b"\r\n0\r\n\r\n")
            assert answer.count(b"x" * size) == int(answer.split(b"\r\n")[-4])

    asyncio.run(run())


def test_a_client_that_leaves() -> None:
    async def run() -> None:
        ended: asyncio.Queue[str] = asyncio.Queue()
        begun = asyncio.Event()

        async def app(request: Request) -> None:
            request.watch(lambda: ended.put_nowait("told"))
            begun.set()
            try:
                await request.body()
            except ClientGone:
                ended.put_nowait("body")
            await request.gone()
            ended.put_nowait("gone")

        async with running(app) as server:
            _, writer = await server.open()
            writer.write(b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nhalf")
            await begun.wait()
            writer.transport.abort()
            assert [await ended.get() for _ in range(3)] == ["told", "body", "gone"]

    asyncio.run(run())


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("way", ["leaves", "sends no request", "half closes", "is cut"])
def test_an_answer_to_a_client_that_has_gone_is_no_error(way: str, streams: bool) -> None:
    """uvloop's transports, which the server has, raise what asyncio's drop."""

    async def run() -> None:
        ended: asyncio.Queue[Exception | None] = asyncio.Queue()
        begun = asyncio.Event()

        async def answers(request: Request) -> None:
            begun.set()
            try:
                if way == "is cut":
                    request._client.abort()
                await request.gone()
                if streams:
                    request.start(200, b"text/plain")
                    request.write(b"too")
                    request.end(b"late")
                else:
                    request.text(200, "too late")
                ended.put_nowait(None)
            except Exception as error:
                ended.put_nowait(error)

        async with running(answers) as server:
            _, writer = await server.open()
            writer.write(b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 0\r\n\r\n")
            await begun.wait()
            match way:
                case "leaves":
                    writer.transport.abort()
                case "sends no request":
                    writer.write(b"nonsense\r\n\r\n")
                case "half closes":
                    writer.write_eof()
            assert await ended.get() is None

    uvloop.run(run())


def test_work_for_a_client_that_has_gone_may_fail() -> None:
    async def run() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()
        unheard: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: unheard.append(about))

        async def fails() -> None:
            begun.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                raise ValueError("while it was cancelled")

        async def works(request: Request) -> None:
            with pytest.raises(ClientGone):
                await unless_gone(request, fails())
            ended.set()

        async with running(works) as server:
            _, writer = await server.open()
            writer.write(post(b"/", b""))
            await begun.wait()
            writer.transport.abort()
            await ended.wait()
        gc.collect()
        assert not unheard

    asyncio.run(run())


def test_a_body_that_nobody_reads_waits_with_its_sender() -> None:
    async def run() -> None:
        go, read = asyncio.Event(), []

        async def late(request: Request) -> None:
            await go.wait()
            async for piece in request.pieces():
                read.append(len(piece))
            request.text(200, str(sum(read)))

        async with running(late) as server:
            reader, writer = await server.open()
            size = 40 * 1024 * 1024
            writer.write(
                b"POST / HTTP/1.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % size
            )
            writer.write(bytes(size))
            await until(lambda: any(client._stopped for client in server.server.clients))
            go.set()
            assert (await reader.read()).endswith(b"%d" % size)
            assert read[0] < HELD_BYTES + 1024 * 1024

    asyncio.run(run())


def test_a_body_that_is_refused_is_read_to_its_end() -> None:
    """Else the client's system throws the answer away with what was not read."""

    async def refuses(request: Request) -> None:
        request.text(413, "too much")

    async def run() -> None:
        async with running(refuses) as server:
            answer = await server.said(post(b"/", bytes(8_000_000)), post(b"/", b"", CLOSE))
        assert bodies(answer) == [b"too much", b"too much"]

    asyncio.run(run())


@pytest.mark.parametrize(("limit", "said"), [("KEEP_ALIVE_S", []), ("HEAD_LIMIT_S", [b"GET / HT"])])
def test_quiet_connections_are_closed(
    monkeypatch: pytest.MonkeyPatch, limit: str, said: list[bytes]
) -> None:
    monkeypatch.setattr(serve_module, "SWEEP_S", 0.0)
    monkeypatch.setattr(serve_module, limit, 0.0)

    async def run() -> None:
        async with running(echo) as server:
            with contextlib.suppress(ConnectionError):  # closed before it was read
                assert await server.said(*said) == b""

    asyncio.run(run())


def test_a_server_that_stops_lets_requests_end() -> None:
    async def run() -> None:
        go, begun = asyncio.Event(), asyncio.Event()

        async def slow(request: Request) -> None:
            begun.set()
            await go.wait()
            request.text(200, "done")

        async with running(slow) as server:
            idle, _ = await server.open()
            reader, writer = await server.open()
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await begun.wait()
            server.server.stop()
            assert await idle.read() == b""
            go.set()
            assert (await reader.read()).endswith(b"done")
            await server.task

    asyncio.run(run())


def test_a_server_that_must_stop_does() -> None:
    async def never(request: Request) -> None:
        await asyncio.get_running_loop().create_future()

    async def run() -> None:
        async with running(never, drain_s=0.0) as server:
            reader, writer = await server.open()
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: any(client._asked for client in server.server.clients))
            server.server.stop(now=True)
            assert await reader.read() == b""
            await server.task

    asyncio.run(run())


@pytest.mark.parametrize(("target", "path"), [
    (b"/api/chat", "/api/chat"), (b"/a%2Fb%20c?q=%20#f", "/a/b c"), (b"/\xc3\xa4", "/ä"),
    (b"/%ff", "/\ufffd"), (b"http://host:1/x?y", "/x"), (b"http://host", "/"), (b"*", "*"),
])  # fmt: skip
def test_paths(target: bytes, path: str) -> None:
    assert path_of(target) == path
