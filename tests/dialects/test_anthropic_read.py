from __future__ import annotations

import json
from typing import Any

import pytest

from tests.chat.bodies import adapt_chat
from tests.chat.test_engine_request import LCP, VLLM
from vllama.base.errors import BadRequest, CapabilityMissing
from vllama.chat.request import estimate_tokens
from vllama.dialects.anthropic.read import MessagesRequest, parse_messages
from vllama.dialects.openai.read import read_chat

HI = [{"role": "user", "content": "Hi"}]
PNG = "iVBORw0KGgoAAAANSUhEUg=="
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "the weather", "input_schema": SCHEMA}
NOW = {"name": "now", "input_schema": {"type": "object"}}
FUNCTION = {"name": "weather", "parameters": SCHEMA, "description": "the weather"}


def parse(**fields: Any) -> MessagesRequest:
    body = {"model": "m", "max_tokens": 10, "messages": HI} | fields
    given = {name: value for name, value in body.items() if value != "absent"}
    return parse_messages(json.dumps(given).encode())


def chat(**fields: Any) -> dict[str, Any]:
    return parse(**fields).chat


def turns(*messages: Any, **fields: Any) -> Any:
    return chat(messages=list(messages), **fields)["messages"]


def test_the_least() -> None:
    asked = parse()
    assert asked.chat == {"model": "m", "max_tokens": 10, "messages": HI, "stream": False}
    assert (asked.stop, asked.hide_thinking, asked.ignored) == ((), False, ())


def test_parameters() -> None:
    asked = parse(
        stream=True, temperature=0.2, top_p=0.5, top_k=3, stop_sequences=["a", "", "b"],
        metadata={"user_id": "x"}, service_tier="auto", nobody_knows={"x": 1}, container=None,
    )  # fmt: skip
    assert asked.chat["stream"] and asked.stop == ("a", "b")
    body, _ = adapt_chat(asked.chat, VLLM)
    sent = body
    assert (sent["temperature"], sent["top_p"], sent["top_k"]) == (0.2, 0.5, 3)
    assert sent["stop"] == ["a", "b"] and sent["max_tokens"] == 10
    assert read_chat(asked.chat).stream
    assert not {"metadata", "service_tier", "nobody_knows", "container"} & set(sent)


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ("be kind", "be kind"),
        ([{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}], "be\n\nkind"),
        (
            [
                {"type": "text", "text": "x-anthropic-billing-header: cch=1"},
                {"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}},
            ],
            "be kind",
        ),
    ],
)
def test_system(system: Any, text: str) -> None:
    assert turns(*HI, system=system) == [{"role": "system", "content": text}, *HI]


@pytest.mark.parametrize("system", [None, "", []])
def test_no_system(system: Any) -> None:
    assert turns(*HI, system=system) == HI


def test_images_stay_where_they_were() -> None:
    content = [{"type": "text", "text": "a"}, IMAGE, {"type": "text", "text": "b"}]
    asked = parse(messages=[{"role": "user", "content": content}])
    parts = adapt_chat(asked.chat, VLLM)[0]["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url", "text"]
    assert parts[1]["image_url"]["url"] == f"data:image/png;base64,{PNG}"
    with pytest.raises(CapabilityMissing, match="vision"):
        adapt_chat(asked.chat, LCP)


def test_history_of_tools() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": False}
    got = turns(
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": [thinking, {"type": "text", "text": "Let me"}, call]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "go on"},
                {**result, "content": [{"type": "text", "text": "rain"}, IMAGE]},
                {**result, "tool_use_id": "toolu_2", "content": "wind"},
                {**result, "tool_use_id": "toolu_3"},
            ],
        },
    )
    assert [message["role"] for message in got] == [
        "user", "assistant", "tool", "tool", "tool", "user",
    ]  # fmt: skip
    assert got[1]["reasoning"] == "hm" and got[1]["content"] == "Let me"
    assert got[1]["tool_calls"][0]["id"] == "toolu_1"
    assert json.loads(got[1]["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris"}
    assert [message["content"] for message in got[2:5]] == ["rain", "wind", ""]
    assert [part["type"] for part in got[5]["content"]] == ["text", "image_url"]
    sent = adapt_chat({"messages": got}, VLLM)[0]
    seen = read_chat({"messages": got}).messages
    (call,) = seen[1].tool_calls
    assert (call.id, call.name, call.arguments) == ("toolu_1", "weather", {"city": "Paris"})
    assert seen[2].tool_call_id == "toolu_1"
    assert sent["messages"][1]["reasoning"] == "hm"


def test_a_turn_of_calls_alone_has_no_text() -> None:
    call = {"type": "tool_use", "id": "t", "name": "now", "input": {}}
    got = turns(*HI, {"role": "assistant", "content": [call]})
    assert got[1]["content"] is None and "reasoning" not in got[1]


def test_a_users_call_is_a_message_without_text() -> None:
    call = {"type": "tool_use", "id": "t", "name": "now", "input": {}}
    thought = {"type": "thinking", "thinking": "hm"}
    for block in (call, thought):
        assert turns({"role": "user", "content": [block]}) == [{"role": "user", "content": ""}]
    assert turns({"role": "user", "content": [{**thought, "thinking": ""}]}) == []


PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf"}}
WEB = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
TORN = {"type": "image", "source": {"type": "base64", "data": "AA!="}}
PAPER = {"type": "document", "source": {"type": "text", "data": "read"}}


@pytest.mark.parametrize(
    ("content", "refused", "ignored"),
    [
        ([PDF, PAPER], "file inputs are not currently supported", "content[0] document"),
        ([PAPER, WEB], "image URLs are not currently supported", "content[1] image_url"),
        ([PAPER, TORN], "invalid image input", "content[1] image_url"),
        ([PAPER, {"type": "image"}], "invalid image input", "content[1] image_url"),
        (PAPER, None, None),
        ([{"type": "search_result", "content": [PDF]}, PAPER], "file inputs",
         "content[1] document"),
    ],
)  # fmt: skip
def test_what_the_user_asked_earlier_is_passed_over(content, refused, ignored) -> None:
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": {"ok": True}}
    turn = {"role": "user", "content": content}
    for answer, then in (("a", "go on"), ([use], [result]), ("a", {"type": "text", "text": "b"})):
        since = [{"role": "assistant", "content": answer}, {"role": "user", "content": then}]
        asked = read_chat(chat(messages=[turn, *since]))
        assert asked.messages[0].content.endswith("read")
        assert asked.messages[-1].content in ("go on", '{"ok":true}', "b")
        assert asked.passed_over == ((f"messages[0].{ignored}",) if ignored else ())
        for last in (
            [turn],
            [*since, turn],
            [*since, turn, *HI],
            [turn, {**since[0], "content": "a"}],
        ):
            if refused:
                with pytest.raises(BadRequest, match=refused):
                    read_chat(chat(messages=last))


def test_blocks_that_cannot_be_told_are_named() -> None:
    said = [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "a"}]
    call = {"type": "tool_use", "id": "a", "name": "", "input": {}}
    asked = parse(messages=[{"role": "assistant", "content": [*said, call]}, None, *HI])
    assert asked.chat["messages"] == [{"role": "assistant", "content": "a"}, *HI]
    assert asked.ignored == (
        "messages.0.content.0 redacted_thinking", "messages.0.content.2 tool_use",
        "messages.1.content.0 null",
    )  # fmt: skip


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "assistant"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": [{"type": "container_upload", "citations": {"enabled": True}}]},
    ],
)
def test_a_turn_that_says_nothing_is_left_out(turn: dict[str, Any]) -> None:
    assert turns(turn, {"role": "user", "content": "go on"}) == [
        {"role": "user", "content": "go on"}
    ]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf"}},
        {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}},
    ],
)
def test_a_result_that_cannot_be_read_ends_no_conversation(block: dict[str, Any]) -> None:
    text = {"type": "text", "text": "read"}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [text, block]}
    (got,) = turns({"role": "user", "content": [result]})
    assert got["role"] == "tool" and got["content"].startswith("read\n[left out: ")


def test_arguments_as_text_are_taken() -> None:
    called = {"type": "tool_use", "id": "a", "name": "f", "input": '{"a":1}'}
    (got,) = turns({"role": "assistant", "content": [called]})
    assert json.loads(json.loads(got["tool_calls"][0]["function"]["arguments"])) == {"a": 1}


def test_blocks_of_others_pass() -> None:
    search = {"type": "search_result", "title": "T", "source": "S",
              "content": [{"type": "text", "text": "found"}]}  # fmt: skip
    paper = {"type": "document", "source": {"type": "text", "data": "paper"}}
    inner = {"type": "document", "source": {"type": "content", "content": "inner"}}
    result = {"type": "web_search_tool_result", "tool_use_id": "x", "content": []}
    got = turns(
        {"role": "user", "content": [search, paper, inner, result]},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
        {"role": "system", "content": "later"},
    )
    assert got[0]["content"] == "T (S)\nfound\npaper\ninner"
    assert got[1] == {"role": "system", "content": "later"}  # what says nothing is left out


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (None, None),
        ({"type": "auto"}, None),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "now"}, {"type": "function", "function": {"name": "now"}}),
    ],
)
def test_tools(choice: Any, wanted: Any) -> None:
    body = chat(tools=[WEATHER, {**NOW, "type": "custom"}], tool_choice=choice)
    assert body["tools"][0] == {"type": "function", "function": FUNCTION}
    assert body["tools"][1]["function"]["name"] == "now"
    assert body.get("tool_choice") == wanted
    assert "parallel_tool_calls" not in body


def test_the_only_tool_is_named() -> None:
    body = chat(tools=[NOW], tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert body["tool_choice"] == {"type": "function", "function": {"name": "now"}}
    assert body["parallel_tool_calls"] is False


def test_no_tools_when_none_may_be_called() -> None:
    for fields in (
        {"tools": [NOW], "tool_choice": {"type": "none"}},
        {"tools": []},
        {"tools": None, "tool_choice": {"type": "any"}},
    ):
        assert not {"tools", "tool_choice"} & set(chat(**fields))


def test_tools_of_the_cloud_are_left_out() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    asked = parse(tools=[search, NOW, search])
    assert [tool["function"]["name"] for tool in asked.chat["tools"]] == ["now"]
    assert asked.ignored == ("web_search_20250305",)


@pytest.mark.parametrize(
    ("fields", "effort", "hidden"),
    [
        ({}, None, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, None, False),
        ({"thinking": {"type": "adaptive"}}, None, False),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, None, True),
        ({"thinking": {"type": "disabled"}}, "none", True),
        ({"output_config": {"effort": "low"}}, "low", False),
        ({"output_config": {"effort": "xhigh"}}, "high", False),
        ({"output_config": {"effort": "max"}}, "max", False),
        ({"output_config": {"effort": "enormous"}}, None, False),
        (
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
            "none",
            True,
        ),
    ],
)
def test_thinking(fields: dict[str, Any], effort: str | None, hidden: bool) -> None:
    asked = parse(**fields)
    assert asked.chat.get("reasoning_effort") == effort
    assert asked.hide_thinking is hidden


@pytest.mark.parametrize("name", ["output_config", "output_format"])
def test_schemas(name: str) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    body = chat(**{name: {"format": form} if name == "output_config" else form})
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"model": "absent"}, "model is required"),
        ({"model": ""}, "model is required"),
        ({"model": 5}, "Invalid value for 'model': expected a string"),
        ({"max_tokens": "absent"}, "max_tokens is required and must be positive"),
        (
            {"output_config": {"format": {"type": "json_schema", "json_schema": {}}}},
            "output_config.format: Input should be a json_schema with a schema",
        ),
        ({"max_tokens": "5"}, "Invalid value for 'max_tokens': expected an integer"),
        ({"max_tokens": True}, "Invalid value for 'max_tokens': expected an integer"),
        ({"max_tokens": 0}, "max_tokens is required and must be positive"),
        ({"messages": "absent"}, "messages is required"),
        ({"messages": []}, "messages is required"),
        ({"messages": "Hi"}, "Invalid value for 'messages': expected an array"),
        ({"messages": ["Hi"]}, "Invalid value for 'messages[0]': expected an object"),
        ({"messages": [{"role": "user", "content": 5}]}, "Invalid value for 'messages[0].content'"),
        (
            {"messages": [{"role": "user", "content": [5]}]},
            "Invalid value for 'messages[0].content[0]': expected a string or an object",
        ),
        ({"stream": "yes"}, "Invalid value for 'stream': expected a boolean"),
        ({"temperature": "hot"}, "Invalid value for 'temperature': expected a decimal"),
        ({"stop_sequences": "x"}, "Invalid value for 'stop_sequences': expected an array"),
        ({"tools": {}}, "Invalid value for 'tools': expected an array"),
        ({"tools": [5]}, "Invalid value for 'tools[0]': expected an object"),
        ({"tools": [NOW], "tool_choice": "auto"}, "Invalid value for 'tool_choice'"),
    ],
)  # fmt: skip
def test_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(**fields)
    assert caught.value.message.startswith(text)


def test_a_count_needs_no_limit() -> None:
    body = json.dumps({"model": "m", "messages": HI}).encode()
    assert "max_tokens" not in parse_messages(body, count_only=True).chat


def test_an_estimate_grows_with_all_that_is_sent() -> None:
    small = estimate_tokens(read_chat(chat()))
    assert small == 1
    long = estimate_tokens(read_chat(chat(messages=[{"role": "user", "content": "word " * 80}])))
    assert long == 100
    assert estimate_tokens(read_chat(chat(tools=[WEATHER]))) > 20
    parts = [{"type": "text", "text": "x" * 40}, IMAGE]
    assert estimate_tokens(read_chat(chat(messages=[{"role": "user", "content": parts}]))) == 10


@pytest.mark.parametrize("system", [5, {}, True])
def test_a_system_prompt_that_is_no_text_is_passed_over(system: object) -> None:
    assert parse(system=system).chat == parse().chat


def test_a_tool_that_is_null_has_no_name() -> None:
    assert [tool["function"]["name"] for tool in parse(tools=[None]).chat["tools"]] == [""]
