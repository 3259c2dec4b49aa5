"""A load whose engine does not start goes on with the next plan; who waits hears of the end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.scheduler.world import World, in_loop, in_world, model, reach, request, settle, use
from vllama.base.errors import EngineStartFailed
from vllama.plan.types import Need
from vllama.scheduler.views import Phase
from vllama.supervise.spec import Diagnosis, Fault

CHAT = Need()
NO_MEMORY = Diagnosis(cause="no memory", fault=Fault.MEMORY)


class Laddered(World):
    """A world with `more` plans after the first; the first `failing` starts fail."""

    def __init__(self, *, failing=1, more=3, **settings):
        super().__init__(**settings)
        self.failing, self.more = failing, more
        self.asked = []
        self.auto_open = False
        self.gate, self.held = asyncio.Event(), False
        self.gate.set()
        self.hooks = replace(self.hooks, replan=self.another)
        self.scheduler = type(self.scheduler)(self.hooks, self.limits, self.clock)

    def start(self, plan):
        process = super().start(plan)
        if len(self.processes) <= self.failing:
            process.last_diagnosis = NO_MEMORY
            process.fail(EngineStartFailed(f"cannot start m: cause {process.number}"))
        else:
            process.open()
        return process

    async def measure(self, processes, gpus):
        if self.processes:
            self.held = True
            await self.gate.wait()
        return await super().measure(processes, gpus)

    async def another(self, wanted, need, failed):
        self.asked.append([one.message for one in failed])
        if len(failed) > self.more:
            raise EngineStartFailed(f"{failed[0].message}; tried {len(failed) - 1} more")
        settings = replace(failed[-1].plan.settings, context_length=1024 * (8 - len(failed)))
        return replace(failed[-1].plan, settings=settings, instead=f"plan {len(failed) + 1}")


@in_world(Laddered, failing=2, slots=2)
async def test_those_who_wait_are_served_by_the_second_plan(world, scheduler):
    leases = await asyncio.gather(*(scheduler.acquire(model("m"), CHAT, None) for _ in range(2)))
    assert {lease.endpoint.port for lease in leases} == {3}
    (view,) = scheduler.list_views()
    assert (view.state, view.cause) == (Phase.READY, "plan 3")
    assert view.plan.settings.context_length == 6 * 1024
    assert not scheduler.list_failures()
    assert world.asked == [
        ["cannot start m: cause 1"],
        ["cannot start m: cause 1", "cannot start m: cause 2"],
    ]
    for lease in leases:
        scheduler.release(lease)


@in_loop
@pytest.mark.parametrize("more", [0, 2])
async def test_the_last_word_is_told_to_all_who_wait_once(more):
    world = Laddered(failing=9, more=more)
    async with world.running() as scheduler:
        waiting = [request(scheduler) for _ in range(3)]
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert {str(error) for error in told} == {f"cannot start m: cause 1; tried {more} more"}
        await reach(lambda: not scheduler.list_views())
        assert len(world.processes) == len(world.asked) == more + 1
        (failure,) = scheduler.list_failures()
        assert failure.cause == f"cannot start m: cause 1; tried {more} more"


@in_world(Laddered, failing=1)
async def test_a_next_plan_waits_for_its_room(world, scheduler):
    world.gate.clear()
    waiting = request(scheduler)
    await reach(lambda: world.held)
    await settle()
    assert len(world.processes) == 1 and not waiting.done()
    assert world.processes[0].stops, "the failed one is gone before the next is let in"
    world.gate.set()
    scheduler.release(await waiting)
    assert len(world.processes) == 2


@in_world(Laddered, failing=1)
async def test_an_unload_lets_those_who_wait_have_the_next_plan(world, scheduler):
    waiting = request(scheduler)
    await settle()
    scheduler.unload(model("m"))
    scheduler.release(await waiting)
    assert len(world.asked) == 1
    await reach(lambda: not scheduler.list_views())


@in_world(Laddered, failing=0)
async def test_one_that_served_and_crashed_is_not_planned_anew(world, scheduler):
    await use(scheduler)
    process = world.processes[0]
    process.last_diagnosis = NO_MEMORY
    process.fail(EngineStartFailed("one of several did not start"))
    await reach(lambda: not scheduler.list_views())
    assert not world.asked
    assert scheduler.list_failures()
