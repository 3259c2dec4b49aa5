"""Whatever JSON a `/v1` route is given, it is understood or refused with a 4xx."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.chat.bodies import adapt_chat
from tests.chat.test_engine_request import LCP, VLLM
from vllama.chat.engine.request import make_chat_call, make_completion_call
from vllama.chat.engine.traits import Traits
from vllama.chat.prepare import prepare_chat
from vllama.chat.template_style import Style
from vllama.dialects.anthropic.read import parse_messages
from vllama.dialects.anthropic.write import estimate_tokens
from vllama.dialects.ollama.embeddings import parse_embeddings
from vllama.dialects.ollama.options import resolve_options
from vllama.dialects.openai.choices import reseed
from vllama.dialects.openai.completions import parse_completion
from vllama.dialects.openai.extras import take_extras
from vllama.dialects.openai.read import parse_openai, read_chat
from vllama.dialects.responses.read import parse_responses
from vllama.errors import VllamaError


def chat(body: bytes, traits: Traits) -> None:
    data, extras = take_extras(parse_openai(body))
    defaults, _ = resolve_options({}, extras.options)
    asked = read_chat(data, extras)
    sampling = replace(defaults, **{**asked.assumed, **asked.parameters})
    call = make_chat_call(prepare_chat(asked, traits, Style()), sampling, traits)
    json.loads(reseed(call, traits, 1).body)


def completion(body: bytes, traits: Traits) -> None:
    data, extras = take_extras(parse_openai(body))
    defaults, _ = resolve_options({}, extras.options)
    asked = parse_completion(data)
    for prompt in asked.prompts:
        text = asked.read_prompt(prompt, extras, truncate=True)
        sampling = replace(defaults, **{**text.assumed, **text.parameters})
        prepared = prepare_chat(text, traits, None)
        if text.messages:
            make_chat_call(prepared, sampling, traits)
        reseed(make_completion_call(prepared, prompt, sampling, traits), traits, 1)


def embeddings(body: bytes, traits: Traits) -> None:
    data, extras = take_extras(parse_openai(body))
    resolve_options({}, extras.options)
    parse_embeddings(data)


def responses(body: bytes, traits: Traits) -> None:
    asked = parse_responses(body)
    resolve_options({}, asked.extras.options)
    adapt_chat(asked.chat, traits)
    json.dumps(asked.echo)


def messages(body: bytes, traits: Traits) -> None:
    asked = parse_messages(body)
    resolve_options({}, asked.extras.options)
    estimate_tokens(read_chat(asked.chat))
    adapt_chat(asked.chat, traits)


Route = Callable[[bytes, Traits], None]
HI = [{"role": "user", "content": "x"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
COMMON = (
    "model temperature top_p top_k min_p seed stop frequency_penalty presence_penalty logit_bias "
    "stream stream_options user metadata options num_ctx keep_alive think truncate response_format "
    "tools tool_choice parallel_tool_calls reasoning reasoning_effort max_tokens n logprobs"
)
ROUTES: dict[str, tuple[Route, dict[str, Any], str]] = {
    "chat": (chat, {"model": "m", "messages": HI, "tools": [TOOL]},
             "messages top_logprobs max_completion_tokens store chat_template_kwargs"),
    "completions": (completion, {"model": "m", "prompt": "x"}, "prompt suffix echo best_of raw"),
    "embeddings": (embeddings, {"model": "m", "input": "x"}, "input dimensions encoding_format"),
    "responses": (responses, {"model": "m", "input": "x"},
                  "input instructions max_output_tokens text truncation store background include "
                  "previous_response_id conversation service_tier prompt_cache_key"),
    "messages": (messages, {"model": "m", "max_tokens": 5, "messages": HI},
                 "messages system stop_sequences thinking output_config output_format "
                 "context_management"),
}  # fmt: skip
VALUES = [
    None, True, False, 0, -1, 1, 1.5, 1e300, 10**30, "", "x", "\x00", "é😀", [], [1], [None], [[]],
    ["x"], [{}], [True], {}, {"a": 1}, {"type": 1}, {"type": "x"}, [{"type": "x"}], [{"type": []}],
    {"type": "json_schema", "json_schema": 1}, {"type": "function"}, {"effort": 5}, {"effort": []},
    {"include_usage": "x"}, [{"role": 1}], [{"role": "user"}], [{"role": "user", "content": 5}],
    [{"role": "user", "content": [5]}], [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": 3}]}],
    [{"role": "user", "content": [{"type": "image", "source": 3}]}],
    [{"role": "assistant", "tool_calls": 3}], [{"role": "assistant", "tool_calls": [3]}],
    [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f",
      "arguments": {"a": 10**30}}}]}],
    [{"role": "assistant", "content": [{"type": "tool_use", "id": 1}]}],
    [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f",
      "input": 10**30}]}],
    [{"role": "user", "content": [{"type": "tool_result", "content": 3}]}],
    [{"role": "tool", "content": "x"}], [{"role": "tool", "tool_call_id": 5, "content": "x"}],
    [{"type": "function_call", "call_id": "x", "name": "f", "arguments": "["}],
    [{"type": "function_call_output", "call_id": "x", "output": {}}],
    [{"type": "reasoning", "summary": [3], "content": 5}], {"num_ctx": "x"}, {"temperature": []},
    {"seed": 10**30}, {"stop": 3}, {"a": 10**30}, [{"a": 10**30}],
]  # fmt: skip


def survives(route: Route, body: bytes) -> None:
    for traits in (LCP, VLLM):
        try:
            route(body, traits)
        except VllamaError as error:
            assert 400 <= error.status < 500
            assert str(error)


@pytest.mark.parametrize("name", ROUTES)
def test_every_field_with_every_type(name: str) -> None:
    route, base, fields = ROUTES[name]
    survives(route, json.dumps(base).encode())
    for field in (COMMON + " " + fields).split():
        for value in VALUES:
            survives(route, json.dumps(base | {field: value}).encode())


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        b"", b" \n", b"null", b"5", b'"x"', b"[]", b"[{}]", b"{", b"{}}", b"\xff", b"\x00", b"{}",
        b'{"model": "\xff"}', b'{"model": "m", "model": 5}', b'{"MODEL": "m"}', b'{"model": NaN}',
        b"[" * 100_000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b"1" * 5000, b"{}{}",
        b"[" * 900 + b'"\\ud800"' + b"]" * 900, b'{"model":"\\ud800","input":"\\udc00"}',
        b'{"model":"m","messages":' + b"[" * 300 + b"]" * 300 + b"}",
    ],
)  # fmt: skip
def test_bodies(name: str, body: bytes) -> None:
    survives(ROUTES[name][0], body)


def test_more_values_than_memory_would_bear_are_refused() -> None:
    for piece in (b"[],", b"{},", b"1,"):
        with pytest.raises(VllamaError, match="more than 2000000 values"):
            parse_openai(b"[" + piece * 2_000_001 + b"1]")
    prose = "a, " * 500_000 + "b" * 2_000_000
    assert parse_openai(json.dumps({"input": prose}).encode()) == {"input": prose}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6) | st.sampled_from(["user", "text", "function", "message", "tool_result"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "role", "content", "text", "name", "id", "function", "input",
                         "arguments", "tool_calls", "source", "data", "call_id", "output"]),
        inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.sampled_from(sorted(ROUTES)), st.data())
def test_any_json(name: str, data: st.DataObject) -> None:
    route, base, fields = ROUTES[name]
    known = sorted((COMMON + " " + fields).split())
    more = data.draw(st.dictionaries(st.sampled_from(known), JSON, max_size=4))
    survives(route, json.dumps(base | more).encode())
