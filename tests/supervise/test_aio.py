"""The server's own tasks: one that fails is logged and begins again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.loops import in_loop
from vllama.supervise import aio


def test_a_task_that_fails_begins_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "RESTART_PAUSE_S", 0.001)
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise ExceptionGroup("several", [OverflowError("too large")])

    async def live() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(aio.keep_running("usage", work, lambda: False))

    with caplog.at_level(logging.ERROR):
        asyncio.run(live())
    assert runs == 3 and caplog.text.count("task 'usage' failed") == 2
    runs = 0
    asyncio.run(aio.keep_running("usage", work, lambda: True))
    assert runs == 1, "a server that stops does not begin anew"


@in_loop
async def test_a_task_can_be_cancelled() -> None:
    task = asyncio.ensure_future(aio.keep_running("x", asyncio.Event().wait, lambda: False))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
