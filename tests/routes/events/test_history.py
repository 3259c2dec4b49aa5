"""The samples of the last hour: what they say, which are left out, and how many are kept."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.facts import facts
from tests.scheduler.world import World, in_loop, model, use
from vllama.dialects.events import GpuUse, MachineUse, Sample
from vllama.machine.types import Accelerator, Platform, Vendor
from vllama.plan.types import Need
from vllama.routes.events.activity import MAX_SAMPLES, Activity, History, Minutes
from vllama.routes.recording.running import RunningRequests
from vllama.scheduler.room import find_free

GIB = 1024**3
PLATFORM = Platform(
    os="linux", arch="x86_64", cores=2, ram_total_bytes=16 * GIB, ram_available_bytes=9 * GIB
)


def make_history(world: World) -> History:
    return History(world.scheduler, RunningRequests(), Activity(), PLATFORM)


@in_loop
async def test_memory_is_told_by_pool() -> None:
    world = World(free=8 * GIB, size=GIB)
    world.true_size = 3 * GIB // 2
    async with world.running() as scheduler:
        history = make_history(world)
        await history.take(watched=False)
        (sample,) = history.list_samples()
        pool = sample.memory["ram"]
        # nothing has been measured yet: what was free at the start
        assert (pool.total, pool.planned, pool.measured, pool.free) == (16 * GIB, 0, 0, 9 * GIB)
        await use(scheduler)
        world.clock.advance(31)
        await history.take(watched=True)
        pool = history.list_samples()[-1].memory["ram"]
        assert (pool.planned, pool.measured) == (GIB, 3 * GIB // 2)
        assert pool.free == 8 * GIB - 3 * GIB // 2


@in_loop
async def test_requests_are_counted() -> None:
    world = World()
    async with world.running() as scheduler:
        history = make_history(world)
        lease = await scheduler.acquire(model("m"), Need(), None)
        await history.take(watched=False)
        assert (history.list_samples()[-1].requests, history.list_samples()[-1].queued) == (1, 0)
        scheduler.release(lease)


@in_loop
async def test_a_repeated_sample_is_left_out_unless_somebody_looks() -> None:
    world = World()
    async with world.running():
        history = make_history(world)
        for _ in range(3):
            await history.take(watched=False)
        assert history.count == 1
        await history.take(watched=True)  # the first measurement
        for _ in range(3):
            await history.take(watched=True)
        assert history.count == 5
        assert len(history.list_after(3)) == 2


@in_loop
async def test_an_hour_is_kept() -> None:
    world = World()
    async with world.running():
        history = make_history(world)
        for _ in range(MAX_SAMPLES + 20):
            await history.take(watched=True)
        assert history.count == MAX_SAMPLES + 20
        assert len(history.list_samples()) == len(history.list_after(0)) == MAX_SAMPLES == 720


@in_loop
async def test_how_busy_the_machine_is_is_told_while_somebody_looks() -> None:
    world = World()
    async with world.running():
        history = make_history(world)
        await history.take(watched=False)
        await history.take(watched=True)
        unseen, seen = history.list_samples()
        assert unseen.machine is None
        assert seen.machine is not None and 0 <= seen.machine.cpu <= 1
        assert seen.machine.gpus == {}


@in_loop
async def test_gpus_have_the_names_of_their_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may use the second GPU of two, which the scheduler calls so too."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nprintf '0, 99, 80, 300\\n1, 50, 60, 120.5\\n'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    gpu = Accelerator(vendor=Vendor.NVIDIA, index=1, name="L4", total_bytes=GIB, free_bytes=GIB)
    world = World()
    async with world.running() as scheduler:
        platform = replace(PLATFORM, accelerators=(gpu,))
        history = History(scheduler, RunningRequests(), Activity(), platform)
        await history.take(watched=True)
        (sample,) = history.list_samples()
        assert sample.machine is not None and sample.machine.gpus == {
            "gpu1": GpuUse(use=0.5, temperature_c=60.0, power_w=120.5)
        }
        assert sample.memory.keys() == find_free(facts(platform)).keys() == {"ram", "gpu1"}


def make_sample(time: float, tokens_per_s: float = 0.0, **more: Any) -> Sample:
    known = {"first_token_s": None, "requests": 0, "queued": 0, "memory": {}} | more
    return Sample(time=time, tokens_per_s=tokens_per_s, **known)


def list_minutes(*samples: Sample) -> list[Sample]:
    minutes = Minutes()
    for sample in samples:
        minutes.add(sample)
    return minutes.list_since(0)


def test_a_minute_has_mean_rates_and_the_most_requests() -> None:
    assert list_minutes(
        make_sample(60, 10, first_token_s=0.5, requests=3),
        make_sample(90, 20, queued=2),
        make_sample(119, 30, first_token_s=1.5, requests=1),
        make_sample(120, 99),  # it is not over
    ) == [make_sample(119, 20, first_token_s=1.0, requests=3, queued=2)]


def test_a_minute_that_repeats_the_last_is_left_out_unless_the_machine_was_seen() -> None:
    seen = MachineUse(cpu=0.5, gpus={})
    rows = list_minutes(
        make_sample(0),
        make_sample(60),
        make_sample(120, machine=seen),
        make_sample(180, 5),
        make_sample(240),
    )
    assert [(row.time, row.tokens_per_s, row.machine) for row in rows] == [
        (0, 0, None),
        (120, 0, seen),
        (180, 5, None),
    ]


def test_a_day_is_kept_by_the_minute() -> None:
    assert len(list_minutes(*(make_sample(60 * n, n) for n in range(2000)))) == 1440
