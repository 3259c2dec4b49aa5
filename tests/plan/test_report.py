"""The plan as plain values: devices, the command without secrets, the short form."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import CPU, GIB, H100, INFO, LLAMA_CPP_GPU, LLAMA_CPP_HERE, bundle, facts
from vllama.base.units import format_amounts
from vllama.config.engine_settings import EngineSettings
from vllama.config.secrets import mask
from vllama.engines.base import DiscoveredEngines, Installation
from vllama.engines.llamacpp.llama_cpp_python import ENGINE as LLAMA_CPP
from vllama.engines.llamacpp.llama_server import ENGINE as LLAMA_SERVER
from vllama.plan.choose import make_plan
from vllama.plan.preview import preview_fit
from vllama.plan.report import make_device_rows, make_report, report_plan, shorten
from vllama.plan.types import Concessions, Facts, Need


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["x", "--api-key", "s3cret", "--port", "1"], ["x", "--api-key", "***", "--port", "1"]),
        (["--api_key=s3cret"], ["--api_key=***"]),
        (["--hf-token", "hf_1"], ["--hf-token", "***"]),
        (["--api-key", "--verbose"], ["--api-key", "--verbose"]),
        (["--tokenizer", "t", "--max-tokens", "5"], ["--tokenizer", "t", "--max-tokens", "5"]),
        (["--ssl-keyfile", "/k.pem"], ["--ssl-keyfile", "/k.pem"]),
        ([], []),
    ],
)
def test_secrets_are_masked(argv: list[str], shown: list[str]) -> None:
    assert mask(argv) == shown


def test_each_device_has_its_share() -> None:
    here = facts(CPU)
    plan = make_plan(here, bundle(), INFO, Need())
    (ram,) = make_device_rows(here, plan)
    assert (ram["device"], ram["total_bytes"]) == ("RAM", 16 * GIB)
    assert ram["takes_bytes"] == plan.memory.total_bytes <= ram["usable_bytes"] < 16 * GIB
    first = H100.accelerators[0]
    second = replace(first, index=1, total_bytes=40 * GIB, free_bytes=39 * GIB)
    both = facts(replace(H100, accelerators=(first, second)), (LLAMA_CPP_GPU,))
    one, rest = make_device_rows(both, make_plan(both, bundle(), INFO, Need()))
    assert rest["device"] == "RAM" and rest["takes_bytes"] < GIB
    assert one["device"].startswith("GPU 0")
    both = replace(both, gpus="spread")
    rows = make_device_rows(both, make_plan(both, bundle(), INFO, Need()))
    assert [row["device"][:5] for row in rows] == ["GPU 0", "GPU 1", "RAM"]
    assert rows[0]["takes_bytes"] > 1.3 * rows[1]["takes_bytes"]


def test_the_short_form_has_the_file_and_the_reasons() -> None:
    plan = make_plan(facts(CPU), bundle("m:latest"), INFO, Need())
    first, *reasons = shorten(plan)
    assert first == "m:latest: m.gguf, gguf Q4_1, 98 MB"
    assert reasons == list(plan.reasons)


def test_everything_is_plain() -> None:
    told = report_plan(
        facts(CPU, engine_args=("--api-key", "mine")), bundle(), INFO, {"PATH": "/bin"}
    )
    assert json.loads(json.dumps(told)) == told
    assert told["engine"] == LLAMA_CPP_HERE.engine and told["reasons"]
    assert "mine" not in told["command"] and told["command"][-2:] == ["--api-key", "***"]
    (taken,) = [row for row in told["engines"] if row["taken"]]
    assert taken["engine"] == told["engine"]


@pytest.mark.parametrize(
    ("preferences", "relief", "said"),
    [
        ({}, Concessions(), "llama.cpp (llama-cpp-python) comes before it"),
        ({"engine": "llama-cpp-python"}, Concessions(), "'llama-cpp-python' was asked for by name"),
        ({}, Concessions(without=frozenset({"llama-server"})), "an earlier plan with it failed"),
    ],
)
def test_it_is_said_which_engine_is_taken_instead_and_why(preferences, relief, said) -> None:
    other = Installation(engine=LLAMA_SERVER.name, version="1", executable=Path("/bin/l"))
    first = replace(LLAMA_CPP, by_platform=((900, ""), (900, ""), (900, "runs on any CPU")))
    found = DiscoveredEngines(
        engines={engine.name: engine for engine in (first, LLAMA_SERVER)},
        installations={LLAMA_CPP.name: LLAMA_CPP_HERE, LLAMA_SERVER.name: other},
    )
    here = Facts(platform=CPU, found=found, settings=EngineSettings(**preferences), relief=relief)
    plan = make_plan(here, bundle(), INFO, Need())
    told = make_report(here, bundle(), plan, environ={}, files=())
    (row,) = [row for row in told["engines"] if not row["taken"]]
    assert row["reason"] == said
    (taken,) = [row for row in told["engines"] if row["taken"]]
    assert (taken["reason"] == "asked for by name") is bool(preferences)


def test_an_engine_that_can_do_less_is_said_to() -> None:
    other = Installation(engine=LLAMA_SERVER.name, version="1", executable=Path("/bin/l"))
    found = DiscoveredEngines(
        engines={engine.name: engine for engine in (LLAMA_CPP, LLAMA_SERVER)},
        installations={LLAMA_CPP.name: LLAMA_CPP_HERE, LLAMA_SERVER.name: other},
    )
    here = Facts(platform=CPU, found=found, settings=EngineSettings(num_parallel=4))
    told = report_plan(here, bundle(), INFO, {})
    reasons = {row["engine"]: row["reason"] for row in told["engines"] if not row["taken"]}
    assert reasons == {LLAMA_CPP.name: "it answers one request at a time"}


def test_two_amounts_that_differ_look_different() -> None:
    for less in (GIB // 5, GIB - 1, GIB, 3 * GIB):
        for more in (less + 1, less + 40_000, less + 10**7):
            one, other = format_amounts(more, less)
            assert one != other
    assert format_amounts(GIB, GIB) == ("1.0 GiB", "1.0 GiB")
    assert format_amounts(3 * GIB, GIB // 2) == ("3.0 GiB", "512 MiB")


def test_what_does_not_fit_still_names_its_engine_and_the_numbers() -> None:
    small = facts(replace(CPU, ram_total_bytes=GIB // 2))
    told = report_plan(small, bundle(), replace(INFO, weights_bytes=GIB), {})
    assert "weights 1.0 GiB" in told["error"] and told["hint"]
    (taken,) = [row for row in told["engines"] if row["taken"]]
    assert taken["engine"] == LLAMA_CPP_HERE.engine and "command" not in told
    assert told["memory"]["weights_bytes"] == GIB and told["context_length"]
    (ram,) = told["devices"]
    assert ram["takes_bytes"] == told["memory"]["total_bytes"] > ram["usable_bytes"]


@pytest.mark.parametrize(
    ("billions", "on_gpu", "fit"),
    [(1, False, "fits"), (1, True, "fits"), (100, True, "partly"), (900, True, "too large")],
)
def test_the_fit_of_a_model(billions: int, on_gpu: bool, fit: str) -> None:
    machine = replace(H100, ram_total_bytes=128 * GIB, ram_available_bytes=120 * GIB)
    here = facts(machine, (LLAMA_CPP_GPU,)) if on_gpu else facts(CPU)
    told = preview_fit(here, bundle(), replace(INFO, weights_bytes=billions * GIB))
    assert told["fit"] == fit
    assert ("devices" in told) == (fit != "too large")
