"""What the engines besides the defaults are sent, by what is declared of them."""

import json

import pytest

from tests.chat.bodies import adapt_chat, adapt_completion, chat_call, completion_call
from tests.engines.others import MAX, MLX, SGLANG, TINYGRAD, TRANSFORMERS, traits
from vllama.base.errors import CapabilityMissing
from vllama.chat.request import Message, Sampling
from vllama.engines.max_serve import FIELDS as MAX_FIELDS
from vllama.engines.transformers_serve import FIELDS as TRANSFORMERS_FIELDS
from vllama.engines.vllm.adapter import ENGINE as VLLM
from vllama.models.types import Capability

HI = (Message(role="user", content="Hi"),)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

SAMPLING = Sampling(
    temperature=3.0, top_p=0.5, top_k=0, min_p=0.1, repeat_penalty=9.0, presence_penalty=1.0,
    frequency_penalty=0.5, typical_p=0.7, seed=7, stop=("x",), max_tokens=9,
)  # fmt: skip


def sent(engine, sampling=SAMPLING, **more):
    return json.loads(chat_call(HI, sampling, traits(engine), **more).encode())


def test_transformers_gets_sampling_where_it_reads_it():
    got = sent(TRANSFORMERS)
    packed = json.loads(got.pop("generation_config"))
    assert packed == {"do_sample": True, "top_k": 0, "min_p": 0.1, "repetition_penalty": 9.0}
    assert got == {
        "model": "/models/m", "messages": [{"role": "user", "content": "Hi"}], "stream": True,
        "temperature": 3.0, "top_p": 0.5, "seed": 7, "stop": ["x"], "max_tokens": 9,
    }  # fmt: skip


@pytest.mark.parametrize("engine", [VLLM, SGLANG, MLX])
def test_earlier_thinking_is_sent_where_the_template_gets_it(engine):
    talk = (*HI, Message(role="assistant", content="a", thinking="Hm."), *HI)
    body = json.loads(chat_call(talk, SAMPLING, traits(engine)).encode())
    assert body["messages"][1]["reasoning_content"] == "Hm."


def test_transformers_is_always_told_a_limit():
    assert sent(TRANSFORMERS, Sampling())["max_tokens"] == 4096
    body = adapt_completion({"prompt": "a", "max_tokens": None}, traits(TRANSFORMERS))
    assert body["max_tokens"] == 4096


def test_mlx_gets_all_and_looks_back_as_far_as_ollama():
    got = sent(MLX)
    assert got["model"] == "default_model"
    assert got["repetition_penalty"] == 9.0
    assert {got[f"{name}_context_size"] for name in ("repetition", "presence", "frequency")} == {64}
    assert "typical_p" not in got


def test_values_are_moved_into_what_the_engine_accepts():
    assert sent(MAX)["temperature"] == 2.0
    assert sent(SGLANG)["repetition_penalty"] == 2.0
    assert sent(SGLANG)["top_k"] == -1
    assert sent(MLX)["top_k"] == 0
    assert sent(MLX)["temperature"] == 3.0


def test_tinygrad_gets_the_little_that_it_reads():
    assert sent(TINYGRAD) == {
        "model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True,
        "stream_options": {"include_usage": True}, "temperature": 3.0, "max_tokens": 9,
    }  # fmt: skip


STRANGE = {
    "messages": [{"role": "user", "content": "Hi"}], "user": "me", "store": True, "metadata": {},
    "service_tier": "auto", "parallel_tool_calls": True, "x_unknown": 1, "top_k": 3,
    "repetition_penalty": 1.5, "logit_bias": {"1": 2}, "best_of": 2,
}  # fmt: skip


@pytest.mark.parametrize("engine", [TRANSFORMERS, MAX])
def test_a_field_that_would_be_refused_is_left_out(engine):
    body = adapt_chat(STRANGE, traits(engine))[0]
    assert set(body) <= (MAX_FIELDS if engine is MAX else TRANSFORMERS_FIELDS)
    assert body["logit_bias"] == {"1": 2}
    sampling = body if engine is MAX else json.loads(body["generation_config"])
    assert (sampling["top_k"], sampling["repetition_penalty"]) == (3, 1.5)


@pytest.mark.parametrize("engine", [MLX, TINYGRAD])
def test_a_field_that_nobody_knows_is_left_out(engine):
    body = adapt_chat(STRANGE, traits(engine))[0]
    assert body["service_tier"] == "auto" and "x_unknown" not in body


@pytest.mark.parametrize("engine", [TRANSFORMERS, MLX, MAX, TINYGRAD])
def test_a_form_that_it_cannot_keep_to_is_refused(engine):
    with pytest.raises(CapabilityMissing, match="structured outputs"):
        sent(engine, format="json")
    wanted = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    for form in (wanted, {"type": "json_object"}):
        with pytest.raises(CapabilityMissing, match="structured outputs"):
            adapt_chat(STRANGE | {"response_format": form}, traits(engine))
    text = STRANGE | {"response_format": {"type": "text"}}
    assert "response_format" not in adapt_chat(text, traits(engine))[0]


@pytest.mark.parametrize("engine", [TRANSFORMERS, MLX, MAX])
def test_a_forced_call_is_left_to_the_model_where_no_schema_can_force_it(engine):
    asked = STRANGE | {"tools": [TOOL], "tool_choice": "required"}
    body = adapt_chat(asked, traits(engine))[0]
    assert "response_format" not in body
    assert [tool["function"]["name"] for tool in body["tools"]] == ["f"]


def test_tinygrad_shows_no_tools_and_completes_no_prompts():
    with pytest.raises(CapabilityMissing, match="tools"):
        sent(TINYGRAD, tools=(TOOL,))
    with pytest.raises(CapabilityMissing, match="tools"):
        adapt_chat(STRANGE | {"tools": [TOOL]}, traits(TINYGRAD))
    with pytest.raises(CapabilityMissing, match="only chats"):
        completion_call("a", SAMPLING, traits(TINYGRAD))
    with pytest.raises(CapabilityMissing, match="only chats"):
        adapt_completion({"prompt": "a"}, traits(TINYGRAD))


def test_pictures_go_to_models_that_see():
    seeing = frozenset({Capability.COMPLETION, Capability.VISION})
    for engine in (TRANSFORMERS, MLX, MAX, SGLANG):
        assert not traits(engine).takes_images
        assert traits(engine, capabilities=seeing).takes_images


def test_requests_at_once():
    assert [traits(engine).max_concurrency for engine in (TRANSFORMERS, MLX, MAX, TINYGRAD)] == [
        1
    ] * 4
    assert traits(MLX, parallel=4).max_concurrency == 4
    assert traits(TRANSFORMERS, parallel=4).max_concurrency == 1
    assert traits(SGLANG, parallel=4).max_concurrency == 4
