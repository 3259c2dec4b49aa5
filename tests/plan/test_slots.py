"""Several requests at once: which engine, and how much memory their contexts take."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import CPU, GIB, H100, INFO, MAC, MIB, bundle
from vllama.base.errors import EngineMissing
from vllama.config.engine_settings import EngineSettings
from vllama.engines.base import DiscoveredEngines, Installation, Missing
from vllama.engines.llamacpp.llama_cpp_python import ENGINE as PYTHON_SERVER
from vllama.engines.llamacpp.llama_server import ENGINE as NATIVE
from vllama.models.types import Format
from vllama.plan.choose import choose_engine, make_plan
from vllama.plan.types import Facts, Need

BOTH = (PYTHON_SERVER.name, NATIVE.name)


def builds(installed):
    """Return which engines are installed, and whether each build uses a GPU."""
    return installed if isinstance(installed, dict) else dict.fromkeys(installed, True)


def facts_of(installed, platform=CPU, compiler=True, **settings):
    engines = (PYTHON_SERVER, NATIVE)
    found = DiscoveredEngines(
        engines={engine.name: engine for engine in engines},
        installations={
            name: Installation(engine=name, version="1", python=Path("/p"), offloads=offloads)
            for name, offloads in builds(installed).items()
        },
        missing={
            engine.name: Missing(
                engine=engine.name,
                reason="it is not installed",
                hint="get it",
                installable=compiler or engine is NATIVE,
            )
            for engine in engines
            if engine.name not in installed
        },
    )
    return Facts(platform=platform, found=found, settings=EngineSettings(**settings))


@pytest.mark.parametrize("platform", [CPU, MAC])
@pytest.mark.parametrize(
    ("installed", "parallel", "taken", "told"),
    [
        (BOTH, 0, NATIVE, ""),
        (BOTH, 1, NATIVE, ""),
        (BOTH, 8, NATIVE, ""),
        ([NATIVE.name], 0, NATIVE, ""),
        ([NATIVE.name], 8, NATIVE, ""),
        ([PYTHON_SERVER.name], 0, PYTHON_SERVER, "parallel requests), but it is not"),
        ([PYTHON_SERVER.name], 0, PYTHON_SERVER, "vllama engines install llama-server"),
        ([PYTHON_SERVER.name], 8, PYTHON_SERVER, "it runs one request at a time"),
        ([PYTHON_SERVER.name], 8, PYTHON_SERVER, "vllama engines install llama-server"),
    ],
)
def test_the_engine_and_why(platform, installed, parallel, taken, told):
    choice = choose_engine(facts_of(installed, platform, num_parallel=parallel), Format.GGUF)
    assert choice.engine == taken.name
    assert told in choice.reason
    if not told:
        assert "install" not in choice.reason


def test_a_model_that_sees_is_given_to_the_engine_that_shows_it_images():
    seeing, facts = (
        bundle(projector=Path("/p")),
        facts_of({NATIVE.name: False, PYTHON_SERVER.name: True}, H100),
    )
    assert make_plan(facts, bundle(), INFO, Need()).engine == PYTHON_SERVER.name
    plan = make_plan(facts, seeing, INFO, Need())
    assert plan.engine == NATIVE.name
    assert "it does not use the GPU" in plan.reasons[0]
    assert make_plan(facts_of(BOTH), seeing, INFO, Need()).engine == NATIVE.name


@pytest.mark.parametrize(
    ("native", "python", "gpu_layers", "taken"),
    [
        (False, True, None, PYTHON_SERVER),
        (True, True, None, NATIVE),
        (False, False, None, NATIVE),
        (False, True, 0, NATIVE),
    ],
)
def test_where_there_is_a_gpu_a_build_that_uses_it_comes_first(native, python, gpu_layers, taken):
    installed = {NATIVE.name: native, PYTHON_SERVER.name: python}
    choice = choose_engine(facts_of(installed, H100, gpu_layers=gpu_layers), Format.GGUF)
    assert choice.engine == taken.name
    if taken is PYTHON_SERVER:
        assert "llama.cpp (llama-server) does not use the GPU" in choice.reason


def test_what_has_no_package_for_this_machine_is_not_recommended():
    for arch, recommended in (("riscv64", False), ("x86_64", True)):
        facts = facts_of([PYTHON_SERVER.name], replace(H100, arch=arch))
        choice = choose_engine(facts, Format.GGUF)
        assert ("install llama-server" in choice.reason) is recommended


def test_a_model_that_ranks():
    ranker = replace(INFO, metadata={**INFO.metadata, "llama.pooling_type": 4})
    plan = make_plan(facts_of(BOTH), bundle(), ranker, Need())
    assert plan.engine == NATIVE.name
    assert plan.settings.ranks


def test_a_named_engine_is_never_replaced():
    facts = facts_of(BOTH, num_parallel=8, engine=PYTHON_SERVER.name)
    assert choose_engine(facts, Format.GGUF).engine == PYTHON_SERVER.name
    facts = facts_of(BOTH, engine="llama-server")
    assert choose_engine(facts, Format.GGUF).engine == NATIVE.name


@pytest.mark.parametrize(
    ("platform", "compiler", "offered"),
    [
        (CPU, True, (NATIVE, PYTHON_SERVER)),
        (CPU, False, (NATIVE,)),
        (MAC, True, (NATIVE, PYTHON_SERVER)),
        (H100, True, (NATIVE, PYTHON_SERVER)),  # by Vulkan; compiled with CUDA
    ],
)
@pytest.mark.parametrize("parallel", [0, 8])
@pytest.mark.parametrize("format_", [None, Format.GGUF])
def test_what_is_offered_where_nothing_is_installed(platform, compiler, offered, parallel, format_):
    with pytest.raises(EngineMissing) as caught:
        choose_engine(facts_of([], platform, compiler=compiler, num_parallel=parallel), format_)
    assert caught.value.engines == tuple(engine.name for engine in offered)
    hint = str(caught.value.hint)
    places = [hint.index(f"vllama engines install {engine.name}") for engine in offered]
    assert places == sorted(places)
    assert hint.count("vllama engines install") == len(offered)


def test_one_message_says_what_both_take():
    with pytest.raises(EngineMissing, match=r"no engine.* is installed") as caught:
        choose_engine(facts_of([]), Format.GGUF)
    first, second = str(caught.value.hint).split(", or: ")
    assert "nothing is compiled" in first and "parallel requests" in first
    assert "it is compiled, which takes about 4 minutes" in second


def test_a_reason_other_than_not_installed_is_said():
    facts = facts_of([])
    odd = replace(facts.found.missing[NATIVE.name], reason="there is no llama-server at '/x'")
    absent = facts.found.missing | {NATIVE.name: odd}
    with pytest.raises(EngineMissing, match="no llama-server at '/x'"):
        choose_engine(replace(facts, found=replace(facts.found, missing=absent)))


def test_what_cannot_be_installed_is_not_offered():
    facts = facts_of([], replace(CPU, arch="riscv64"), compiler=False)
    with pytest.raises(EngineMissing) as caught:
        choose_engine(facts)
    assert "vllama engines install llama-server" not in str(caught.value.hint)


def test_each_request_has_a_cache_of_its_own():
    one, eight = (
        make_plan(facts_of(BOTH, engine=NATIVE.name, num_parallel=n), bundle(), INFO, Need())
        for n in (1, 8)
    )
    assert eight.memory.kv_bytes == 8 * one.memory.kv_bytes > 0
    assert eight.memory.weights_bytes == one.memory.weights_bytes
    assert eight.settings.parallel == 8
    assert eight.settings.context_length == one.settings.context_length
    assert "8 parallel requests, each with its own context" in eight.reasons


def test_one_context_until_requests_come_at_once():
    facts = facts_of(BOTH, engine=NATIVE.name)
    one, four = (make_plan(facts, bundle(), INFO, Need(concurrent=flag)) for flag in (False, True))
    assert (one.settings.parallel, four.settings.parallel) == (1, 4)
    assert four.memory.kv_bytes == 4 * one.memory.kv_bytes
    assert "1 parallel request; reloads with 4 slots under concurrent load" in one.reasons
    assert "4 parallel requests, each with its own context" in four.reasons


@pytest.mark.parametrize(
    "wanted",
    [{"num_parallel": 1}, {"num_parallel": 3}, {"replicas": 2}, {"engine": PYTHON_SERVER.name}],
)
def test_a_number_that_was_asked_for_does_not_change(wanted):
    given = {"engine": NATIVE.name} | wanted
    plan = make_plan(facts_of(BOTH, **given), bundle(), INFO, Need())
    assert not plan.may_grow
    if asked := wanted.get("num_parallel"):
        assert plan.settings.parallel == asked


@pytest.mark.parametrize("ram_gib", [16, 4, 1.2, 1.0])
def test_as_many_as_fit_beside_the_whole_context_if_nobody_said_how_many(ram_gib):
    platform = replace(CPU, ram_total_bytes=int(ram_gib * GIB))
    wanted = replace(INFO, context_length=8192)
    facts = facts_of(BOTH, platform, engine=NATIVE.name, context_length=8192)
    plan = make_plan(facts, bundle(), wanted, Need(concurrent=True))
    assert plan.settings.context_length == 8192
    assert plan.settings.parallel in (1, 2, 4)
    first = make_plan(facts, bundle(), wanted, Need())
    assert first.most_parallel == plan.settings.parallel == plan.most_parallel
    assert first.may_grow is (plan.settings.parallel > 1) and not plan.may_grow
    usable = platform.ram_total_bytes - facts.reserve_of()
    assert plan.memory.total_bytes <= usable
    if plan.settings.parallel < 4:  # one step more would not have
        assert plan.memory.total_bytes + plan.memory.kv_bytes > usable


def test_an_automatic_context_shrinks_for_the_requests_that_were_asked_for():
    small = replace(CPU, ram_total_bytes=900 * MIB)
    facts = facts_of(BOTH, small, engine=NATIVE.name, num_parallel=8)
    plan = make_plan(facts, bundle(), INFO, Need())
    assert plan.settings.parallel == 8
    assert plan.settings.context_length < 4096


def test_log_probabilities_cost_nothing_and_no_second_load():
    facts = facts_of(BOTH, engine=NATIVE.name)
    plain, wanted = (
        make_plan(facts, bundle(), INFO, Need(logprobs=flag)) for flag in (False, True)
    )
    assert plain.memory == wanted.memory
    assert plain.settings.logprobs
