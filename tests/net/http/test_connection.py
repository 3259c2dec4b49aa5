"""The server's side of HTTP/1.1, over real sockets, with small applications instead of ours."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loops import in_loop, in_uvloop
from vllama.net.http import connection as client_module
from vllama.net.http import server as serve_module
from vllama.net.http.departure import unless_gone
from vllama.net.http.heads import MAX_HEADERS, read_target
from vllama.net.http.request import BUFFER_BYTES, ClientGone, Request
from vllama.net.http.server import HttpServer

App = Callable[[Request], Awaitable[None]]
LIMIT_S = 240.0
HOST = b"host: localhost\r\n"


class Running:
    """A server, and connections to it."""

    def __init__(
        self, server: HttpServer, listener: socket.socket, task: asyncio.Task[None]
    ) -> None:
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
    server = HttpServer(app, drain_s=drain_s)  # type: ignore[arg-type]
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
CHUNK = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n"


def beyond(asked: bytes, more: bytes) -> bytes:
    """Return what is asked and so much more of it that the last byte is too much."""
    size = client_module.MAX_HEAD_BYTES + 1
    return (asked + more * (size // len(more)))[:size]


@pytest.mark.slow
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


@in_loop
async def test_answers_come_in_the_order_of_the_questions() -> None:
    go, begun = asyncio.Event(), []

    async def app(request: Request) -> None:
        begun.append(request.path)
        if request.path == "/slow":
            await go.wait()
        request.text(200, request.path)

    async with running(app) as server:
        reader, writer = await server.open()
        writer.write(
            b"GET /slow HTTP/1.1\r\n" + HOST + b"\r\n"
            b"GET /fast HTTP/1.1\r\n" + HOST + b"connection: close\r\n\r\n"
        )
        await until(lambda: begun)
        go.set()
        assert bodies(await reader.read()) == [b"/slow", b"/fast"]
        assert begun == ["/slow", "/fast"]


@in_loop
async def test_a_body_is_waved_through() -> None:
    async with running(echo) as server:
        reader, writer = await server.open()
        writer.write(
            b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n"
            b"connection: close\r\n\r\n"
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi")
        assert (await reader.read()).endswith(b"POST / hi")


@pytest.mark.parametrize("asked", [
    post(b"/up", b"hi", b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c"),
    CHUNKED.replace(HOST, HOST + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"),
    b"GET /up HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n",
])  # fmt: skip
@in_loop
async def test_who_wants_another_protocol_gets_this_one(asked: bytes) -> None:
    async with running(echo) as server:
        answer = await server.said(asked + post(b"/next", b"more", CLOSE))
    first, second = bodies(answer)
    assert first in (b"POST /up hi", b"POST /c d abcde", b"GET /up ")
    assert second == b"POST /next more"


@pytest.mark.parametrize(("asked", "status"), [
    (b"nonsense\r\n\r\n", b"400"),
    (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
    (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", b"400"),
    (beyond(b"GET / HTTP/1.1\r\nhost: a\r\nlong: ", b"x"), b"431"),
    (beyond(CHUNK + b"0\r\nlong: ", b"x"), b"431"),
    (beyond(CHUNK + b"0\r\n", b"x"), b"431"),
    (beyond(CHUNK + b"0\r\n", b"many: x\r\n"), b"431"),
    (beyond(CHUNK + b"1;", b"x"), b"431"),
])  # fmt: skip
@in_loop
async def test_what_is_no_request(asked: bytes, status: bytes) -> None:
    async with running(echo) as server:
        answer = await server.said(asked)
    assert answer.split()[1] == status
    assert b"connection: close" in answer and answer.count(b"HTTP/1.1") == 1


GOOD = b"GET /good HTTP/1.1\r\n" + HOST + b"\r\n"
HEAD = b"POST / HTTP/1.1\r\n"


@pytest.mark.parametrize(("head", "status"), [
    (HEAD + HOST + b"host: evil\r\n", b"400"),
    (HEAD + HOST + HOST, b"400"),
    (HEAD, b"400"),
    (b"POST http://localhost/ HTTP/1.1\r\n", b"400"),
    (HEAD + HOST + b"origin: http://a\r\nOrigin: http://localhost\r\n", b"400"),
    (HEAD + HOST + b"transfer-encoding: gzip, chunked\r\n", b"501"),
    (HEAD + HOST + b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n", b"400"),
    (HEAD + HOST + b"expect: 200-ok\r\n", b"417"),
    (HEAD + HOST + b"expect: 100-continue, more\r\n", b"417"),
    (HEAD.replace(b"/1.1", b"/2.0") + HOST, b"505"),
    (HEAD.replace(b"/1.1", b"/0.9") + HOST, b"505"),
    (HEAD + HOST + b"".join(b"x-%d: 1\r\n" % n for n in range(MAX_HEADERS)), b"431"),
], ids=range(12))  # fmt: skip
@pytest.mark.parametrize("body", [b"", b"x: y\r\n\r\nhello", b"\r\n0\r\n\r\n" + GOOD])
@in_loop
async def test_a_head_that_no_handler_may_see(head: bytes, status: bytes, body: bytes) -> None:
    async with running(echo) as server:
        answer = await server.said(head + (body or b"\r\n"))
    assert answer.split()[1] == status
    assert b"connection: close" in answer and answer.count(b"HTTP/1.1") == 1


@in_loop
async def test_the_authority_of_the_target_is_the_host() -> None:
    async def host(request: Request) -> None:
        request.text(200, request.header(b"host"))

    async with running(host) as server:
        for target, expected in (
            (b"http://evil:8/x", b"evil:8"),
            (b"http://user@evil/x", b"evil"),
            (b"http://[::1]:8", b"[::1]:8"),
            (b"/x", b"localhost"),
            (b"//evil/x", b"localhost"),
        ):
            asked = b"GET %b HTTP/1.1\r\n" % target + HOST + CLOSE + b"\r\n\r\n"
            assert bodies(await server.said(asked)) == [expected]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(("behind", "refused"), [
    (b"nonsense\r\n\r\n", b"400"),
    (HEAD + b"\r\n", b"400"),
    (HEAD + HOST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
    (beyond(b"GET / HTTP/1.1\r\nlong: ", b"x"), b"431"),
])  # fmt: skip
@in_loop
async def test_nonsense_behind_good_requests(behind: bytes, refused: bytes, cut: bool) -> None:
    """They are answered, one after the other, and then the nonsense."""
    go = asyncio.Event()

    async def slow(request: Request) -> None:
        await go.wait()
        await echo(request)

    async with running(slow) as server:
        reader, writer = await server.open()
        pieces = [GOOD, GOOD + behind] if cut else [GOOD + GOOD + behind]
        for piece in pieces:
            writer.write(piece)
            await turns(20)
        clients = server.server.clients
        await until(lambda: any(client._ignoring or client._stopped for client in clients))
        if any(client._ignoring for client in clients):
            writer.write(GOOD)  # too late
        go.set()
        answers = await reader.read()
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"200", refused]
    assert answers.count(b"GET /good ") == 2


@in_uvloop
async def test_a_request_that_breaks_off_while_it_is_answered() -> None:
    """What its handler still says is dropped: uvloop's transports raise after their end."""
    ended: asyncio.Queue[object] = asyncio.Queue()
    asyncio.get_running_loop().set_exception_handler(lambda _, about: ended.put_nowait(about))

    async def app(request: Request) -> None:
        with pytest.raises(ClientGone):
            await request.body()
        request.text(200, "too late")
        ended.put_nowait(None)

    async with running(app) as server:
        asked = HEAD + HOST + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\nzz\r\n"
        answer = await server.said(asked[:-4], asked[-4:])
        assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1
        for writer in server.writers:
            writer.close()
        assert await ended.get() is None


@pytest.mark.parametrize(
    "behind", [b"GET /more HTTP/1.1\r\nhost: a\r\n\r\n", b"nonsense", b"\r\n" * 9]
)
@pytest.mark.parametrize("first", [
    b"GET /good HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n\r\n",
    b"GET /good HTTP/1.0\r\n\r\n",
    post(b"/good", b"hello", CLOSE),
])  # fmt: skip
@in_loop
async def test_nothing_comes_after_the_last_request(first: bytes, behind: bytes) -> None:
    async with running(echo) as server:
        for pieces in ((first + behind,), (first, behind)):
            with contextlib.suppress(ConnectionError):  # closed while the rest was sent
                answer = await server.said(*pieces)
                assert answer.count(b"HTTP/1.1 200") == answer.count(b"HTTP/1.1") == 1


@in_loop
async def test_a_question_that_ends_with_its_sending_side_is_answered() -> None:
    """Like `printf … | nc -N`: POST too, unless what it waits for ends with it."""

    async def app(request: Request) -> None:
        if request.path == "/watched":
            await request.wait_for_disconnect()
            ended.set()
            return
        await echo(request)

    ended = asyncio.Event()

    async def half(server: Running, asked: bytes) -> bytes:
        reader, writer = await server.open()
        writer.write(asked)
        writer.write_eof()
        return await reader.read()

    async with running(app) as server:
        answer = await half(server, post(b"/a", b"x") + post(b"/b", b"y"))
        assert bodies(answer) == [b"POST /a x", b"POST /b y"]
        assert bodies(await half(server, b"GET /c HTTP/1.0\r\n\r\n")) == [b"GET /c "]
        answer = await half(server, post(b"/watched", b"x"))
        assert answer.split()[1] == b"499" and b"keep it open" in answer
        assert ended.is_set()
        assert await half(server, post(b"/d", b"xy")[:-1]) == b""


@in_loop
async def test_a_body_that_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that moves goes on, however slowly; so does one that is not read here."""
    monkeypatch.setattr(serve_module, "SWEEP_S", 0.0)
    clock = Clock()
    monkeypatch.setattr(serve_module, "time", clock)
    monkeypatch.setattr(client_module, "time", clock)
    go = asyncio.Event()

    async def app(request: Request) -> None:
        if request.path == "/late":
            await go.wait()
        await echo(request)

    async with running(app) as server:
        reader, writer = await server.open()
        writer.write(post(b"/", b"slow", CLOSE)[:-4])
        await until(lambda: starved(server) == 1)
        for letter in b"slow":
            clock.now_s += serve_module.BODY_STALL_S - 1
            await turns(50)
            writer.write(bytes([letter]))
            await until(lambda: not starved(server) or quiet_since(server) == clock.now_s)
        assert (await reader.read()).endswith(b"POST / slow")

        held, late = await server.open()
        late.write(post(b"/late", bytes(BUFFER_BYTES + 9), CLOSE)[:-1])
        await until(lambda: any(client._stopped for client in server.server.clients))
        clock.now_s += serve_module.BODY_STALL_S + 1
        await turns(50)
        go.set()
        late.write(b"\0")
        assert (await held.read()).startswith(b"HTTP/1.1 200")

        reader, writer = await server.open()
        writer.write(post(b"/", b"slow")[:-1])
        await until(lambda: starved(server) == 1)
        clock.now_s += serve_module.BODY_STALL_S + 1
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 ") and b"connection: close" in answer


class Clock:
    """Stands for the module `time`; it stands still."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s

    def gmtime(self, second: int) -> time.struct_time:
        return time.gmtime(second)


def starved(server: Running) -> int:
    return sum(client.starved for client in server.server.clients)


def quiet_since(server: Running) -> float:
    return min(client.quiet_since_s for client in server.server.clients)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@in_loop
async def test_too_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one is worth more than one that asks for nothing, and less than one that does."""
    monkeypatch.setattr(serve_module, "compute_max_clients", lambda: 2)
    monkeypatch.setattr(serve_module, "GRACE_S", 0.0)
    go = asyncio.Event()

    async def slow(request: Request) -> None:
        await go.wait()
        await echo(request)

    async with running(slow) as server:
        oldest, _ = await server.open()
        await until(lambda: len(server.server.clients) == 1)
        busy = [await server.open(), await server.open()]
        assert await oldest.read() == b""
        for _, writer in busy:
            writer.write(post(b"/", b"", CLOSE))
        await until(lambda: len(server.server._tasks) == 2)
        for _ in range(2):
            turned_away, _ = await server.open()
            answer = await turned_away.read()
            assert answer.startswith(b"HTTP/1.1 503 ") and b"try again" in answer
        go.set()
        for reader, _ in busy:
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        await until(lambda: not server.server.clients)
        assert (await server.said(post(b"/", b"", CLOSE))).startswith(b"HTTP/1.1 200 ")


@in_loop
async def test_a_head_has_no_body() -> None:
    async with running(echo) as server:
        answer = await server.said(b"HEAD /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-length: 8" in head and not body


@in_loop
async def test_an_answer_always_has_an_end() -> None:
    async def forgets(request: Request) -> None:
        if request.path == "/begun":
            request.start(200, b"text/plain")
            request.write(b"half")
        if request.path == "/raises":
            raise RuntimeError

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with running(forgets) as server:
        for path in (b"/nothing", b"/raises"):
            answer = await server.said(b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % path)
            assert answer.split()[1] == b"500" and b"connection: close" in answer
        cut = await server.said(b"GET /begun HTTP/1.1\r\nhost: a\r\n\r\n")
        assert cut.endswith(b"4\r\nhalf\r\n")  # and not the chunk that ends a body


class Counted:
    """Writes while its client keeps up."""

    def __init__(self, request: Request) -> None:
        self.held = self.went_on = 0
        self.request = request

    def pause(self) -> None:
        self.held += 1

    def resume(self) -> None:
        self.went_on += 1


@in_loop
async def test_a_client_that_does_not_read() -> None:
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
        await request.wait_until_drained()
        assert counted.went_on == 1 and not request.paused
        request.end(b"%d" % sent)

    async with running(floods) as server:
        reader, writer = await server.open()
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        await until(lambda: writers and writers[0].held)
        answer = await reader.read()
        assert answer.endswith(b"\r\n0\r\n\r\n")
        assert answer.count(b"x" * size) == int(answer.split(b"\r\n")[-4])


@in_loop
async def test_a_client_that_leaves() -> None:
    ended: asyncio.Queue[str] = asyncio.Queue()
    begun = asyncio.Event()

    async def app(request: Request) -> None:
        request.watch(lambda: ended.put_nowait("told"))
        begun.set()
        try:
            await request.body()
        except ClientGone:
            ended.put_nowait("body")
        await request.wait_for_disconnect()
        ended.put_nowait("gone")

    async with running(app) as server:
        _, writer = await server.open()
        writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf")
        await begun.wait()
        writer.transport.abort()
        assert [await ended.get() for _ in range(3)] == ["told", "body", "gone"]


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("way", ["leaves", "half closes", "is cut"])
@in_uvloop
async def test_an_answer_to_a_client_that_has_gone_is_no_error(way: str, streams: bool) -> None:
    """uvloop's transports, which the server has, raise what asyncio's drop."""
    ended: asyncio.Queue[Exception | None] = asyncio.Queue()
    begun = asyncio.Event()

    async def answers(request: Request) -> None:
        begun.set()
        try:
            if way == "is cut":
                request._client.abort()
            await request.wait_for_disconnect()
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
            case "half closes":
                writer.write_eof()
        assert await ended.get() is None


@in_loop
async def test_work_for_a_client_that_has_gone_may_fail() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: unheard.append(about))

    async def fails() -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise ValueError("while it was canceled")

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


@in_loop
async def test_a_body_that_nobody_reads_waits_with_its_sender() -> None:
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
            b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % size
        )
        writer.write(bytes(size))
        await until(lambda: any(client._stopped for client in server.server.clients))
        go.set()
        assert (await reader.read()).endswith(b"%d" % size)
        assert read[0] < BUFFER_BYTES + 1024 * 1024


@in_loop
async def test_a_body_that_is_refused_is_read_to_its_end() -> None:
    """Else the client's system throws the answer away with what was not read."""

    async def refuses(request: Request) -> None:
        request.text(413, "too much")

    async with running(refuses) as server:
        answer = await server.said(post(b"/", bytes(8_000_000)), post(b"/", b"", CLOSE))
    assert bodies(answer) == [b"too much", b"too much"]


@pytest.mark.parametrize(("limit", "said"), [("KEEP_ALIVE_S", []), ("HEAD_LIMIT_S", [b"GET / HT"])])
@in_loop
async def test_quiet_connections_are_closed(
    monkeypatch: pytest.MonkeyPatch, limit: str, said: list[bytes]
) -> None:
    monkeypatch.setattr(serve_module, "SWEEP_S", 0.0)
    monkeypatch.setattr(serve_module, limit, 0.0)
    async with running(echo) as server:
        with contextlib.suppress(ConnectionError):  # closed before it was read
            assert await server.said(*said) == b""


@in_loop
async def test_a_server_that_stops_lets_requests_end() -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> None:
        begun.set()
        await go.wait()
        request.text(200, "done")

    async with running(slow) as server:
        idle, _ = await server.open()
        later, late = await server.open()
        reader, writer = await server.open()
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await begun.wait()
        server.server.stop()
        await asyncio.sleep(2 * serve_module.LAST_REQUESTS_S)
        late.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")  # a proxy that has not heard of it
        go.set()
        for answer in (await reader.read(), await later.read()):
            assert answer.endswith(b"done")
        assert await idle.read() == b""
        await server.task


@in_loop
async def test_what_was_sent_before_the_stop_was_known_is_answered() -> None:
    asked = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
    async with running(echo) as server:
        reader, writer = await server.open()
        writer.write(asked)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"connection: close" not in head
        await reader.readexactly(len("GET / "))
        with socket.create_connection(server.address) as waiting:  # nobody has accepted it
            waiting.setblocking(False)
            waiting.send(asked)
            server.server.stop()
            writer.write(asked)
            for answer in (await reader.read(), await read_all(waiting)):
                assert b"200 OK" in answer and b"connection: close" in answer
        await server.server.drained.wait()
        await server.task


async def read_all(connection: socket.socket) -> bytes:
    data = b""
    while part := await asyncio.get_running_loop().sock_recv(connection, 65536):
        data += part
    return data


@in_loop
async def test_a_draining_server_accepts_requests_and_keeps_no_connection() -> None:
    async with running(echo) as server:
        server.server.drain()
        for _ in range(2):
            answer = await server.said(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            assert b"connection: close" in answer


@in_loop
async def test_requests_that_have_arrived_already_are_answered_before_the_close() -> None:
    asked = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
    async with running(echo) as server:
        server.server.drain()
        answers = await server.said(asked * 3)
        assert answers.count(b"200 OK") == 3
        assert answers.count(b"connection: close") == 1


@pytest.mark.slow
@in_loop
async def test_a_server_that_must_stop_does() -> None:
    async def never(request: Request) -> None:
        await asyncio.get_running_loop().create_future()

    async with running(never, drain_s=0.0) as server:
        reader, writer = await server.open()
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await until(lambda: any(client._requests for client in server.server.clients))
        server.server.stop(now=True)
        assert await reader.read() == b""
        await server.task


@pytest.mark.parametrize(("target", "path"), [
    (b"/api/chat", "/api/chat"), (b"/a%2Fb%20c?q=%20#f", "/a/b c"), (b"/\xc3\xa4", "/ä"),
    (b"/%ff", "/\ufffd"), (b"http://host:1/x?y", "/x"), (b"http://host", "/"), (b"*", "*"),
])  # fmt: skip
def test_paths(target: bytes, path: str) -> None:
    assert read_target(target)[0] == path


@in_uvloop
async def test_a_body_in_chunks_of_a_byte_costs_little_more_than_their_parsing() -> None:
    count, calls = 20_000, 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and "vllama" in frame.f_code.co_filename

    async with running(echo) as server:
        sys.setprofile(note)
        try:
            answer = await server.said(
                b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n"
                b"transfer-encoding: chunked\r\n\r\n",
                b"1\r\nx\r\n" * count + b"0\r\n\r\n",
            )
        finally:
            sys.setprofile(None)
        assert b"x" * count in answer
    assert calls < 1.2 * count
