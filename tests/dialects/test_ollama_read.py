# ruff: noqa: E501 (tables of exact texts)
from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.base.errors import BadRequest
from vllama.chat.parsers.call_values import ToolCall
from vllama.chat.request import ChatRequest, Message
from vllama.dialects.ollama.read import (
    check_format,
    check_raw,
    parse_chat,
    parse_generate,
)

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n1234").decode()


def body(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def test_top_logprobs_mean_nothing_alone() -> None:
    asked = {"model": "m", "top_logprobs": 5}
    assert parse_chat(json.dumps(asked).encode()).top_logprobs == 0
    asked["logprobs"] = True
    assert parse_chat(json.dumps(asked).encode()).top_logprobs == 5


def test_chat_defaults() -> None:
    assert parse_chat(body(model="m")) == ChatRequest(model="m")
    assert parse_chat(b"{}") == ChatRequest(model="")
    assert parse_chat(b"null") == ChatRequest(model="")


def test_chat_everything() -> None:
    schema = {"type": "object"}
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    request = parse_chat(
        body(
            model="m",
            messages=[
                {"role": "SYSTEM", "content": "s"},
                {"role": "user", "content": "u", "images": [PNG]},
                {
                    "role": "assistant",
                    "content": None,
                    "thinking": "t",
                    "tool_calls": [
                        {"id": "c", "function": {"name": "f", "arguments": {"a": 1}, "index": 3}},
                        {"function": {"name": "g"}},
                    ],
                },
                {"role": "tool", "content": "r", "tool_name": "f", "tool_call_id": "c"},
            ],
            stream=False,
            format=schema,
            options={"num_ctx": 5, "Stop": None},
            keep_alive="1h30m",
            think="high",
            tools=[tool],
            truncate=False,
            shift=False,
            logprobs=True,
            top_logprobs=20,
            temperature=3,
            tool_choice="auto",
        )
    )
    assert request == ChatRequest(
        model="m",
        messages=(
            Message(role="system", content="s"),
            Message(role="user", content="u", images=(PNG,)),
            Message(
                role="assistant",
                thinking="t",
                tool_calls=(
                    ToolCall(id="c", name="f", arguments={"a": 1}, index=3),
                    ToolCall(name="g", index=1),
                ),
            ),
            Message(role="tool", content="r", tool_name="f", tool_call_id="c"),
        ),
        stream=False,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "response", "schema": schema},
        },
        options={"num_ctx": 5, "Stop": None},
        keep_alive=5400.0,
        think="high",
        tools=(tool,),
        truncate=False,
        shift=False,
        logprobs=True,
        top_logprobs=20,
    )


def test_nulls_empty_lists_and_any_case_of_keys() -> None:
    names = "messages stream format options keep_alive think tools truncate shift logprobs top_logprobs images"
    assert parse_chat(body(model="m", **dict.fromkeys(names.split()))) == ChatRequest(model="m")
    assert parse_chat(
        body(
            MODEL="m",
            Messages=[{"Role": "user", "Content": "x", "IMAGES": [], "Tool_Calls": []}],
            Tools=[],
            Format="",
        )
    ) == ChatRequest(model="m", messages=(Message(role="user", content="x"),))


def test_first_value_only() -> None:
    assert parse_chat(b'{"model":"m"}{"model":"n"}').model == "m"


CHAT_ERRORS = [
    ([], "Invalid value for the body: expected an object, got an array."),
    ("x", "Invalid value for the body: expected an object, got a string."),
    ({"model": 1}, "Invalid value for 'model': expected a string, got an integer."),
    ({"messages": "x"}, "Invalid value for 'messages': expected an array, got a string."),
    ({"messages": ["x"]}, "Invalid value for 'messages[0]': expected an object, got a string."),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "Invalid value for 'messages[0].content': expected a string, got an array.",
    ),
    (
        {"messages": [{"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
        "Invalid value for 'messages[0].tool_calls[0].function.arguments': "
        "expected an object, got a string.",
    ),
    ({"stream": "yes"}, "Invalid value for 'stream': expected a boolean, got a string."),
    ({"options": []}, "Invalid value for 'options': expected an object, got an array."),
    ({"tools": {}}, "Invalid value for 'tools': expected an array, got an object."),
    ({"tools": ["f"]}, "Invalid value for 'tools[0]': expected an object, got a string."),
    ({"think": "yes"}, 'invalid think value: "yes" (must be "high", "medium", "low", "max", true, or false)'),
    ({"think": 1}, "Invalid value for 'think': expected a boolean or a string, got an integer."),
    ({"keep_alive": "300"}, "Invalid value for 'keep_alive': time: missing unit in duration \"300\"."),
    ({"keep_alive": ""}, "Invalid value for 'keep_alive': time: invalid duration \"\"."),
    (
        {"keep_alive": True},
        "Invalid value for 'keep_alive': expected a number of seconds, or a duration such as '5m'.",
    ),
    ({"top_logprobs": 21}, "top_logprobs must be between 0 and 20"),
    ({"top_logprobs": -1}, "top_logprobs must be between 0 and 20"),
    *(
        ({"messages": [{}, {"images": ["AAAA", text]}]}, "Invalid value for 'messages[1].images[1]': expected base64.")
        for text in ("data:image/png;base64,AAAA", "AAA", "AA=A")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), CHAT_ERRORS)
def test_chat_errors(value: object, text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_chat(json.dumps(value).encode())
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(0, 0), (1.5, 1.5), (-1, math.inf), ("0", 0), ("-1m", math.inf), ("500ms", 0.5), (None, None)],
)
def test_keep_alive(value: object, seconds: float | None) -> None:
    assert parse_chat(body(model="m", keep_alive=value)).keep_alive == seconds


@pytest.mark.parametrize("value", [True, False, "low", "medium", "high", "max", None])
def test_think(value: object) -> None:
    assert parse_generate(body(model="m", think=value)).think == value


def test_generate() -> None:
    assert parse_generate(body(model="m")) == ChatRequest(model="m")
    request = parse_generate(
        body(
            model="m",
            prompt="p",
            system="y",
            template="t",
            context=[1, 2],
            images=[PNG],
            format="json",
            stream=False,
        )
    )
    assert request == ChatRequest(
        model="m",
        messages=(
            Message(role="system", content="y"),
            Message(role="user", content="p", images=(PNG,)),
        ),
        template="t",
        context=(1, 2),
        response_format={"type": "json_object"},
        stream=False,
    )
    assert parse_generate(body(model="m", context=[1, None, 2.0])).context == (1, 0, 2)  # as in Go
    assert parse_generate(body(model="m", system="", template="", context=[])) == ChatRequest(
        model="m"
    )
    assert parse_generate(body(model="m", system="y")).is_empty


def test_generate_goes_on_with_a_text() -> None:
    gap = parse_generate(body(model="m", prompt="p", suffix="s"))
    assert (gap.prompt, gap.suffix, gap.messages, gap.is_text) == ("p", "s", (), True)
    raw = parse_generate(body(model="m", prompt="p", raw=True))
    assert (raw.prompt, raw.messages, raw.is_text) == ("p", (), True)
    assert parse_generate(body(model="m", raw=True)).is_empty


RAW = "raw mode does not support template, system, or context"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"_debug_render_only": 1}, "'_debug_render_only': expected a boolean, got an integer."),
        ({"context": [1, 1.5]}, "'context[1]': expected an integer, got a decimal."),
        ({"prompt": ["p"]}, "'prompt': expected a string, got an array."),
    ],
)
def test_generate_errors(fields: dict[str, object], text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_generate(body(model="m", **fields))
    assert caught.value.message == f"Invalid value for {text}"


@pytest.mark.parametrize("field", [{"system": "s"}, {"template": "t"}, {"context": [1]}, {}])
def test_what_raw_excludes(field: dict[str, object]) -> None:
    check_raw(parse_generate(body(model="m", prompt="p", **field)))
    raw = parse_generate(body(model="m", prompt="p", raw=True, **field))
    if not field:
        check_raw(raw)
        return
    with pytest.raises(BadRequest) as caught:
        check_raw(raw)
    assert caught.value.message == RAW


def test_only_the_prompt_may_be_asked_for() -> None:
    assert parse_generate(body(model="m", _debug_render_only=True)).debug_render_only
    assert parse_chat(body(model="m", _debug_render_only=True)).debug_render_only
    assert not parse_chat(body(model="m", _debug_render_only=None)).debug_render_only


@pytest.mark.slow
def test_a_hundred_megabytes() -> None:
    image = "A" * (96 << 20)
    request = parse_chat(
        b'{"model":"m","messages":[{"role":"user","images":["' + image.encode() + b'"]}]}'
    )
    assert len(request.messages[0].images[0]) == len(image)


OTHERS = "stream options keep_alive think truncate format logprobs top_logprobs tools images prompt raw context y"
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "5m", "high", "json", "x"]),
    st.lists(st.sampled_from(["a", 1, None]), max_size=2),
    st.dictionaries(st.sampled_from(["seed", "stop", "a"]), st.sampled_from([1, 2.5, ["a"], {}])),
)
MESSAGES = st.dictionaries(
    st.sampled_from(["role", "Role", "content", "thinking", "images", "tool_calls", "x"]),
    st.one_of(st.sampled_from(["user", "Tool", "", "héé"]), VALUES),
)
BODIES = st.fixed_dictionaries(
    {"model": st.one_of(st.just("m"), VALUES)},
    optional={
        "messages": st.one_of(st.lists(MESSAGES, max_size=2), VALUES),
        "Messages": st.lists(MESSAGES, max_size=1),
        **dict.fromkeys(OTHERS.split(), VALUES),
    },
)


def parsed(parse: Callable[[bytes], object], body: bytes) -> object:
    """Return what a body says, or how it is refused."""
    try:
        return parse(body)
    except BadRequest as error:
        return str(error)


@given(BODIES, st.sampled_from([b" {}", b"x", b'"\\ud800"']))
def test_the_usual_body_says_what_it_says_at_length(value, more) -> None:
    body = json.dumps(value).encode()
    for parse in (parse_chat, parse_generate):
        # msgspec refuses what comes after
        quickly, at_length = parsed(parse, body), parsed(parse, body + more)
        assert quickly == at_length and repr(quickly) == repr(at_length)


@pytest.mark.parametrize(
    ("given_", "shown"), [("xml", r'"\"xml\""'), (3, '"3"'), ([], '"[]"'), (True, '"true"')]
)
def test_an_unknown_format_is_refused_where_it_is_used(given_: object, shown: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    asked = parse_chat(body(model="m", messages=messages, format=given_))
    with pytest.raises(BadRequest) as caught:
        check_format(asked)
    said = f'invalid format: {shown}; expected "json" or a valid JSON Schema object'
    assert caught.value.message == said
    loads = parse_chat(body(model="m", format=given_))
    assert check_format(loads).response_format is None


def test_a_message_that_is_null_is_an_empty_one():
    assert parse_chat(b'{"model":"m","messages":[null]}').messages == (
        Message(role="", content=""),
    )
