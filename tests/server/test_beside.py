"""Long work leaves the interpreter as it was, and the loop running."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from vllama.beside import TURN_S, beside


def test_the_loop_runs_while_the_work_is_done() -> None:
    before = sys.getswitchinterval()
    seen = []

    async def run() -> int:
        begun, going_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def work(number: int) -> int:
            seen.append(sys.getswitchinterval())
            loop.call_soon_threadsafe(begun.set)
            assert going_on.wait(30)
            return number + 1

        task = asyncio.ensure_future(beside(work, 1))
        await begun.wait()
        going_on.set()  # only a loop that runs can
        return await task

    assert asyncio.run(run()) == 2
    assert seen == [pytest.approx(TURN_S, rel=0.01)]
    assert sys.getswitchinterval() == before


def test_an_error_is_the_callers() -> None:
    before = sys.getswitchinterval()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(beside(divmod, 1, 0))
    assert sys.getswitchinterval() == before
