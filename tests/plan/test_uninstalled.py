"""Models for which no engine is installed: what they would need, and whether that is here."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import CPU, GIB, H100, INFO, LLAMA_CPP_HERE, bundle, facts
from vllama.base.errors import EngineMissing, NoPlan, NotEnoughMemory
from vllama.models.types import Format
from vllama.plan.choose import list_loadable_formats, make_plan
from vllama.plan.report import report_plan
from vllama.plan.types import Need

FOLDER = bundle("huge", format=Format.SAFETENSORS, path=Path("/models/huge"))


def refuse(weights_bytes, platform=CPU, **preferences):
    info = replace(INFO, weights_bytes=weights_bytes)
    with pytest.raises(NoPlan) as caught:
        make_plan(facts(platform, **preferences), FOLDER, info, Need())
    return caught.value


@pytest.mark.parametrize(
    ("platform", "kind"), [(CPU, "more system memory"), (H100, "more GPU memory")]
)
def test_a_model_that_would_not_fit_is_said_not_to_and_nothing_is_offered_for_it(platform, kind):
    error = refuse(200 * GIB, platform)
    assert isinstance(error, NotEnoughMemory)
    assert "no engine for it is installed" in error.message or "vLLM" in error.message
    assert kind in error.message and "200.0 GiB" in error.message
    assert "install" not in str(error.hint).partition("; or ")[0]


def test_a_model_that_would_fit_keeps_its_offer():
    error = refuse(2 * GIB, H100)
    assert isinstance(error, EngineMissing) and error.engines[0] == "vllm"
    assert "with vLLM it would fit" in error.message and "weights 2.0 GiB" in error.message
    assert "vllama engines install vllm" in str(error.hint)


def test_that_an_engine_cannot_read_a_format_comes_before_its_absence():
    known = (LLAMA_CPP_HERE,)
    missing = refuse(GIB, installed=(), engine="llama-cpp-python")
    assert "it reads gguf" in missing.message and "not installed" not in missing.message
    assert "it reads gguf" in refuse(GIB, installed=known, engine="llama-cpp-python").message


def test_the_report_says_so_too():
    report = report_plan(facts(CPU), FOLDER, replace(INFO, weights_bytes=200 * GIB), {})
    assert "200.0 GiB" in report["error"] and report["hint"]


LLAMA_CPP_ONLY = facts(CPU, (LLAMA_CPP_HERE,))


def test_conversion_is_offered_where_its_result_could_be_served():
    wanted = replace(bundle(), format=Format.SAFETENSORS, hub_id="Org/Model")
    with pytest.raises(NoPlan) as caught:
        make_plan(LLAMA_CPP_ONLY, wanted, INFO, Need())
    assert caught.value.hint.endswith("; or convert it to GGUF: vllama convert Org/Model")
    with pytest.raises(NoPlan) as caught:
        make_plan(facts(CPU, ()), wanted, INFO, Need())
    assert "convert" not in (caught.value.hint or "")


def test_what_is_fetched_to_be_loaded_can_be_loaded():
    assert list_loadable_formats(LLAMA_CPP_ONLY) == (Format.GGUF,)
    assert list_loadable_formats(facts(CPU, ())) == (Format.GGUF,)
