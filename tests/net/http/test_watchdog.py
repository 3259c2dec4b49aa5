"""The watchdog of the event loop: what is told, and what is not."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
import uvloop

from vllama.net.http import watchdog
from vllama.net.http.watchdog import read_calls, watch_loop
from vllama.observe.metrics.server_metrics import Metrics

LIMIT_S = 60.0


class Told(logging.Handler):
    """What the watchdog has said; `event` is set when it has said something."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.event.set()


@pytest.fixture
def told() -> Told:
    handler = Told()
    log = logging.getLogger(watchdog.__name__)
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield handler
    log.setLevel(logging.NOTSET)
    log.removeHandler(handler)


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return request.param


def count_slow(metrics: Metrics) -> float:
    return metrics.slow_callbacks.values[()]


def wait_here(told: Told) -> None:
    assert told.event.wait(LIMIT_S)


def compute_here(told: Told) -> None:
    while not told.event.is_set():
        hashlib.sha256(b"x").digest()


@pytest.mark.parametrize("block", [wait_here, compute_here])
def test_a_callback_that_blocks_is_named_and_counted(
    told: Told, loop_factory: Callable[[], asyncio.AbstractEventLoop], block: Callable[[Told], None]
) -> None:
    metrics = Metrics()

    async def run() -> None:
        with watch_loop(metrics):
            asyncio.get_running_loop().call_soon(block, told)
            while not count_slow(metrics):  # noqa: ASYNC110 (a thread counts)
                await asyncio.sleep(0.001)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())
    assert len(told.lines) == 1
    assert f"{__name__}.{block.__name__}:" in told.lines[0]
    assert count_slow(metrics) == 1


def test_code_that_keeps_the_interpreter_is_told_by_its_cpu_time(told: Told) -> None:
    """As an expression that backtracks, or a large JSON: no other thread runs meanwhile."""
    metrics = Metrics()

    def keep() -> None:
        size = 1_000_000
        while not told.event.is_set():
            sum(range(size))
            size *= 2

    async def run() -> None:
        with watch_loop(metrics):
            asyncio.get_running_loop().call_soon(keep)
            while not count_slow(metrics):  # noqa: ASYNC110 (a thread counts)
                await asyncio.sleep(0.001)

    uvloop.run(run())
    assert "keep:" in told.lines[0]


def test_what_a_task_was_at_is_told(told: Told) -> None:
    async def outer() -> None:
        await inner()

    async def inner() -> None:
        wait_here(told)

    async def run() -> None:
        with watch_loop(Metrics()):
            await asyncio.create_task(outer())

    uvloop.run(run())
    places = [place.rpartition(":")[0] for place in told.lines[0].partition(": ")[2].split(" < ")]
    here = f"{__name__}.test_what_a_task_was_at_is_told.<locals>"
    assert places[-3:] == [f"{__name__}.wait_here", f"{here}.inner", f"{here}.outer"]


def test_one_line_a_second(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LOG_PAUSE_S", LIMIT_S)
    metrics = Metrics()

    def block(times: int) -> None:
        """Wait until the watchdog looks for the second time."""
        deadline = time.monotonic() + 2 * watchdog.LIMIT_S + 2 * watchdog.PAUSE_S
        while time.monotonic() < deadline:
            pass

    async def run() -> None:
        with watch_loop(metrics):
            for times in (1, 2):
                while count_slow(metrics) < times:
                    block(times)
                    await asyncio.sleep(0.001)

    uvloop.run(run())
    assert len(told.lines) == 1 and count_slow(metrics) >= 2


def test_a_loop_that_waits_or_has_much_to_do_is_not_named() -> None:
    async def run(seen: list[int]) -> None:
        looked, done = threading.Event(), threading.Event()
        thread = threading.get_ident()

        def look() -> None:
            assert looked.wait(LIMIT_S)
            while (calls := read_calls(thread)) and not done.is_set():
                pass  # it is about to wait
            seen.append(len(calls))
            done.set()

        looking = asyncio.to_thread(look)
        task = asyncio.create_task(looking)
        await asyncio.sleep(0)
        looked.set()
        await task

    for factory in (uvloop.new_event_loop, asyncio.new_event_loop):
        seen: list[int] = []
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(run(seen))
        assert seen == [0]


def test_an_idle_loop_is_not_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "PAUSE_S", 0.001)
    monkeypatch.setattr(watchdog, "IDLE_PAUSE_S", LIMIT_S)

    async def count_beats(idle: bool) -> int:
        metrics = Metrics()
        with watch_loop(metrics, lambda: idle):
            await asyncio.sleep(0.1)
        return sum(map(int, metrics.loop_lag.values[()][:-1]))

    assert uvloop.run(count_beats(True)) == 0
    assert uvloop.run(count_beats(False)) > 0


STOPPED = """
import asyncio, logging, sys, threading
import uvloop
from vllama.net.http.watchdog import watch_loop
from vllama.observe.metrics.server_metrics import Metrics

logging.basicConfig(stream=sys.stdout, level=logging.DEBUG)
metrics = Metrics()

async def run():
    with watch_loop(metrics):
        await asyncio.sleep(0)
        print("ready", flush=True)
        while not sys.stdin.readable() or not (line := await asyncio.to_thread(sys.stdin.readline)):
            pass
        print("slow", metrics.slow_callbacks.values[()], flush=True)

uvloop.run(run())
"""


@pytest.mark.slow
def test_a_process_that_was_stopped_has_no_slow_callback() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin and child.stdout
        assert child.stdout.readline() == "ready\n"
        for _ in range(3):
            os.kill(child.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            time.sleep(3 * watchdog.LIMIT_S)  # it does not run meanwhile, however fast we are
            os.kill(child.pid, signal.SIGCONT)
        out, _ = child.communicate("go\n", timeout=LIMIT_S)
    assert out == "slow 0\n"
