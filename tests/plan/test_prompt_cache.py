"""How much memory conversations without a slot may take."""

from dataclasses import replace

import pytest

from tests.facts import (
    CPU,
    GIB,
    H100,
    INFO,
    LLAMA_CPP_HERE,
    LLAMA_SERVER_HERE,
    MIB,
    bundle,
    facts,
)  # fmt: skip
from tests.plan.test_threads import plan
from vllama.base.units import format_amount
from vllama.engines.base import Mode
from vllama.plan.report import make_report
from vllama.plan.types import Need
from vllama.scheduler.memory import MemoryMeter
from vllama.scheduler.room import Room, add_room, plan_together

HERE = facts(CPU, (LLAMA_SERVER_HERE,))


@pytest.mark.parametrize(
    ("free", "mib"),
    [
        # a whole context of 4096 tokens is 90 MiB here, sixteen are 1440
        (12 * GIB, 1024),
        (2 * GIB, 512),  # less 512 MiB of reserve and 252 of the model: half of 1284
        (760 * MIB, 0),  # nothing is left beside the model
        (0, 0),
    ],
)
def test_it_is_a_part_of_what_is_free_beside_the_model(free, mib):
    made = plan(replace(CPU, ram_available_bytes=free))
    assert made.settings.prompt_cache_bytes == made.memory.prompt_cache_bytes == mib * MIB
    told = [reason for reason in made.reasons if reason.startswith("prompt cache: up to ")]
    assert bool(told) == bool(mib)


def test_it_is_no_part_of_the_need_but_reserved():
    made = plan()
    without = replace(made.memory, prompt_cache_bytes=0)
    assert made.memory.total_bytes == without.total_bytes
    assert made.memory.claimed_bytes == made.memory.prompt_cache_bytes > 0
    assert replace(made.memory, on_gpu=True).claimed_bytes == 0
    meter = MemoryMeter(CPU, lambda _: 0)
    cache_bytes = made.memory.prompt_cache_bytes
    assert meter.needs(made) == {"ram": made.memory.total_bytes + cache_bytes}


def test_one_load_has_one_figure_wherever_it_is_shown():
    """In the reasons, which serve prints, in the report, its devices, and what is free now."""
    machine = replace(CPU, ram_available_bytes=12 * GIB)
    made, here = plan(machine), facts(machine, (LLAMA_SERVER_HERE,))
    need = format_amount(made.memory.total_bytes)
    (told,) = [reason for reason in made.reasons if reason.startswith("context length")]
    assert f"needs {need} of system memory" in told
    report = make_report(here, made.bundle, made, environ={}, files=[])
    memory = report["memory"]
    parts = ("weights_bytes", "kv_cache_bytes", "compute_bytes", "process_bytes")
    assert memory["total_bytes"] == sum(memory[name] for name in parts)
    assert memory["total_bytes"] == report["devices"][0]["takes_bytes"]
    assert memory["prompt_cache_bytes"] == GIB
    room = Room(free={"ram": 11 * GIB})
    assert (
        add_room(report, room)["now"]["summary"] == f"Fits now: needs {need} in RAM, 11.0 GiB free"
    )
    together = plan_together([report], room)["together"]["devices"]
    assert [row["takes_bytes"] for row in together] == [memory["total_bytes"]]


def test_room_for_the_cache_is_reserved_when_models_are_planned_together():
    report = make_report(HERE, bundle(), made := plan(), environ={}, files=[])
    claimed = made.memory.total_bytes + made.memory.prompt_cache_bytes
    for free, fits in ((claimed, True), (claimed - 1, False)):
        assert add_room(report, Room(free={"ram": free}))["now"]["fits"] is fits


def test_a_large_model_has_at_most_8_gib():
    large = replace(CPU, ram_total_bytes=400 * GIB, ram_available_bytes=400 * GIB)
    assert plan(large, context_length=INFO.context_length).settings.prompt_cache_bytes < 8 * GIB
    info_context = plan(large, context_length=8192, num_parallel=1).memory.kv_bytes
    assert 16 * info_context >= plan(large, context_length=8192).settings.prompt_cache_bytes


@pytest.mark.parametrize(
    "made",
    [plan(installed=LLAMA_CPP_HERE), plan(need=Need(mode=Mode.EMBED)), plan(replicas=2)],
)
def test_none_where_it_is_of_no_use(made):
    assert made.settings.prompt_cache_bytes == 0


@pytest.mark.parametrize(("shares", "mib"), [(False, 256), (True, 128)])
def test_a_model_on_a_gpu_that_shares_the_ram_takes_of_it(shares, mib):
    free = {"total_bytes": 8 * GIB, "free_bytes": 1200 * MIB, "shares_ram": shares}
    gpu = replace(H100.accelerators[0], **free)
    machine = replace(CPU, ram_available_bytes=1200 * MIB, accelerators=(gpu,))
    made = plan(machine, installed=replace(LLAMA_SERVER_HERE, offloads=True))
    assert made.memory.on_gpu and made.settings.prompt_cache_bytes == mib * MIB
