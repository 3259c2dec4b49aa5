"""The hub over real sockets, with changes of the test's making: slow clients, many clients."""

from __future__ import annotations

import asyncio
import json
import socket
from types import SimpleNamespace
from typing import Any

from tests.loops import in_loop
from tests.net.http.test_connection import running, until
from vllama.net.http.request import Request
from vllama.routes.events import hub as hub_module
from vllama.routes.events.hub import Hub
from vllama.routes.server.state import stream_events
from vllama.targets.nodes.node import SILENT_S

MIB = 1024 * 1024
GET = b"GET /api/events HTTP/1.1\r\nhost: a\r\n\r\n"
TICK_S = 0.001


class Flood:
    """Changes, a megabyte of them at each call, a history, and a disk."""

    def __init__(self) -> None:
        self.collected = self.snapshots = 0
        self.text = "x" * MIB
        self.is_outdated = False

    async def look(self) -> None:
        return None

    def make_snapshot(self, topics: frozenset[str]) -> dict[str, object]:
        self.snapshots += 1
        return {"number": self.snapshots, "topics": sorted(topics)}

    def collect(self) -> list[tuple[str, str, object]]:
        self.collected += 1
        return [("marks", "mark", {"number": self.collected, "text": self.text})]

    async def take(self, *, watched: bool) -> None:
        return None


def make_hub(flood: Flood, stall_s: float) -> Hub:
    return Hub(flood, flood, flood, tick_s=TICK_S, stall_s=stall_s)  # type: ignore[arg-type]


def make_app(hub: Hub) -> Any:
    gateway: Any = SimpleNamespace(events=hub)

    async def app(request: Request) -> None:
        await stream_events(gateway, request)

    return app


async def read_event(reader: asyncio.StreamReader, name: bytes) -> dict[str, Any]:
    """Read on to an event; each is a chunk of the answer, or several are."""
    while True:
        line = await reader.readuntil(b"\n")
        if line == b"event: " + name + b"\n":
            found: dict[str, Any] = json.loads((await reader.readuntil(b"\n"))[len("data: ") :])
            return found


async def connect(address: tuple[str, int]) -> socket.socket:
    """Connect with a small receive buffer, and ask for the events."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, address)
    await loop.sock_sendall(client, GET)
    return client


@in_loop
async def test_a_client_that_never_reads_is_disconnected_and_costs_little() -> None:
    flood = Flood()
    hub = make_hub(flood, stall_s=0.2)
    async with running(make_app(hub)) as server:
        publishing = asyncio.create_task(hub.run())
        client = await connect(server.address)
        await until(lambda: hub._subscribers)
        (connection,) = server.server.clients
        most = 0

        def has_gone() -> bool:
            nonlocal most
            most = max(most, connection._transport.get_write_buffer_size())
            return not hub._subscribers and not server.server.clients

        await until(has_gone)
        # what is written while it keeps up, and nothing after that
        assert most < 3 * MIB, most
        publishing.cancel()
        client.close()


@in_loop
async def test_a_client_that_was_slow_gets_a_new_snapshot() -> None:
    flood = Flood()
    hub = make_hub(flood, stall_s=1e6)
    async with running(make_app(hub)) as server:
        publishing = asyncio.create_task(hub.run())
        client = await connect(server.address)
        await until(lambda: hub._subscribers)
        (subscriber,) = hub._subscribers
        await until(lambda: subscriber.stalled_s)
        stalled_at = flood.collected
        await until(lambda: flood.collected > stalled_at + 20)
        flood.text = ""
        reader, writer = await asyncio.open_connection(sock=client, limit=8 * MIB)
        assert (await read_event(reader, b"snapshot"))["number"] == 1
        assert (await read_event(reader, b"snapshot"))["number"] == 2
        # nothing of what was missed comes late
        assert (await read_event(reader, b"mark"))["number"] > stalled_at + 20
        writer.close()
        await until(lambda: not hub._subscribers)
        publishing.cancel()


@in_loop
async def test_a_stream_in_which_nothing_changes_tells_that_it_is_alive(monkeypatch) -> None:
    assert 2 * hub_module.KEEP_ALIVE_S < SILENT_S  # so that one may be late
    monkeypatch.setattr(hub_module, "KEEP_ALIVE_S", 2 * TICK_S)
    hub = make_hub(Flood(), stall_s=1e6)
    async with running(make_app(hub)) as server:
        publishing = asyncio.create_task(hub.run())
        reader, writer = await server.open()
        writer.write(GET.replace(b"events", b"events?events=models"))
        await reader.readuntil(b"event: snapshot")
        for _ in range(2):
            await reader.readuntil(b"\n: keep-alive\n\n")
        writer.close()
        publishing.cancel()


@in_loop
async def test_a_hundred_clients_come_and_go() -> None:
    flood = Flood()
    flood.text = ""
    hub = make_hub(flood, stall_s=1e6)
    async with running(make_app(hub)) as server:
        publishing = asyncio.create_task(hub.run())
        for _ in range(2):
            pairs = [await server.open() for _ in range(100)]
            for _, writer in pairs:
                writer.write(GET)
            events = [await read_event(reader, b"mark") for reader, _ in pairs]
            assert len(events) == len(hub._subscribers) == 100
            for place, (_, writer) in enumerate(pairs):
                if place % 2:
                    writer.transport.abort()
                else:
                    writer.close()
            await until(
                lambda: not (server.server.clients or hub._subscribers or server.server._tasks)
            )
        # with nobody there nothing is collected
        before = flood.collected
        await asyncio.sleep(20 * TICK_S)
        assert flood.collected <= before + 1
        publishing.cancel()


@in_loop
async def test_an_event_is_encoded_once_for_all() -> None:
    flood = Flood()
    flood.text = ""
    hub = make_hub(flood, stall_s=1e6)
    async with running(make_app(hub)) as server:
        publishing = asyncio.create_task(hub.run())
        pairs = [await server.open() for _ in range(3)]
        for _, writer in pairs:
            writer.write(GET)
        await until(lambda: len(hub._subscribers) == 3)
        before, number = flood.collected, hub._number
        await until(lambda: flood.collected > before + 10)
        assert hub._number - number == flood.collected - before
        hub.close()
        for reader, _ in pairs:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        publishing.cancel()
