"""A load whose engine does not start goes on with the next plan; who waits hears of the end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.scheduler.world import World, in_loop, in_world, model, reach, request, settle, use
from vllama.base.errors import EngineStartFailed, NotEnoughMemory
from vllama.plan.types import Need
from vllama.scheduler.hooks import Placed
from vllama.scheduler.views import Phase
from vllama.supervise.spec import Attempt, Diagnosis, Fault

CHAT = Need()
MIB = 1024**2
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


class Shared(World):
    """A world in which other programs hold memory; a smaller plan takes `small` bytes."""

    def __init__(self, *, small, **settings):
        super().__init__(**settings)
        self.small, self.rooms = small, []
        self.hooks = replace(self.hooks, shrink=self.shrink)
        self.scheduler = type(self.scheduler)(self.hooks, self.limits, self.clock)

    async def shrink(self, plan, need, room):
        self.rooms.append(dict(room))
        memory = replace(plan.memory, weights_bytes=self.small)
        return replace(
            plan, memory=memory, relief=replace(plan.relief, room=room), instead="what is left"
        )


@in_world(Shared, small=600, size=5000, free=1000)
async def test_a_load_is_planned_again_for_what_others_leave(world, scheduler):
    await scheduler.acquire(model("m"), CHAT, None)
    assert world.rooms == [{"ram": 1000}]
    (view,) = scheduler.list_views()
    assert view.planned == {"ram": 600} and view.cause == "what is left"


@in_world(Shared, small=2000, size=5000, free=1000)
async def test_it_is_planned_again_once(world, scheduler):
    with pytest.raises(NotEnoughMemory, match="requires more system memory"):
        await scheduler.acquire(model("m"), CHAT, None)
    assert len(world.rooms) == 1


# -- loads that end up elsewhere than planned ----------------------------------------------------

LOST = Placed(
    text="100 MiB in RAM", vram_bytes=0, pools={},
    trouble=Diagnosis(cause="no usable GPU", fault=Fault.DEVICE),
)  # fmt: skip


class OnGpu(Laddered):
    """A world whose first plan is for a GPU; the next ones are for the CPU."""

    def __init__(self, **settings):
        super().__init__(failing=0, sleeps=True, size=MIB, **settings)
        self.placed = LOST

    async def another(self, wanted, need, failed):
        assert failed[-1].diagnosis is LOST.trouble
        plan = await super().another(wanted, need, failed)
        return replace(plan, memory=replace(plan.memory, on_gpu=False))


@in_world(OnGpu)
async def test_a_model_whose_gpu_is_lost_is_planned_anew_before_it_serves(world, scheduler):
    lease = await scheduler.acquire(model("m"), CHAT, None)
    assert lease.endpoint.port == 2, "the first engine served nobody"
    scheduler.release(lease)
    (view,) = scheduler.list_views()
    assert (view.plan.instead, view.placed) == ("plan 2", "100 MiB in RAM")


@in_world(OnGpu, more=0)
async def test_without_another_plan_it_fails_with_the_cause(world, scheduler):
    with pytest.raises(EngineStartFailed, match="on the GPU: no usable GPU"):
        await use(scheduler)
    await reach(lambda: not scheduler.list_views())
    assert world.processes[0].stops


@in_world(OnGpu)
async def test_one_that_loses_its_gpu_with_a_crash_is_loaded_anew(world, scheduler):
    world.placed = Placed(text="on CUDA0", vram_bytes=5, pools={"gpu0": 5})
    await use(scheduler)
    world.placed = LOST
    process = world.processes[0]
    process.attempts = (Attempt(number=1, started_s=1.0, log_path=Path("1.log"), ended_s=2.0),)
    process.crash()
    process.open()
    await reach(lambda: not scheduler.list_views())


@in_world(OnGpu)
async def test_what_differs_otherwise_is_only_told(world, scheduler):
    trouble = Diagnosis(cause="12 of 31 layers")
    world.placed = Placed(text="", vram_bytes=5, pools={}, trouble=trouble)
    await use(scheduler)
    (view,) = scheduler.list_views()
    assert (view.cause, len(world.processes)) == ("12 of 31 layers", 1)


class Unmeasured(OnGpu):
    """A world whose driver tells no memory of processes."""

    async def measure(self, processes, gpus):
        measured = await super().measure(processes, gpus)
        return replace(measured, holds={key: {"ram": 9} for key in measured.holds})


@in_world(Unmeasured)
async def test_the_engine_s_words_count_where_nothing_is_measured(world, scheduler):
    world.placed = Placed(text="on Vulkan0", vram_bytes=7, pools={"gpu0": 7})
    await use(scheduler)
    (view,) = scheduler.list_views()
    assert (view.measured, view.vram_bytes, view.memory_bytes) == ({"ram": 9, "gpu0": 7}, 7, 16)
    scheduler.unload(model("m"))
    await reach(lambda: not scheduler.list_views())
    assert world.remembered == [("m:latest", {"ram": 9, "gpu0": 7})]
