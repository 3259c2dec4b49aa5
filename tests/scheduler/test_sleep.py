"""Sleep: before an unload, to take turns; waking up; ending while asleep."""

import asyncio

from tests.scheduler.world import in_world, model, phases, reach, request, settle, use
from vllama.plan.types import Need
from vllama.scheduler.views import Phase

CHAT = Need()
GIB = 1024**3


@in_world(size=GIB, sleeps=True, keep_alive_s=300.0, sleep_s=1000.0)
async def test_one_that_can_sleep_sleeps_before_it_is_unloaded(world, scheduler):
    await use(scheduler)
    world.clock.advance(301)
    scheduler.expire()
    await reach(lambda: phases(scheduler) == {"m": Phase.SLEEPING})
    assert not world.processes[0].stops
    assert scheduler.try_acquire(model("m"), CHAT, None) is None
    await use(scheduler)  # wakes it
    assert phases(scheduler) == {"m": Phase.READY}
    kinds = [str(mark.kind) for mark in scheduler.marks.list_since(0)]
    assert kinds == ["load", "sleep", "wake"]
    assert len(world.processes) == 1
    world.clock.advance(301)
    scheduler.expire()
    await reach(lambda: phases(scheduler) == {"m": Phase.SLEEPING})
    world.clock.advance(1001)
    scheduler.expire()
    await reach(lambda: not scheduler.list_views())


@in_world(size=GIB, sleeps=True)
async def test_keep_alive_0_and_stop_unload_and_do_not_sleep(world, scheduler):
    await use(scheduler, "m", 0.0)
    await reach(lambda: not scheduler.list_views())
    await use(scheduler, "n")
    world.clock.advance(301)
    scheduler.expire()
    await reach(lambda: phases(scheduler) == {"n": Phase.SLEEPING})
    assert scheduler.unload(model("n"))
    await reach(lambda: not scheduler.list_views())


@in_world(size=4 * GIB, free=5 * GIB, sleeps=True)
async def test_models_take_turns_by_sleeping(world, scheduler):
    for name in ("a", "b", "a", "b"):
        world.clock.advance(1)
        await use(scheduler, name)
    assert len(world.processes) == 2
    assert phases(scheduler) == {"a": Phase.SLEEPING, "b": Phase.READY}


@in_world(size=4 * GIB, free=5 * GIB, sleeps=True, turn_s=1e9)
async def test_one_that_wakes_waits_for_room_like_any_other(world, scheduler):
    await use(scheduler, "a")
    lease = await scheduler.acquire(model("b"), CHAT, None)
    again = request(scheduler, "a")
    await settle()
    assert not again.done()
    assert phases(scheduler)["b"] is Phase.READY
    scheduler.release(lease)
    scheduler.release(await again)


@in_world(size=GIB, sleeps=True)
async def test_one_that_does_not_wake_is_restarted(world, scheduler):
    await use(scheduler)
    world.clock.advance(301)
    scheduler.expire()
    await reach(lambda: phases(scheduler) == {"m": Phase.SLEEPING})
    world.sleepers["m:latest"].wakes = False
    ask = asyncio.ensure_future(use(scheduler))
    await reach(lambda: world.processes[0].causes)
    world.processes[0].open()
    await ask
    assert phases(scheduler) == {"m": Phase.READY}


@in_world(size=GIB, sleeps=True)
async def test_one_that_ends_in_its_sleep_is_not_started_for_nobody(world, scheduler):
    await use(scheduler)
    world.clock.advance(301)
    scheduler.expire()
    await reach(lambda: phases(scheduler) == {"m": Phase.SLEEPING})
    world.processes[0].crash()
    await reach(lambda: not scheduler.list_views())
    assert world.processes[0].stops
    assert not scheduler.list_failures()
    await use(scheduler)
    assert phases(scheduler) == {"m": Phase.READY}
    assert len(world.processes) == 2


@in_world(size=4 * GIB, free=5 * GIB, sleeps=True, turn_s=1e9)
async def test_one_that_ends_while_it_waits_to_wake_up_waits_for_room_as_a_whole(world, scheduler):
    await use(scheduler, "a")
    lease = await scheduler.acquire(model("b"), CHAT, None)
    asks = [asyncio.ensure_future(use(scheduler, "a")) for _ in range(2)]
    await reach(
        lambda: world.scheduler.list_views()[0].cause or world.scheduler.list_views()[1].cause
    )
    world.processes[0].crash()
    await reach(lambda: world.processes[0].stops)
    await settle()
    assert len(world.processes) == 2, "a restart would take memory that b has"
    scheduler.release(lease)
    await asyncio.gather(*asks)
    assert len(world.processes) == 3
    assert phases(scheduler)["a"] is Phase.READY
    assert not scheduler.list_failures()


@in_world(size=GIB, sleeps=True)
async def test_one_that_ends_while_it_wakes_up_is_loaded_anew(world, scheduler):
    await use(scheduler)
    world.clock.advance(301)
    scheduler.expire()
    await reach(lambda: phases(scheduler) == {"m": Phase.SLEEPING})
    first = world.processes[0]
    world.sleepers["m:latest"].at_wake = first.crash
    await use(scheduler)
    assert first.stops
    assert len(world.processes) == 2
    assert phases(scheduler) == {"m": Phase.READY}


@in_world(size=GIB, sleeps=True)
async def test_one_that_ends_while_it_falls_asleep_is_loaded_anew_for_who_has_come(
    world, scheduler
):
    await use(scheduler)
    first, sleeper, asks = world.processes[0], world.sleepers["m:latest"], []

    def end():
        asks.append(asyncio.ensure_future(use(scheduler)))
        asyncio.get_running_loop().call_soon(first.crash)

    sleeper.at_sleep = end
    world.clock.advance(301)
    scheduler.expire()
    await reach(lambda: asks)
    await asks[0]
    assert first.stops
    assert len(world.processes) == 2
    assert phases(scheduler) == {"m": Phase.READY}
