from __future__ import annotations

import base64
import json
from functools import partial
from typing import Any

import pytest

from tests.chat.bodies import chat_call, completion_call
from vllama.base.errors import BadRequest, CapabilityMissing
from vllama.chat.engine.request import make_embed_call
from vllama.chat.engine.traits import SchemaStyle, Traits, VectorStyle
from vllama.chat.parsers.call_values import ToolCall
from vllama.chat.request import Message, Sampling
from vllama.engines.request_body import add_fields

NAMES = (
    "temperature top_p top_k min_p repeat_penalty presence_penalty frequency_penalty seed stop"
    " max_tokens"
)
LCP = Traits(  # as llama_cpp.server
    context_length=2048,
    parameters={name: name for name in NAMES.split()},
    usage_in_stream=False,
    parses_tools=False,
    splits_reasoning=False,
    takes_content_parts=False,
    roles=frozenset({"system", "user", "assistant", "tool"}),
    takes_nulls=False,
    takes_logprobs=False,
    schema_style=SchemaStyle.JSON_OBJECT,
    vector_style=VectorStyle.PER_TOKEN,
    seed_bits=32,
)
VLLM = Traits(
    context_length=8192,
    model_name="engine",
    parameters={name: name for name in NAMES.split()} | {"repeat_penalty": "repetition_penalty"},
    takes_images=True,
    takes_template_kwargs=True,
    takes_reasoning_effort=True,
    reasoning_field="reasoning",
)
BARE = Traits(context_length=100)

USER = (Message(role="user", content="Hi"),)
SCHEMA: dict[str, object] = {"type": "object", "properties": {"a": {"type": "string"}}}


def chat(
    traits: Traits, messages: Any = USER, sampling: Sampling | None = None, **more: Any
) -> Any:
    call = chat_call(messages, sampling or Sampling(), traits, **more)
    assert call.path == "/v1/chat/completions"
    return json.loads(call.encode())


def test_an_adapter_has_the_last_word_on_a_body() -> None:
    names = {"stop": "stop"}
    finish = partial(add_fields, defaults={"stop": ["<e>"], "kept": ["<e>"]})
    traits = Traits(context_length=9, parameters=names, finish_body=finish)
    assert chat(traits)["stop"] == ["<e>"]
    sent = chat(traits, sampling=Sampling(stop=("x",)))
    assert (sent["stop"], sent["kept"]) == (["x", "<e>"], ["<e>"])


def test_everything_is_sent_explicitly() -> None:
    assert chat(LCP) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }


def test_names_of_the_engine() -> None:
    body = chat(VLLM, sampling=Sampling(repeat_penalty=1.2, seed=7, stop=("a",), max_tokens=5))
    assert body["model"] == "engine"
    assert body["stream_options"] == {"include_usage": True}
    assert body["repetition_penalty"] == 1.2 and "repeat_penalty" not in body
    assert (body["seed"], body["stop"], body["max_tokens"]) == (7, ["a"], 5)
    assert set(chat(BARE)) == {"model", "messages", "stream", "stream_options"}


@pytest.mark.parametrize(
    ("seed", "traits", "sent"),
    [
        (-1, VLLM, None),
        (0, VLLM, 0),
        (2**63 - 1, VLLM, 2**63 - 1),
        (-2, VLLM, 2**63 - 2),
        (2**40 + 5, LCP, 5),
        (2**32 - 1, LCP, 2**32 - 1),
        (5, BARE, None),
    ],
)
def test_seed(seed: int, traits: Traits, sent: int | None) -> None:
    assert chat(traits, sampling=Sampling(seed=seed)).get("seed") == sent


@pytest.mark.parametrize(
    ("given", "field", "sent"),
    [
        ({"temperature": -1.0}, "temperature", 0.0),
        ({"top_p": 0.0}, "top_p", 1e-6),
        ({"top_p": 2.0}, "top_p", 1.0),
        ({"min_p": -0.5}, "min_p", 0.0),
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 2**50}, "top_k", 2**31 - 1),
        ({"repeat_penalty": 0.0}, "repeat_penalty", 1e-3),
        ({"presence_penalty": 5.0}, "presence_penalty", 2.0),
        ({"max_tokens": 0}, "max_tokens", 1),
        ({"max_tokens": 100}, "max_tokens", 100),
        ({"max_tokens": 2048}, "max_tokens", None),
        ({"max_tokens": None}, "max_tokens", None),
    ],
)
def test_ranges(given: dict[str, Any], field: str, sent: object) -> None:
    assert chat(LCP, sampling=Sampling(**given)).get(field) == sent


@pytest.mark.parametrize(("given", "sent"), [(-1, 512), (-9, 512), (0, 0), (64, 64), (9999, 9999)])
def test_the_whole_context_is_said_in_tokens(given: int, sent: int) -> None:
    traits = Traits(context_length=512, parameters={"repeat_last_n": "penalty_last_n"})
    assert chat(traits, sampling=Sampling(repeat_last_n=given))["penalty_last_n"] == sent


def test_format() -> None:
    assert chat(LCP, format="json")["response_format"] == {"type": "json_object"}
    assert chat(LCP, format=SCHEMA)["response_format"] == {"type": "json_object", "schema": SCHEMA}
    assert chat(VLLM, format=SCHEMA)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "response", "schema": SCHEMA},
    }
    assert "response_format" not in chat(VLLM)


@pytest.mark.parametrize(
    ("think", "kwargs", "effort"),
    [
        (None, None, None),
        (True, {"enable_thinking": True, "thinking": True}, None),
        (
            False,
            {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"},
            None,
        ),
        ("low", {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"}, "low"),
    ],
)
def test_think(think: Any, kwargs: object, effort: object) -> None:
    body = chat(VLLM, think=think)
    assert body.get("chat_template_kwargs") == kwargs
    assert body.get("reasoning_effort") == effort
    assert chat(LCP, think=think) == chat(LCP)


def test_logprobs() -> None:
    body = chat(VLLM, logprobs=True, top_logprobs=3)
    assert (body["logprobs"], body["top_logprobs"]) == (True, 3)
    with pytest.raises(CapabilityMissing, match='"m" does not support logprobs'):
        chat(LCP, logprobs=True)


def test_tools() -> None:
    tool = {"type": "function", "function": {"name": "f"}, "items": None}
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    assert chat(LCP, tools=(tool,))["tools"] == [{"type": "function", "function": function}]
    assert chat(LCP, tools=({"function": {"name": "f"}},))["tools"][0]["type"] == "function"
    assert "tools" not in chat(LCP, tools=())


def test_a_conversation_with_tools() -> None:
    messages = [
        Message(role="developer", content="d"),
        Message(
            role="assistant",
            thinking="hm",
            tool_calls=(
                ToolCall(name="f", arguments={"city": "Köln"}),
                ToolCall(id="given", name="g", index=1),
            ),
        ),
        Message(role="tool", content="2", tool_name="g"),
        Message(role="tool", content="1"),
        Message(role="tool", content="3", tool_call_id="other"),
        Message(role="tool", content="4"),
    ]
    calls = [
        {
            "id": "call_1_0",
            "type": "function",
            "function": {"name": "f", "arguments": '{"city":"Köln"}'},
        },
        {"id": "given", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    assert chat(LCP, messages)["messages"] == [
        {"role": "system", "content": "d"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "2", "tool_call_id": "given", "name": "g"},
        {"role": "tool", "content": "1", "tool_call_id": "call_1_0", "name": "f"},
        {"role": "tool", "content": "3", "tool_call_id": "other"},
        {"role": "tool", "content": "4", "tool_call_id": "call_0"},
    ]
    vllm = chat(VLLM, messages)["messages"]
    assert vllm[0]["role"] == "developer"
    assert vllm[1]["reasoning"] == "hm"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x89PNG\r\n\x1a\nxxxx", "image/png"),
        (b"\xff\xd8\xff\xe0xxxxxxxx", "image/jpeg"),
        (b"RIFF1234WEBPVP8 xxxx", "image/webp"),
        (b"GIF89axxxxxx", "image/gif"),
    ],
)
def test_images(data: bytes, kind: str) -> None:
    text = base64.b64encode(data).decode()
    (message,) = chat(VLLM, [Message(role="user", content="see", images=(text,))])["messages"]
    assert message["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{text}"}},
    ]
    with pytest.raises(CapabilityMissing, match='"m" does not support vision'):
        chat(LCP, [Message(role="user", images=(text,))])


def test_other_files() -> None:
    unknown = base64.b64encode(b"hello world, no image").decode()
    with pytest.raises(BadRequest, match="not PNG, JPEG, WebP"):
        chat(VLLM, [Message(role="user", images=(unknown,))])
    wav = base64.b64encode(b"RIFF1234WAVEfmt xxxx").decode()
    with pytest.raises(CapabilityMissing, match="does not support audio"):
        chat(VLLM, [Message(role="user", images=(wav,))])
    hearing = Traits(context_length=10, takes_audio=True)
    assert chat(hearing, [Message(role="user", images=(wav,))])["messages"][0]["content"] == [
        {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}}
    ]


def test_completion() -> None:
    call = completion_call("p", Sampling(max_tokens=7), VLLM, logprobs=True, top_logprobs=2)
    body = json.loads(call.encode())
    assert call.path == "/v1/completions"
    assert (body["prompt"], body["max_tokens"]) == ("p", 7)
    assert (body["stream"], body["logprobs"], body["model"]) == (True, 2, "engine")
    assert body["stream_options"] == {"include_usage": True}


def test_completion_always_sends_a_limit() -> None:
    unlimited = Sampling()
    assert json.loads(completion_call("p", unlimited, LCP).encode())["max_tokens"] == 2048
    assert json.loads(completion_call("p", unlimited, VLLM).encode())["max_tokens"] is None


def test_embed() -> None:
    call = make_embed_call(["a", ""], VLLM, model="m")
    assert call.path == "/v1/embeddings"
    assert json.loads(call.encode()) == {
        "model": "engine",
        "input": ["a", ""],
        "encoding_format": "float",
    }
    assert json.loads(make_embed_call("a", LCP, model="m").encode())["input"] == "a"
    assert json.loads(make_embed_call(["a", ""], LCP, model="m").encode())["input"] == ["a", " "]
