"""Names of hosts: one that is slow to resolve holds one thread, and delays no other."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from vllama.base import executors
from vllama.supervise.probe import reach, resolve
from vllama.supervise.spec import Endpoint

LIMIT_S = 20.0


def test_a_slow_name_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, real = threading.Event(), socket.getaddrinfo

    def look_up(host: str, *rest: Any, **more: Any) -> Any:
        if host == "slow.test":
            gate.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        return real(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    async def ask() -> None:
        slow = [asyncio.create_task(resolve("slow.test")) for _ in range(100)]
        await asyncio.sleep(0)
        assert executors.names.running == 1
        assert "127.0.0.1" in await resolve("localhost")
        assert await resolve("::1") == ["::1"]
        slow.pop().cancel()
        await asyncio.sleep(0)
        assert executors.names.waiting == 98
        gate.set()
        results = await asyncio.gather(*slow, return_exceptions=True)
        assert all(isinstance(result, socket.gaierror) for result in results)

    asyncio.run(asyncio.wait_for(ask(), LIMIT_S))


def test_the_first_address_that_answers_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(socket.AF_INET, 1, 6, "", (f"127.0.0.{last}", 0)) for last in (2, 3)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)

    async def ask(address: str) -> str:
        server = await asyncio.start_server(lambda _, writer: writer.close(), address, 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            endpoint = Endpoint(host="two.test", port=port)
            _, writer = await reach(endpoint, asyncio.open_connection)
            peer: str = writer.get_extra_info("peername")[0]
            writer.close()
            await writer.wait_closed()
            return peer

    for address in ("127.0.0.2", "127.0.0.3"):
        assert asyncio.run(asyncio.wait_for(ask(address), LIMIT_S)) == address
    nowhere = reach(Endpoint(host="two.test", port=1), asyncio.open_connection)
    with pytest.raises(OSError):
        asyncio.run(nowhere)
