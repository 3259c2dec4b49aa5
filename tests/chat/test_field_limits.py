"""Fields for engines have ranges or lengths: whatever costs an engine n times something."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.chat.test_request_fields import CHAT
from vllama.base.errors import BadRequest
from vllama.chat.engine.field_limits import LIMITS, Limit, fit_field
from vllama.chat.engine.request_fields import HARMLESS, STANDARD, may_use_engine, pass_fields
from vllama.chat.prepare import prepare_chat
from vllama.chat.schema import MOST_BYTES
from vllama.dialects.openai.multipart import FormPart, pass_form
from vllama.dialects.openai.read import read_chat
from vllama.engines.external import KNOWN
from vllama.engines.request_body import LLAMACPP, SGLANG, VLLM

PASSED = sorted(STANDARD | HARMLESS | VLLM | SGLANG | LLAMACPP)


def test_no_row_of_the_table_is_for_a_field_that_is_never_sent() -> None:
    assert {*LIMITS} <= {*PASSED, "grammar", "logprobs"}


@pytest.mark.parametrize(
    "nest",
    [
        lambda x: x,
        lambda x: [[x]],
        lambda x: {"a": [x]},
        lambda x: {x: 1} if isinstance(x, str) else x,
    ],
    ids=["bare", "list", "object", "key"],
)
@pytest.mark.parametrize("is_text", [True, False])
def test_no_field_is_sent_with_any_length(nest: Callable[[Any], object], is_text: bool) -> None:
    for name in PASSED:
        own = "guided_json" if name == "structured_outputs" else name
        limit = LIMITS.get(own, Limit())
        number = limit.size if nest(0) != 0 else limit.values + 1
        value = nest("x" * (limit.size + 1) if is_text else [0] * number)
        with pytest.raises(BadRequest, match=f"'{own}': expected at most"):
            fit_field(name, {"json": value} if own != name else value)


@pytest.mark.parametrize("name", [name for name, limit in LIMITS.items() if limit.high < 1e30])
def test_numbers_are_held_to_their_range(name: str) -> None:
    limit = LIMITS[name]
    for value in (limit.low, limit.high):
        assert fit_field(name, value) == value
    for value in (limit.low - 1, limit.high + 1, 1e300, -1e300, 10**40):
        if limit.clamps:
            assert limit.low <= fit_field(name, value) <= limit.high
            continue
        with pytest.raises(BadRequest, match=f"'{name}': expected {limit.low:g} to "):
            fit_field(name, value)


def refuse(name: str, value: Any) -> Any:
    return pytest.param(name, value, id=f"{name} {str(value)[:20]}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        refuse("n_probs", 1_000_000),
        refuse("dry_sequence_breakers", ["x"] * 33),
        refuse("dry_sequence_breakers", ["x" * 2000]),
        refuse("samplers", ["top_k"] * 101),
        refuse("logit_bias", {str(number): 1 for number in range(2001)}),
        refuse("logit_bias", [["x" * 31_000, 1]]),
        refuse("stop_token_ids", [*range(1001)]),
        refuse("grammar", "root ::= " + " | ".join('"a"' for _ in range(2002))),
        refuse("json_schema", {"enum": ["x" * MOST_BYTES]}),
        refuse("json_schema", {"type": "string", "minLength": 9, "maxLength": 1}),
    ],
)
def test_what_costs_llama_server_much_is_refused(name: str, value: object) -> None:
    with pytest.raises(BadRequest):
        prepare_chat(read_chat(CHAT | {name: value}), llama(), None)


def llama() -> Any:
    from vllama.engines.llamacpp.llama_server import TRAITS

    return TRAITS


@pytest.mark.parametrize(
    ("given", "sent"),
    # newer llama-servers refuse -1, which is the whole context to Ollama and to older ones
    [(500_000_000, 2**20), (2**20, 2**20), (64, 64), (0, 0), (-1, 2**20), (-7, 2**20)],
)
def test_what_it_clamps_itself_is_clamped(given: int, sent: int) -> None:
    asked = read_chat(CHAT | {"dry_penalty_last_n": given, "mirostat": 2})
    assert prepare_chat(asked, llama(), None).extra == {"dry_penalty_last_n": sent, "mirostat": 2}


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": {"type": "string", "minLength": 9, "maxLength": 1}},
        {"structured_outputs": {"json": {"type": "string", "minLength": 9, "maxLength": 1}}},
        {"structured_outputs": {"regex": "a" * 5000}},
        {"structured_outputs": {"choice": ["a"] * 1001}},
        {"prompt_logprobs": -1},  # of all tokens
        {"use_beam_search": True, "best_of": 1_000_000},
        {"bad_words": ["x"] * 1001},
        {"logprob_token_ids": [*range(101)]},
    ],
    ids=str,
)
def test_what_costs_vllm_much_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        prepare_chat(read_chat(CHAT | fields), KNOWN["vllm"], None)


def test_honest_fields_are_sent_as_they_came() -> None:
    fields = {
        "logit_bias": {str(number): -100 for number in range(1024)},
        "dry_sequence_breakers": ["\n", ":", '"', "*", "<|im_end|>"],
        "samplers": ["top_k", "top_p", "temperature", "dry", "xtc"],
        "grammar": 'root ::= "yes" | "no"',
        "json_schema": {"type": "object", "properties": {"a": {"type": "string"}}},
        "chat_template_kwargs": {"enable_thinking": False},
        "n_probs": 20,
        "metadata": {"user": "x" * 512},
        "mirostat_tau": 5.0,
        "cache_prompt": True,
        "user": None,
    }
    assert pass_fields(fields, {*LLAMACPP, "grammar"}) == (fields, ())


def test_limits_hold_for_keys_that_may_send_any_field() -> None:
    token = may_use_engine.set(True)
    try:
        with pytest.raises(BadRequest, match="'n_probs': expected 0 to 100, but got 101"):
            pass_fields({"n_probs": 101}, ())
        assert pass_fields({"provider": {"order": ["a"]}}, ())[1] == ()
    finally:
        may_use_engine.reset(token)


@pytest.mark.parametrize(
    ("name", "text", "is_sent"),
    [
        ("n", "1", True),
        ("n", "1000000", False),
        ("n", "1e9", False),
        ("size", "1024x1024", True),
        ("size", "auto", True),
        ("size", "100000x100000", False),
        ("language", "de", True),
        ("prompt", "a photograph of 12345678 cats", True),
    ],
)
def test_numbers_in_forms(name: str, text: str, is_sent: bool) -> None:
    parts = [FormPart(name=name, data=text.encode())]
    if is_sent:
        assert pass_form("/x", parts, (), model="m", seed="1")[1] == ()
        return
    with pytest.raises(BadRequest, match=f"'{name}': expected .* but got {text}"):
        pass_form("/x", parts, (), model="m", seed="1")


def test_a_field_without_a_row_has_a_limit() -> None:
    assert fit_field("own", ["x"] * Limit().values) == ["x"] * Limit().values
    with pytest.raises(BadRequest, match="at most 1000 values"):
        fit_field("own", ["x"] * 1001)
