"""What clients may make the server hold: answers that they do not read, bodies without an end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from tests.loops import in_uvloop
from tests.net.http.test_connection import CLOSE, HOST, Running, post, turns, until
from vllama.base.errors import VllamaError
from vllama.net.http import connection as client_module
from vllama.net.http import server as serve_module
from vllama.net.http.budget import GRANTED_BYTES
from vllama.net.http.connection import ClientConnection
from vllama.net.http.listener import Certificate
from vllama.net.http.request import Request
from vllama.net.http.server import HttpServer

LIMIT_S = 60.0
ANSWER = b"x" * 300_000
BUDGET = 1024 * 1024
GET = b"GET /%b HTTP/1.1\r\n" + HOST + b"\r\n"
LAST = b"GET /%b HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n\r\n"


async def answer(request: Request) -> None:
    """Answer in one of the ways of handlers."""
    try:
        match request.path:
            case "/whole":
                request.respond(200, ANSWER)
            case "/stream":
                request.start(200, b"text/plain")
                for start in range(0, len(ANSWER), 50_000):
                    request.write(ANSWER[start : start + 50_000])
                    await request.wait_until_drained()
                request.end()
            case "/small":
                request.text(200, "small")
            case path:
                request.charge(path.partition("/key-")[2])
                request.text(200, str(len(await request.body())))
    except VllamaError as error:
        request.text(error.status, error.sentence())


@asynccontextmanager
async def running(
    buffer_bytes: float = BUDGET, certificate: Certificate | None = None
) -> AsyncIterator[Running]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    server = HttpServer(answer, drain_s=LIMIT_S, certificate=certificate, buffer_bytes=buffer_bytes)
    task = asyncio.create_task(server.serve(listener))
    made = Running(server, listener, task)
    try:
        async with asyncio.timeout(LIMIT_S):
            yield made
            for writer in made.writers:
                writer.transport.abort()
            await until(lambda: not server.clients)
            assert server.budget.used_bytes == 0
    finally:
        server.stop(now=True)
        await task


def unsent(server: Running) -> int:
    """Return the most that waits for one client, in bytes."""
    sizes = (client._transport.get_write_buffer_size() for client in server.server.clients)
    return max(sizes, default=0)


async def open_silent(server: Running, sent: bytes = b"") -> socket.socket:
    """Return a connection that reads nothing by itself."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, server.address)
    await loop.sock_sendall(connection, sent)
    return connection


async def read_answers(connection: socket.socket, count: int) -> list[bytes]:
    """Return the first lines of `count` answers, and end the connection."""
    reader, writer = await asyncio.open_connection(sock=connection)
    found = []
    for _ in range(count):
        head = await reader.readuntil(b"\r\n\r\n")
        found.append(head.split(b"\r\n")[0])
        if b"chunked" in head:
            while await reader.readline() != b"0\r\n":
                await reader.readline()
            await reader.readline()
        else:
            await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
    writer.close()
    return found


@pytest.mark.parametrize("path", [b"whole", b"stream"])
@in_uvloop
async def test_the_next_request_waits_until_the_client_has_its_answer(path: bytes) -> None:
    """It does for requests that come later, too, and none is forgotten."""
    async with running() as server:
        connection = await open_silent(server, GET % path * 40)
        await until(lambda: unsent(server))
        for _ in range(3):
            await turns(100)
            assert unsent(server) <= len(ANSWER) + 2 * GRANTED_BYTES
            assert len(server.server._tasks) <= 1
        lines = await read_answers(connection, 40)
        assert lines == [b"HTTP/1.1 200 OK"] * 40

        connection = await open_silent(server, GET % b"whole" * 30)
        await until(lambda: unsent(server))
        await turns(20)
        await asyncio.get_running_loop().sock_sendall(connection, GET % b"small" + b"bad\r\n\r\n")
        lines = await read_answers(connection, 32)
        assert lines[-2:] == [b"HTTP/1.1 200 OK", b"HTTP/1.1 400 Bad Request"]


@in_uvloop
async def test_unsent_answers_have_a_limit_in_all() -> None:
    async with running() as server:
        budget, held = server.server.budget, []
        for _ in range(12):
            held.append(await open_silent(server, GET % b"whole" * 40))
            await turns(50)
            assert budget.used_bytes <= BUDGET + GRANTED_BYTES
        assert budget.is_short
        refused = await server.said(LAST % b"whole")
        assert refused.startswith(b"HTTP/1.1 503 ") and b"try again" in refused
        small = await server.said(LAST % b"small")
        assert small.startswith(b"HTTP/1.1 200 ")
        for connection in held:
            connection.close()
        await until(lambda: not budget.used_bytes)


@in_uvloop
async def test_one_key_fills_its_part_only() -> None:
    """With bodies that lack their last byte; another key's are read all the while."""
    size = BUDGET // 8
    async with running() as server:
        held = []
        for number in range(8):
            head = b"POST /key-a HTTP/1.1\r\n" + HOST + b"content-length: %d\r\n\r\n" % size
            held.append(await open_silent(server, head + bytes(size - 1)))
            await turns(50)
            assert server.server.budget.used_bytes <= BUDGET / 2 + GRANTED_BYTES, number
        for path, status in ((b"/key-a", b"503"), (b"/key-b", b"200"), (b"/none", b"200")):
            said = await server.said(post(path, bytes(size), CLOSE))
            assert said.startswith(b"HTTP/1.1 " + status), path
        for connection in held:
            connection.close()
        await until(lambda: not server.server.budget.used_bytes)
        said = await server.said(post(b"/key-a", bytes(size), CLOSE))
        assert said.startswith(b"HTTP/1.1 200")


@in_uvloop
async def test_a_body_that_does_not_fit_is_refused() -> None:
    """The newcomer is; what has come goes on, and small requests are served."""
    async with running() as server:
        half = bytes(BUDGET - 2 * GRANTED_BYTES)
        reader, writer = await server.open()
        writer.write(post(b"/", half)[:-1])
        await until(lambda: server.server.budget.used_bytes >= len(half) - 1)
        refused = await server.said(post(b"/", half, CLOSE))
        assert refused.startswith(b"HTTP/1.1 503 "), "its announced length is too much"
        chunk = b"%x\r\n%b\r\n" % (len(half), half)
        head = b"POST / HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n"
        refused = await server.said(head + CLOSE + b"\r\n\r\n" + chunk + b"0\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 503 "), "its pieces are"
        fits = bytes(GRANTED_BYTES - 1)
        assert (await server.said(post(b"/", fits, CLOSE))).endswith(b"%d" % len(fits))
        writer.write(half[-1:])
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(len(str(len(half)))) == b"%d" % len(half)
        await until(lambda: not server.server.budget.used_bytes)
        assert (await server.said(post(b"/", half, CLOSE))).endswith(b"%d" % len(half))


@in_uvloop
async def test_heads_without_an_end_have_a_limit_in_all() -> None:
    async with running() as server:
        head = b"GET / HTTP/1.1\r\n" + HOST + b"x: " + b"a" * 600_000
        _, writer = await server.open()
        writer.write(head)
        await until(lambda: server.server.budget.used_bytes == len(head))
        refused = await server.said(head)
        assert refused.startswith(b"HTTP/1.1 503 ") and b"retry-after: " in refused


@in_uvloop
async def test_who_makes_no_progress_leaves_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that trickles makes none; all others are left alone."""
    monkeypatch.setattr(serve_module, "SWEEP_S", 0.05)
    async with running() as server:
        body = bytes(BUDGET * 3 // 4)
        waits, waiting = await server.open()
        waiting.write(post(b"/", bytes(GRANTED_BYTES))[:-1])
        stalled, trickling = await server.open()
        trickling.write(post(b"/", body)[:-20])
        await until(lambda: server.server.budget.used_bytes >= len(body))
        refused = asyncio.create_task(stalled.readline())
        trickle = asyncio.create_task(drip(trickling, refused))
        while not (answer := await server.said(post(b"/", body, CLOSE))).endswith(
            b"%d" % len(body)
        ):
            assert answer.startswith(b"HTTP/1.1 503 ")
            await asyncio.sleep(0.01)
        assert (await refused).startswith(b"HTTP/1.1 408 ")
        await trickle
        waiting.write(b"\0")
        assert (await waits.readline()).startswith(b"HTTP/1.1 200 ")


async def drip(writer: asyncio.StreamWriter, refused: asyncio.Task[bytes]) -> None:
    """Send a byte now and then, until the request is refused: what comes later breaks the pipe."""
    for _ in range(19):
        if refused.done():
            return
        writer.write(b"x")
        await asyncio.sleep(0.02)


@in_uvloop
async def test_input_after_a_refusal_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "LINGER_S", LIMIT_S)
    monkeypatch.setattr(client_module, "LINGER_BYTES", 100_000)
    async with running() as server:
        reader, writer = await server.open()
        writer.write(b"nonsense\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        with pytest.raises(ConnectionError):
            while True:
                writer.write(bytes(50_000))
                await writer.drain()


def certificate(folder: Path) -> Certificate:
    issued = trustme.CA().issue_cert("localhost")
    pem = folder / "pem"
    chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
    pem.write_bytes(chain + issued.private_key_pem.bytes())
    return Certificate(pem, None)


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@in_uvloop
async def test_unsent_answers_are_counted_behind_tls(tmp_path: Path) -> None:
    async with running(8 * BUDGET, certificate(tmp_path)) as server:
        reader, writer = await asyncio.open_connection(*server.address, ssl=trusting(), limit=1000)
        server.writers.append(writer)
        writer.write(GET % b"whole" * 200)
        await until(lambda: any(client.paused for client in server.server.clients))
        await turns(200)
        assert server.server.budget.used_bytes > len(ANSWER) - 3 * GRANTED_BYTES
        assert unsent(server) <= len(ANSWER) + 2 * GRANTED_BYTES
        assert len(await reader.readexactly(40 * len(ANSWER))) == 40 * len(ANSWER)


@in_uvloop
async def test_handshakes_that_stop_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_module, "compute_max_clients", lambda: 4)
    monkeypatch.setattr(serve_module, "GRACE_S", 0.2)
    async with running(certificate=certificate(tmp_path)) as server:
        silent = [await open_silent(server) for _ in range(40)]
        _, writer = await asyncio.open_connection(*server.address, ssl=trusting())
        writer.write(GET % b"small")
        await until(lambda: server.server._tasks)
        assert len(server.server._connecting) <= 4 + serve_module.SPARE_CLIENTS
        for connection in silent:
            connection.close()
        writer.transport.abort()


@in_uvloop
async def test_connections_beyond_the_most_wait_to_be_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve_module, "compute_max_clients", lambda: 2)
    monkeypatch.setattr(client_module, "LINGER_S", 0.01)
    accepted: list[int] = []
    admit = HttpServer.admit

    def count(self: HttpServer, client: ClientConnection) -> None:
        accepted.append(len(self.clients))
        admit(self, client)

    monkeypatch.setattr(HttpServer, "admit", count)
    async with running() as server:
        answers = await asyncio.gather(*(server.said(LAST % b"small") for _ in range(60)))
        assert {found.split()[1] for found in answers} <= {b"200", b"503"}
        assert max(accepted) < 2 + serve_module.SPARE_CLIENTS
