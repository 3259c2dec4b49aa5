"""How many threads compute, and why; replicas of a model share the cores and the memory."""

from dataclasses import replace

import pytest

from tests.facts import (
    CPU,
    GIB,
    H100,
    INFO,
    LLAMA_CPP_GPU,
    LLAMA_CPP_HERE,
    LLAMA_SERVER_HERE,
    bundle,
    facts,
    make_need,
)
from vllama.base.errors import NotEnoughMemory
from vllama.plan.choose import make_plan
from vllama.plan.resources import choose_threads
from vllama.plan.types import Need


def plan(platform=CPU, installed=LLAMA_SERVER_HERE, need=Need(), **preferences):  # noqa: B008
    known = facts(platform, (installed,), engine=installed.engine, **preferences)
    return make_plan(known, bundle(), INFO, need)


@pytest.mark.parametrize(
    ("cores", "physical", "installed", "threads"),
    [
        (2, 2, LLAMA_SERVER_HERE, 2),
        (2, 2, LLAMA_CPP_HERE, 2),
        (1, 1, LLAMA_CPP_HERE, 1),
        (16, 8, LLAMA_SERVER_HERE, 8),  # hyperthreads do not compute side by side
        (4, 0, LLAMA_SERVER_HERE, 4),  # not known
    ],
)
def test_one_for_each_physical_core(cores, physical, installed, threads):
    made = plan(replace(CPU, cores=cores, physical_cores=physical), installed)
    assert made.settings.threads == threads
    assert made.settings.batch_threads == (physical or cores)
    plural = "" if threads == 1 else "s"
    assert any(f"{threads} thread{plural}" in reason for reason in made.reasons)


@pytest.mark.parametrize("made", [plan(threads=3), plan(need=make_need(num_thread=3))])
def test_a_number_that_was_asked_for_stays(made):
    assert (made.settings.threads, made.settings.batch_threads) == (3, 3)
    assert "3 threads, as requested" in made.reasons


@pytest.mark.parametrize(
    ("cores", "replicas", "threads", "batch_threads"),
    [(16, 1, 16, 16), (16, 2, 8, 8), (16, 3, 5, 5), (2, 2, 1, 1), (2, 5, 1, 1)],
)
def test_each_replica_has_its_share_of_the_cores(cores, replicas, threads, batch_threads):
    found = plan(replace(CPU, cores=cores), LLAMA_CPP_HERE, replicas=replicas).settings
    assert (found.threads, found.batch_threads) == (threads, batch_threads)


@pytest.mark.parametrize("asked", [{"threads": 6}, {"need": make_need(num_thread=6)}])
def test_threads_that_were_asked_for_are_those_of_each_replica(asked):
    known = plan(replace(CPU, cores=16), LLAMA_CPP_HERE, replicas=2, **asked)
    assert known.settings.threads == 6


@pytest.mark.parametrize("platform", [CPU, H100])
def test_all_replicas_together_fit(platform):
    installed = LLAMA_CPP_GPU if platform is H100 else LLAMA_CPP_HERE
    total = 7 * GIB

    def plan_for(replicas):
        gpus = tuple(replace(gpu, total_bytes=total) for gpu in platform.accelerators)
        small = replace(platform, ram_total_bytes=total, accelerators=gpus)
        known = facts(small, (installed,), replicas=replicas)
        return make_plan(known, bundle(), replace(INFO, context_length=131_072), Need())

    one, two = plan_for(1), plan_for(2)
    assert two.memory.total_bytes * 2 <= total
    assert two.settings.context_length <= one.settings.context_length
    assert any("2 replicas" in reason for reason in two.reasons)
    with pytest.raises(NotEnoughMemory):
        plan_for(40)


def test_an_engine_that_does_not_set_threads_is_given_no_reason_for_them():
    known = facts(CPU, (LLAMA_SERVER_HERE,), engine=LLAMA_SERVER_HERE.engine)
    engine = known.found.engines[LLAMA_SERVER_HERE.engine]
    made = choose_threads(known, replace(engine, sets_threads=False), Need(), on_gpu=False)
    assert made.reason == ""


def test_nothing_is_said_of_threads_where_a_gpu_computes():
    made = plan(H100, LLAMA_CPP_GPU)
    assert not any("thread" in reason for reason in made.reasons)


def test_a_client_cannot_ask_for_more_than_the_machine_could_start():
    made = plan(replace(CPU, cores=2, physical_cores=2), need=make_need(num_thread=100_000))
    assert made.settings.threads == made.settings.batch_threads == 8
    assert any("requested: 100000" in reason for reason in map(str, made.reasons))
