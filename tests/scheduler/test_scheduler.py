"""The scheduler with gated processes and a manual clock; no sleeps, no real engines."""

import asyncio
import math
from dataclasses import replace

import pytest

from tests.facts import MIB, make_need
from tests.scheduler.world import (
    CRASHED,
    NOT_STARTED,
    World,
    in_loop,
    in_world,
    model,
    phases,
    reach,
    request,
    settle,
    use,
)
from vllama.base import log_context
from vllama.base.errors import (
    CoolingDown,
    EngineStartFailed,
    NotEnoughMemory,
    QueueFull,
    ShuttingDown,
)
from vllama.engines.base import Mode
from vllama.plan.types import Need
from vllama.scheduler.turns import Flow
from vllama.scheduler.views import Phase
from vllama.supervise.spec import Diagnosis, State

CHAT = Need()


@in_world()
async def test_a_ready_model_is_leased_without_suspending(world, scheduler):
    await use(scheduler)
    lease = scheduler.try_acquire(model("m"), CHAT, None)
    assert lease is not None
    assert lease.endpoint.port == 1
    scheduler.release(lease)


@in_world(slots=5)
async def test_loads_of_one_model_are_joined(world, scheduler):
    world.auto_open = False
    asks = [request(scheduler) for _ in range(5)]
    await settle()
    assert len(world.processes) == 1
    world.processes[0].open()
    leases = await asyncio.gather(*asks)
    assert {lease.endpoint.port for lease in leases} == {1}
    for lease in leases:
        scheduler.release(lease)


@in_loop
async def test_requests_are_served_in_order_one_at_a_time():
    world = World(slots=1)
    order = []

    async with world.running() as scheduler:

        async def ask(number):
            lease = await scheduler.acquire(model("m"), CHAT, None)
            order.append(number)
            await settle()
            assert lease.instance.leases == 1
            scheduler.release(lease)

        await asyncio.gather(*(ask(number) for number in range(8)))
    assert order == list(range(8))


@in_world(slots=3)
async def test_an_engine_with_slots_takes_that_many_at_once(world, scheduler):
    leases = [await scheduler.acquire(model("m"), CHAT, None) for _ in range(3)]
    assert scheduler.try_acquire(model("m"), CHAT, None) is None
    for lease in leases:
        scheduler.release(lease)


@in_world()
async def test_one_who_leaves_the_queue_does_not_hold_a_slot(world, scheduler):
    first = await scheduler.acquire(model("m"), CHAT, None)
    gone = request(scheduler)
    third = request(scheduler)
    await settle()
    gone.cancel()
    scheduler.release(first)
    scheduler.release(await third)
    assert scheduler.list_views()[0].leases == 0


@in_world()
async def test_cancelled_in_the_turn_of_the_grant_gives_the_slot_back(world, scheduler):
    first = await scheduler.acquire(model("m"), CHAT, None)
    second = request(scheduler)
    await settle()
    scheduler.release(first)
    for _ in range(40):  # cancel at whatever step the grant is
        if scheduler.list_views()[0].leases:
            break
        await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    await settle()
    assert scheduler.list_views()[0].leases == 0


@in_world()
async def test_the_load_goes_on_when_the_one_who_asked_leaves(world, scheduler):
    world.auto_open = False
    ask = request(scheduler)
    await settle()
    ask.cancel()
    await settle()
    world.processes[0].open()
    await settle()
    assert scheduler.list_views()[0].state is Phase.READY
    await use(scheduler)
    assert len(world.processes) == 1


@in_world(keep_alive_s=300)
async def test_keep_alive_runs_from_the_end_of_the_last_request(world, scheduler):
    lease = await scheduler.acquire(model("m"), CHAT, None)
    world.clock.advance(1000)
    scheduler.expire()
    await settle()
    assert scheduler.list_views()[0].state is Phase.READY
    scheduler.release(lease)
    world.clock.advance(299)
    scheduler.expire()
    await settle()
    assert scheduler.list_views()
    world.clock.advance(2)
    scheduler.expire()
    await settle()
    assert not scheduler.list_views()
    assert world.processes[0].stops == 1


@in_world(keep_alive_s=300)
async def test_other_limits_hold_at_once_and_for_what_is_loaded(world, scheduler):
    await use(scheduler, "default")
    await use(scheduler, "asked", 600)
    scheduler.set_limits(replace(world.limits, keep_alive_s=100, max_queue=0))
    world.clock.advance(101)
    scheduler.expire()
    await reach(lambda: [view.name for view in scheduler.list_views()] == ["asked:latest"])
    lease = await scheduler.acquire(model("asked"), CHAT, None)
    with pytest.raises(QueueFull):
        await scheduler.acquire(model("asked"), CHAT, None)
    scheduler.release(lease)


@in_loop
async def test_a_load_does_not_belong_to_the_request_that_began_it():
    seen = []

    class Looking(World):
        async def plan(self, wanted, need):
            seen.append((log_context.trace.get(), log_context.model.get()))
            return await super().plan(wanted, need)

    world = Looking()
    async with world.running() as scheduler:
        log_context.trace.set(log_context.Trace("request-1"))
        await use(scheduler)
    assert seen == [(None, "m:latest")]


@in_world()
async def test_keep_alive_of_a_request_sticks(world, scheduler):
    await use(scheduler, "m", math.inf)
    await use(scheduler)
    world.clock.advance(10**9)
    scheduler.expire()
    await settle()
    assert math.isinf(scheduler.list_views()[0].expires_s)
    await use(scheduler, "m", 0.0)
    await settle()
    assert not scheduler.list_views()


async def goes_by_time(world, scheduler):
    world.clock.advance(301)
    scheduler.expire()


async def goes_by_its_request(world, scheduler):
    await use(scheduler, "m", 0.0)


async def goes_by_a_stop(world, scheduler):
    scheduler.unload(model("m"))


async def goes_by_time_after_a_stop_that_a_request_undid(world, scheduler):
    lease = await scheduler.acquire(model("m"), CHAT, None)
    scheduler.unload(model("m"))
    other = asyncio.ensure_future(use(scheduler, "m", 300))
    await settle()
    scheduler.release(lease)
    await other
    await goes_by_time(world, scheduler)


async def goes_for_another(world, scheduler):
    await use(scheduler, "n")


async def fails(world, scheduler):
    world.processes[0].fail(CRASHED)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (goes_by_time, "idle for 300 s, its keep_alive"),
        (goes_by_its_request, "its keep_alive is 0"),
        (goes_by_a_stop, "requested by a client"),
        (goes_by_time_after_a_stop_that_a_request_undid, "idle for 300 s, its keep_alive"),
        (goes_for_another, "evicted for n:latest: only 1 model can be loaded at a time"),
        (fails, None),
        (None, "the server is stopping"),
    ],
)
@in_loop
async def test_the_log_has_the_true_cause_of_an_end(end, why, caplog):
    caplog.set_level("INFO", logger="vllama")
    world = World(max_loaded=1)
    async with world.running() as scheduler:
        await use(scheduler, "m")
        if end is not None:
            await end(world, scheduler)
            await reach(lambda: "m" not in phases(scheduler))
    lines = [line for line in caplog.messages if line.startswith("unload m:latest")]
    assert len(lines) == (why is not None)
    assert not lines or lines[0].startswith(f"unload m:latest: {why}")


@in_world(cool_down_s=15)
async def test_what_keeps_a_model_from_serving_is_known(world, scheduler):
    assert scheduler.find_obstacle(model("m")) == ("", True)
    await use(scheduler, "m")
    assert scheduler.find_obstacle(model("m")) == ("", True)
    world.processes[0].state = State.BACKOFF
    world.processes[0].last_diagnosis = Diagnosis(cause="it was killed")
    assert scheduler.find_obstacle(model("m")) == ("it was killed", True)
    world.processes[0].fail(CRASHED)
    await reach(lambda: not phases(scheduler))
    assert scheduler.find_obstacle(model("m")) == (CRASHED.message, False)
    assert scheduler.find_obstacle(model("other")) == ("", True)
    world.clock.advance(16)
    assert scheduler.find_obstacle(model("m")) == ("", True)


@in_world()
async def test_unload_waits_for_the_running_request(world, scheduler):
    lease = await scheduler.acquire(model("m"), CHAT, None)
    assert scheduler.unload(model("m"))
    await settle()
    assert scheduler.list_views()[0].state is Phase.READY
    scheduler.release(lease)
    await settle()
    assert not scheduler.list_views()
    assert not scheduler.unload(model("m"))


@in_world()
async def test_a_smaller_context_is_compatible_and_a_larger_one_reloads_once(world, scheduler):
    await use(scheduler)
    scheduler.release(await scheduler.acquire(model("m"), make_need(num_ctx=512), None))
    assert len(world.processes) == 1
    for _ in range(3):
        scheduler.release(await scheduler.acquire(model("m"), make_need(num_ctx=8192), None))
        await use(scheduler)
    assert len(world.processes) == 2
    assert world.processes[0].stops == 1
    assert scheduler.list_views()[0].plan.settings.context_length == 8192
    # more than the model was trained for cannot be had: no reload
    scheduler.release(await scheduler.acquire(model("m"), make_need(num_ctx=99999), None))
    assert len(world.processes) == 2


@in_loop
async def test_a_reload_lets_the_running_request_finish(caplog):
    caplog.set_level("INFO", logger="vllama")
    world = World()
    async with world.running() as scheduler:
        lease = await scheduler.acquire(model("m"), CHAT, None)
        larger = request(scheduler, "m", make_need(num_ctx=8192))
        await settle()
        assert len(world.processes) == 1
        assert not world.processes[0].stops
        scheduler.release(lease)
        scheduler.release(await larger)
        assert len(world.processes) == 2
    assert "reload m:latest: a request needs other settings" in caplog.messages
    assert "unload m:latest: a request needs other settings" not in caplog.messages


@in_world()
async def test_joining_a_load_with_too_small_a_context_gets_a_larger_one(world, scheduler):
    first = request(scheduler)
    second = request(scheduler, "m", make_need(num_ctx=8192))
    scheduler.release(await first)
    lease = await second
    assert lease.traits.context_length == 8192
    scheduler.release(lease)


@in_world()
async def test_two_needs_do_not_take_turns_in_reloading(world, scheduler):
    needs = [make_need(num_ctx=8192), Need(logprobs=True)] * 3
    for need in needs:
        scheduler.release(await scheduler.acquire(model("m"), need, None))
    assert len(world.processes) == 2


@in_world()
async def test_text_and_embeddings_are_two_processes_of_one_model(world, scheduler):
    await use(scheduler)
    scheduler.release(await scheduler.acquire(model("m"), Need(mode=Mode.EMBED), None))
    assert len(world.processes) == 2
    scheduler.unload(model("m"))
    await settle()
    assert not scheduler.list_views()


@in_world(max_loaded=2)
async def test_the_least_recently_used_model_makes_room(world, scheduler):
    for name in ("a", "b", "c"):
        world.clock.advance(1)
        scheduler.release(await scheduler.acquire(model(name), CHAT, None))
    assert sorted(view.name for view in scheduler.list_views()) == ["b:latest", "c:latest"]
    assert world.processes[0].stops == 1


@in_world(max_loaded=1)
async def test_a_busy_model_is_waited_for_and_not_stopped(world, scheduler):
    lease = await scheduler.acquire(model("a"), CHAT, None)
    other = request(scheduler, "b")
    await settle()
    assert not world.processes[0].stops
    scheduler.release(lease)
    scheduler.release(await other)
    assert world.processes[0].stops == 1


@in_world(free=100 * MIB)
async def test_too_little_memory_is_refused_with_the_numbers(world, scheduler):
    with pytest.raises(NotEnoughMemory, match="requires more system memory"):
        await scheduler.acquire(model("m"), CHAT, None)
    assert not scheduler.list_views()
    world.free = 10_000 * MIB
    await use(scheduler)


@in_world()
async def test_a_failed_load_is_told_to_all_who_wait_and_tried_again_when_asked(world, scheduler):
    world.auto_open = False
    asks = [request(scheduler) for _ in range(3)]
    await settle()
    world.processes[0].fail(NOT_STARTED)
    for ask in asks:
        with pytest.raises(EngineStartFailed, match="damaged"):
            await ask
    await settle()
    assert not scheduler.list_views()
    world.auto_open = True
    await use(scheduler)


@in_world()
async def test_a_failed_plan_is_told(world, scheduler):
    world.plan_error = NotEnoughMemory("cannot load 'm': too large")
    with pytest.raises(NotEnoughMemory):
        await scheduler.acquire(model("m"), CHAT, None)


@in_world()
async def test_after_a_crash_the_next_request_waits_for_the_restart(world, scheduler):
    lease = await scheduler.acquire(model("m"), CHAT, None)
    world.processes[0].crash()
    scheduler.release(lease)
    assert scheduler.try_acquire(model("m"), CHAT, None) is None
    again = request(scheduler)
    await settle()
    assert not again.done()
    world.processes[0].open()
    scheduler.release(await again)


@in_world()
async def test_an_engine_out_of_restarts_answers_at_once_for_a_while(world, scheduler):
    await use(scheduler)
    world.processes[0].crash()
    ask = request(scheduler)
    await settle()
    world.processes[0].fail(CRASHED)
    with pytest.raises(type(CRASHED)):
        await ask
    await settle()
    with pytest.raises(CoolingDown, match="crashed too often") as caught:
        await scheduler.acquire(model("m"), CHAT, None)
    assert caught.value.retry_after_s > 0
    world.clock.advance(60)
    await use(scheduler)


@in_world(max_queue=2)
async def test_the_queue_is_bounded(world, scheduler):
    lease = await scheduler.acquire(model("m"), CHAT, None)
    waiting = [request(scheduler) for _ in range(2)]
    await settle()
    with pytest.raises(QueueFull, match="server busy, please try again\\.  maximum"):
        await scheduler.acquire(model("m"), CHAT, None)
    scheduler.release(lease)
    for ask in waiting:
        scheduler.release(await ask)


@in_loop
async def test_waiting_requests_are_taken_in_turn_between_flows():
    world, served = World(), []
    async with world.running() as scheduler:

        async def ask(flow, number):
            lease = await scheduler.acquire(model("m"), CHAT, None, flow=flow)
            served.append(f"{flow.name}{number}")
            await settle()
            scheduler.release(lease)

        lease = await scheduler.acquire(model("m"), CHAT, None)
        asks = []
        for flow, count in ((Flow("a"), 5), (Flow("b", 2), 4), (Flow("c"), 1)):
            asks += [asyncio.ensure_future(ask(flow, number)) for number in range(count)]
            await settle()
        scheduler.release(lease)
        await asyncio.gather(*asks)
    assert served == ["a0", "b0", "c0", "b1", "a1", "b2", "b3", "a2", "a3", "a4"]


@in_world(max_queue=3)
async def test_nobody_can_fill_the_queue_for_others(world, scheduler):
    lease = await scheduler.acquire(model("m"), CHAT, None, flow=Flow("a"))
    burst = [
        asyncio.ensure_future(scheduler.acquire(model("m"), CHAT, None, flow=Flow("a")))
        for _ in range(3)
    ]
    await settle()
    other = asyncio.ensure_future(scheduler.acquire(model("m"), CHAT, None, flow=Flow("b")))
    with pytest.raises(QueueFull):
        await burst[2]
    with pytest.raises(QueueFull):
        await scheduler.acquire(model("m"), CHAT, None, flow=Flow("a"))
    scheduler.release(lease)
    for ask in (burst[0], other, burst[1]):
        scheduler.release(await ask)


@in_world()
async def test_closing_refuses_the_queue_and_lets_the_running_one_end(world, scheduler):
    lease = await scheduler.acquire(model("m"), CHAT, None)
    waiting = request(scheduler)
    await settle()
    scheduler.close_queue()
    with pytest.raises(ShuttingDown):
        await waiting
    with pytest.raises(ShuttingDown):
        await scheduler.acquire(model("m"), CHAT, None)
    assert scheduler.running == 1
    scheduler.release(lease)


@in_loop
async def test_throughput_rises_with_slots():
    world = World(slots=4)
    most = 0
    async with world.running() as scheduler:

        async def ask():
            nonlocal most
            lease = await scheduler.acquire(model("m"), CHAT, None)
            most = max(most, lease.instance.leases)
            await settle()
            scheduler.release(lease)

        await asyncio.gather(*(ask() for _ in range(12)))
    assert most == 4
