"""Failures and queues of one model."""

import asyncio
import math
from dataclasses import replace

import pytest

from tests.scheduler.world import (
    CRASHED,
    NOT_STARTED,
    World,
    as_time_passes,
    in_loop,
    in_world,
    model,
    reach,
    request,
    settle,
    use,
)
from vllama.base.errors import CoolingDown, EngineStartFailed, NotEnoughMemory, QueueFull
from vllama.plan.types import Need

CHAT = Need()
GIB = 1024**3


# -- failures -----------------------------------------------------------------------------------


@in_world()
async def test_a_failed_model_is_told_until_it_is_asked_for_again(world, scheduler):
    world.auto_open = False
    ask = asyncio.ensure_future(use(scheduler))
    await settle()
    world.processes[0].fail(NOT_STARTED)
    with pytest.raises(EngineStartFailed):
        await ask
    await reach(lambda: not scheduler.list_views())
    (row,) = scheduler.list_failures()
    assert (row.name, row.retry_s) == ("m:latest", 0.0)
    assert "damaged" in row.cause
    world.auto_open = True
    await use(scheduler)
    assert not scheduler.list_failures()


@in_world()
async def test_one_that_used_up_its_restarts_with_nobody_waiting_has_failed_too(world, scheduler):
    await use(scheduler)
    world.processes[0].crash()
    world.processes[0].fail(CRASHED)
    await reach(lambda: not scheduler.list_views())
    (row,) = scheduler.list_failures()
    assert "crashed too often" in row.cause
    world.clock.advance(5)
    with pytest.raises(CoolingDown) as caught:
        await use(scheduler)
    assert caught.value.retry_after_s == 10.0


@in_world()
async def test_stop_lets_a_failed_model_be_tried_at_once(world, scheduler):
    await use(scheduler)
    world.processes[0].fail(CRASHED)
    await reach(lambda: scheduler.list_failures())
    assert not scheduler.unload(model("m"))
    assert not scheduler.list_failures()
    await use(scheduler)


# -- queues -------------------------------------------------------------------------------------


@in_world(max_queue=1, size=GIB)
async def test_each_model_has_a_queue_of_its_own(world, scheduler):
    leases = [await scheduler.acquire(model(name), CHAT, None) for name in ("a", "b")]
    asks = [asyncio.ensure_future(use(scheduler, name)) for name in ("a", "b")]
    await settle()
    for name in ("a", "b"):
        with pytest.raises(QueueFull):
            await use(scheduler, name)
    for lease in leases:
        scheduler.release(lease)
    await asyncio.gather(*asks)


@in_world(max_queue=4)
async def test_who_is_turned_away_is_told_how_long_the_queue_takes(world, scheduler):
    lease = await scheduler.acquire(model("m"), CHAT, None)
    world.clock.advance(5)
    scheduler.release(lease)  # a request takes 5 s
    lease = await scheduler.acquire(model("m"), CHAT, None)
    asks = [request(scheduler) for _ in range(4)]
    await settle()
    with pytest.raises(QueueFull) as caught:
        await use(scheduler)
    assert caught.value.retry_after_s == 20.0
    positions = []
    scheduler.release(lease)
    for ask in asks:
        positions.append((await ask).queue_position)
        scheduler.release(await ask)
    assert positions == [1, 2, 3, 4]


# -- odds ---------------------------------------------------------------------------------------


@in_world(size=4 * GIB, free=5 * GIB, turn_s=1e9)
async def test_who_leaves_while_a_load_waits_for_room_leaves_the_load_to_the_others(
    world, scheduler
):
    lease = await scheduler.acquire(model("a"), CHAT, None)
    gone = asyncio.ensure_future(use(scheduler, "b"))
    stays = asyncio.ensure_future(use(scheduler, "b"))
    await settle()
    gone.cancel()
    scheduler.release(lease)
    await stays
    assert len(world.processes) == 2


@in_world(size=4 * GIB, free=5 * GIB)
async def test_a_load_that_nobody_waits_for_makes_room(world, scheduler):
    world.auto_open = False
    gone = asyncio.ensure_future(use(scheduler, "a"))
    await settle()
    gone.cancel()
    await settle()
    (first,) = world.processes  # it goes on as long as it is in nobody's way
    assert not first.stops
    world.auto_open = True
    await use(scheduler, "b")
    assert first.stops and len(world.processes) == 2


@in_world(size=4 * GIB, free=5 * GIB)
async def test_a_load_that_somebody_waits_for_makes_no_room(world, scheduler):
    world.auto_open = False
    first = asyncio.ensure_future(use(scheduler, "a"))
    second = asyncio.ensure_future(use(scheduler, "b"))
    await settle()
    (process,) = world.processes
    assert not process.stops
    process.open()
    world.auto_open = True
    await asyncio.gather(first, second)


@in_world(size=4 * GIB, free=5 * GIB, turn_s=1e9)
async def test_a_load_that_waits_for_room_ends_with_the_last_who_waits_for_it(world, scheduler):
    lease = await scheduler.acquire(model("a"), CHAT, None)
    gone = asyncio.ensure_future(use(scheduler, "b"))
    await settle()
    gone.cancel()
    await settle()
    assert [view.name for view in scheduler.list_views()] == ["a:latest"]
    scheduler.release(lease)
    assert len(world.processes) == 1


@in_world(size=4 * GIB, free=5 * GIB)
async def test_a_wish_that_no_memory_can_meet_is_refused_while_others_run(world, scheduler):
    await use(scheduler, "a", math.inf)
    world.size = 6 * GIB
    with pytest.raises(NotEnoughMemory, match=r"6\.0 GiB"):
        await as_time_passes(world, use(scheduler, "b"))


@in_loop
async def test_who_comes_when_a_failed_load_is_being_cleared_away_hears_its_cause():
    world = World()
    world.auto_open = False
    late = []

    def over():
        if not late:
            late.append(asyncio.ensure_future(use(world.scheduler)))

    world.hooks = replace(world.hooks, on_instance_end=over)
    world.scheduler = type(world.scheduler)(world.hooks, world.limits, world.clock)
    async with world.running() as scheduler:
        ask = asyncio.ensure_future(use(scheduler))
        await settle()
        world.processes[0].fail(NOT_STARTED)
        for one in (ask, *late):
            with pytest.raises(EngineStartFailed, match="damaged"):
                await one
        await reach(lambda: late)
        with pytest.raises(EngineStartFailed, match="damaged"):
            await late[0]
