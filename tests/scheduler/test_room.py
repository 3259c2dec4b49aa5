"""What a plan says of the memory that is free now: pure, on facts of made-up machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.facts import CPU, GIB, H100, INFO, LLAMA_CPP_GPU, bundle, facts
from vllama.plan.report import report_plan
from vllama.scheduler.policy import Resident
from vllama.scheduler.room import Room, add_room, find_free, plan_together

LARGE = replace(INFO, weights_bytes=8 * GIB)


def report(**more: Any) -> dict[str, Any]:
    told = report_plan(
        facts(CPU), bundle(), LARGE, {}, files=[{"name": "m", "size_bytes": 8 * GIB, "here": True}]
    )
    assert "error" not in told
    return told | more


def resident(key: str, gigabytes: int, **more: Any) -> Resident:
    holds = {"ram": gigabytes * GIB}
    return Resident(key=key, holds=holds, claims=holds, **more)


def ask(free_gib: float, *models: Resident, told: dict[str, Any] | None = None) -> dict[str, Any]:
    names = {model.key: f"{model.key}:8b" for model in models}
    room = Room(free={"ram": int(free_gib * GIB)}, models=models, names=names, max_loaded=3)
    return add_room(told or report(), room)


def test_enough_is_free() -> None:
    now = ask(12.0)["now"]
    assert (now["fits"], now["missing_bytes"], now["unloads"], now["hint"]) == (True, 0, [], None)
    assert now["summary"].startswith("Fits now: needs ")
    assert now["summary"].endswith(", 12.0 GiB free")


def test_what_other_programs_hold_is_told_with_what_helps() -> None:
    takes = report()["devices"][0]["takes_bytes"]
    told = ask((takes - 3 * GIB) / GIB)
    assert told["now"]["missing_bytes"] == pytest.approx(3 * GIB, abs=9)
    assert told["now"]["summary"] == (
        "Fits this machine, but not now: 3.0 GiB more memory must be free"
    )
    assert not told["now"]["fits"] and told["now"]["hint"] == "close other programs"
    assert told["devices"][0]["free_bytes"] == pytest.approx(takes - 3 * GIB, abs=9)


def test_a_smaller_form_and_a_smaller_context_help_where_they_are_enough() -> None:
    candidates = [
        {"quantization": name, "size_bytes": size * GIB, "taken": name == "Q8_0", "repository": "r"}
        for name, size in (("Q8_0", 8), ("Q6_K", 6), ("Q4_K_M", 4), ("Q2_K", 2))
    ]
    told = report(candidates=candidates, context_length=32768)
    told["memory"] = told["memory"] | {"kv_cache_bytes": 4 * GIB}
    free = told["devices"][0]["takes_bytes"] / GIB - 3
    assert ask(free, told=told)["now"]["hint"] == (
        "close other programs, or choose Q4_K_M, or reduce the context length to 8192 tokens"
    )


def test_models_that_are_unloaded_for_it_are_named() -> None:
    told = ask(4.0, resident("old", 6, last_used_s=1.0), resident("new", 6, last_used_s=2.0))
    assert told["now"]["fits"] and told["now"]["unloads"] == ["old:8b"]
    assert told["now"]["summary"] == "Fits this machine; old:8b is unloaded for it"
    assert told["devices"][0]["free_bytes"] == 10 * GIB
    told = ask(1.0, resident("old", 6), resident("new", 6))
    assert told["now"]["summary"] == "Fits this machine; new:8b, old:8b are unloaded for it"


def test_a_busy_model_has_to_finish_first() -> None:
    told = ask(4.0, resident("busy", 6, busy=True))
    assert told["now"]["fits"]
    assert told["now"]["summary"] == (
        "Fits this machine; loads after requests have finished and busy:8b is unloaded"
    )


def test_memory_that_no_unloading_frees_is_missing() -> None:
    takes = report()["devices"][0]["takes_bytes"] / GIB
    now = ask(takes - 5, resident("small", 2))["now"]
    assert not now["fits"] and now["unloads"] == ["small:8b"]
    assert now["summary"] == (
        "Fits this machine, but not now: 3.0 GiB more memory must be free, even after small:8b is "
        "unloaded"
    )


def test_a_gpu_that_is_in_use() -> None:
    (gpu,) = H100.accelerators
    machine = replace(H100, accelerators=(replace(gpu, free_bytes=5 * GIB),))
    known = facts(machine, (LLAMA_CPP_GPU,))
    free = find_free(known)
    ours = replace(known, ours={"gpu0": 75 * GIB})
    told = report_plan(ours, bundle(), LARGE, {}, files=[])
    assert free["gpu0"] == 5 * GIB - known.reserve_of("gpu0")
    now = add_room(told, Room(free=free))["now"]
    assert not now["fits"] and "more memory on GPU 0 must be free" in now["summary"]
    others = report_plan(known, bundle(), LARGE, {}, files=[])
    assert add_room(others, Room(free=free))["now"]["fits"]


def test_what_does_not_fit_the_machine_is_loaded_or_lies_elsewhere_has_no_now() -> None:
    assert ask(12.0, told=report(error="too large"))["now"] is None
    assert ask(12.0, told=report(format="remote"))["now"] is None
    room = Room(free={"ram": 3 * GIB})
    told = add_room(report(), room, is_loaded=True)
    assert told["now"] is None
    assert told["devices"][0]["free_bytes"] == 3 * GIB + told["devices"][0]["takes_bytes"]


@pytest.mark.parametrize(
    ("free_models", "max_loaded", "unloads", "summary"),
    [
        (3.1, 3, [[], [], []], "They fit together"),
        (2.1, 3, [[], [], ["a"]], "serve unloads a for c"),
        (1.1, 3, [[], ["a"], ["b"]], "serve unloads a for b, then b for c"),
        (9.0, 2, [[], [], ["a"]], "a model on request (at most 2 at a time)"),
        (0.9, 3, [[], [], []], "a, b, c cannot be loaded"),
    ],
)
def test_several_models_meet_each_other(
    free_models: float, max_loaded: int, unloads: list[list[str]], summary: str
) -> None:
    takes = report()["devices"][0]["takes_bytes"]
    free = {"ram": int(free_models * takes)}
    reports = [report(model=name) for name in "aabc"]  # a model that is named twice is loaded once
    told = plan_together(reports, Room(free=free, max_loaded=max_loaded))
    assert [one["now"]["unloads"] for one in told["models"]] == unloads
    together = told["together"]
    assert summary in together["summary"]
    assert together["fits"] == (together["summary"] == "They fit together")
    (device,) = together["devices"]
    assert (device["takes_bytes"], device["free_bytes"]) == (3 * takes, free["ram"])


def test_one_of_several_that_has_no_plan_does_not_keep_the_others_out() -> None:
    lost = {"model": "lost", "error": "cannot find a model", "hint": None}
    told = plan_together([lost, report(model="a")], Room(free={"ram": 64 * GIB}))
    assert told["models"][1]["now"]["fits"] and not told["together"]["fits"]
    assert told["together"]["summary"] == "lost cannot be loaded; the others fit together"
