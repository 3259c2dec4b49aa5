"""Probing: every kind of answer, and the wait that is extended, interrupted or stalled."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.loops import in_loop
from tests.manual_clock import ManualClock
from tests.supervise.conftest import LIMIT_S
from vllama.supervise.probe import ProbeResult, check, find_trouble, http_status, wait_ready
from vllama.supervise.spec import Endpoint, HttpProbe, LaunchSpec


@asynccontextmanager
async def serving(*answers: bytes | None, seen: list[bytes] | None = None) -> AsyncIterator[int]:
    """Answer each connection with the next of `answers` (None: never), the last one for ever."""
    left = list(answers)
    release = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = left.pop(0) if len(left) > 1 else left[0]
        request = await reader.readuntil(b"\r\n\r\n")
        if seen is not None:
            seen.append(request)
        if data is None:
            await release.wait()
        else:
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        release.set()
        await asyncio.sleep(0)


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (OK, 200),
        (b"HTTP/1.0 503 Service Unavailable\r\n\r\nloading", 503),
        (b"HTTP/1.1 204\r\nX: y\r\n\r\n", 204),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 70_000, 200),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", None),
        (b"HTTP/1.1 abc\r\n\r\n", None),
        (b"HTTP/1.1 999 Odd\r\n\r\n", None),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", None),
        (b"\x00\xff\xfe" * 100 + b"\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\n", None),
        (b"y" * 100_000, None),
        (b"", None),
    ],
)
@in_loop
async def test_every_answer(answer: bytes, status: int | None) -> None:
    async with serving(answer) as port:
        endpoint = Endpoint(port=port)
        assert await http_status(endpoint, "/health", timeout_s=LIMIT_S) == status


@in_loop
async def test_no_answer_and_nobody_there() -> None:
    async with serving(None) as port:
        assert await http_status(Endpoint(port=port), "/", timeout_s=0.05) is None
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        nobody = Endpoint(port=bound.getsockname()[1])
        assert await http_status(nobody, "/", timeout_s=LIMIT_S) is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (OK, ""),
        (b"HTTP/1.1 429 Too Many Requests\r\n\r\n", ""),
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", "it rejects the key (HTTP 401)"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "/v1/models returned HTTP 404"),
        (b"HTTP/1.1 503 Busy\r\n\r\n", "/v1/models returned HTTP 503"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "its response is not HTTP"),
        (b"", "its response is not HTTP"),
        (None, "no response within 0.05 s"),
    ],
)
@in_loop
async def test_why_one_cannot_serve(answer: bytes | None, why: str) -> None:
    seen: list[bytes] = []
    async with serving(answer, seen=seen) as port:
        endpoint = Endpoint(port=port, prefix="/p", api_key="k")
        limit_s = 0.05 if answer is None else LIMIT_S
        assert await find_trouble(endpoint, "/v1/models", timeout_s=limit_s) == why
    assert seen[0].startswith(b"GET /p/v1/models HTTP/1.1\r\n")
    assert b"Authorization: Bearer k\r\n" in seen[0]


def test_why_nobody_can_serve() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        nobody = Endpoint(port=bound.getsockname()[1])
        why = asyncio.run(find_trouble(nobody, "/", timeout_s=LIMIT_S))
    assert "refused" in why


def spec(port: int, *, stall_timeout_s: float | None = None, verify: bool = False) -> LaunchSpec:
    probe = HttpProbe(
        path="/health",
        ready_statuses=frozenset({200, 401}),
        verify_path="/v1/models" if verify else None,
        interval_s=0.001,
        timeout_s=LIMIT_S,
    )
    endpoint = Endpoint(port=port, api_key="k3y")
    return LaunchSpec(
        name="x",
        argv=("x",),
        env={},
        endpoint=endpoint,
        probe=probe,
        stall_timeout_s=stall_timeout_s,
    )


@pytest.mark.parametrize(
    ("answers", "verify", "ready"),
    [
        ([OK], False, True),
        ([b"HTTP/1.1 401 No\r\n\r\n"], False, True),
        ([b"HTTP/1.1 503 No\r\n\r\n"], False, False),
        ([OK, OK], True, True),
        ([OK, b"HTTP/1.1 401 No\r\n\r\n"], True, False),
        ([b"HTTP/1.1 401 No\r\n\r\n", OK], True, True),
    ],
)
@in_loop
async def test_check(answers: list[bytes], verify: bool, ready: bool) -> None:
    seen: list[bytes] = []
    async with serving(*answers, seen=seen) as port:
        assert await check(spec(port, verify=verify)) is ready
    assert b"Authorization" not in seen[0]
    if verify:
        assert b"GET /v1/models HTTP/1.1\r\n" in seen[1]
        assert b"\r\nAuthorization: Bearer k3y\r\n" in seen[1]


@in_loop
async def test_wait_polls_until_ready() -> None:
    loading = b"HTTP/1.1 503 No\r\n\r\n"
    async with serving(loading, b"garbage", b"", loading, OK) as port:
        clock = ManualClock()
        assert await wait_ready(spec(port), clock=clock, progress=int) is ProbeResult.READY


def test_wait_stalls_when_nothing_grows_for_that_long() -> None:
    clock = ManualClock()
    calls = 0

    def progress() -> int:  # grows 20 times, 9 s apart, and then no more
        nonlocal calls
        calls += 1
        clock.advance(9.0)
        return min(calls, 20)

    async def main() -> None:
        async with serving(b"HTTP/1.1 503 No\r\n\r\n") as port:
            stalled = await wait_ready(
                spec(port, stall_timeout_s=10.0), clock=clock, progress=progress
            )
            assert stalled is ProbeResult.STALLED
            assert calls == 22

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_an_interrupt_ends_the_wait_and_wins_over_an_answer() -> None:
    async def main() -> None:
        async with serving(None) as port:
            exited = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.02, exited.set_result, 1)
            waiting = wait_ready(
                spec(port), clock=ManualClock(), progress=int, interrupts=(exited,)
            )
            assert await waiting is ProbeResult.INTERRUPTED
        async with serving(OK) as port:
            waiting = wait_ready(
                spec(port), clock=ManualClock(), progress=int, interrupts=(exited,)
            )
            assert await waiting is ProbeResult.INTERRUPTED

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
