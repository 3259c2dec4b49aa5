"""How much memory conversations without a slot may take."""

from dataclasses import replace

import pytest

from tests.facts import CPU, GIB, H100, INFO, LLAMA_CPP_HERE, LLAMA_SERVER_HERE, MIB
from tests.plan.test_threads import plan
from vllama.engines.base import Mode
from vllama.plan.types import Need


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
    told = [reason for reason in made.reasons if "idle conversations" in reason]
    assert bool(told) == bool(mib)


def test_it_counts_in_the_plans_memory():
    made = plan()
    without = replace(made.memory, prompt_cache_bytes=0)
    assert made.memory.total_bytes == without.total_bytes + made.memory.prompt_cache_bytes
    on_gpu = replace(made.memory, on_gpu=True)
    assert on_gpu.total_bytes == without.total_bytes  # it is in RAM


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
