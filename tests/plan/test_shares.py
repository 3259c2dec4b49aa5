"""Replicas of a model share the machine: its cores and its memory."""

from dataclasses import replace

import pytest

from tests.facts import (
    CPU,
    GIB,
    H100,
    INFO,
    LLAMA_CPP_GPU,
    LLAMA_CPP_HERE,
    bundle,
    facts,
    make_need,
)
from vllama.base.errors import NotEnoughMemory
from vllama.plan.choose import make_plan
from vllama.plan.types import Need


def settings(cores=16, need=Need(), **preferences):  # noqa: B008 (frozen)
    known = facts(replace(CPU, cores=cores), **preferences)
    return make_plan(known, bundle(), INFO, need).settings


@pytest.mark.parametrize(
    ("cores", "replicas", "threads", "batch_threads"),
    [(16, 1, 16, 16), (16, 2, 8, 8), (16, 3, 5, 5), (2, 2, 1, 1), (2, 5, 1, 1)],
)
def test_each_has_its_share_of_the_cores(cores, replicas, threads, batch_threads):
    found = settings(cores, replicas=replicas)
    assert (found.threads, found.batch_threads) == (threads, batch_threads)


def test_threads_that_were_asked_for_are_those_of_each():
    assert settings(replicas=2, threads=6).threads == 6
    assert settings(need=make_need(num_thread=5), replicas=2).threads == 5


@pytest.mark.parametrize("platform", [CPU, H100])
def test_all_of_them_together_fit(platform):
    installed = LLAMA_CPP_GPU if platform is H100 else LLAMA_CPP_HERE
    total = 7 * GIB

    def plan(replicas):
        gpus = tuple(replace(gpu, total_bytes=total) for gpu in platform.accelerators)
        small = replace(platform, ram_total_bytes=total, accelerators=gpus)
        known = facts(small, (installed,), replicas=replicas)
        return make_plan(known, bundle(), replace(INFO, context_length=131_072), Need())

    one, two = plan(1), plan(2)
    assert two.memory.total_bytes * 2 <= total
    assert two.settings.context_length <= one.settings.context_length
    assert any("2 replicas" in reason for reason in two.reasons)
    with pytest.raises(NotEnoughMemory):
        plan(40)
