"""Engines that hang: the judgement as tables, and what is done about it."""

import math
from dataclasses import replace

import pytest

from tests.scheduler.world import World, in_loop, in_world, model, reach, request, settle, use
from vllama.net.upstream.connection import Progress
from vllama.plan.types import Need
from vllama.scheduler.health import HangDetector
from vllama.supervise.tree import TreeWork

CHAT = Need()
S = 30.0
STEP_S = 5.0


def judge(
    answers=lambda t: {}, *, alive=lambda t: True, cpu=lambda t: t, until_s=1000.0, uses_gpu=False
):
    """Look every 5 s; return (when, why) it counted as hung, or None."""
    detector, now_s = HangDetector(S, 0.0, uses_gpu=uses_gpu), 0.0
    while now_s < until_s:
        now_s += STEP_S
        detector.add_progress(answers(now_s), now_s)
        if detector.needs_probe(now_s):
            done = cpu(now_s)
            activity = None if done is None else TreeWork(cpu_s=done)
            detector.add_probe(activity, alive=alive(now_s), now_s=now_s)
        if cause := detector.judge(now_s):
            return now_s, cause
    return None


def stopped_at(second, *, begun=True, held=False):
    """One answer that goes on until then."""
    return lambda t: {1: Progress(begun, int(min(t, second)), held)}


def still(_):
    return 5.0


HEALTHY = {
    "idle": {},
    "idle, using no CPU": {"cpu": still},
    "a stream that goes on, health check or not": {
        "answers": lambda t: {1: Progress(True, int(t))}, "alive": lambda t: False},
    "a long prompt": {"answers": lambda t: {1: Progress(False, 0)}},
    "a long prompt on a GPU, which uses no CPU": {
        "answers": lambda t: {1: Progress(False, 0)}, "cpu": still, "uses_gpu": True},
    "a client that does not read": {"answers": stopped_at(10, held=True), "cpu": still},
    "one failed health check": {"alive": lambda t: t != 50.0},
    "new requests that come while a stream stands still": {
        "answers": lambda t: {1: Progress(True, int(min(t, 10))), int(t): Progress(False, 0)}},
    "reading from the disk": {
        "answers": lambda t: {1: Progress(False, 0)}, "cpu": lambda t: t * 0.5},
}  # fmt: skip


@pytest.mark.parametrize("case", HEALTHY)
def test_what_lives_is_left_alone(case):
    assert judge(until_s=290.0, **HEALTHY[case]) is None


HUNG = {
    "stopped in the midst, doing nothing": ({"answers": stopped_at(10), "cpu": still}, S),
    "stopped in the midst, busy": ({"answers": stopped_at(10)}, 10 * S),
    "stopped in the midst, nothing known": (
        {"answers": stopped_at(10), "cpu": lambda t: None}, 10 * S),
    "one of two streams": (
        {"answers": lambda t: {1: Progress(True, int(min(t, 10))), 2: Progress(True, int(t))}},
        4 * S),
    "no first byte, doing nothing": (
        {"answers": lambda t: {1: Progress(False, 0)}, "cpu": still}, S),
    "no answer to the health check": ({"alive": lambda t: t < 10}, S),
    "frozen in the midst": (
        {"answers": stopped_at(10), "alive": lambda t: t < 10, "cpu": still}, S),
}  # fmt: skip


@pytest.mark.parametrize("case", HUNG)
def test_what_hangs_is_found_in_time(case):
    arguments, limit_s = HUNG[case]
    found = judge(**arguments)
    assert found is not None
    when_s, cause = found
    assert limit_s <= when_s <= 10 + limit_s + 2 * STEP_S
    assert "health check" in cause or "for" in cause


def test_idle_long_ago_does_not_count_against_a_stream_among_others():
    def answers(t):
        if t < 600:
            return {}
        return {1: Progress(True, int(min(t, 610))), 2: Progress(True, int(t))}

    when_s, _ = judge(answers, cpu=lambda t: max(0.0, t - 600.0))
    assert when_s >= 610 + 2 * S


@in_world(hang_s=S)
async def test_a_hung_engine_is_cut_restarted_and_the_next_request_served(world, scheduler):
    lease = await scheduler.acquire(model("m"), CHAT, None)
    (process,) = world.processes
    process.done = TreeWork(cpu_s=3.0)
    world.answer(process, (True, 7))
    for _ in range(9):
        world.clock.advance(STEP_S)
        await scheduler.check_health()
        if process.causes:
            break
    assert len(process.causes) == 1
    assert world.cut[0][0] == 1
    assert "in the middle of a response" in world.cut[0][1]
    world.answer(process)
    scheduler.release(lease)
    again = request(scheduler)
    await settle()
    assert not again.done()
    process.open()
    scheduler.release(await again)


@in_world(hang_s=S)
async def test_only_silence_is_asked_about(world, scheduler):
    asked = []
    await use(scheduler)
    (process,) = world.processes

    async def answers(endpoint, limit_s):
        asked.append(endpoint)
        return True

    process.check_health = answers
    for mark in range(5):
        world.answer(process, (True, mark))
        world.clock.advance(STEP_S)
        await scheduler.check_health()
    assert not asked
    world.clock.advance(STEP_S)
    await scheduler.check_health()
    assert len(asked) == 1


@in_loop
@pytest.mark.parametrize("before_s", [math.inf, 1e9])
async def test_another_limit_counts_at_once(before_s):
    """Also if it was not looked at all, or an engine is being looked at since long."""
    world = World(hang_s=before_s)
    async with world.running() as scheduler:
        await use(scheduler, "m", math.inf)
        process = world.processes[0]
        process.alive = False
        await scheduler.check_health()
        world.clock.advance(3600)
        await scheduler.check_health()
        assert not process.causes
        scheduler.set_limits(replace(world.limits, hang_s=0.01))

        def advance_and_read():
            world.clock.advance(1)
            return process.causes

        await reach(advance_and_read)


@in_world(hang_s=0.01)
async def test_hangs_that_are_not_looked_for_any_more(world, scheduler):
    await use(scheduler, "m", math.inf)
    scheduler.set_limits(replace(world.limits, hang_s=math.inf))
    world.processes[0].alive = False
    for _ in range(3):
        world.clock.advance(1000)
        await scheduler.check_health()
    assert not world.processes[0].causes
