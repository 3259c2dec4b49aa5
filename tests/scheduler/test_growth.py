"""A model that is loaded for one request is loaded again for several when they come."""

import asyncio
from dataclasses import replace

import pytest

from tests.facts import MIB, bundle, facts, make_need
from tests.scheduler.world import INFO, World, in_world, model, reach, settle, use
from vllama.engines.llamacpp.llama_server import SLOTS
from vllama.plan.choose import make_plan
from vllama.plan.types import Need
from vllama.routes.events.rows import make_loaded_row
from vllama.scheduler.growth import Growth
from vllama.scheduler.instance import SHRINK_S
from vllama.scheduler.views import Phase


class Slotted(World):
    """A world with an engine that has one slot until several requests have come, then four."""

    routes = None  # its conversations do not survive a load

    async def plan(self, wanted, need):
        plan = await super().plan(wanted, need)
        settings = replace(plan.settings, parallel=4 if need.concurrent else 1)
        return replace(plan, settings=settings, most_parallel=4)

    def traits(self, plan):
        return replace(
            super().traits(plan), max_concurrency=plan.settings.parallel, slots=self.routes
        )


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


class Shrinking(Slotted):
    """The same with an engine whose slots can be saved, and whose memory is mostly theirs."""

    routes = SLOTS

    async def plan(self, wanted, need):
        plan = await super().plan(wanted, need)
        slot_bytes = plan.settings.context_length * 25_000
        memory = replace(
            plan.memory, weights_bytes=100 * MIB, kv_bytes=plan.settings.parallel * slot_bytes
        )
        return replace(plan, memory=memory)


async def burst(scheduler):
    """Have requests come together, and end."""
    tasks = [asyncio.create_task(asked(scheduler, [], number)) for number in range(2)]
    await settle()
    for task in tasks:
        scheduler.release(await task)
    await settle()


def sizes(world):
    """Return slots and contexts of all loads."""
    return [
        (process.plan.settings.parallel, process.plan.settings.context_length)
        for process in world.processes
    ]


async def pass_time(world, scheduler, seconds):
    world.clock.advance(seconds)
    scheduler.expire()
    await settle()


@in_world(Shrinking)
async def test_after_a_burst_one_slot_is_enough_again(world, scheduler):
    await burst(scheduler)
    expires_s = scheduler.list_views()[0].expires_s
    await pass_time(world, scheduler, SHRINK_S - 1)
    assert sizes(world) == [(4, 4096)]
    await pass_time(world, scheduler, 2)
    await reach(lambda: len(world.processes) == 2)
    await reach(lambda: [view.state for view in scheduler.list_views()] == [Phase.READY])
    assert sizes(world) == [(4, 4096), (1, 4096)]
    assert world.carried == [("slots of 1", 2)]  # with its conversations
    assert "idle: reloading with 1 slot of 4096 tokens, 293 MiB less" in [
        mark.reason for mark in scheduler.marks.list_after(0)
    ]
    assert scheduler.list_views()[0].expires_s == expires_s
    await burst(scheduler)
    assert sizes(world)[2:] == [(4, 4096)]
    assert world.carried[1:] == [("slots of 2", 3)]


@in_world(Shrinking)
async def test_a_model_with_a_burst_every_minute_stays_as_it_is(world, scheduler):
    for _ in range(5):
        await burst(scheduler)
        await pass_time(world, scheduler, 60)
    assert sizes(world) == [(4, 4096)]


@in_world(Shrinking)
async def test_a_busy_model_waits_for_an_idle_moment(world, scheduler):
    await burst(scheduler)
    for _ in range(3):
        lease = await scheduler.acquire(model("m"), Need(), None)
        await pass_time(world, scheduler, SHRINK_S)
        scheduler.release(lease)
        await pass_time(world, scheduler, 5)
    assert sizes(world) == [(4, 4096)]
    await pass_time(world, scheduler, 6)
    await reach(lambda: sizes(world) == [(4, 4096), (1, 4096)])


class Dying(Shrinking):
    """The same with an engine that crashes when it is measured, once told to."""

    dies = False

    async def measure(self, processes, gpus):
        measured = await super().measure(processes, gpus)
        if self.dies:
            self.dies = False
            self.processes[-1].crash()
        return measured


@in_world(Dying)
async def test_an_engine_that_crashes_before_its_slots_are_saved_is_replaced(world, scheduler):
    await burst(scheduler)
    world.dies = True
    await pass_time(world, scheduler, SHRINK_S + 1)
    await reach(lambda: len(world.processes) == 2)
    await reach(lambda: [view.state for view in scheduler.list_views()] == [Phase.READY])
    assert sizes(world) == [(4, 4096), (1, 4096)] and world.carried == []


@in_world(Shrinking)
async def test_a_model_that_loads_slowly_stays_as_it_is_for_longer(world, scheduler):
    """A request during the load waits for it."""
    await burst(scheduler)
    (instance,) = scheduler._table.instances.values()
    instance.load_s = 20
    await pass_time(world, scheduler, 150)
    scheduler.release(await scheduler.acquire(model("m"), Need(), None))
    await pass_time(world, scheduler, 150)  # the burst was 300 s ago, the last request 150
    assert sizes(world) == [(4, 4096)]
    await pass_time(world, scheduler, 51)
    await reach(lambda: sizes(world) == [(4, 4096), (1, 4096)])


@in_world(Shrinking)
async def test_a_context_that_others_do_not_need_shrinks(world, scheduler):
    await use(scheduler)
    scheduler.release(await scheduler.acquire(model("m"), make_need(num_ctx=8192), None))
    await pass_time(world, scheduler, 2 * SHRINK_S)
    assert sizes(world) == [(1, 4096), (1, 8192)]  # the next request may need it
    await use(scheduler)
    await pass_time(world, scheduler, 20)
    await reach(lambda: sizes(world)[2:] == [(1, 4096)])


@in_world(Slotted)
async def test_an_engine_that_would_forget_its_conversations_stays_as_it_is(world, scheduler):
    await burst(scheduler)
    await pass_time(world, scheduler, 200)
    assert sizes(world) == [(4, 4096)]


GROWN = Need(concurrent=True)
RAISED = make_need(num_ctx=8192)


@pytest.mark.parametrize(
    ("need", "slots", "context", "weights_mib", "num_ctx", "wanted"),
    [
        (GROWN, 4, 4096, 100, 0, "1 slot of 4096 tokens, 300 MiB less"),
        (GROWN, 4, 4096, 9000, 0, ""),  # less than a tenth
        (Need(), 4, 4096, 100, 0, ""),  # slots that the user asked for
        (Need(), 1, 4096, 100, 0, ""),
        (RAISED, 1, 8192, 100, 0, "1 slot of 4096 tokens, 100 MiB less"),
        (RAISED, 1, 8192, 100, 8192, ""),  # the latest request needs it
        (RAISED, 1, 8192, 100, 6000, ""),
        (RAISED, 1, 8192, 100, 2048, "1 slot of 4096 tokens, 100 MiB less"),
        (RAISED, 4, 8192, 100, 0, "4 slots of 4096 tokens, 400 MiB less"),
    ],
)
def test_what_is_given_up(need, slots, context, weights_mib, num_ctx, wanted):
    plan = make_plan(facts(), bundle(), INFO, Need())
    plan = replace(
        plan,
        settings=replace(plan.settings, parallel=slots, context_length=context),
        memory=replace(
            plan.memory,
            weights_bytes=weights_mib * MIB,
            kv_bytes=slots * context // 4096 * 100 * MIB,
        ),
        usual_context=4096,
    )
    growth = Growth(num_ctx=num_ctx, crowded_s=1.0, context_s=2.0)
    less, words, since_s = growth.reduce(need, plan)
    assert words.removeprefix("idle: reloading with ") == wanted
    assert (since_s < 10) == bool(wanted)
    if wanted:
        assert (less.concurrent, less.load.num_ctx) == (False, None)
