"""Servers that somebody else started: what is known of them, and when the log hears of it."""

from __future__ import annotations

import asyncio

import pytest

from tests.supervise.test_probe import OK, serving
from vllama.supervise.external import NOT_YET, UpstreamMonitor
from vllama.supervise.spec import Endpoint

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
    assert not watch.all_down and not watch.troubles
