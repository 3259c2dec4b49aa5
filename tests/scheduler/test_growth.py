"""A model that is loaded for one request is loaded again for several when they come."""

import asyncio
from dataclasses import replace

from tests.facts import make_need
from tests.scheduler.world import World, in_world, model, reach, settle, use
from vllama.plan.types import Need
from vllama.routes.events.rows import make_loaded_row
from vllama.scheduler.views import Phase


class Slotted(World):
    """A world with an engine that has one slot until several requests have come, then four."""

    async def plan(self, wanted, need):
        plan = await super().plan(wanted, need)
        settings = replace(plan.settings, parallel=4 if need.concurrent else 1)
        return replace(plan, settings=settings, most_parallel=4)

    def traits(self, plan):
        return replace(super().traits(plan), max_concurrency=plan.settings.parallel)


def slots(world):
    return [process.plan.settings.parallel for process in world.processes]


async def asked(scheduler, names, number):
    """Take a lease and note whose turn it was."""
    lease = await scheduler.acquire(model("m"), Need(), None)
    names.append(number)
    return lease


@in_world(Slotted)
async def test_one_request_after_the_other_needs_one_slot(world, scheduler):
    for _ in range(3):
        await use(scheduler)
    assert slots(world) == [1]


@in_world(Slotted)
async def test_requests_that_have_to_wait_are_served_at_once_by_the_next_in_their_order(
    world, scheduler
):
    order = []
    first = await scheduler.acquire(model("m"), Need(), None)
    tasks = [asyncio.create_task(asked(scheduler, order, number)) for number in range(5)]
    await settle()
    assert not order and slots(world) == [1]  # the running answer is not cut
    await scheduler.measure()
    assert [view.queued for view in scheduler.list_views()] == [5, 0]
    (row,) = scheduler.list_models()
    assert (row.state, row.leases, row.ending, row.limit) == (Phase.LOADING, 1, 1, 1)
    shown = make_loaded_row(row, ["m"])
    assert (shown.requests, shown.ending, shown.slots) == (0, 1, 1)
    assert row.cause == "waiting for the previous instance, which is finishing 1 request"
    scheduler.release(first)
    await reach(lambda: len(order) == 4)
    assert slots(world) == [1, 4]
    assert world.processes[0].stops
    assert order == [0, 1, 2, 3]
    for task in tasks[:4]:
        scheduler.release(await task)
    scheduler.release(await tasks[4])
    assert order[-1] == 4
    await use(scheduler)
    assert slots(world) == [1, 4]  # it stays so


@in_world(Slotted)
async def test_who_leaves_while_it_is_loaded_again_leaves_the_queue(world, scheduler):
    order = []
    first = await scheduler.acquire(model("m"), Need(), None)
    tasks = [asyncio.create_task(asked(scheduler, order, number)) for number in range(3)]
    await settle()
    tasks[1].cancel()
    await settle()
    scheduler.release(first)
    await reach(lambda: len(order) == 2)
    assert order == [0, 2]
    for task in (tasks[0], tasks[2]):
        scheduler.release(await task)


@in_world(Slotted)
async def test_several_that_come_for_the_first_load_have_one_load(world, scheduler):
    order = []
    tasks = [asyncio.create_task(asked(scheduler, order, number)) for number in range(3)]
    await reach(lambda: len(order) == 3)
    assert slots(world) == [4]
    for task in tasks:
        scheduler.release(await task)


@in_world(Slotted)
async def test_one_that_is_loaded_again_for_another_reason_keeps_its_slots(world, scheduler):
    order = []
    tasks = [asyncio.create_task(asked(scheduler, order, number)) for number in range(2)]
    for task in tasks:
        scheduler.release(await task)
    need = make_need(num_ctx=1 << 14)
    scheduler.release(await scheduler.acquire(model("m"), need, None))
    assert slots(world) == [4, 4]


@in_world(Slotted)
async def test_the_next_loads_have_the_slots_that_were_needed_once(world, scheduler):
    order = []
    first = await scheduler.acquire(model("m"), Need(), None)
    second = asyncio.create_task(asked(scheduler, order, 2))
    await settle()
    scheduler.release(first)
    scheduler.release(await second)
    for _ in range(2):
        assert scheduler.unload(model("m"))
        await reach(lambda: not scheduler.list_views())
        await use(scheduler)
    assert slots(world) == [1, 4, 4, 4]


@in_world(Slotted)
async def test_one_that_is_to_be_unloaded_is_not_loaded_again(world, scheduler):
    order = []
    first = await scheduler.acquire(model("m"), Need(), None)
    assert scheduler.unload(model("m"))
    (row,) = scheduler.list_models()
    assert row.cause == "unloading after its last request"
    second = asyncio.create_task(asked(scheduler, order, 2))
    await settle()
    scheduler.release(first)
    scheduler.release(await second)
    await reach(lambda: not scheduler.list_views())
    assert slots(world) == [1]
