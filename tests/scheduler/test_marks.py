"""Marks: what is remembered of loads, evictions, failures and restarts, and for how many."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.scheduler.world import CRASHED, NOT_STARTED, in_world, reach, use
from vllama.base.errors import EngineStartFailed
from vllama.dialects.events import Mark, MarkKind
from vllama.scheduler.state import MAX_MARKS, Marks
from vllama.supervise.spec import Attempt


def kinds(scheduler):
    return [
        (str(mark.kind), mark.model.removesuffix(":latest"))
        for mark in scheduler.marks.list_since(0)
    ]


@in_world(max_loaded=1)
async def test_loads_evictions_and_unloads(world, scheduler):
    await use(scheduler, "a")
    await use(scheduler, "b", keep_alive_s=0)
    await reach(lambda: not scheduler.list_views())
    assert kinds(scheduler) == [
        ("load", "a"), ("evict", "a"), ("load", "b"), ("unload", "b"),
    ]  # fmt: skip
    reasons = {mark.kind: mark.reason for mark in scheduler.marks.list_since(0)}
    assert reasons[MarkKind.EVICT].startswith("evicted for b:latest: ")
    assert reasons[MarkKind.UNLOAD] == "its keep_alive is 0"


@in_world()
async def test_failures_and_what_stays_of_them(world, scheduler):
    world.auto_open = False
    for attempt in range(2):
        ask = asyncio.ensure_future(use(scheduler))
        await reach(lambda attempt=attempt: len(world.processes) == attempt + 1)
        # while it loads again, the last failure still stands beside it
        (view,) = scheduler.list_views()
        assert (view.failure is not None) is (attempt == 1)
        world.processes[-1].fail(NOT_STARTED)
        with pytest.raises(EngineStartFailed):
            await ask
        await reach(lambda: not scheduler.list_views())
    assert kinds(scheduler) == [("fail", "m")] * 2
    world.auto_open = True
    await use(scheduler)
    (view,) = scheduler.list_views()
    assert view.failure is None and not scheduler.list_failures()
    assert kinds(scheduler)[-1] == ("load", "m")


@in_world()
async def test_a_crash_is_a_restart_or_a_failure(world, scheduler):
    await use(scheduler)
    process = world.processes[0]
    ended = Attempt(number=1, started_s=1.0, log_path=Path("1.log"), ended_s=2.0)
    process.attempts = (ended,)
    process.crash()
    process.open()
    process.fail(CRASHED)
    await reach(lambda: not scheduler.list_views())
    assert [kind for kind, _ in kinds(scheduler)] == ["load", "restart", "fail"]


def test_they_are_bounded():
    marks = Marks()
    mark = Mark(time=0.0, kind=MarkKind.LOAD, model="m", reason="")
    for number in range(MAX_MARKS + 7):
        marks.add(msgspec.structs.replace(mark, time=float(number)))
    assert marks.count == MAX_MARKS + 7
    assert next(one.time for one in marks.list_since(0)) == 7.0
    assert [one.time for one in marks.list_after(marks.count - 2)] == [505.0, 506.0]
    assert marks.list_after(marks.count) == []
    assert len(marks.list_after(0)) == MAX_MARKS
