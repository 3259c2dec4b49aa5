"""Replicas: several processes of one model that look like one."""

import asyncio
from functools import partial

import pytest

from tests.scheduler.world import (
    CRASHED,
    NOT_STARTED,
    GatedProcess,
    World,
    in_world,
    model,
    phases,
    reach,
    request,
    settle,
    use,
)
from vllama.base.errors import EngineStartFailed
from vllama.plan.types import Need
from vllama.scheduler.replicas import Pauses, Replicas
from vllama.scheduler.views import Phase
from vllama.supervise.spec import Diagnosis, State

CHAT = Need()
GIB = 1024**3


class ReplicaWorld(World):
    """Every model has two processes; one that has failed is replaced after `pauses_s`."""

    pauses_s = (1e9,)

    def start(self, plan):
        make = partial(super().start, plan)
        return Replicas((make, make), pauses_s=self.pauses_s)


@in_world(ReplicaWorld, slots=2)
async def test_requests_go_to_the_least_busy_replica_up_to_the_limit_of_all(world, scheduler):
    leases = [await scheduler.acquire(model("m"), CHAT, None) for _ in range(4)]
    assert sorted(lease.endpoint.port for lease in leases) == [1, 1, 2, 2]
    assert scheduler.try_acquire(model("m"), CHAT, None) is None
    scheduler.release(leases[0])
    again = scheduler.try_acquire(model("m"), CHAT, None)
    assert again.endpoint == leases[0].endpoint
    for lease in (*leases[1:], again):
        scheduler.release(lease)


@in_world(ReplicaWorld, slots=4)
async def test_a_conversation_stays_with_its_replica_unless_that_is_much_busier(world, scheduler):

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


@in_world(ReplicaWorld, slots=1)
async def test_one_replica_crashes_and_the_other_serves(world, scheduler):
    await use(scheduler)
    world.processes[0].crash()
    lease = scheduler.try_acquire(model("m"), CHAT, None)
    assert lease.endpoint.port == 2
    waits = request(scheduler)
    await settle()
    assert not waits.done()
    world.processes[0].open()  # back: who waits is served without another's release
    scheduler.release(await waits)
    scheduler.release(lease)


@in_world(ReplicaWorld)
async def test_replicas_that_all_fail_have_failed(world, scheduler):
    world.auto_open = False
    ask = asyncio.ensure_future(use(scheduler))
    await settle()
    world.processes[0].fail(NOT_STARTED)
    await settle()
    assert not ask.done()
    world.processes[1].fail(NOT_STARTED)
    with pytest.raises(EngineStartFailed):
        await ask
    await reach(lambda: not scheduler.list_views())


def test_the_state_of_replicas_is_that_of_the_best():
    one, two = (GatedProcess(None, number) for number in (1, 2))
    both = Replicas((lambda: one, lambda: two))
    for state in (State.FAILED, State.BACKOFF, State.STARTING, State.READY):
        one.state, two.state = State.FAILED, state
        assert both.state is state


@in_world(ReplicaWorld, slots=1)
async def test_a_replica_that_has_failed_comes_back(world, scheduler):
    world.pauses_s = (0.0,)
    await use(scheduler)
    lease = scheduler.try_acquire(model("m"), CHAT, None)
    waits = request(scheduler)
    second = scheduler.release(await waits)  # by the other one
    assert second is None
    world.auto_open = False
    gone = world.processes[lease.endpoint.port - 1]
    gone.last_diagnosis = Diagnosis(cause="it fell over")
    gone.fail(CRASHED)
    scheduler.release(lease)
    await reach(lambda: len(world.processes) == 3)
    (view,) = scheduler.list_views()
    assert (view.state, view.replicas, view.limit) == (Phase.READY, 1, 1)
    held = scheduler.try_acquire(model("m"), CHAT, None)
    waits = request(scheduler)
    await settle()
    assert not waits.done()
    world.processes[2].open()
    again = await waits
    assert again.endpoint.port == 3
    (view,) = scheduler.list_views()
    assert (view.replicas, view.limit, view.cause) == (2, 2, "")
    scheduler.release(held)
    scheduler.release(again)


@in_world(ReplicaWorld)
async def test_a_replica_that_is_down_is_told_with_its_cause(world, scheduler):
    await use(scheduler)
    world.processes[0].last_diagnosis = Diagnosis(cause="it fell over")
    world.processes[0].fail(CRASHED)
    await settle()
    (view,) = scheduler.list_views()
    assert (view.state, view.replicas) == (Phase.READY, 1)
    assert view.cause == "1 of 2 replicas: it fell over"


@in_world(ReplicaWorld)
@pytest.mark.parametrize("first", [0, 1])
async def test_one_fails_while_the_other_waits_to_come_back(world, scheduler, first):
    """Nobody is left to serve: the model has failed, and is not kept alive by the pause."""
    await use(scheduler)
    world.processes[first].fail(CRASHED)
    await settle()
    assert phases(scheduler) == {"m": Phase.READY}
    world.processes[1 - first].fail(CRASHED)
    await reach(lambda: not scheduler.list_views())
    assert len(scheduler.list_failures()) == 1


@in_world(ReplicaWorld)
async def test_who_waits_for_the_last_one_is_served_by_one_that_came_back(world, scheduler):
    world.pauses_s = (0.0,)
    world.auto_open = False
    ask = asyncio.ensure_future(use(scheduler))
    await settle()
    world.processes[0].fail(NOT_STARTED)
    await reach(lambda: len(world.processes) == 3)
    world.processes[1].fail(NOT_STARTED)
    await reach(lambda: len(world.processes) == 4)
    assert not ask.done()
    world.processes[2].open()
    await ask


@in_world(ReplicaWorld)
async def test_a_replica_that_waits_to_come_back_does_not_hold_up_the_end(world, scheduler):
    await use(scheduler)
    world.processes[0].fail(CRASHED)
    await settle()
    scheduler.unload(model("m"))
    await reach(lambda: not scheduler.list_views())
    assert len(world.processes) == 2


@pytest.mark.parametrize(
    ("lives_s", "pauses"),
    [((0, 0, 0, 0), (1, 2, 4, 4)), ((0, 0, 5, 0), (1, 2, 1, 2)), ((3.9, 4), (1, 1))],
)
def test_each_pause_is_longer_until_one_has_lived_long(lives_s, pauses):
    given = Pauses((1.0, 2.0, 4.0))
    assert tuple(given.compute_pause(life_s) for life_s in lives_s) == pauses
