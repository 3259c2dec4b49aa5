"""Whatever JSON a `/v1` route is given, it is understood or refused with a 4xx."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.chat.bodies import adapt_chat
from tests.chat.test_engine_request import LCP, VLLM
from tests.hostile.counting import TooMany, steps
from vllama.base.errors import VllamaError
from vllama.chat.bodies import MAX_DIGITS, MAX_ESCAPES, MAX_NAMES, MAX_VALUES
from vllama.chat.engine.request import make_chat_call, make_completion_call
from vllama.chat.engine.traits import Traits
from vllama.chat.prepare import prepare_chat
from vllama.chat.request import estimate_tokens
from vllama.chat.templates.template_style import Style
from vllama.dialects.anthropic.read import parse_messages
from vllama.dialects.decisions.forms import DecisionsBody, parse_decisions, parse_systemone
from vllama.dialects.ollama.embeddings import parse_embeddings
from vllama.dialects.ollama.options import resolve_options
from vllama.dialects.ollama.read import parse_generate
from vllama.dialects.openai.choices import reseed
from vllama.dialects.openai.completions import parse_completion
from vllama.dialects.openai.extras import take_extras
from vllama.dialects.openai.read import parse_openai, read_chat
from vllama.dialects.openai.request_types import ChatCompletionBody, CompletionBody, EmbeddingBody
from vllama.dialects.responses.read import parse_responses


def chat(body: bytes, traits: Traits) -> None:
    data, extras = take_extras(parse_openai(body, ChatCompletionBody))
    defaults, _ = resolve_options({}, extras.options)
    asked = read_chat(data, extras)
    sampling = replace(defaults, **{**asked.assumed, **asked.parameters})
    call = make_chat_call(prepare_chat(asked, traits, Style()), sampling, traits)
    json.loads(reseed(call, traits, 1).encode())


def completion(body: bytes, traits: Traits) -> None:
    data, extras = take_extras(parse_openai(body, CompletionBody))
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
    data, extras = take_extras(parse_openai(body, EmbeddingBody))
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


def decisions(body: bytes, traits: Traits) -> None:
    asked = parse_decisions(take_extras(parse_openai(body, DecisionsBody))[0])
    for question in asked.questions:
        read_chat({"messages": asked.write_messages(question)})


def systemone(body: bytes, traits: Traits) -> None:
    asked = parse_systemone(take_extras(parse_openai(body))[0])
    for question in asked.questions:
        read_chat({"messages": asked.write_messages(question)})


Route = Callable[[bytes, Traits], None]
HI = [{"role": "user", "content": "x"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ASKED = {"type": "predicate", "instructions": "x"}
NOUL = {"type": "noul", "instructions": "x"}
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
    "decisions": (decisions, {"model": "m", "input": "x", "questions": [ASKED]},
                  "input questions"),
    "systemone": (systemone, {"model": "m", "state": {}, "questions": {"q": NOUL}},
                  "state questions images"),
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


def test_more_values_than_others_would_wait_for_are_refused() -> None:
    for piece in (b"1,", b'"a",'):
        with pytest.raises(VllamaError, match="more than 500000 values"):
            parse_openai(b'{"x": [' + piece * (MAX_VALUES + 1) + b"1]}")
        parse_openai(b'{"x": [' + piece * (MAX_VALUES - 1) + b"1]}")
    for piece in (b"[],", b"{},", b'{"":1},'):
        with pytest.raises(VllamaError, match="200000 names, lists and objects"):
            parse_openai(b'{"x": [' + piece * (MAX_NAMES + 1) + b"1]}")
    for prose in (
        "a, " * 2_000_000,
        '{"a": [1, "b\\"]}, \\\\' * 100_000,
    ):  # what is in a text counts not
        assert parse_openai(json.dumps({"input": prose}).encode()) == {"input": prose}


@pytest.mark.parametrize("number", ["9" * 600, "0." + "3" * 4000, "-1." + "3" * 700 + "e-300"])
def test_more_digits_than_others_would_wait_for_are_refused(number: str) -> None:
    most = MAX_DIGITS // len(number)
    numbers = b"%b," % number.encode() * most
    with pytest.raises(VllamaError, match=f"{MAX_DIGITS} digits in numbers"):
        parse_openai(b'{"x": [' + numbers + numbers[: len(numbers) // 4] + b"1]}")
    assert len(parse_openai(b'{"x": [' + numbers + b"1]}")["x"]) == most + 1
    text = "0123456789" * (MAX_DIGITS // 8)  # what is in a text counts not
    assert parse_openai(json.dumps({"input": text}).encode()) == {"input": text}


def test_fractions_are_not_read_by_msgspec() -> None:
    """It takes 8 to 40 µs for one near the largest or smallest, of which a body has 500,000."""
    body = b'{"x": [' + b"1.33e-310," * 1000 + b"1]}"
    with pytest.raises(TooMany), steps(1000):
        parse_openai(body)
    assert parse_openai(body)["x"][:2] == [1.33e-310] * 2


def test_a_list_of_wrong_values_is_left_at_the_first() -> None:
    parse_generate(b'{"Context": [1]}')  # makes the decoders
    with pytest.raises(VllamaError, match="expected an integer, got a string"), steps(1000):
        parse_generate(b'{"context": [' + b'"x",' * 1000 + b"1]}")


def test_a_large_broken_body_is_not_read_twice() -> None:
    escapes = b"\\n" * (MAX_ESCAPES + 1)
    for body in (b'{"input": "' + escapes + b'" x}', b'{"input": "\\ud800' + escapes + b'"}'):
        with pytest.raises(VllamaError, match="cannot read the request: ") as caught:
            parse_openai(body)
        assert len(str(caught.value)) < 1000
