"""Servers that somebody else started: what is known of them, and when the log hears of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from tests.loops import in_loop
from tests.ports import free_port
from tests.supervise.test_probe import OK, serving
from vllama.base.errors import CoolingDown
from vllama.chat.request import Call
from vllama.net.upstream.connection import ConnectionLost
from vllama.net.upstream.pool import Upstreams
from vllama.supervise.spec import Endpoint, State
from vllama.targets.attached import AttachedProcess
from vllama.targets.monitor import NOT_YET, UpstreamMonitor

DOWN = b"HTTP/1.1 503 Busy\r\n\r\n"


def test_what_is_known_is_of_the_last_look(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="vllama")

    async def main() -> None:
        async with serving(DOWN, DOWN, OK) as port, serving(OK, OK, DOWN) as other:
            both = [Endpoint(port=port), Endpoint(port=other)]
            watch = UpstreamMonitor(both, "/v1/models", Upstreams())
            assert watch.all_down
            assert set(watch.troubles.values()) == {NOT_YET}
            seen = []
            for _ in range(3):
                await watch.check()
                seen.append(list(watch.troubles))
                assert not watch.all_down
            assert seen == [[both[0].url], [both[0].url], [both[1].url]]

    asyncio.run(main())
    said = [" ".join(line.split()[1:]) for line in caplog.messages]
    assert [line.split(" ", 1)[1] for line in said] == [
        "is not available: /v1/models returned HTTP 503",
        "responds",
        "responds",
        "is not available: /v1/models returned HTTP 503",
    ]


def test_without_servers_none_is_down() -> None:
    watch = UpstreamMonitor((), "", Upstreams())
    asyncio.run(watch.check())
    assert not watch.all_down and not watch.none_answers and not watch.troubles


def attach(endpoint: Endpoint) -> AttachedProcess:
    return AttachedProcess((endpoint,), UpstreamMonitor([endpoint], "/v1/models", Upstreams()))


@in_loop
async def test_only_a_change_is_told_and_the_error_names_the_upstream_alone() -> None:
    """Who is told of every probe, and asks for one each time, never comes to rest."""
    endpoint = Endpoint(port=free_port(), upstream="bee", is_elsewhere=True)
    process, told = attach(endpoint), []
    process.subscribe(lambda: told.append(process.state))
    running = asyncio.ensure_future(process.run())
    for _ in range(3):
        with pytest.raises(CoolingDown) as caught:
            await process.ensure_ready()
        assert caught.value.message == "cannot reach the upstream 'bee': no response yet"
        assert str(endpoint.port) not in str(caught.value.hint)
    down = process.last_diagnosis  # `ps` shows it
    assert down is not None and down.cause == "no response from the upstream 'bee'"
    assert not told
    await process.stop()
    await running


@in_loop
async def test_one_that_ends_and_returns_is_told_once_each() -> None:
    async with serving(OK) as port:
        endpoint = Endpoint(port=port)
        process, told = attach(endpoint), []
        process.subscribe(lambda: told.append(process.state))
        running = asyncio.ensure_future(process.run())
        assert await process.ensure_ready() == endpoint
        process.report_unreachable(endpoint)
        process.report_unreachable(endpoint)
        assert await process.ensure_ready() == endpoint
        assert told == [State.READY, State.BACKOFF, State.READY]
        await process.stop()
        await running


@in_loop
async def test_servers_with_names_are_spare_but_it_is_known_if_none_answers() -> None:
    async with serving(DOWN, OK) as port:
        watch = UpstreamMonitor([Endpoint(port=port, is_spare=True)], "/v1/models", Upstreams())
        await watch.check()
        assert watch.none_answers and not watch.all_down
        await watch.check()
        assert not watch.none_answers


@asynccontextmanager
async def half_dead(healthy: list[bool], pieces_s: float) -> AsyncIterator[int]:
    """Answer a POST with a piece every `pieces_s`; a GET only while `healthy` says so."""
    release = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if request.startswith(b"GET"):
            if healthy.pop(0) if len(healthy) > 1 else healthy[0]:
                writer.write(OK)
            else:
                await release.wait()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            while not release.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pieces_s):
                        await release.wait()
                writer.write(b"1\r\nx\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        release.set()
        await asyncio.sleep(0.1)


CASES = [
    ([False], 3600.0, True),
    ([False], 0.05, False),  # its answers arrive, whatever its health check says
    ([False], 2.0, False),
    ([True, False, True], 3600.0, False),  # one failed check is no proof
    ([False, True], 3600.0, False),
]


@pytest.mark.slow
@in_loop
async def test_only_silent_answers_of_a_server_that_is_gone_are_ended() -> None:
    async def watched(healthy: list[bool], pieces_s: float, ends: bool) -> None:
        upstreams = Upstreams()
        async with half_dead(list(healthy), pieces_s) as port:
            endpoint = Endpoint(port=port, upstream="bee", is_elsewhere=True)
            # a pool of its own for a model that is called otherwise there
            other = msgspec.structs.replace(endpoint, model="other")
            with upstreams.use_pool(other) as pool:
                asked = asyncio.ensure_future(pool.fetch(Call(path="/x", body=b"{}")))
                watch = UpstreamMonitor([endpoint], "/v1/models", upstreams)
                running = asyncio.ensure_future(watch.run())
                done, _ = await asyncio.wait({asked}, timeout=60 if ends else 11)
                assert bool(done) is ends
                if ends:
                    with pytest.raises(ConnectionLost, match="'bee' no longer responds"):
                        await asked
                running.cancel()
                asked.cancel()
                await asyncio.wait({running, asked})

    await asyncio.gather(*(watched(*case) for case in CASES))
