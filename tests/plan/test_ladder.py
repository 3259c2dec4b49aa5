"""What is tried after a failed start, and what is left as the user wants it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import (
    CPU,
    GIB,
    H100,
    INFO,
    LLAMA_CPP_HERE,
    LLAMA_SERVER_HERE,
    VLLM_HERE,
    bundle,
    facts,
    make_need,
)
from vllama.base.errors import NotEnoughMemory
from vllama.engines.base import DiscoveredEngines, Installation, Missing
from vllama.engines.llamacpp.llama_server import ENGINE as LLAMA_SERVER
from vllama.engines.transformers_serve import ENGINE as TRANSFORMERS
from vllama.models.types import Format
from vllama.plan.choose import make_plan
from vllama.plan.ladder import (
    MOST,
    Failed,
    list_fallbacks,
    make_command_line,
    make_first_plan,
    make_last_error,
    make_next_plan,
)
from vllama.plan.quant_fallback import list_other_forms, names_form
from vllama.plan.types import Need
from vllama.supervise.spec import Diagnosis, Fault

CAUSE = "it fell over"
TRANSFORMERS_HERE = Installation(engine="transformers", version="5", python=Path("/p"))
FOLDER = {"format": Format.SAFETENSORS, "path": Path("/models/m"), "files": (Path("/models/m/a"),)}
SMALL = bundle("other:Q2_K", path=Path("/models/s.gguf"), quant="Q2_K", size_bytes=5_000_000)
LARGE = bundle("other:F16", path=Path("/models/l.gguf"), quant="F16", size_bytes=10**9)
FORMS = [(LARGE, INFO), (SMALL, INFO)]
RECOGNIZED = (
    Fault.MEMORY, Fault.ARCHITECTURE, Fault.QUANTIZATION, Fault.MISMATCH, Fault.DEVICE,
)  # fmt: skip


def here(platform=CPU, *more, installed=(LLAMA_CPP_HERE,), **preferences):
    """Return facts with llama-server and transformers known too, those in `more` installed."""
    known = facts(platform, installed, **preferences)
    engines = dict(known.found.engines)
    installations, missing = dict(known.found.installations), dict(known.found.missing)
    for engine in (LLAMA_SERVER, TRANSFORMERS):
        engines[engine.name] = engine
        found = next((one for one in more if one.engine == engine.name), None)
        if found:
            installations[engine.name] = found
        else:
            missing[engine.name] = Missing(
                engine=engine.name, reason="it is not installed", hint="install it"
            )
    found = DiscoveredEngines(engines=engines, installations=installations, missing=missing)
    return replace(known, found=found)


def climb(known, fault, *, need=None, what=None, forms=()):
    """Return the plans that are tried while each fails in the same way; the first included."""
    need = need or Need()
    failed = [fallen(make_plan(known, what or bundle(), INFO, need), fault)]
    while (plan := make_next_plan(known, need, failed, forms)) is not None:
        failed.append(fallen(plan, fault))
        assert len(failed) <= MOST + 1
    return failed


def fallen(plan, fault, cause=CAUSE):
    return Failed(
        plan=plan,
        message=f"cannot start m: {cause}",
        diagnosis=Diagnosis(cause=cause, hint="do", fault=fault),
    )


def shape(failed):
    """Return what differs between plans: engine, context, file."""
    return [
        (one.plan.engine, one.plan.settings.context_length, one.plan.bundle.path.name)
        for one in failed
    ]


LLAMA, SERVER = "llama-cpp-python", "llama-server"


@pytest.mark.parametrize(
    ("known", "fault", "forms", "tried"),
    [
        (here(), Fault.MEMORY, [], [(LLAMA, 2048, "m.gguf")]),
        (
            here(),
            Fault.MEMORY,
            FORMS,
            [(LLAMA, 2048, "m.gguf"), (LLAMA, 2048, "s.gguf")],
        ),
        (
            here(CPU, LLAMA_SERVER_HERE),
            Fault.MEMORY,
            FORMS,
            [(SERVER, 2048, "m.gguf"), (SERVER, 2048, "s.gguf"), (LLAMA, 2048, "s.gguf")],
        ),
        (here(CPU, LLAMA_SERVER_HERE), Fault.ARCHITECTURE, FORMS, [(LLAMA, 4096, "m.gguf")]),
        (here(CPU, LLAMA_SERVER_HERE), Fault.MISMATCH, FORMS, [(LLAMA, 4096, "m.gguf")]),
        (
            here(CPU, LLAMA_SERVER_HERE),
            Fault.QUANTIZATION,
            FORMS,
            [(SERVER, 4096, "l.gguf"), (SERVER, 4096, "s.gguf"), (LLAMA, 4096, "s.gguf")],
        ),
        (here(), Fault.ARCHITECTURE, FORMS, []),
        (here(CPU, LLAMA_SERVER_HERE), Fault.PORT, FORMS, []),
        (here(CPU, LLAMA_SERVER_HERE), None, FORMS, []),
        *(
            (here(CPU, LLAMA_SERVER_HERE, strict=True), fault, FORMS, [])
            for fault in RECOGNIZED
        ),
    ],
)  # fmt: skip
def test_the_steps(known, fault, forms, tried):
    assert shape(climb(known, fault, forms=forms))[1:] == tried


def test_fewer_requests_at_once_come_before_a_smaller_file():
    known, need = here(CPU, LLAMA_SERVER_HERE), Need(concurrent=True)
    plans = [one.plan for one in climb(known, Fault.MEMORY, need=need, forms=FORMS)]
    assert [plan.settings.parallel for plan in plans[:3]] == [4, 4, 1]
    assert [plan.bundle.path.name for plan in plans[:4]] == ["m.gguf"] * 3 + ["s.gguf"]


def test_a_gpu_engine_runs_shorter_then_with_fewer_then_without_graphs():
    known = here(H100, installed=(VLLM_HERE,))
    plans = [one.plan for one in climb(known, Fault.MEMORY, what=bundle(**FOLDER))]
    lines = [make_command_line(known, plan) for plan in plans]

    def value(line, flag):
        return line[line.index(flag) + 1]

    assert [value(line, "--max-model-len") for line in lines] == ["8192", "2048", "2048", "2048"]
    assert [value(line, "--max-num-seqs") for line in lines] == ["256", "256", "16", "16"]
    assert ["--enforce-eager" in line for line in lines] == [False, False, False, True]
    assert [plan.instead.partition(":")[0] for plan in plans] == [
        *("", "second plan", "third plan", "fourth plan"),
    ]


def test_another_engine_reads_the_same_files():
    known = here(H100, TRANSFORMERS_HERE, installed=(VLLM_HERE,))
    tried = climb(known, Fault.ARCHITECTURE, what=bundle(**FOLDER))
    assert [one.plan.engine for one in tried] == ["vllm", "transformers"]
    assert "instead of vLLM" in tried[1].plan.instead and CAUSE in tried[1].plan.instead
    assert tried[1].plan.reasons[0] == tried[1].plan.instead


@pytest.mark.parametrize("fault", RECOGNIZED)
@pytest.mark.parametrize("name", ["llama.cpp", "llama-server"])
def test_an_engine_that_was_named_stays(name, fault):
    tried = climb(here(CPU, LLAMA_SERVER_HERE, engine=name), fault, forms=FORMS)
    assert len({one.plan.engine for one in tried}) == 1
    error = make_last_error(here(CPU, LLAMA_SERVER_HERE, engine=name), tried)
    assert "not changed, as requested: the engine" in error.message


@pytest.mark.parametrize(("preferred", "need"), [(4096, Need()), (None, make_need(num_ctx=4096))])
def test_a_context_that_was_asked_for_stays(preferred, need):
    known = here(CPU, LLAMA_SERVER_HERE, context_length=preferred)
    tried = climb(known, Fault.MEMORY, need=need)
    assert {one.plan.settings.context_length for one in tried} == {4096}
    assert "as requested: the context of 4096 tokens" in make_last_error(known, tried).message


def test_requests_at_once_that_were_asked_for_stay():
    known = here(CPU, LLAMA_SERVER_HERE, num_parallel=8)
    tried = climb(known, Fault.MEMORY)
    assert {one.plan.settings.parallel for one in tried if one.plan.engine == SERVER} == {8}
    assert "8 parallel requests" in make_last_error(known, tried).message


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("m:latest", False),
        ("llama3.2:3b", False),
        ("hf.co/org/m-GGUF:Q8_0", True),
        ("m-q4_k_m:latest", True),
        ("llama3.2:3b-instruct-q4_K_M", True),
    ],
)
def test_a_quantization_in_the_name_stays(name, asked):
    what = bundle(name)
    assert names_form(what) is asked
    tried = climb(here(), Fault.MEMORY, what=what, forms=FORMS)
    assert ("s.gguf" in {one.plan.bundle.path.name for one in tried}) is not asked
    assert {one.plan.bundle.name for one in tried} == {name}
    assert "use other:Q2_K, which is installed" in str(make_last_error(here(), tried, FORMS).hint)


def test_the_last_word_has_the_first_cause_and_what_was_tried():
    known = here(CPU, LLAMA_SERVER_HERE)
    first = fallen(make_plan(known, bundle(), INFO, Need()), Fault.MEMORY, "cause A")
    second = fallen(make_next_plan(known, Need(), [first]), Fault.ARCHITECTURE, "cause B")
    third = make_next_plan(known, Need(), [first, second])
    assert "the second failed: cause B" in third.instead
    error = make_last_error(known, [first, second, fallen(third, None, "cause C")])
    assert error.message == (
        "cannot start m: cause A; tried next: a context of 2048 tokens instead of 4096 (cause B); "
        f"llama.cpp (llama-cpp-python) instead of {LLAMA_SERVER.title} (cause C)"
    )
    assert str(error.hint).startswith("do")


def test_an_engine_that_stands_in_nobody_s_way_is_not_spoken_of():
    known = here(engine="llama.cpp")
    assert "asked for" not in make_last_error(known, climb(known, Fault.ARCHITECTURE)).message


def test_a_failure_that_nothing_is_known_of_keeps_its_words():
    error = make_last_error(here(engine="llama.cpp"), climb(here(engine="llama.cpp"), None))
    assert (error.message, error.hint) == (f"cannot start m: {CAUSE}", "do")


def test_an_engine_that_could_be_installed_is_offered():
    hint = str(make_last_error(here(), climb(here(), Fault.ARCHITECTURE)).hint)
    assert LLAMA_SERVER.title in hint and "vllama engines install" in hint
    assert "engines install" not in str(make_last_error(here(), climb(here(), Fault.MEMORY)).hint)


@pytest.mark.parametrize(
    ("path", "hub_id", "other", "other_hub", "one_model"),
    [
        ("/a/M-Q8_0.gguf", None, "/a/M-Q2_K.gguf", None, True),
        ("/a/M-Q8_0.gguf", None, "/b/M-Q2_K.gguf", None, False),
        ("/a/M-Q8_0.gguf", None, "/a/N-Q2_K.gguf", None, False),
        ("/a/x/M-Q8_0.gguf", "o/r", "/a/y/M-Q2_K.gguf", "o/r", True),
        ("/a/x/M-Q8_0.gguf", "o/r", "/a/y/M-Q2_K.gguf", "o/s", False),
        ("/a/sha256-1", None, "/a/sha256-2", None, False),
    ],
)
def test_forms_of_one_model(path, hub_id, other, other_hub, one_model):
    large = bundle("l", path=Path(path), hub_id=hub_id, quant="Q8_0", size_bytes=9)
    small = bundle("s", path=Path(other), hub_id=other_hub, quant="Q2_K", size_bytes=3)
    assert list_other_forms(large, [large, small]) == ((small,) if one_model else ())


def test_without_its_gpu_a_model_is_planned_for_the_cpu():
    offloading = replace(LLAMA_CPP_HERE, offloads=True, backend="CUDA")
    known = here(H100, installed=(offloading,))
    need = make_need(num_gpu=99)
    first, second = climb(known, Fault.DEVICE, need=need)
    assert first.plan.memory.on_gpu and not second.plan.memory.on_gpu
    assert (second.plan.settings.gpu_layers, second.plan.settings.gpus) == (0, ())
    assert second.plan.settings.threads == first.plan.settings.threads + 1
    assert second.plan.instead.startswith("second plan: on the CPU, because the first failed")
    assert len(climb(here(CPU, LLAMA_SERVER_HERE), Fault.DEVICE)) == 1, "there is no GPU to lose"
    assert len(climb(here(H100, installed=(offloading,), strict=True), Fault.DEVICE)) == 1


def test_what_the_plan_says_of_failures():
    known = here(CPU, LLAMA_SERVER_HERE)
    told = list_fallbacks(known, Need(), make_plan(known, bundle(), INFO, Need()))
    other = (f"llama.cpp (llama-cpp-python) instead of {LLAMA_SERVER.title}",)
    assert told[Fault.ARCHITECTURE] == told[Fault.MISMATCH] == told[Fault.QUANTIZATION] == other
    assert told[Fault.MEMORY][0] == "a context of 2048 tokens instead of 4096"
    assert not list_fallbacks(here(strict=True), Need(), make_plan(here(), bundle(), INFO, Need()))


@given(
    faults=st.lists(st.sampled_from([*RECOGNIZED, Fault.PORT, None]), min_size=1, max_size=9),
    engine=st.sampled_from([None, "llama.cpp", "llama-server"]),
    context=st.sampled_from([None, 512, 4096, 8192]),
    parallel=st.sampled_from([0, 1, 4]),
    name=st.sampled_from(["m:latest", "m:Q8_0"]),
)
def test_it_ends_never_repeats_itself_and_keeps_what_was_asked_for(
    faults, engine, context, parallel, name
):
    known = here(
        CPU, LLAMA_SERVER_HERE, engine=engine, context_length=context, num_parallel=parallel
    )
    first = make_plan(known, bundle(name), INFO, Need())
    failed = [fallen(first, faults[0])]
    for fault in faults[1:]:
        plan = make_next_plan(known, Need(), failed, FORMS)
        if plan is None:
            break
        failed.append(fallen(plan, fault))
        assert plan.instead and plan.bundle.name == name
        assert not engine or plan.engine == first.engine
        assert not context or plan.settings.context_length == first.settings.context_length
        assert name == "m:latest" or plan.bundle.path == first.bundle.path
        if plan.engine == first.engine:
            assert plan.settings.context_length <= first.settings.context_length
    assert len(failed) <= MOST + 1
    commands = [make_command_line(known, one.plan) for one in failed]
    assert len(set(commands)) == len(commands)
    assert make_last_error(known, failed, FORMS).message.startswith(f"cannot start m: {CAUSE}")


def test_a_cpu_engine_runs_eagerly_already():
    here_now = here(installed=(replace(VLLM_HERE, offloads=False),))
    lines = [
        make_command_line(here_now, one.plan)
        for one in climb(here_now, Fault.MEMORY, what=bundle(**FOLDER))
    ]
    told = [(line[line.index("--max-model-len") + 1], line[line.index("--max-num-seqs") + 1])
            for line in lines]  # fmt: skip
    assert told == [("4096", "128"), ("2048", "128"), ("2048", "8")]
    assert all("--enforce-eager" in line for line in lines)


# -- a first plan that is refused for memory ----------------------------------------------------

BIG = bundle("m:latest", path=Path("/models/m.gguf"), quant="F16", size_bytes=40 * GIB)
BIG_INFO = replace(INFO, weights_bytes=40 * GIB)
MIDDLE = bundle("o:Q8_0", path=Path("/models/mid.gguf"), quant="Q8_0", size_bytes=20 * GIB)
MIDDLE_INFO = replace(INFO, weights_bytes=20 * GIB)
SOME = [(MIDDLE, MIDDLE_INFO), (SMALL, INFO)]


def refusing(known, what=BIG, forms=SOME, need=None):
    with pytest.raises(NotEnoughMemory) as caught:
        make_first_plan(known, what, BIG_INFO, need or Need(), lambda: forms)
    return caught.value


def test_what_does_not_fit_is_loaded_in_a_smaller_form_that_is_here():
    plan = make_first_plan(here(), BIG, BIG_INFO, Need(), lambda: SOME)
    assert (plan.bundle.path.name, plan.bundle.name) == ("s.gguf", "m:latest")
    assert plan.instead.startswith("second plan: the installed Q2_K variant, because the")
    assert plan.instead.endswith(
        "first failed: it needs 40.3 GiB of system memory, 15.5 GiB usable"
    )
    assert plan.reasons[0] == plan.instead
    assert plan.settings.context_length == 4096


def test_the_forms_are_looked_for_only_if_it_does_not_fit():
    plan = make_first_plan(here(), bundle(), INFO, Need(), lambda: pytest.fail("not needed"))
    assert plan == make_plan(here(), bundle(), INFO, Need())


def test_another_engine_may_take_less_memory():
    info = replace(INFO, weights_bytes=14 * GIB)  # 15.5 GiB are usable
    known = here(CPU, TRANSFORMERS_HERE, installed=(replace(VLLM_HERE, offloads=False),))
    with pytest.raises(NotEnoughMemory):
        make_plan(known, bundle(**FOLDER), info, Need())
    plan = make_first_plan(known, bundle(**FOLDER), info, Need())
    assert plan.engine == "transformers"
    assert plan.instead.startswith(f"second plan: {TRANSFORMERS.title} instead of vLLM, because")


def test_what_was_asked_for_stays_before_a_start_too():
    assert "use o:Q8_0, which is installed" in str(refusing(here(strict=True)).hint)
    named = replace(BIG, name="hf.co/org/m-GGUF:F16")
    assert "which is installed and smaller" in str(refusing(here(), named).hint)
    alone = refusing(here(CPU, LLAMA_SERVER_HERE, engine="llama.cpp"), forms=[])
    assert alone.message.startswith("cannot load 'm:latest': model requires more system memory")
    assert "smaller quantization" in str(alone.hint)
    long = make_first_plan(here(context_length=2048), BIG, BIG_INFO, Need(), lambda: SOME)
    assert long.settings.context_length == 2048


def test_a_fault_after_that_goes_on_from_there():
    known = here(CPU, LLAMA_SERVER_HERE)
    plan = make_first_plan(known, BIG, BIG_INFO, Need(), lambda: SOME)
    then = make_next_plan(known, Need(), [fallen(plan, Fault.MEMORY)], SOME)
    assert then is not None and then.bundle.path == plan.bundle.path
    assert then.settings.context_length == 2048
