"""Sleep, replicas, failures and queues of one model."""

import asyncio
import math

import pytest

from tests.scheduler.world import (
    CRASHED,
    NOT_STARTED,
    GatedProcess,
    World,
    in_loop,
    model,
    reach,
    settle,
)
from vllama.errors import CoolingDown, EngineStartFailed, NotEnoughMemory, QueueFull
from vllama.plan.types import Need
from vllama.scheduler.replicas import Replicas
from vllama.scheduler.views import Phase
from vllama.supervise.spec import State

CHAT = Need()
GIB = 1024**3


async def use(scheduler, name="m", keep_alive_s=None):
    scheduler.release(await scheduler.acquire(model(name), CHAT, keep_alive_s))


def phases(scheduler):
    return {view.name.removesuffix(":latest"): view.state for view in scheduler.views()}


# -- sleep --------------------------------------------------------------------------------------


@in_loop
async def test_one_that_can_sleep_sleeps_before_it_is_unloaded():
    world = World(size=GIB, sleeps=True, keep_alive_s=300.0, sleep_s=1000.0)
    async with world.running() as scheduler:
        await use(scheduler)
        world.clock.advance(301)
        scheduler.expire()
        await reach(lambda: phases(scheduler) == {"m": Phase.SLEEPING})
        assert not world.processes[0].stops
        assert scheduler.try_acquire(model("m"), CHAT, None) is None
        await use(scheduler)  # wakes it
        assert phases(scheduler) == {"m": Phase.READY}
        assert len(world.processes) == 1
        world.clock.advance(301)
        scheduler.expire()
        await reach(lambda: phases(scheduler) == {"m": Phase.SLEEPING})
        world.clock.advance(1001)
        scheduler.expire()
        await reach(lambda: not scheduler.views())


@in_loop
async def test_keep_alive_0_and_stop_unload_and_do_not_sleep():
    world = World(size=GIB, sleeps=True)
    async with world.running() as scheduler:
        await use(scheduler, "m", 0.0)
        await reach(lambda: not scheduler.views())
        await use(scheduler, "n")
        world.clock.advance(301)
        scheduler.expire()
        await reach(lambda: phases(scheduler) == {"n": Phase.SLEEPING})
        assert scheduler.unload(model("n"))
        await reach(lambda: not scheduler.views())


@in_loop
async def test_models_take_turns_by_sleeping():
    world = World(size=4 * GIB, free=5 * GIB, sleeps=True)
    async with world.running() as scheduler:
        for name in ("a", "b", "a", "b"):
            world.clock.advance(1)
            await use(scheduler, name)
        assert len(world.processes) == 2
        assert phases(scheduler) == {"a": Phase.SLEEPING, "b": Phase.READY}


@in_loop
async def test_one_that_wakes_waits_for_room_like_any_other():
    world = World(size=4 * GIB, free=5 * GIB, sleeps=True, turn_s=1e9)
    async with world.running() as scheduler:
        await use(scheduler, "a")
        lease = await scheduler.acquire(model("b"), CHAT, None)
        again = asyncio.ensure_future(scheduler.acquire(model("a"), CHAT, None))
        await settle()
        assert not again.done()
        assert phases(scheduler)["b"] is Phase.READY
        scheduler.release(lease)
        scheduler.release(await again)


@in_loop
async def test_one_that_does_not_wake_is_restarted():
    world = World(size=GIB, sleeps=True)
    async with world.running() as scheduler:
        await use(scheduler)
        world.clock.advance(301)
        scheduler.expire()
        await reach(lambda: phases(scheduler) == {"m": Phase.SLEEPING})
        world.sleepers["m:latest"].wakes = False
        ask = asyncio.ensure_future(use(scheduler))
        await reach(lambda: world.processes[0].condemned)
        world.processes[0].open()
        await ask
        assert phases(scheduler) == {"m": Phase.READY}


# -- failures -----------------------------------------------------------------------------------


@in_loop
async def test_a_failed_model_is_told_until_it_is_asked_for_again():
    world = World()
    world.auto_open = False
    async with world.running() as scheduler:
        ask = asyncio.ensure_future(use(scheduler))
        await settle()
        world.processes[0].fail(NOT_STARTED)
        with pytest.raises(EngineStartFailed):
            await ask
        await reach(lambda: not scheduler.views())
        (row,) = scheduler.failures()
        assert (row.name, row.retry_s) == ("m:latest", 0.0)
        assert "damaged" in row.cause
        world.auto_open = True
        await use(scheduler)
        assert not scheduler.failures()


@in_loop
async def test_one_that_used_up_its_restarts_with_nobody_waiting_has_failed_too():
    world = World()
    async with world.running() as scheduler:
        await use(scheduler)
        world.processes[0].crash()
        world.processes[0].fail(CRASHED)
        await reach(lambda: not scheduler.views())
        (row,) = scheduler.failures()
        assert "crashed too often" in row.cause
        world.clock.advance(5)
        with pytest.raises(CoolingDown) as caught:
            await use(scheduler)
        assert caught.value.retry_after_s == 10.0


@in_loop
async def test_stop_lets_a_failed_model_be_tried_at_once():
    world = World()
    async with world.running() as scheduler:
        await use(scheduler)
        world.processes[0].fail(CRASHED)
        await reach(lambda: scheduler.failures())
        assert not scheduler.unload(model("m"))
        assert not scheduler.failures()
        await use(scheduler)


# -- queues -------------------------------------------------------------------------------------


@in_loop
async def test_each_model_has_a_queue_of_its_own():
    world = World(max_queue=1, size=GIB)
    async with world.running() as scheduler:
        leases = [await scheduler.acquire(model(name), CHAT, None) for name in ("a", "b")]
        asks = [asyncio.ensure_future(use(scheduler, name)) for name in ("a", "b")]
        await settle()
        for name in ("a", "b"):
            with pytest.raises(QueueFull):
                await use(scheduler, name)
        for lease in leases:
            scheduler.release(lease)
        await asyncio.gather(*asks)


@in_loop
async def test_who_is_turned_away_is_told_how_long_the_queue_takes():
    world = World(max_queue=4)
    async with world.running() as scheduler:
        lease = await scheduler.acquire(model("m"), CHAT, None)
        world.clock.advance(5)
        scheduler.release(lease)  # a request takes 5 s
        lease = await scheduler.acquire(model("m"), CHAT, None)
        asks = [asyncio.ensure_future(scheduler.acquire(model("m"), CHAT, None)) for _ in range(4)]
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


# -- replicas -----------------------------------------------------------------------------------


class ReplicaWorld(World):
    """Every model has two processes."""

    def start(self, plan):
        super().start(plan)
        super().start(plan)
        return Replicas(self.processes[-2:])


@in_loop
async def test_requests_go_to_the_least_busy_replica_up_to_the_limit_of_all():
    world = ReplicaWorld(slots=2)
    async with world.running() as scheduler:
        leases = [await scheduler.acquire(model("m"), CHAT, None) for _ in range(4)]
        assert sorted(lease.endpoint.port for lease in leases) == [1, 1, 2, 2]
        assert scheduler.try_acquire(model("m"), CHAT, None) is None
        scheduler.release(leases[0])
        again = scheduler.try_acquire(model("m"), CHAT, None)
        assert again.endpoint == leases[0].endpoint
        for lease in (*leases[1:], again):
            scheduler.release(lease)


@in_loop
async def test_a_conversation_stays_with_its_replica_unless_that_is_much_busier():
    world = ReplicaWorld(slots=4)
    async with world.running() as scheduler:

        async def ask(prefix):
            return await scheduler.acquire(model("m"), CHAT, None, lambda: prefix)

        first, second = await ask("x"), await ask("y")
        assert first.endpoint != second.endpoint
        scheduler.release(first)
        scheduler.release(second)
        for _ in range(3):
            lease = await ask("y")
            assert lease.endpoint == second.endpoint
            scheduler.release(lease)
        held = [await ask("y") for _ in range(3)]
        ports = [lease.endpoint.port for lease in held]
        assert ports == [second.endpoint.port] * 2 + [first.endpoint.port]
        for lease in held:
            scheduler.release(lease)


@in_loop
async def test_one_replica_crashes_and_the_other_serves():
    world = ReplicaWorld(slots=1)
    async with world.running() as scheduler:
        await use(scheduler)
        world.processes[0].crash()
        lease = scheduler.try_acquire(model("m"), CHAT, None)
        assert lease.endpoint.port == 2
        waits = asyncio.ensure_future(scheduler.acquire(model("m"), CHAT, None))
        await settle()
        assert not waits.done()
        world.processes[0].open()  # back: who waits is served without another's release
        scheduler.release(await waits)
        scheduler.release(lease)


@in_loop
async def test_replicas_that_all_fail_have_failed():
    world = ReplicaWorld()
    world.auto_open = False
    async with world.running() as scheduler:
        ask = asyncio.ensure_future(use(scheduler))
        await settle()
        world.processes[0].fail(NOT_STARTED)
        await settle()
        assert not ask.done()
        world.processes[1].fail(NOT_STARTED)
        with pytest.raises(EngineStartFailed):
            await ask
        await reach(lambda: not scheduler.views())


def test_the_state_of_replicas_is_that_of_the_best():
    one, two = (GatedProcess(None, number) for number in (1, 2))
    both = Replicas([one, two])
    for state in (State.FAILED, State.BACKOFF, State.STARTING, State.READY):
        one.state, two.state = State.FAILED, state
        assert both.state is state


# -- odds ---------------------------------------------------------------------------------------


@in_loop
async def test_who_leaves_while_a_load_waits_for_room_leaves_the_load_to_the_others():
    world = World(size=4 * GIB, free=5 * GIB, turn_s=1e9)
    async with world.running() as scheduler:
        lease = await scheduler.acquire(model("a"), CHAT, None)
        gone = asyncio.ensure_future(use(scheduler, "b"))
        stays = asyncio.ensure_future(use(scheduler, "b"))
        await settle()
        gone.cancel()
        scheduler.release(lease)
        await stays
        assert len(world.processes) == 2


@in_loop
async def test_a_wish_that_no_memory_can_meet_is_refused_while_others_run():
    world = World(size=4 * GIB, free=5 * GIB)
    async with world.running() as scheduler:
        await use(scheduler, "a", math.inf)
        world.size = 6 * GIB
        with pytest.raises(NotEnoughMemory, match=r"6\.0 GiB"):
            await use(scheduler, "b")
