"""Servers that somebody else started: what is known of them, and when the log hears of it."""

from __future__ import annotations

import asyncio

import pytest

from tests.ports import free_port
from tests.supervise.test_probe import OK, serving
from vllama.errors import CoolingDown
from vllama.supervise.external import NOT_YET, AttachedProcess, UpstreamMonitor
from vllama.supervise.spec import Endpoint, State

DOWN = b"HTTP/1.1 503 Busy\r\n\r\n"


def test_what_is_known_is_of_the_last_look(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="vllama")

    async def main() -> None:
        async with serving(DOWN, DOWN, OK) as port, serving(OK, OK, DOWN) as other:
            both = [Endpoint(port=port), Endpoint(port=other)]
            watch = UpstreamMonitor(both, "/v1/models")
            assert watch.all_down
            assert set(watch.troubles.values()) == {NOT_YET}
            seen = []
            for _ in range(3):
                await watch.check()
                seen.append(list(watch.troubles))
                assert not watch.all_down
            assert seen == [[both[0].url], [both[0].url], [both[1].url]]

    asyncio.run(main())
    said = [" ".join(line.split()[3:]) for line in caplog.messages]
    assert [line.split(" ", 1)[1] for line in said] == [
        "cannot serve: it answers /v1/models with HTTP 503",
        "answers",
        "answers",
        "cannot serve: it answers /v1/models with HTTP 503",
    ]


def test_without_servers_none_is_down() -> None:
    watch = UpstreamMonitor((), "")
    asyncio.run(watch.check())
    assert not watch.all_down and not watch.none_answers and not watch.troubles


def test_only_a_change_is_told_and_the_error_names_the_upstream_alone() -> None:
    """Who is told of every probe, and asks for one each time, never comes to rest."""

    async def main() -> None:
        endpoint = Endpoint(port=free_port(), upstream="bee")
        process, told = AttachedProcess((endpoint,), "/v1/models"), []
        process.subscribe(lambda: told.append(process.state))
        running = asyncio.ensure_future(process.run())
        for _ in range(3):
            with pytest.raises(CoolingDown) as caught:
                await process.ensure_ready()
            assert caught.value.message == "cannot reach the upstream 'bee'"
            assert str(endpoint.port) not in str(caught.value.hint)
        down = process.last_diagnosis  # `ps` shows it
        assert down is not None and down.cause == "no answer from the upstream 'bee'"
        assert not told
        await process.stop()
        await running

    asyncio.run(main())


def test_one_that_ends_and_returns_is_told_once_each() -> None:
    async def main() -> None:
        async with serving(OK) as port:
            endpoint = Endpoint(port=port)
            process, told = AttachedProcess((endpoint,), "/v1/models"), []
            process.subscribe(lambda: told.append(process.state))
            running = asyncio.ensure_future(process.run())
            assert await process.ensure_ready() == endpoint
            process.report_unreachable(endpoint)
            process.report_unreachable(endpoint)
            assert await process.ensure_ready() == endpoint
            assert told == [State.READY, State.BACKOFF, State.READY]
            await process.stop()
            await running

    asyncio.run(main())


def test_servers_with_names_are_spare_but_it_is_known_if_none_answers() -> None:
    async def main() -> None:
        async with serving(DOWN, OK) as port:
            watch = UpstreamMonitor([Endpoint(port=port, is_spare=True)], "/v1/models")
            await watch.check()
            assert watch.none_answers and not watch.all_down
            await watch.check()
            assert not watch.none_answers

    asyncio.run(main())
