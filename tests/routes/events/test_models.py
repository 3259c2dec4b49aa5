"""The rows of models: what they say of a failure, and whether there is a log to read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.scheduler.world import NOT_STARTED, World, in_loop, model, reach, use
from vllama.base.errors import EngineStartFailed, NotEnoughMemory
from vllama.plan.types import Need
from vllama.routes.events.rows import make_rows
from vllama.scheduler.scheduler import Scheduler
from vllama.supervise.spec import Attempt

NEED = Need()


def list_rows(scheduler: Scheduler) -> dict[str, object]:
    rows = make_rows(scheduler.list_models(), scheduler.list_failures())
    return {name: (row.state, row.log, row.error and row.error.cause) for name, row in rows.items()}


@in_loop
async def test_a_failure_before_an_engine_was_started_has_no_log() -> None:
    world = World()
    world.plan_error = NotEnoughMemory("it is too large")
    async with world.running() as scheduler:
        with pytest.raises(NotEnoughMemory):
            await use(scheduler)
        assert list_rows(scheduler) == {"m:latest": ("failed", None, "it is too large")}


@in_loop
async def test_a_failure_of_an_engine_has_its_log(tmp_path: Path) -> None:
    world = World()
    world.auto_open = False
    async with world.running() as scheduler:
        ask = asyncio.ensure_future(scheduler.acquire(model("m"), NEED, None))
        await reach(lambda: world.processes)
        assert list_rows(scheduler) == {"m:latest": ("loading", None, None)}
        world.processes[0].attempts = (Attempt(number=1, started_s=0.0, log_path=tmp_path),)
        assert list_rows(scheduler) == {"m:latest": ("loading", "m:latest", None)}
        world.processes[0].fail(NOT_STARTED)
        with pytest.raises(EngineStartFailed):
            await ask
        await reach(lambda: not scheduler.list_views())
        told = list_rows(scheduler)["m:latest"]
        assert told == ("failed", "m:latest", NOT_STARTED.message)
