"""Tools with the real engine and a model whose template knows none."""

import json
import re

import openai
import pytest

from tests.e2e.conftest import COUNTS, MODEL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CITY = {"type": "string", "enum": ["Paris", "Rome", "Oslo"]}
WEATHER = {
    "type": "object",
    "properties": {"city": CITY, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
}
ZONE = {"type": "string", "maxLength": 12}
TIME = {"type": "object", "properties": {"zone": ZONE}, "required": ["zone"]}
# no fewer than the longest call that these schemas allow has bytes
ROOM = 500
TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a city", "parameters": WEATHER}},
    {"type": "function", "function": {
        "name": "get_time", "description": "The time in a zone", "parameters": TIME}},
]  # fmt: skip
ASK = [{"role": "user", "content": "What is the weather in Paris for 3 days?"}]


@pytest.fixture(scope="module")
def client(real):
    """Return OpenAI's client."""
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="none") as made:
        yield made


def check_call(name, arguments):
    """Check a call against its tool's schema."""
    value = json.loads(arguments)
    if name == "get_weather":
        assert set(value) == {"city", "days"}
        assert value["city"] in CITY["enum"]
        assert type(value["days"]) is int
    else:
        assert name == "get_time"
        assert set(value) == {"zone"}
        assert isinstance(value["zone"], str)


def joined(stream):
    """Return content, calls and finish reason of a stream."""
    content, calls, reason = "", {}, None
    for chunk in stream:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for piece in choice.delta.tool_calls or ():
                name, arguments = calls.get(piece.index, ("", ""))
                calls[piece.index] = (
                    name + (piece.function.name or ""),
                    arguments + (piece.function.arguments or ""),
                )
    return content, list(calls.values()), reason


@pytest.mark.parametrize("temperature", [0, 1])
def test_required_is_one_valid_call(client, temperature):
    reply = client.chat.completions.create(
        model=MODEL, messages=ASK, tools=TOOLS, tool_choice="required", seed=7,
        temperature=temperature, max_tokens=ROOM,
    )  # fmt: skip
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert not choice.message.content
    (call,) = choice.message.tool_calls
    check_call(call.function.name, call.function.arguments)
    with client.chat.completions.create(
        model=MODEL, messages=ASK, tools=TOOLS, tool_choice="required", seed=7,
        temperature=temperature, max_tokens=ROOM, stream=True,
    ) as stream:  # fmt: skip
        content, calls, reason = joined(stream)
    assert content == ""
    ((name, arguments),) = calls
    check_call(name, arguments)
    assert reason == "tool_calls"


@pytest.mark.parametrize("name", ["get_weather", "get_time"])
def test_a_named_function_is_called(client, name):
    choice = {"type": "function", "function": {"name": name}}
    reply = client.chat.completions.create(
        model=MODEL, messages=ASK, tools=TOOLS, tool_choice=choice, max_tokens=ROOM, temperature=0
    )
    (call,) = reply.choices[0].message.tool_calls
    assert call.function.name == name
    check_call(call.function.name, call.function.arguments)


def test_schemas_that_the_engine_cannot_hold_do_not_end_it(client, real):
    odd = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^\\d+$"},
            "b": {"enum": ['say "hi"', "back\\slash"]},
            "c": {"$ref": "#/$defs/node"},
            "d": {},
            "e": {"type": "array", "items": {"type": "integer"}, "maxItems": 100000},
            "é": {"const": "ü"},
        },
        "required": ["a", "b", "c", "é"],
        "$defs": {"node": {"type": "object", "properties": {
            "next": {"$ref": "#/$defs/node"}, "value": {"type": ["integer", "null"]}}}},
    }  # fmt: skip
    tools = [{"type": "function", "function": {"name": "odd", "parameters": odd}}]
    reply = client.chat.completions.create(
        model=MODEL, messages=ASK, tools=tools, tool_choice="required", max_tokens=60
    )
    choice = reply.choices[0]
    # whole, or cut by the limit and then text
    assert choice.message.tool_calls or choice.message.content
    assert real.get("/api/ps")["models"]


PATTERNS = [
    (r"^\d{4}-\d{2}-\d{2}$", r"\d{4}-\d{2}-\d{2}"),
    (r"^#[0-9a-f]{6}$", r"#[0-9a-f]{6}"),
    (r"^[\w.+-]{3,9}@x\.[a-z]{2,3}$", r"[\w.+-]{3,9}@x\.[a-z]{2,3}"),
    (r"^[A-Z]{1,3}[a-z ]{0,9}$", r"[A-Z]{1,3}[a-z ]{0,9}"),
    (r"^a.{2}[^0-9]{1}-$", r"a..[^0-9]-"),
]


@pytest.mark.parametrize(("pattern", "expected"), PATTERNS)
def test_simple_patterns_are_kept_to(real, pattern, expected):
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}},
              "required": ["x"]}  # fmt: skip
    body = {"model": MODEL, "messages": ASK, "format": schema, "stream": False,
            "options": {"temperature": 0, "num_predict": ROOM}}  # fmt: skip
    status, reply = real.post("/api/chat", body)
    assert status == 200
    assert re.fullmatch(expected, json.loads(reply["message"]["content"])["x"])


def test_a_history_without_tools_that_may_be_called(client):
    history = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {
                "name": "get_weather", "arguments": '{"city": "Paris", "days": 3}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 21 degrees"},
    ]  # fmt: skip
    reply = client.chat.completions.create(
        model=COUNTS, messages=history, tools=TOOLS, tool_choice="none", max_tokens=2
    )
    assert reply.choices[0].message.content == " one two"
    assert reply.usage.prompt_tokens > 50
    with pytest.raises(openai.BadRequestError, match="does not support tools"):
        client.chat.completions.create(model=COUNTS, messages=history, tools=TOOLS)


def test_messages_and_responses_force_a_call_too(real, client):
    body = {
        "model": MODEL, "max_tokens": ROOM, "messages": ASK, "tool_choice": {"type": "any"},
        "tools": [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]}
                  for t in TOOLS],
    }  # fmt: skip
    status, reply = real.post("/v1/messages", body)
    assert status == 200
    assert reply["stop_reason"] == "tool_use"
    (block,) = reply["content"]
    check_call(block["name"], json.dumps(block["input"]))
    response = client.responses.create(
        model=MODEL, input=ASK[0]["content"], tool_choice="required", max_output_tokens=ROOM,
        tools=[{"type": "function", "strict": False, **t["function"]} for t in TOOLS],
    )  # fmt: skip
    (item,) = response.output
    assert item.type == "function_call"
    check_call(item.name, item.arguments)
