# ruff: noqa: E501 (tables of exact texts)
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.chat.bodies import adapt_chat, adapt_completion
from tests.chat.test_engine_request import LCP, SCHEMA, VLLM
from vllama.base.errors import BadRequest, CapabilityMissing
from vllama.chat.engine.traits import Traits
from vllama.chat.request import Sampling
from vllama.chat.tool_calls import Toolset
from vllama.dialects.openai.read import parse_openai, read_chat

MESSAGES = [{"role": "user", "content": "Hi"}]


def chat(traits: Traits, **fields: Any) -> Any:
    return adapt_chat({"messages": MESSAGES, "model": "m"} | fields, traits)[0]


def completion(traits: Traits, **fields: Any) -> Any:
    return adapt_completion({"prompt": "p", "model": "m"} | fields, traits)


def test_minimal() -> None:
    body, _ = adapt_chat({"model": "m", "messages": MESSAGES}, LCP)
    assert body == {
        "model": "m",
        "messages": MESSAGES,
        "stream": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 40,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    asked = read_chat({"model": "m", "messages": MESSAGES})
    assert (asked.stream, asked.include_usage, asked.n, asked.think) == (False, False, 1, None)


def test_what_the_client_wanted() -> None:
    body = {
        "messages": MESSAGES,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 9,
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    asked = read_chat(body)
    assert asked.stream and asked.include_usage
    assert asked.parameters["max_tokens"] == 9
    assert adapt_chat(body, VLLM)[1].toolset == Toolset(schemas={"f": {}}, after_text=False)


def test_nulls_are_dropped() -> None:
    names = [
        "temperature",
        "seed",
        "stop",
        "max_tokens",
        "tools",
        "response_format",
        "stream",
        "stream_options",
        "n",
    ]
    assert chat(LCP, **dict.fromkeys(names)) == chat(LCP)


def test_empty_tools_are_left_out() -> None:
    tool = {"type": "function", "function": {"name": "now"}}
    assert read_chat(
        {"messages": [{"role": "user", "content": ""}], "tools": [None, tool]}
    ).tools == (tool,)


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"temperature": 0}, {"temperature": 0}),
        ({"temperature": -3}, {"temperature": 0}),
        ({"top_p": 7}, {"top_p": 1}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5, "max_tokens": 6}, {"max_tokens": 5}),
        ({"max_tokens": -1}, {"max_tokens": None}),
        ({"max_tokens": 5.0}, {"max_tokens": 5}),
        ({"seed": -1}, {"seed": None}),
        ({"seed": 2**40 + 1}, {"seed": 1}),
        ({"stop": "x"}, {"stop": ["x"]}),
        ({"stop": ["x", "y"]}, {"stop": ["x", "y"]}),
        ({"stop": []}, {"stop": None}),
        ({"top_k": 3}, {"top_k": 3}),
        ({"tools": [], "tool_choice": "auto"}, {"tools": None, "tool_choice": None}),
        ({"logprobs": False, "top_logprobs": 3}, {"logprobs": None, "top_logprobs": None}),
        ({"response_format": {"type": "text"}}, {"response_format": None}),
        (
            {"response_format": {"type": "json_object"}},
            {"response_format": {"type": "json_object"}},
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
        ),
        ({"stream_options": {"include_usage": True}}, {"stream_options": None}),
        ({"user": "u", "ignore_eos": True}, {"user": "u", "ignore_eos": True}),
        ({"unheard_of": [1]}, {"unheard_of": None}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": None, "chat_template_kwargs": None}),
    ],
)
def test_fields(fields: dict[str, Any], sent: dict[str, Any]) -> None:
    body = chat(LCP, **fields)
    assert {name: body.get(name) for name in sent} == sent


def test_fields_of_another_engine() -> None:
    body = chat(VLLM, repeat_penalty=1.3, reasoning={"effort": "xhigh"}, max_tokens=4)
    assert body["repetition_penalty"] == 1.3 and "repeat_penalty" not in body
    assert body["reasoning_effort"] == "max" and "reasoning" not in body
    assert body["stream_options"] == {"include_usage": True}
    assert chat(VLLM, repetition_penalty=1.4)["repetition_penalty"] == 1.4
    assert chat(VLLM, reasoning_effort="none")["chat_template_kwargs"]["enable_thinking"] is False
    own = {"enable_thinking": False}
    assert (
        chat(VLLM, reasoning_effort="high", chat_template_kwargs=own)["chat_template_kwargs"][
            "enable_thinking"
        ]
        is False
    )
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    assert chat(VLLM, response_format=wanted)["response_format"] == wanted
    spelled = {**wanted, "type": " JSON_Schema"}
    assert chat(VLLM, response_format=spelled)["response_format"] == wanted


def test_structural_tags_go_to_engines_that_know_them() -> None:
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": SCHEMA}}
    knowing = replace(VLLM, takes_structural_tags=True)
    assert chat(knowing, response_format=tag)["response_format"] == tag
    with pytest.raises(CapabilityMissing, match="does not support structural tags"):
        chat(VLLM, response_format=tag)


def test_the_models_own_parameters_fill_in() -> None:
    defaults = Sampling(top_k=5, temperature=0.1, stop=("s",), max_tokens=8, seed=4)
    body = adapt_chat({"messages": MESSAGES}, LCP, defaults=defaults)[0]
    assert (body["top_k"], body["temperature"], body["stop"]) == (5, 1.0, ["s"])
    assert (body["max_tokens"], body["seed"]) == (8, 4)
    given_ = {"messages": MESSAGES, "stop": "t", "seed": -1, "max_tokens": -1, "top_k": 6}
    body = adapt_chat(given_, LCP, defaults=defaults)[0]
    assert (body["top_k"], body["stop"]) == (6, ["t"])
    assert "seed" not in body and "max_tokens" not in body


@pytest.mark.parametrize(
    ("message", "lcp"),
    [
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "a\nb"},
        ),
        ({"role": "user", "content": []}, {"role": "user", "content": ""}),
        (
            {"role": "assistant", "content": None, "reasoning": "r"},
            {"role": "assistant", "content": ""},
        ),
        ({"role": "developer", "content": "d"}, {"role": "system", "content": "d"}),
        ({"role": "USER", "content": "d", "name": None}, {"role": "user", "content": "d"}),
        ({"role": "assistant", "content": "d", "tool_calls": []}, {"role": "assistant", "content": "d"}),
        (
            {"role": "assistant", "content": "d", "reasoning": "r"},
            {"role": "assistant", "content": "d"},
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"a":1}'}}],
            },
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
                ],
            },
        ),
    ],
)  # fmt: skip
def test_messages(message: dict[str, Any], lcp: dict[str, Any]) -> None:
    assert chat(LCP, messages=[message])["messages"] == [lcp]


def test_messages_of_an_engine_that_takes_more() -> None:
    url = "data:image/png;base64,iVBORw0KGgo="
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": url}}]
    sent = chat(
        VLLM,
        messages=[
            {"role": "developer", "content": parts},
            {"role": "assistant", "content": None, "reasoning_content": "r"},
            {"role": "user", "content": [{"type": "image_url", "image_url": url}]},
        ],
    )["messages"]
    assert sent == [
        {"role": "developer", "content": parts},
        {"role": "assistant", "content": None, "reasoning": "r"},
        {"role": "user", "content": [parts[1]]},
    ]


THOUGHT = {"type": "thinking", "thinking": "hm"}
MISTRAL = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
CALLED = {"name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("turn", "content", "thinking", "calls", "passed_over"),
    [
        ({"role": "assistant", "content": None}, "", None, [], []),
        ({"role": "assistant"}, "", None, [], []),
        ({"role": "tool", "content": None, "tool_call_id": "a"}, "", None, [], []),
        ({"role": "user", "content": None}, "", None, [], []),
        ({"role": "tool", "content": {"ok": True}, "tool_call_id": 5}, '{"ok":true}', None, [], []),
        ({"role": "assistant", "content": "a", "reasoning_content": ""}, "a", "", [], []),
        ({"role": "assistant", "content": "a", "reasoning": "", "reasoning_content": "hm"}, "a", "hm", [], []),
        ({"role": "assistant", "content": None, "refusal": "no"}, "no", None, [], []),
        ({"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "a"}]}, "a", "hm", [], []),
        ({"role": "assistant", "content": [MISTRAL]}, "", "hm", [], []),
        ({"role": "assistant", "content": "a", "reasoning": {"x": 1}}, "a", None, [], []),
        ({"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, "a"]},
         "a", None, [], ["messages[0].content[0] redacted_thinking"]),
        ({"role": "assistant", "content": None, "function_call": CALLED}, "", None, [("f", "{}")], []),
        ({"role": "assistant", "tool_calls": [{"id": 5, "function": {**CALLED, "arguments": {"a": 1}}}]},
         "", None, [("f", '{"a":1}')], []),
        ({"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "s", "input": "x"}}]},
         "", None, [("s", '{"input":"x"}')], []),
        ({"role": "assistant", "tool_calls": [{}, {"function": CALLED}]},
         "", None, [("f", "{}")], ["messages[0].tool_calls[0]"]),
        ({"role": "assistant", "content": {"type": "text", "text": "a"}}, "a", None, [], []),
        ({"role": "user", "content": {"type": "text", "text": "a"}}, "a", None, [], []),
        ({"role": "assistant", "content": 5}, "5", None, [], []),
        ({"role": "assistant", "content": [{"type": "image_url", "image_url": "http://x/y.png"}, "a"]},
         "a", None, [], ["messages[0].content[0] image_url"]),
    ],
)  # fmt: skip
def test_what_is_in_a_conversation_is_accepted(turn, content, thinking, calls, passed_over) -> None:
    asked = read_chat({"model": "m", "messages": [turn, {"role": "user", "content": "go on"}]})
    read = asked.messages[0]
    assert (read.content, read.thinking) == (content, thinking)
    assert [(call.name, call.text) for call in read.tool_calls] == calls
    assert list(asked.passed_over) == passed_over
    assert chat(VLLM, messages=[turn, {"role": "user", "content": "go on"}])


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}},
        {"type": "text", "text": None},
        None,
    ],
)
@pytest.mark.parametrize(
    "since",
    [
        [{"role": "assistant", "content": "a"}, {"role": "user", "content": "go on"}],
        [{"role": "assistant", "tool_calls": [{"id": "c", "function": CALLED}]},
         {"role": "tool", "tool_call_id": "c", "content": "b"}],
        [{"role": "assistant", "content": "a"}, None, {"role": "user", "content": "go on"},
         {"role": "assistant", "content": "b"}],
    ],
)  # fmt: skip
def test_what_the_user_asked_earlier_is_passed_over(part, since) -> None:
    turn = {"role": "user", "content": [{"type": "text", "text": "read"}, part]}
    asked = read_chat({"model": "m", "messages": [turn, *since]})
    assert asked.messages[0].content == "read"
    assert asked.passed_over[-1].startswith("messages[0].content[1] ")
    assert len(asked.messages) == 1 + len([one for one in since if one])
    assert ("messages[2]" in asked.passed_over) == (None in since)
    with pytest.raises(BadRequest):
        read_chat({"model": "m", "messages": [*since, turn]})


def test_parameters_may_be_true() -> None:
    """As Rust's schemars writes a value of any type."""
    inner = {"type": "object", "properties": {"b": True}}
    properties = {"a": True, "c": inner, "d": {"anyOf": [True, {"type": "null"}]}}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    tool = {"type": "function", "function": function}
    assert chat(VLLM, tools=[tool])["tools"] == [tool]


FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}}
NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("any", "required"),
        ({"type": "any"}, "required"),
        ({"type": "required"}, "required"),
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, NAMED),
        ({"type": "function", "name": "f"}, NAMED),
        (NAMED, NAMED),
    ],
)
@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": FUNCTION},
        {"type": "function", **FUNCTION},
        {"name": "f", "description": "d", "input_schema": {"type": "object"}},
    ],
)
def test_tools_and_choices_as_in_other_apis(tool, choice, wanted) -> None:
    messages = [{"role": "user", "content": "x"}]
    asked = read_chat({"messages": messages, "tools": [tool], "tool_choice": choice})
    assert asked.tools == ({"type": "function", "function": FUNCTION},)
    assert asked.tool_choice == wanted


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"messages": [{"role": "user"}]}, "Invalid value for 'messages[0].content': expected a string or an array, got null."),
        ({"messages": []}, "[] is too short - 'messages'"),
        ({"messages": [None, {"role": "user"}]}, "Invalid value for 'messages[1].content': expected a string or an array, got null."),
        (
            {"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": {"type": "file"}}]},
            "file inputs are not currently supported",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file"}]}, {"role": "assistant", "content": "a"}]},
            "file inputs are not currently supported",  # an answer that is begun
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            'invalid format: "5"; expected "json" or a valid JSON Schema object',
        ),
        *(
            (
                {"response_format": {"type": "json_schema", **schema}},
                "Missing required parameter: 'response_format.json_schema.schema'.",
            )
            for schema in (
                {},
                {"json_schema": {"name": "a", "schema": None}},
                {"json_schema": {"name": "a"}},
                {"schema": SCHEMA},
                {"json_schema": SCHEMA},
            )
        ),
        *(
            (
                {"response_format": {"type": kind, "regex": "a"}},
                f"Invalid value for 'response_format.type': '{kind}'. Supported values are: 'text', 'json_object', 'json_schema', 'structural_tag'.",
            )
            for kind in ("regex", "grammar", None)
        ),
        ({"messages": None}, "[] is too short - 'messages'"),
        ({"messages": "x"}, "Invalid value for 'messages': expected an array, got a string."),
        ({"messages": ["x"]}, "Invalid value for 'messages[0]': expected an object, got a string."),
        ({"messages": [{"content": "x"}]}, "a message has no role: use system, user, assistant or tool"),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "Invalid value for 'messages[0].content': expected a string or an array, got an integer.",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
            "invalid message format",
        ),
        (
            {"temperature": "hot"},
            "Invalid value for 'temperature': expected a decimal, got a string.",
        ),
        ({"top_p": True}, "Invalid value for 'top_p': expected a decimal, got a boolean."),
        (
            {"max_tokens": 1.5},
            "Invalid value for 'max_tokens': expected an integer, got a decimal.",
        ),
        ({"seed": "x"}, "Invalid value for 'seed': expected an integer, got a string."),
        ({"stream": "yes"}, "Invalid value for 'stream': expected a boolean, got a string."),
        (
            {"tools": [1]},
            "Invalid value for 'tools[0]': expected an object, got an integer.",
        ),
        ({"grammar": "root ::= ("}, "Unrecognized request argument supplied: grammar"),
        (
            {"reasoning_effort": "huge"},
            "invalid reasoning value: \"huge\" (must be \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\", \"ultra\", \"max\", or \"none\")",
        ),
    ],
)  # fmt: skip
def test_errors(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(LCP, **fields)
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("traits", "fields", "text"),
    [
        (LCP, {"logprobs": True}, '"m" does not support logprobs'),
        (
            LCP,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "data:;base64,AAAA"}]}]},
            '"m" does not support vision',
        ),
        (
            VLLM,
            {"messages": [{"role": "u", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA"}}]}]},
            '"m" does not support audio',
        ),
    ],
)  # fmt: skip
def test_capabilities(traits: Traits, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(CapabilityMissing) as caught:
        chat(traits, **fields)
    assert caught.value.message == text


def test_media_of_earlier_turns_are_left_out_for_a_model_that_takes_none() -> None:
    see = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    hear = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    turn = {"role": "user", "content": [{"type": "text", "text": "see"}, see, hear]}
    messages = [turn, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    for traits, kept in ((LCP, []), (VLLM, [see])):
        sent, prepared = adapt_chat({"messages": messages}, traits)
        content = sent["messages"][0]["content"]
        assert content in ("see", [{"type": "text", "text": "see"}, *kept])
        assert prepared.ignored == ("messages[0] media",)
        with pytest.raises(CapabilityMissing):
            adapt_chat({"messages": messages[:1]}, traits)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://169.254.169.254/", "image URLs are not currently supported"),
        ("https://example.org/x.png", "image URLs are not currently supported"),
        ("file:///etc/passwd", "invalid image input"),
        ("data:text/html,", "invalid image input"),
    ],
)
def test_addresses_are_not_fetched(url: str, text: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    for traits in (VLLM, LCP):  # one that sees, and one that does not
        with pytest.raises(BadRequest, match=text):
            chat(traits, messages=[{"role": "user", "content": [part]}])


def test_completion() -> None:
    sent = completion(LCP, prompt=["p"], suffix="", best_of=3, stream=True, max_tokens=5)
    assert sent["prompt"] == "p" and sent["max_tokens"] == 5 and sent["stream"] is True
    assert not {"suffix", "best_of", "stream_options"} & set(sent)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [({}, 2048), ({"max_tokens": None}, 2048), ({"max_tokens": -1}, 2048), ({"max_tokens": 3}, 3)],
)
def test_completion_limit(fields: dict[str, Any], limit: int) -> None:
    assert completion(LCP, **fields)["max_tokens"] == limit


def test_completion_more() -> None:
    lists = Traits(context_length=10, takes_prompt_lists=True)
    assert completion(lists, logprobs=1)["logprobs"] == 1
    assert completion(lists, logprobs=0)["logprobs"] == 1  # engines read 0 as none
    assert "logprobs" not in completion(lists)
    with pytest.raises(CapabilityMissing):
        completion(LCP, logprobs=1)


def test_parse_openai() -> None:
    assert parse_openai(b'{"Model": "m"}') == {"model": "m"}
    with pytest.raises(BadRequest, match="missing request body"):
        parse_openai(b"")
