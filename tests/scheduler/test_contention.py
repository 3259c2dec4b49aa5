"""An engine that shares its cores with other programs is loaded again with fewer threads."""

import pytest

from tests.scheduler.world import World, in_loop, model, reach, settle, use
from vllama.hardware.cpu import CpuTime
from vllama.plan.types import Need
from vllama.scheduler import contention
from vllama.scheduler.contention import (
    CALM_LIMIT_S,
    CONTENDED_LIMIT_S,
    INTERVAL_S,
    PATIENCE_S,
    ContentionMeter,
)


def sample(meter, others, seconds=INTERVAL_S, *, cores=2, own=None, worked=None):
    """Let `seconds` pass in which other programs used so many cores."""
    own = meter.threads if own is None else own
    last = meter.last or CpuTime(cores=cores, all_s=100.0, own_s=10.0)
    now = CpuTime(
        cores=cores,
        all_s=last.all_s + (own + others) * seconds,
        own_s=last.own_s + own * seconds,
    )
    worked = seconds if worked is None else worked
    meter.add_sample(now, meter.last_busy_s + worked, meter.last_sample_s + seconds)


@pytest.mark.parametrize(
    ("cores", "threads", "others", "wanted"),
    [
        (2, 2, 0.1, None),  # what a client takes
        (2, 2, 0.4, None),
        (2, 2, 1.0, 1),
        (2, 2, 2.0, 1),
        (8, 8, 2.0, 6),
        (8, 8, 2.9, 5),
        (8, 6, 2.0, None),  # it has room
        (16, 8, 8.0, None),  # hyperthreads are left
        (16, 8, 12.0, 4),
        (2, 1, 2.0, None),  # fewer there are not
    ],
)
def test_as_many_threads_as_cores_are_left(cores, threads, others, wanted):
    meter = ContentionMeter(threads=threads, max_threads=threads)
    for _ in range(1 + int(CONTENDED_LIMIT_S / INTERVAL_S)):
        assert meter.wanted_threads is None
        sample(meter, others, cores=cores)
    assert meter.wanted_threads == wanted


def test_time_without_requests_teaches_nothing():
    """Another server that is measured in turn with this one takes the cores only in its turn."""
    meter = ContentionMeter(threads=2, max_threads=2)
    for _ in range(20):
        sample(meter, 0.0)
        sample(meter, 2.0, own=0.0, worked=0.0)
        sample(meter, 1.0, own=1.0, worked=INTERVAL_S / 2)
    assert meter.wanted_threads is None


def test_a_pause_of_the_others_begins_the_count_anew():
    meter = ContentionMeter(threads=2, max_threads=2)
    for _ in range(5):
        sample(meter, 1.0)
        sample(meter, 0.0)
    assert meter.wanted_threads is None


def test_all_threads_come_back_when_there_is_room_for_them_for_long_enough():
    meter = ContentionMeter(threads=1, max_threads=2)
    for _ in range(1 + int(CALM_LIMIT_S / INTERVAL_S)):
        assert meter.wanted_threads is None
        sample(meter, 0.1)
    assert meter.wanted_threads == 2
    sample(meter, 0.5)
    assert meter.wanted_threads is None


def test_what_cannot_be_measured_is_not_judged():
    meter = ContentionMeter(threads=2, max_threads=2)
    for now_s in range(10):
        meter.add_sample(None, float(now_s), float(now_s))
    assert meter.wanted_threads is None


class Busy(World):
    """A world in which other programs use so many cores while the engine works."""

    def __init__(self, **limits):
        super().__init__(**limits)
        self.others = 0.0
        self.used_s = self.own_s = 0.0

    def pass_time(self, seconds):
        self.clock.advance(seconds)
        self.own_s += seconds
        self.used_s += seconds * (1 + self.others)

    def cpu_time(self, pid):
        return CpuTime(cores=4, all_s=self.used_s, own_s=self.own_s)

    def start(self, plan):
        process = super().start(plan)
        process.pid = 4711
        return process


async def work(world, scheduler, seconds):
    """Keep the model busy for so long, and look as often as `run` does."""
    lease = await scheduler.acquire(model("m"), Need(), None)
    for _ in range(int(seconds / INTERVAL_S)):
        world.pass_time(INTERVAL_S)
        scheduler.check_contention()
    scheduler.release(lease)
    scheduler.check_contention()
    await settle()


def threads(world):
    return [process.plan.settings.threads for process in world.processes]


@in_loop
async def test_an_idle_engine_is_loaded_again_with_fewer_threads_and_later_with_all():
    world = Busy()
    async with world.running() as scheduler:
        world.others = 4.0
        await work(world, scheduler, CONTENDED_LIMIT_S + 2)
        await reach(lambda: len(world.processes) == 2)
        assert threads(world) == [4, 1]
        assert world.processes[0].stops
        await use(scheduler)
        world.others = 0.0
        await work(world, scheduler, CALM_LIMIT_S + 3)
        await reach(lambda: len(world.processes) == 3)
        assert threads(world) == [4, 1, 4]
        assert len(scheduler.list_views()) == 1


@in_loop
async def test_one_that_is_never_idle_is_loaded_again_after_a_while():
    world = Busy(slots=2)
    async with world.running() as scheduler:
        world.others = 4.0
        lease = await scheduler.acquire(model("m"), Need(), None)
        for _ in range(int(PATIENCE_S)):
            world.pass_time(INTERVAL_S)
            scheduler.check_contention()
        await settle()
        assert threads(world) == [4]
        for _ in range(int(CONTENDED_LIMIT_S) + 2):
            world.pass_time(INTERVAL_S)
            scheduler.check_contention()
        await settle()
        assert not world.processes[0].stops  # the answer goes on
        scheduler.release(lease)
        await reach(lambda: len(world.processes) == 2)
        assert threads(world) == [4, 1]


@in_loop
async def test_a_larger_context_does_not_bring_the_threads_back():
    world = Busy()
    async with world.running() as scheduler:
        world.others = 4.0
        await work(world, scheduler, CONTENDED_LIMIT_S + 2)
        await reach(lambda: len(world.processes) == 2)
        lease = await scheduler.acquire(model("m"), Need(context_length=8192), None)
        scheduler.release(lease)
        assert threads(world) == [4, 1, 1]


@in_loop
async def test_one_that_takes_long_to_load_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(contention, "LONGEST_LOAD_S", -1.0)
    world = Busy()
    async with world.running() as scheduler:
        world.others = 4.0
        await work(world, scheduler, 10 * CONTENDED_LIMIT_S)
        assert threads(world) == [4]
