"""A draft model is used where it was measured to pay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import H100, LLAMA_CPP_HERE, LLAMA_SERVER_HERE, VLLM_HERE, bundle, facts
from vllama.models.types import Format, ModelInfo
from vllama.plan.choose import make_plan
from vllama.plan.draft_model import (
    TRIAL_TOKENS,
    DraftSpeeds,
    Speed,
    choose_draft,
    make_key,
    wants_draft,
)
from vllama.plan.types import Need

FAST, SLOW = (Speed(tokens=TRIAL_TOKENS, seconds=TRIAL_TOKENS / rate) for rate in (40, 20))
MODEL = bundle(draft=Path("/small.gguf"))
INFO = ModelInfo(
    architecture="llama",
    context_length=2048,
    draft_kind="simple",
    block_count=2,
    embedding_length=64,
    head_count=4,
    head_count_kv=(4, 4),
    vocab_size=100,
    weights_bytes=10**6,
)


@pytest.mark.parametrize(
    ("drafted", "plain", "used", "words"),
    [
        (Speed(), Speed(), True, "its draft model is used, and its speed is measured"),
        # too little to go by
        (
            Speed(tokens=TRIAL_TOKENS - 1, seconds=1),
            FAST,
            True,
            "is used, and its speed is measured",
        ),
        (FAST, Speed(), False, "is not used this time, for comparison: 40 tokens/s with it"),
        (FAST, Speed(tokens=5, seconds=1), False, "is not used this time, for comparison"),
        (FAST, SLOW, True, "is used: measured 40 tokens/s with it, 20 tokens/s without"),
        (SLOW, FAST, False, "is not used: measured 20 tokens/s with it, 40 tokens/s without"),
        (FAST, FAST, False, "is not used"),  # it takes memory, and gains nothing
    ],
)
def test_the_faster_way_is_taken(drafted: Speed, plain: Speed, used: bool, words: str) -> None:
    chosen, reason = choose_draft(DraftSpeeds(with_draft=drafted, without=plain))
    assert chosen is used
    assert words in reason


def test_the_plan_goes_by_what_was_measured_for_this_engine() -> None:
    known = facts(installed=(LLAMA_SERVER_HERE,))
    plan = make_plan(known, MODEL, INFO, Need())
    assert plan.settings.draft_kind == "simple"
    speeds = {make_key(MODEL, LLAMA_SERVER_HERE): DraftSpeeds(with_draft=SLOW, without=FAST)}
    plan = make_plan(replace(known, draft_speeds=speeds), MODEL, INFO, Need())
    assert plan.settings.draft_kind is None
    assert any("its draft model is not used" in reason for reason in plan.reasons)
    newer = replace(LLAMA_SERVER_HERE, version="b99999")
    known = replace(facts(installed=(newer,)), draft_speeds=speeds)
    assert make_plan(known, MODEL, INFO, Need()).settings.draft_kind == "simple"


def test_vllm_drafts_as_measured_with_a_folder() -> None:
    model = bundle(format=Format.SAFETENSORS, draft=Path("/small"))
    known = facts(platform=H100, installed=(VLLM_HERE,))
    assert make_plan(known, model, INFO, Need()).settings.draft_kind == "simple"
    speeds = {make_key(model, VLLM_HERE): DraftSpeeds(with_draft=SLOW, without=FAST)}
    plan = make_plan(replace(known, draft_speeds=speeds), model, INFO, Need())
    assert plan.settings.draft_kind is None
    off = replace(model, parameters={"draft_num_predict": 0})
    assert make_plan(known, off, INFO, Need()).settings.draft_kind is None


@pytest.mark.parametrize(
    ("count", "heads", "kind"), [(2, 1, "mtp"), (2, 0, None), (None, 1, None), (0, 1, None)]
)
def test_heads_of_the_model_draft_where_that_is_asked_for(
    count: int | None, heads: int, kind: str | None
) -> None:
    parameters = {} if count is None else {"draft_num_predict": count}
    model = bundle(format=Format.SAFETENSORS, parameters=parameters)
    metadata = {"llama.nextn_predict_layers": heads}
    info = replace(INFO, draft_kind=None, metadata=metadata)
    plan = make_plan(facts(platform=H100, installed=(VLLM_HERE,)), model, info, Need())
    assert plan.settings.draft_kind == kind
    assert wants_draft(model) is bool(count)


def test_an_engine_without_draft_models_says_nothing_of_them() -> None:
    plan = make_plan(facts(installed=(LLAMA_CPP_HERE,)), MODEL, INFO, Need())
    assert plan.settings.draft_kind is None
    assert not any("draft" in reason for reason in plan.reasons)
