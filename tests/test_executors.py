"""Executors: bounded threads, bounded queues, turns of groups, and an end that waits for nobody."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any

import pytest

from vllama.base.errors import QueueFull
from vllama.base.executors import Executor

LIMIT_S = 20.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that jobs wait for; it is set in the end, so that no thread stays behind."""
    event = threading.Event()
    yield event
    event.set()


def make(**given: int) -> Executor:
    return Executor("test", **{"threads": 2, "most_waiting": 3, **given})  # type: ignore[arg-type]


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**given), LIMIT_S))

    return run


def wait_until(condition: Callable[[], object]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.005)


@in_loop
async def test_result_error_and_context_come_through() -> None:
    executor, word = make(), contextvars.ContextVar("word", default="")
    word.set("mine")
    assert await executor.run(word.get) == "mine"
    assert await executor.run(sorted, "ba", reverse=True) == ["b", "a"]
    with pytest.raises(ZeroDivisionError):
        await executor.run(divmod, 1, 0)
    wait_until(lambda: not executor.running)


@in_loop
async def test_no_more_threads_than_allowed_and_no_more_that_wait(gate: threading.Event) -> None:
    executor, before = make(), threading.active_count()
    jobs = [executor.start(gate.wait) for _ in range(5)]
    assert (executor.running, executor.waiting) == (2, 3)
    assert threading.active_count() - before == 2
    with pytest.raises(QueueFull) as refused:
        executor.start(gate.wait)
    assert refused.value.status == 503 and refused.value.retry_after_s > 0
    gate.set()
    await asyncio.gather(*(job.result for job in jobs))
    wait_until(lambda: not executor.running)


@in_loop
async def test_cancelled_work_leaves_the_queue(gate: threading.Event) -> None:
    executor, done = make(threads=1), []
    first = executor.start(gate.wait)
    second = asyncio.create_task(executor.run(done.append, 2))
    third = asyncio.create_task(executor.run(done.append, 3))
    await asyncio.sleep(0)
    assert executor.waiting == 2
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert executor.waiting == 1
    assert not executor.withdraw(first)  # it runs
    gate.set()
    await third
    assert done == [3]
    wait_until(lambda: not executor.running)


@in_loop
async def test_a_group_leaves_threads_to_others_and_groups_take_turns(
    gate: threading.Event,
) -> None:
    executor = make(threads=3, most_waiting=100, group_threads=2)
    slow = [executor.start(gate.wait, "slow") for _ in range(50)]
    assert (executor.running, executor.waiting) == (2, 48)
    await executor.start(lambda: None, "other").result
    await asyncio.gather(*(executor.start(lambda: None, "third").result for _ in range(5)))
    gate.set()
    await asyncio.gather(*(job.result for job in slow))
    wait_until(lambda: not executor.running)


def test_a_loop_that_has_closed_is_no_trouble(gate: threading.Event) -> None:
    executor = make(threads=1)

    async def leave() -> None:
        executor.start(gate.wait)

    async def come() -> str:
        return await executor.run(str, 7)

    asyncio.run(leave())
    gate.set()
    assert asyncio.run(come()) == "7"


def test_a_thread_that_hangs_does_not_keep_the_process_alive() -> None:
    program = (
        "import asyncio, threading\n"
        "from vllama.base import executors\n"
        "async def main():\n"
        "    executors.downloads.start(threading.Event().wait)\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LIMIT_S)
