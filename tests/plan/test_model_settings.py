"""A model's own settings come before those for all, and the plan says where they are from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.facts import INFO, LLAMA_CPP_HERE, LLAMA_SERVER_HERE, bundle, facts
from vllama.engines.base import Mode
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
        ("context_length", 2048, lambda plan: plan.settings.context_length),
        ("num_parallel", 3, lambda plan: plan.settings.parallel),
        ("engine_args", ("--own",), lambda plan: plan.settings.extra_args),
        ("kv_cache_type", "q8_0", lambda plan: plan.settings.kv_cache_type),
    ],
)
def test_each_field_holds_for_its_model(field, value, read) -> None:
    assert read(make()) != value
    plan = make(**{field: value})
    assert read(plan) == value
    assert f'set in [models."m*"]: {field}' in plan.reasons


@pytest.mark.parametrize("mode", [Mode.CHAT, Mode.EMBED])
@pytest.mark.parametrize("engine", ["llama-server", "llama-cpp-python"])
@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "iq4_nl"])
def test_llama_cpp_quantizes_no_cache_without_flash_attention(engine, kind, mode) -> None:
    """It refuses to start: "quantized V cache requires flash_attn to be enabled"."""
    own = {"engine": engine, "kv_cache_type": kind, "flash_attention": False}
    known = facts(installed=(LLAMA_CPP_HERE, LLAMA_SERVER_HERE), **own)
    plan = make_plan(known, bundle(), INFO, Need(mode=mode))
    assert plan.settings.kv_cache_type is None
    why = f"KV cache in f16: {kind} needs flash attention, which is off"
    assert plan.reasons.count(why) == 1


def test_embeddings_have_no_flash_attention() -> None:
    known = facts(installed=(LLAMA_SERVER_HERE,), kv_cache_type="q8_0")
    for mode, kind in ((Mode.CHAT, "q8_0"), (Mode.EMBED, None)):
        settings = make_plan(known, bundle(), INFO, Need(mode=mode)).settings
        assert (settings.flash_attention, settings.kv_cache_type) == (mode is Mode.CHAT, kind)


def test_replicas_share_what_there_is() -> None:
    reasons = make(replicas=2).reasons
    assert "2 replicas share the cores and the memory" in reasons
