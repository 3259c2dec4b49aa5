"""A model's own settings come before those for all, and the plan says where they are from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.facts import INFO, LLAMA_CPP_HERE, LLAMA_SERVER_HERE, bundle, facts
from vllama.models.settings import ModelSettings, ModelTables
from vllama.plan.choose import make_plan
from vllama.plan.types import Need, Plan

FOR_ALL = {
    "context_length": 1024,
    "num_parallel": 1,
    "engine_args": ("--all",),
    "kv_cache_type": "f16",
}


def make(**settings: object) -> Plan:
    tables = ModelTables((("m*", ModelSettings(**settings)),))
    model = replace(bundle(), settings=tables.find(["m:latest"]))
    known = facts(installed=(LLAMA_CPP_HERE, LLAMA_SERVER_HERE), **FOR_ALL)
    return make_plan(known, model, INFO, Need())


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("engine", "llama-cpp-python", lambda plan: plan.engine),
        ("context", 2048, lambda plan: plan.settings.context_length),
        ("parallel", 3, lambda plan: plan.settings.parallel),
        ("engine_args", ("--own",), lambda plan: plan.settings.extra_args),
        ("kv_cache_type", "q8_0", lambda plan: plan.settings.kv_cache_type),
    ],
)
def test_each_field_holds_for_its_model(field, value, read) -> None:
    assert read(make()) != value
    plan = make(**{field: value})
    assert read(plan) == value
    assert f'set in [models."m*"]: {field}' in plan.reasons


def test_replicas_share_what_there_is() -> None:
    reasons = make(replicas=2).reasons
    assert "2 replicas share the cores and the memory" in reasons
