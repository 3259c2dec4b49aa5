"""Admission for models: measured memory, turns, memory that comes back late, what is remembered."""

import asyncio
import json
import math
import threading
from dataclasses import replace

import pytest

from tests.facts import CPU, H100, INFO, LLAMA_CPP_GPU, MIB, facts
from tests.scheduler.world import (
    World,
    as_time_passes,
    in_loop,
    in_world,
    model,
    phases,
    reach,
    request,
    settle,
    use,
)
from vllama.base.errors import NotEnoughMemory
from vllama.machine.nvidia import parse_processes
from vllama.plan.choose import make_plan
from vllama.plan.types import Need
from vllama.scheduler import memory
from vllama.scheduler.memory import MemoryMeter, MemoryRecords, compute_fingerprint
from vllama.scheduler.views import Phase
from vllama.supervise.tree import Footprint

CHAT = Need()
SIZE = 4000 * MIB


@in_world(size=SIZE, max_loaded=9)
async def test_three_models_where_two_fit(world, scheduler):
    for name in ("a", "b", "c", "a", "c"):
        world.clock.advance(1)
        await use(scheduler, name)
    assert sorted(phases(scheduler)) == ["a", "c"]
    assert len(world.processes) == 4


@in_world(size=SIZE, max_loaded=9)
async def test_models_that_fit_load_side_by_side(world, scheduler):
    world.auto_open = False
    asks = [asyncio.ensure_future(use(scheduler, name)) for name in ("a", "b", "c")]
    await settle()
    assert len(world.processes) == 2  # the third has to wait until one of them is done
    await reach(lambda: any("busy models" in view.cause for view in scheduler.list_views()))
    world.processes[1].open()
    await asyncio.wait_for(asks[1], 60)
    await reach(lambda: len(world.processes) == 3)
    assert world.processes[1].stops == 1
    for process in world.processes:
        process.open()
    await asyncio.gather(*asks)


@in_world(size=SIZE, max_loaded=9)
async def test_what_is_measured_counts_and_not_the_estimate(world, scheduler):
    world.true_size = SIZE // 2  # the estimate is too large: a third one fits
    for name in ("a", "b", "c"):
        await use(scheduler, name)
    assert sorted(phases(scheduler)) == ["a", "b", "c"]


@in_world(size=SIZE, max_loaded=9, turn_s=1e9)
async def test_what_a_crashed_one_held_is_kept_for_its_restart(world, scheduler):
    """Also if its memory was looked at while it was loading, and never since."""
    world.auto_open = False
    first = request(scheduler, "a")
    await reach(lambda: world.processes)
    await scheduler.measure()
    world.processes[0].open()
    lease = await first
    world.processes[0].crash()
    asks = [asyncio.ensure_future(use(scheduler, name)) for name in ("b", "c")]
    await reach(
        lambda: (
            len(world.processes) > 1
            and any("busy models" in view.cause for view in scheduler.list_views())
        )
    )
    await settle()
    assert len(world.processes) == 2, "a comes back, and then there is room for one more only"
    for process in world.processes:
        process.open()
    scheduler.release(lease)
    await reach(lambda: len(world.processes) == 3)
    world.processes[2].open()
    await asyncio.gather(*asks)


@in_world(size=SIZE // 2, max_loaded=9)
async def test_an_estimate_that_was_too_small_is_made_good_by_idle_models(world, scheduler):
    world.true_size = SIZE
    for name in ("a", "b", "c"):  # three of them fit by their estimates
        world.clock.advance(1)
        await use(scheduler, name)
    await reach(lambda: sorted(phases(scheduler)) == ["b", "c"])
    assert world.processes[0].stops


@in_world(size=SIZE // 16, max_loaded=9, settle_s=1e9)
async def test_nobody_else_goes_while_what_was_made_good_is_on_its_way_back(world, scheduler):
    world.true_size = SIZE * 4 // 5
    for name in ("a", "b", "c"):
        world.clock.advance(1)
        await use(scheduler, name)
    assert sorted(phases(scheduler)) == ["a", "b", "c"]
    world.clock.advance(1)
    lagging = world.processes[0].stop

    async def stop(grace=None):
        world.lagging = world.true_size
        await lagging(grace)

    world.processes[0].stop = stop
    await use(scheduler, "d")
    await reach(lambda: world.processes[0].stops)
    await settle()
    assert sorted(phases(scheduler)) == ["b", "c", "d"]
    world.lagging = 0
    await settle()
    assert sorted(phases(scheduler)) == ["b", "c", "d"]


@in_world(size=SIZE // 2, max_loaded=9)
async def test_it_is_made_good_as_soon_as_somebody_is_idle_and_never_by_one_that_is_kept_for_ever(
    world, scheduler
):
    world.true_size = SIZE
    await use(scheduler, "a", math.inf)
    leases = [await scheduler.acquire(model(name), CHAT, None) for name in ("b", "c")]
    await settle()
    assert sorted(phases(scheduler)) == ["a", "b", "c"]  # busy ones serve on
    scheduler.release(leases[0])
    await reach(lambda: sorted(phases(scheduler)) == ["a", "c"])
    scheduler.release(leases[1])
    await settle()
    assert sorted(phases(scheduler)) == ["a", "c"]


@in_world(size=SIZE, max_loaded=9)
async def test_a_request_for_a_warm_model_does_not_wait_for_a_load(world, scheduler):
    await use(scheduler, "a")
    world.auto_open = False
    other = asyncio.ensure_future(use(scheduler, "b"))
    await settle()
    lease = scheduler.try_acquire(model("a"), CHAT, None)
    assert lease is not None
    scheduler.release(lease)
    world.processes[1].open()
    await other


@in_world(size=SIZE, free=5000 * MIB, slots=2, turn_s=10)
async def test_a_busy_model_gives_way_after_its_turn_and_comes_back(world, scheduler):
    held = await scheduler.acquire(model("a"), CHAT, None)
    other = request(scheduler, "b")
    await settle()
    # until then it takes further requests
    second = scheduler.try_acquire(model("a"), CHAT, None)
    assert second is not None
    scheduler.release(second)
    world.clock.advance(11)
    while lease := scheduler.try_acquire(model("a"), CHAT, None):
        scheduler.release(lease)
        await asyncio.sleep(0.001)
    late = request(scheduler, "a")
    await settle()
    assert not world.processes[0].stops  # the running one is not cut
    scheduler.release(held)
    scheduler.release(await other)
    scheduler.release(await late)
    assert [process.plan.bundle.name for process in world.processes] == [
        "a:latest", "b:latest", "a:latest",
    ]  # fmt: skip


@pytest.mark.parametrize("limits", [{"free": 9000 * MIB}, {"max_loaded": 2}])
@in_loop
async def test_a_model_for_ever_goes_for_another_after_all_others(limits):
    world = World(size=SIZE, **limits)
    async with world.running() as scheduler:
        await use(scheduler, "a", math.inf)
        for name in ("b", "c"):
            world.clock.advance(1)
            await use(scheduler, name)
        assert sorted(phases(scheduler)) == ["a", "c"]


@pytest.mark.parametrize("limits", [{"free": 5000 * MIB}, {"max_loaded": 1}])
@in_loop
async def test_where_all_are_kept_for_ever_they_are_swapped(limits):
    world = World(size=SIZE, keep_alive_s=math.inf, **limits)
    async with world.running() as scheduler:
        for name in ("a", "b", "a"):
            await use(scheduler, name)
            assert sorted(phases(scheduler)) == [name]
            world.clock.advance(1e6)
            scheduler.expire()
        assert sorted(phases(scheduler)) == ["a"]


@in_world(size=SIZE, free=SIZE - 1)
async def test_a_refusal_has_the_numbers_and_they_differ(world, scheduler):
    with pytest.raises(NotEnoughMemory) as alone:
        await use(scheduler, "a")
    assert f"({SIZE} bytes) than is available ({SIZE - 1} bytes)" in alone.value.message
    assert alone.value.message.endswith(")")
    world.size, world.free = 100 * MIB, 1000 * MIB
    await use(scheduler, "b")
    world.size = 1200 * MIB
    with pytest.raises(NotEnoughMemory) as beside:
        await as_time_passes(world, use(scheduler, "c"))
    assert beside.value.message.endswith(
        "than is available (1000 MiB), even with no other model loaded"
    )


@in_world(size=SIZE, max_loaded=9)
async def test_nobody_goes_for_memory_that_is_on_its_way_back(world, scheduler):
    for name in ("a", "b"):
        world.clock.advance(1)
        await use(scheduler, name)
    # as a GPU's does, a's memory comes back after the process has gone
    world.lagging = SIZE
    world.free += SIZE
    stopped = world.processes[0].stop

    async def stop(grace=None):
        world.free -= SIZE
        await stopped(grace)

    world.processes[0].stop = stop
    third = asyncio.ensure_future(use(scheduler, "c"))
    await reach(lambda: world.processes[0].stops)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not third.done()
    assert not world.processes[1].stops, "b was stopped although a's memory was enough"
    world.lagging = 0
    world.free += 0
    await third
    assert sorted(phases(scheduler)) == ["b", "c"]


@in_world(size=SIZE, free=SIZE + MIB)
async def test_a_load_is_not_refused_for_memory_that_a_crashed_engine_has_just_lost(
    world, scheduler
):
    """It is neither with the engine any more nor free yet."""
    await use(scheduler, "a")
    world.lagging = SIZE
    world.processes[0].crash()
    other = asyncio.ensure_future(use(scheduler, "b"))
    await reach(lambda: any("release some" in view.cause for view in scheduler.list_views()))
    world.clock.advance(world.limits.settle_s / 2)
    await settle()
    assert not other.done()
    world.lagging = 0
    world.processes[0].open()
    await other
    assert sorted(phases(scheduler)) == ["b"]


@pytest.mark.parametrize("comes_back", [True, False])
@in_world(size=SIZE, free=SIZE + MIB, retry_room_s=0.5)
async def test_memory_that_comes_back_late_is_waited_for(world, scheduler, comes_back):
    """A GPU's driver was seen to take 12 s."""
    lease = await scheduler.acquire(model("a"), CHAT, 0.0)
    world.lagging = SIZE
    scheduler.release(lease)
    await reach(lambda: not world.scheduler.list_views())
    begun_s = world.clock.monotonic()
    other = asyncio.ensure_future(as_time_passes(world, use(scheduler, "b")))
    await reach(lambda: world.clock.monotonic() > begun_s + 12)
    assert not other.done()
    if comes_back:
        world.lagging = 0
        await other
        return
    with pytest.raises(NotEnoughMemory):
        await other
    assert world.clock.monotonic() - begun_s >= 30


@in_world(size=SIZE, free=SIZE + MIB, retry_room_s=0.5)
async def test_pages_that_have_to_be_written_first_are_waited_for(world, scheduler):
    measure, world.lagging = world.measure, SIZE

    async def with_unwritten(processes, gpus):
        measured = await measure(processes, gpus)
        return replace(measured, returning={"ram": world.lagging})

    scheduler._admission._hooks = replace(world.hooks, measure=with_unwritten)
    begun_s = world.clock.monotonic()
    load = asyncio.ensure_future(as_time_passes(world, use(scheduler, "a")))
    await reach(lambda: world.clock.monotonic() > begun_s + 12)
    assert not load.done()
    world.lagging = 0
    await load


@in_world(size=SIZE, free=SIZE + MIB)
async def test_what_an_ended_engine_held_is_not_waited_for_where_it_is_not_enough(world, scheduler):
    lease = await scheduler.acquire(model("a"), CHAT, 0.0)
    scheduler.release(lease)
    await reach(lambda: not world.scheduler.list_views())
    begun_s, world.free = world.clock.monotonic(), 0
    world.size = 2 * SIZE
    with pytest.raises(NotEnoughMemory):
        await as_time_passes(world, use(scheduler, "b"))
    assert world.clock.monotonic() - begun_s < 12


@in_world(size=SIZE, free=SIZE + MIB)
async def test_one_look_between_two_measurements_refuses_nobody(world, scheduler):
    """Nothing has crashed: an engine that serves has taken memory while it was looked at."""
    await use(scheduler, "a")
    world.clock.advance(world.limits.settle_s + 1)
    measure, looks = world.measure, []

    async def once_too_little(processes, gpus):
        measured = await measure(processes, gpus)
        looks.append(measured)
        return replace(measured, free={"ram": 0}) if len(looks) == 1 else measured

    scheduler._admission._hooks = replace(world.hooks, measure=once_too_little)
    await use(scheduler, "b")
    assert sorted(phases(scheduler)) == ["b"]


@pytest.mark.parametrize("settles", [False, True])
@in_world(size=SIZE, free=SIZE + MIB, settle_s=5.0, retry_room_s=0.5)
async def test_what_will_never_fit_is_refused_in_the_end(world, scheduler, settles):
    """Also if another engine never comes up, or crashes again and again."""
    await use(scheduler, "a")
    world.clock.advance(world.limits.settle_s + 1)
    begun_s = world.clock.monotonic()
    if not settles:
        world.processes[0].crash()
    world.size = 2 * SIZE
    with pytest.raises(NotEnoughMemory):
        await as_time_passes(world, use(scheduler, "b"))
    took_s = world.clock.monotonic() - begun_s
    assert took_s >= (0.5 if settles else 5.0)
    world.processes[0].open()


@in_world(size=3000 * MIB, max_loaded=9, settle_s=1e9)
async def test_a_load_takes_only_its_part_of_what_comes_back(world, scheduler):
    for name in ("a", "b", "c"):
        world.clock.advance(1)
        await use(scheduler, name)
    for process in world.processes[:2]:

        async def stop(grace=None, stopped=process.stop):
            world.lagging += world.size
            await stopped(grace)

        process.stop = stop
    world.clock.advance(1)
    asks = [asyncio.ensure_future(use(scheduler, name)) for name in ("x", "y")]
    await reach(lambda: all(process.stops for process in world.processes[:2]))
    world.lagging = world.size
    await asks[0]
    await settle()
    assert not world.processes[2].stops, "c was stopped although b's memory was enough"
    world.lagging = 0
    await asks[1]
    assert sorted(phases(scheduler)) == ["c", "x", "y"]


@in_loop
async def test_what_is_left_of_a_killed_engine_is_no_size_of_it():
    world = World(size=SIZE)
    world.auto_open = False
    async with world.running() as scheduler:
        asked = asyncio.ensure_future(use(scheduler, "a"))
        await reach(lambda: world.processes)
        world.processes[0].rest = MIB  # killed, which nobody has seen yet, but for a child of it
        world.processes[0].open()
        await asked
        await scheduler.measure()
        assert not world.scheduler._table.list_all()[0].measured
        scheduler.unload(model("a"))
        await reach(lambda: not scheduler.list_views())
    assert world.remembered == []


@in_loop
async def test_what_a_model_held_is_noted_when_it_ends():
    world = World(size=SIZE)
    async with world.running() as scheduler:
        await use(scheduler, "a")
        world.processes[0].size = SIZE + MIB
        assert scheduler.unload(model("a"))
        await reach(lambda: not scheduler.list_views())
    assert world.remembered == [("a:latest", {"ram": SIZE + MIB})]


@in_world(size=SIZE, free=5000 * MIB)
async def test_ps_tells_measured_memory_and_what_a_load_waits_for(world, scheduler):
    lease = await scheduler.acquire(model("a"), CHAT, None)
    world.processes[0].size = SIZE + 5
    await scheduler.measure()
    other = asyncio.ensure_future(use(scheduler, "b"))
    await settle()
    rows = {view.name: view for view in scheduler.list_views()}
    assert rows["a:latest"].memory_bytes == SIZE + 5
    assert (rows["a:latest"].leases, rows["a:latest"].state) == (1, Phase.READY)
    assert rows["b:latest"].state is Phase.LOADING
    assert "waiting for busy models" in rows["b:latest"].cause
    assert rows["b:latest"].queued == 1
    scheduler.release(lease)
    await other


# -- the meter and the file ---------------------------------------------------------------------


class Fixed:
    def __init__(self, ram, of_files=0):
        self.print = Footprint(ram_bytes=ram, file_bytes=of_files)

    def measure_footprint(self):
        return self.print


@in_loop
async def test_mapped_weights_are_not_free_memory():
    """The system counts pages of files as available: an engine's weights would be lent twice."""
    plain = await MemoryMeter(CPU, free).measure({"a": Fixed(10 * MIB)})
    mapped = await MemoryMeter(CPU, free).measure({"a": Fixed(900 * MIB, of_files=800 * MIB)})
    assert mapped.holds == {"a": {"ram": 900 * MIB}}
    assert plain.free["ram"] - mapped.free["ram"] > 400 * MIB  # others use memory meanwhile


@pytest.mark.parametrize("seen", ["before it died", "after it died"])
def test_what_a_dying_engine_gives_back_is_not_counted_twice(monkeypatch, seen):
    """Its memory is either held by it or free, in whatever moment of the look it ends."""
    machine = {"free": 1000 * MIB}

    class Dying:
        def measure_footprint(self):
            machine["free"] += 300 * MIB
            return Footprint(ram_bytes=300 * MIB if seen == "before it died" else 0)

    monkeypatch.setattr(memory, "free_ram_bytes", lambda kept=0: machine["free"] - kept)
    dying = Dying()
    measured = asyncio.run(
        MemoryMeter(CPU, free).measure({"a": dying, "b": Fixed(9 * MIB, of_files=MIB)})
    )
    assert measured.free["ram"] == (1000 - 1) * MIB
    # the next time it is over, and counts
    again = asyncio.run(MemoryMeter(CPU, free).measure({}))
    assert again.free["ram"] == 1300 * MIB


@in_loop
async def test_pages_that_stand_in_the_way_are_written_to_their_files(monkeypatch):
    written, pages = threading.Event(), {"unwritten": 10**15}
    monkeypatch.setattr(memory, "find_unwritten_bytes", lambda: pages["unwritten"])
    monkeypatch.setattr(memory.os, "sync", written.set)
    measured = await MemoryMeter(CPU, free).measure({})
    assert measured.returning == {"ram": 10**15}
    assert written.wait(9)
    pages["unwritten"] = 1
    written.clear()
    await MemoryMeter(CPU, free).measure({})
    assert not written.is_set()


@in_loop
async def test_the_reserve_stays_free():
    without = await MemoryMeter(CPU, free).measure({})
    much = await MemoryMeter(CPU, lambda pool: 10**15).measure({})
    assert without.free["ram"] >= 0 > much.free["ram"]


def plan_on(platform, installed=None, **preferences):
    here = (installed,) if installed else ()
    world = facts(platform, *([here] if here else []), **preferences)
    return make_plan(world, model("m"), INFO, CHAT)


def free(pool: str) -> int:
    """Reserve nothing."""
    return 0


def test_needs_go_to_where_the_model_lies():
    on_cpu, on_gpu = plan_on(CPU), plan_on(H100, LLAMA_CPP_GPU)
    assert MemoryMeter(CPU, free).needs(on_cpu) == {"ram": on_cpu.memory.total_bytes}
    needs = MemoryMeter(H100, free).needs(on_gpu)
    assert needs == {**on_gpu.memory.gpu_parts, "ram": on_gpu.memory.ram_bytes}
    assert sum(needs.values()) == on_gpu.memory.total_bytes
    two = replace(H100, accelerators=(*H100.accelerators, replace(H100.accelerators[0], index=1)))
    assert MemoryMeter(two, free).needs(on_gpu).keys() == {"gpu0", "ram"}
    anywhere = replace(
        on_gpu,
        settings=replace(on_gpu.settings, gpus=(), gpu_shares=()),
        memory=replace(on_gpu.memory, gpu_parts={}),
    )
    spread = MemoryMeter(two, free).needs(anywhere)
    assert spread.keys() == {"gpu0", "gpu1"}
    assert sum(spread.values()) >= on_gpu.memory.total_bytes


def test_the_most_of_the_last_runs_is_remembered(tmp_path):
    plan = plan_on(CPU)
    remembered = MemoryRecords(tmp_path / "deep" / "memory.json")
    assert remembered.needs(plan) is None
    for size in (5, 90, 7, 8, 9, 10):
        remembered.add(plan, {"ram": size})
    assert MemoryRecords(tmp_path / "deep" / "memory.json").needs(plan) == {"ram": 90}
    remembered.add(plan, {"ram": 11})  # the 90 is long ago now
    assert remembered.needs(plan) == {"ram": 11}


def test_other_settings_are_another_memory(tmp_path):
    plan = plan_on(CPU)
    larger = replace(plan, settings=replace(plan.settings, context_length=8192))
    other_threads = replace(plan, settings=replace(plan.settings, threads=1, alias="other"))
    assert compute_fingerprint(plan) != compute_fingerprint(larger)
    assert compute_fingerprint(plan) == compute_fingerprint(other_threads)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 3}', "null"])
def test_a_damaged_file_is_as_none(tmp_path, text):
    path, plan = tmp_path / "memory.json", plan_on(CPU)
    path.write_text(text.replace("x", compute_fingerprint(plan)))
    remembered = MemoryRecords(path)
    assert remembered.needs(plan) is None
    remembered.add(plan, {"ram": 4})
    assert remembered.needs(plan) == {"ram": 4}


def test_several_writers_lose_nothing(tmp_path):
    base = plan_on(CPU)
    plans = [
        replace(base, settings=replace(base.settings, context_length=512 * n)) for n in range(1, 9)
    ]
    path = tmp_path / "memory.json"
    threads = [
        threading.Thread(target=MemoryRecords(path).add, args=(plan, {"ram": n}))
        for n, plan in enumerate(plans)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(json.loads(path.read_text())) == len(plans)


def test_the_driver_tells_who_holds_what():
    gpus = "GPU-aa, 0\nGPU-bb, 1\n"
    apps = "GPU-aa, 10, 512\nGPU-bb, 10, 256\nGPU-bb, 11, [N/A]\nGPU-cc, 12, 5\n"
    assert parse_processes(gpus, apps) == {10: {0: 512 * MIB, 1: 256 * MIB}, 11: {1: 0}}
    assert parse_processes("", "No devices were found") == {}


@in_world(max_loaded=3)
async def test_a_lower_limit_counts_at_once_for_who_is_idle(world, scheduler):
    lease = await scheduler.acquire(model("a"), CHAT, None)
    for name in ("b", "c"):
        world.clock.advance(1)
        await use(scheduler, name)
    scheduler.set_limits(replace(world.limits, max_loaded=1))
    await reach(lambda: sorted(phases(scheduler)) == ["a"])
    scheduler.release(lease)
    await settle()
    assert sorted(phases(scheduler)) == ["a"]


@in_world(size=SIZE, free=5000 * MIB)
async def test_a_first_look_that_found_nothing_is_no_size(world, scheduler):
    await use(scheduler, "a")
    world.processes[0].size = 0
    await scheduler.measure()
    (row,) = scheduler.list_views()
    assert row.memory_bytes > 0
