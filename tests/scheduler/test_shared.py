"""Models with the same files share an instance: how it is named, and what an unload does."""

import asyncio
from dataclasses import fields, replace

from tests.facts import make_need
from tests.scheduler.world import in_world, model, phases, reach, request, settle, use
from vllama.base import log_context
from vllama.engines.base import Mode
from vllama.plan.types import Need
from vllama.scheduler.views import SUMMED, Phase, QueuePlace, View

CHAT = Need()
COPY = replace(model("m"), name="copy:latest")


@in_world()
async def test_a_shared_instance_is_one_row_with_all_names(world, scheduler):
    await use(scheduler)
    scheduler.release(await scheduler.acquire(COPY, CHAT, None))
    (row,) = scheduler.list_models()
    assert (row.name, row.other_names) == ("copy:latest", ("m:latest",))
    assert len(world.processes) == 1
    # a larger context loads it again, and those who used the old one still find it
    scheduler.release(await scheduler.acquire(COPY, make_need(num_ctx=1 << 14), None))
    await reach(lambda: len(scheduler.list_views()) == 1)
    assert scheduler.list_models()[0].other_names == ("m:latest",)
    (instance,) = scheduler.list_instances()
    scheduler.drop_name(instance, "copy:latest")  # the one that was requested last
    (row,) = scheduler.list_models()
    assert (row.name, row.other_names) == ("m:latest", ())
    lease = await scheduler.acquire(model("m"), CHAT, None)
    scheduler.drop_name(instance, "m:latest")  # the last one unloads it, after its requests
    await settle()
    assert phases(scheduler) == {"m": Phase.READY}
    scheduler.release(lease)
    await reach(lambda: not scheduler.list_models())


@in_world()
async def test_a_model_whose_files_have_changed_is_loaded_again(world, scheduler):
    old, new = (replace(model("m"), state=(number,)) for number in (1, 2))
    lease = await scheduler.acquire(old, CHAT, None)
    assert scheduler.try_acquire(new, CHAT, None) is None
    asked = asyncio.ensure_future(scheduler.acquire(new, CHAT, None))
    await settle()
    assert not asked.done() and not world.processes[0].stops  # the running request ends first
    scheduler.release(lease)
    scheduler.release(await asked)
    assert len(world.processes) == 2
    scheduler.release(await scheduler.acquire(new, CHAT, None))
    assert len(world.processes) == 2


@in_world(size=1000)
async def test_text_and_vectors_are_one_row_with_the_sums(world, scheduler):
    lease = await scheduler.acquire(model("m"), CHAT, None)
    scheduler.release(await scheduler.acquire(COPY, Need(mode=Mode.EMBED), None))
    assert len(scheduler.list_views()) == 2
    (row,) = scheduler.list_models()
    assert (row.leases, row.ending, row.limit, row.planned) == (1, 0, 2, {"ram": 2000})
    assert {row.name, *row.other_names} == {"m:latest", "copy:latest"}
    scheduler.release(lease)


@in_world()
async def test_a_load_that_nobody_waits_for_is_stopped_by_an_unload(world, scheduler):
    world.auto_open = False
    ask = request(scheduler)
    await reach(lambda: world.processes)
    ask.cancel()
    await settle()
    assert phases(scheduler) == {"m": Phase.LOADING}  # a load belongs to the scheduler
    assert scheduler.unload(model("m"))
    await reach(lambda: not scheduler.list_views())
    ask = request(scheduler)
    await reach(lambda: len(world.processes) == 2)
    assert scheduler.unload(model("m"))
    ask.cancel()  # the last one to leave
    await reach(lambda: not scheduler.list_views())
    assert all(process.stops for process in world.processes)
    assert not scheduler.list_failures()
    world.auto_open = True
    await use(scheduler)
    assert phases(scheduler) == {"m": Phase.READY}


@in_world()
async def test_a_load_that_requests_wait_for_serves_them_before_the_unload(world, scheduler):
    world.auto_open = False
    ask = request(scheduler)
    await reach(lambda: world.processes)
    assert scheduler.unload(model("m"))
    world.processes[0].open()
    scheduler.release(await ask)
    await reach(lambda: not scheduler.list_views())


@in_world(keep_alive_s=300)
async def test_an_unload_concerns_the_instance_that_was_there_and_not_the_next_one(
    world, scheduler
):
    lease = await scheduler.acquire(model("m"), CHAT, None)
    assert scheduler.unload(model("m"))
    larger = request(scheduler, "m", make_need(num_ctx=1 << 14))
    await settle()
    scheduler.release(lease)
    scheduler.release(await larger)
    await settle()
    assert phases(scheduler) == {"m": Phase.READY}


@in_world(max_loaded=1, turn_s=1e9)
async def test_a_waiting_request_says_what_it_waits_for(world, scheduler):

    async def ask(name, request, need=CHAT):
        log_context.trace.set(log_context.Trace(request, request))
        return await scheduler.acquire(model(name), need, None)

    first = await scheduler.acquire(model("m"), CHAT, None)
    asks = [asyncio.create_task(ask("m", name)) for name in ("one", "two")]
    other = asyncio.create_task(ask("other", "three"))
    await reach(lambda: "other" in phases(scheduler))
    await reach(lambda: "busy" in scheduler.list_queue_places()["three"].waits_for)
    places = scheduler.list_queue_places()
    assert places["one"] == QueuePlace(1, "a free slot")
    assert places["two"] == QueuePlace(2, "a free slot")
    assert places["three"] == QueuePlace(
        1,
        "the model to be loaded: only 1 model can be loaded at a time "
        "(setting max_loaded_models): waiting for busy models: m:latest",
    )
    scheduler.release(first)
    for task in (*asks, other):
        scheduler.release(await task)
    assert not scheduler.list_queue_places()


def test_every_number_of_a_row_is_added_up_or_chosen():
    numbers = {each.name for each in fields(View) if each.type == "int"}
    assert numbers == {*SUMMED, "ending", "limit", "replicas"}
    assert "restarts" in SUMMED
