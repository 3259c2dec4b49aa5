"""A turn is not lost by an engine that ends just then: leases are renewed."""

import asyncio

import pytest

from tests.scheduler.world import CRASHED, in_world, model, reach, request, settle
from vllama.base.errors import CoolingDown, EngineCrashed, ShuttingDown
from vllama.plan.types import Need
from vllama.scheduler.turns import Returning

CHAT = Need()


def renew(scheduler, lease):
    return asyncio.ensure_future(scheduler.renew(lease, model("m"), CHAT, None))


@in_world()
async def test_one_whose_engine_is_still_there_keeps_its_lease(world, scheduler):
    lease = await request(scheduler)
    assert await renew(scheduler, lease) is lease
    assert scheduler.list_views()[0].leases == 1
    scheduler.release(lease)


@in_world()
async def test_whose_turn_it_was_comes_before_all_who_wait(world, scheduler):
    lease = await request(scheduler)
    waits = [request(scheduler) for _ in range(3)]
    await settle()
    world.processes[0].crash()
    again = renew(scheduler, lease)
    await settle()
    assert not again.done()
    assert scheduler.list_views()[0].leases == 0
    world.processes[0].open()
    lease = await again
    await settle()
    assert not any(wait.done() for wait in waits)
    for wait in waits:
        scheduler.release(lease)
        lease = await wait
    scheduler.release(lease)


@in_world()
async def test_it_is_served_by_an_instance_that_is_on_its_way_out(world, scheduler):
    lease = await request(scheduler)
    scheduler.unload(model("m"))
    await settle()
    world.processes[0].crash()
    again = renew(scheduler, lease)
    await settle()
    assert not world.processes[0].stops
    world.processes[0].open()
    scheduler.release(await again)
    await reach(lambda: not scheduler.list_views())
    assert len(world.processes) == 1


@in_world()
async def test_one_that_failed_for_good_is_told_so(world, scheduler):
    lease = await request(scheduler)
    world.processes[0].crash()
    again = renew(scheduler, lease)
    await settle()
    world.processes[0].fail(CRASHED)
    with pytest.raises(EngineCrashed):
        await again
    await reach(lambda: not scheduler.list_views())


@in_world()
async def test_one_whose_instance_is_gone_asks_like_anybody(world, scheduler):
    first, second = await request(scheduler), None
    world.processes[0].fail(CRASHED)
    await reach(lambda: scheduler.list_failures() and not scheduler.list_views())
    with pytest.raises(CoolingDown):
        await renew(scheduler, first)
    scheduler.unload(model("m"))
    second = await renew(scheduler, first)
    assert second.endpoint.port == 2
    scheduler.release(second)
    assert first.released


@in_world()
async def test_who_leaves_while_it_waits_again_leaves_nothing_behind(world, scheduler):
    lease = await request(scheduler)
    world.processes[0].crash()
    again = renew(scheduler, lease)
    await settle()
    again.cancel()
    await asyncio.wait({again})
    scheduler.release(lease)
    world.processes[0].open()
    await settle()
    view = scheduler.list_views()[0]
    assert (view.leases, view.queued) == (0, 0)


@in_world(max_queue=1)
async def test_a_full_queue_turns_away_nobody_who_had_a_turn(world, scheduler):
    lease = await request(scheduler)
    wait = request(scheduler)
    await settle()
    world.processes[0].crash()
    again = renew(scheduler, lease)
    await settle()
    world.processes[0].open()
    scheduler.release(await again)
    scheduler.release(await wait)


@in_world()
async def test_nothing_is_renewed_when_the_server_stops(world, scheduler):
    lease = await request(scheduler)
    world.processes[0].crash()
    scheduler.close_queue()
    with pytest.raises(ShuttingDown):
        await renew(scheduler, lease)
    scheduler.release(lease)


@in_world()
async def test_who_is_counted_in_when_the_engine_ends_keeps_its_place(world, scheduler):
    """The slot was handed out, the engine has ended before its holder could take it."""
    lease = await request(scheduler)
    first, second = request(scheduler), request(scheduler)
    await settle()
    scheduler.release(lease)
    # the queue is served in the next turn of the loop, and the engine ends right after that
    await asyncio.sleep(0)
    world.processes[0].crash()
    await settle()
    assert not first.done() and not second.done()
    world.processes[0].open()
    lease = await first
    assert not second.done()
    scheduler.release(lease)
    scheduler.release(await second)


@in_world()
async def test_who_is_tried_alone_is_alone(world, scheduler):
    lease = await request(scheduler)
    answer = Returning(lease.instance.readmission, began_ns=1)
    for _ in range(2):
        assert not answer.note_death(lease.endpoint, was_alone=True)
    world.processes[0].crash()
    await answer.wait_for_turn()
    other = request(scheduler)
    await settle()
    lease.on_trial = True
    again = renew(scheduler, lease)
    world.processes[0].open()
    lease = await again
    scheduler.release(lease)
    await settle()
    assert not other.done()  # the response has not ended
    assert scheduler.try_acquire(model("m"), CHAT, None) is None
    answer.leave()
    scheduler.release(await other)
