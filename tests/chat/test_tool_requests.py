from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chat.bodies import adapt_chat
from tests.chat.replies import collected
from tests.chat.test_engine_request import LCP, VLLM
from vllama.base.errors import BadRequest
from vllama.chat.parsers.call_values import Form, Toolset
from vllama.chat.prepare import make_call_schema, prepare_chat
from vllama.chat.request import ChatRequest, Message, PreparedChat
from vllama.chat.templates.template_style import Style, choose_think, read_style, template_switches
from vllama.chat.writer import ReplyOptions

LCP = replace(LCP, parses_tools=False, splits_reasoning=False)
SILENT = replace(VLLM, parses_tools=False, splits_reasoning=False, silent_tool_choice="none",
                 takes_template_kwargs=True)  # fmt: skip
PARSES = replace(VLLM, parses_tools=True)
KNOWS, KNOWS_NOT = Style(), Style(takes_tools=False)
USER: dict[str, Any] = {"role": "user", "content": "Weather?"}
CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "Of a city.",
                                      "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]  # fmt: skip
OPTIONS = ReplyOptions(kind="chat", stream=False, include_usage=False, model="m")
NAMED = {"type": "function", "function": {"name": "now"}}
HISTORY: list[dict[str, Any]] = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function",
         "function": {"name": "weather", "arguments": '{"city": "Paris"}'}},
        {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": ""}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
    {"role": "user", "content": "And?"},
]  # fmt: skip


def chat(traits: Any, style: Style | None, **fields: Any) -> tuple[dict[str, Any], PreparedChat]:
    body = {"model": "m", "messages": [USER], "tools": TOOLS, **fields}
    return adapt_chat(body, traits, style=style)


def tools_of(passage: PreparedChat) -> Toolset:
    assert passage.toolset is not None
    return passage.toolset


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_call_in_a_completion_is_not_thought(choice: object) -> None:
    """There the schema holds from the first token, also with an engine that splits thinking off."""
    traits = replace(SILENT, splits_reasoning=True)
    asked = ChatRequest(
        model="m",
        messages=(Message(role="user", content="Weather?"),),
        tools=tuple(TOOLS),
        tool_choice=choice,
        think=True,
    )
    completion = prepare_chat(asked, traits, Style(), renders=True)
    assert (completion.constrained, completion.think) == (True, False)
    in_chat = prepare_chat(asked, traits, Style())
    assert (in_chat.constrained, in_chat.think) == (False, True)


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_call_in_a_completion_is_a_schema(choice: object) -> None:
    """The engine parses the calls of its own chats, and knows no tools in a completion."""
    asked = ChatRequest(
        model="m",
        messages=(Message(role="user", content="Weather?"),),
        tools=tuple(TOOLS),
        tool_choice=choice,
    )
    completion = prepare_chat(asked, PARSES, Style(takes_tools=True), renders=True)
    assert completion.response_format is not None
    assert completion.toolset is not None and completion.toolset.forced
    in_chat = prepare_chat(asked, PARSES, Style(takes_tools=True))
    assert in_chat.response_format is None
    assert in_chat.tool_fields["tool_choice"] == choice


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_an_engine_that_parses_but_keeps_to_no_schema_is_given_one(choice: object) -> None:
    careless = replace(PARSES, keeps_call_schema=False, silent_tool_choice="none")
    body, passage = chat(careless, KNOWS, tool_choice=choice)
    names = {"weather", "now"} if choice == "required" else {"now"}
    assert {tool["function"]["name"] for tool in body["tools"]} == names
    assert body["tool_choice"] == "none"
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema == make_call_schema(body["tools"])[0]
    tools = tools_of(passage)
    assert (tools.forced, set(tools.schemas)) == (True, names)
    whole = collected(OPTIONS, careless, tools=tools)
    text = json.dumps({"name": "now", "arguments": {}})
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]}
    whole.feed(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode(), 1)
    (found,) = json.loads(whole.finish(2))["choices"]
    (call,) = found["message"]["tool_calls"]
    assert call["function"] == {"name": "now", "arguments": "{}"}
    assert found["finish_reason"] == "tool_calls"
    # what is left to the model is left to the engine's parser
    body, passage = chat(careless, KNOWS, tool_choice="auto")
    assert body["tool_choice"] == "auto" and "response_format" not in body
    assert not tools_of(passage).forced


def test_an_engine_that_parses_gets_all_as_it_is() -> None:
    body, passage = chat(PARSES, KNOWS_NOT, tool_choice="required", parallel_tool_calls=False)
    assert body["tools"] == TOOLS
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("required", False)
    assert "response_format" not in body
    assert passage.toolset


@pytest.mark.parametrize("traits", [LCP, SILENT, PARSES])
@pytest.mark.parametrize("style", [KNOWS, KNOWS_NOT, None])
def test_none_shows_the_model_no_tools(traits: Any, style: Style | None) -> None:
    body, passage = chat(traits, style, tool_choice="none", parallel_tool_calls=True)
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(body)
    assert body["messages"] == [USER]
    assert passage.toolset is None


def test_auto_leaves_the_rendering_to_the_template() -> None:
    body, passage = chat(LCP, KNOWS, tool_choice="auto")
    assert [tool["function"]["name"] for tool in body["tools"]] == ["weather", "now"]
    # templates read the parameters of every tool
    assert body["tools"][1]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert "tool_choice" not in body
    assert tools_of(passage).schemas == {
        "weather": CITY,
        "now": {"type": "object", "properties": {}},
    }
    assert chat(SILENT, KNOWS)[0]["tool_choice"] == "none"


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"weather", "now"}),
        ("any", {"weather", "now"}),
        (NAMED, {"now"}),
        ({"type": "allowed_tools",
          "allowed_tools": {"mode": "required", "tools": [NAMED]}}, {"now"}),
    ],
)  # fmt: skip
def test_required_is_a_schema_for_the_whole_answer(choice: object, names: set[str]) -> None:
    body, passage = chat(LCP, KNOWS, tool_choice=choice, response_format={"type": "json_object"})
    schema = body["response_format"]["schema"]
    calls = schema.get("anyOf", [schema])
    assert {call["properties"]["name"]["const"] for call in calls} == names
    assert {tool["function"]["name"] for tool in body["tools"]} == names
    tools = tools_of(passage)
    assert (tools.forced, tools.most, set(tools.schemas)) == (True, 1, names)
    assert passage.constrained
    assert chat(SILENT, KNOWS, tool_choice=choice)[0]["response_format"]["type"] == "json_schema"


def test_allowed_tools_narrow_down_the_choice() -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    body, passage = chat(LCP, KNOWS, tool_choice=allowed)
    assert [tool["function"]["name"] for tool in body["tools"]] == ["now"]
    assert not tools_of(passage).forced


def test_one_call_at_most() -> None:
    assert tools_of(chat(LCP, KNOWS, parallel_tool_calls=False)[1]).most == 1
    assert tools_of(chat(LCP, KNOWS, parallel_tool_calls=True)[1]).most is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": {}}, "Invalid value for 'tools': expected an array, got an object."),
        ({"tools": [{"type": "function"}]}, r"tools\[0\]\.function\.name"),
        ({"tool_choice": "often"}, "Invalid value for 'tool_choice'"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "no such tool: 'x'"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        chat(LCP, KNOWS, **fields)


def test_a_model_without_tools_is_told_them() -> None:
    body, passage = chat(LCP, KNOWS_NOT)
    assert "tools" not in body
    system, user = body["messages"]
    assert system["role"] == "system" and user == USER
    assert json.dumps(CITY, separators=(",", ":")) in system["content"]
    assert "<tool_call>" in system["content"]
    assert passage.toolset
    own = {"role": "system", "content": "Be kind."}
    body, _ = chat(LCP, KNOWS_NOT, messages=[own, USER], tool_choice="required")
    assert body["messages"][0]["content"].startswith("Be kind.\n\nYou have functions")
    assert "must call" in body["messages"][0]["content"]
    assert body["response_format"]["schema"]["anyOf"]


def test_a_template_without_system_messages_gets_them_with_the_question() -> None:
    style = read_style("{{ raise_exception('System role not supported') }}")
    body, _ = chat(LCP, style)
    (user,) = body["messages"]
    assert user["role"] == "user"
    assert user["content"].endswith("\n\nWeather?")


def test_history_becomes_text_for_a_template_without_tools() -> None:
    body, _ = chat(LCP, KNOWS_NOT, messages=HISTORY)
    system, first, answer, result = body["messages"]
    assert (system["role"], first) == ("system", USER)
    assert answer == {"role": "assistant", "content": (
        '<tool_call>\n{"name":"weather","arguments":{"city":"Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name":"now","arguments":{}}\n</tool_call>')}  # fmt: skip
    assert result == {
        "role": "user", "content": "Result of weather: rain\nResult of now: noon\nAnd?",
    }  # fmt: skip


@pytest.mark.parametrize("fields", [{"tools": None}, {"tool_choice": "none"}])
def test_history_without_tools_has_no_tags_to_repeat(fields: dict[str, Any]) -> None:
    body, _ = chat(LCP, KNOWS_NOT, messages=HISTORY, **fields)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert "<tool" not in json.dumps(body)
    assert 'Called weather with {"city":"Paris"}' in body["messages"][1]["content"]


def test_history_stays_where_the_template_knows_tools() -> None:
    assert chat(LCP, KNOWS, messages=HISTORY)[0]["messages"][1]["tool_calls"]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_history_becomes_text_for_an_engine_whose_templates_get_strings(choice: str) -> None:
    careless = replace(LCP, takes_calls=False)
    body, _ = chat(careless, KNOWS, messages=HISTORY, tool_choice=choice)
    assert "tool_calls" not in json.dumps(body["messages"])
    assert body["messages"][2]["content"] == "Result of weather: rain\nResult of now: noon\nAnd?"


def test_ids_of_nine_characters_for_templates_that_insist() -> None:
    style = read_style("{% if call.id|length != 9 %}{{ raise_exception('no') }}{% endif %} tools")
    messages = chat(LCP, style, messages=HISTORY)[0]["messages"]
    ids = [call["id"] for call in messages[1]["tool_calls"]]
    assert all(len(one) == 9 and one.isalnum() for one in ids)
    assert [messages[2]["tool_call_id"], messages[3]["tool_call_id"]] == ids


# -- schemas ----------------------------------------------------------------------------------


def one(parameters: object) -> Any:
    schema: Any = make_call_schema([{"function": {"name": "f", "parameters": parameters}}])[0]
    assert schema["required"] == ["name", "arguments"]
    return schema["properties"]["arguments"]


def prop(schema: object) -> Any:
    return one({"type": "object", "properties": {"x": schema}})["properties"]["x"]


ANY = {"type": ["string", "number", "boolean", "object", "array", "null"]}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "pattern": "^\\d{4}-\\d{2}$"},
         {"type": "string", "pattern": "^[0-9]{4}[-][0-9]{2}$"}),
        ({"type": "string", "pattern": "^[\\w.-]+@x\\.[a-z]{2,}$"},
         {"type": "string", "pattern": "^[A-Za-z0-9_.-]+[@][x][.][a-z]{2,}$"}),
        ({"type": "string", "pattern": "^.[^\\d]$"},
         {"type": "string", "pattern": r'^[^"\\\x00-\x1f][^"\\\x00-\x1f0-9]$'}),
        ({"type": "string", "pattern": "^(a|b)$"}, {"type": "string"}),
        ({"type": "string", "pattern": "^a{999}$"}, {"type": "string"}),
        ({"type": "string", "pattern": "\\d"}, {"type": "string"}),
        ({"type": "string", "pattern": '^"$'}, {"type": "string"}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": "string", "format": "email"}, {"type": "string"}),
        ({"enum": ["😀"]}, ANY),
        ({"enum": [["a\n"]]}, ANY),
        ({"enum": [{"a": 1}, "é", None]}, {"enum": [{"a": 1}, "é", None]}),
        ({"type": "string", "enum": ["a", "b"]}, {"enum": ["a", "b"]}),
        ({"type": "string", "enum": ['a"b']}, {"type": "string"}),
        ({"const": "a"}, {"enum": ["a"]}),
        ({"const": "a\\b"}, ANY),
        ({"type": ["string", "null"], "maxLength": 9},
         {"anyOf": [{"type": "string", "maxLength": 9}, {"type": "null"}]}),
        ({"type": "string", "maxLength": 10**6}, {"type": "string"}),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 1},
         {"type": "array", "items": {"type": "integer"}, "minItems": 1}),
        ({"type": "array"}, {"type": "array"}),
        ({"oneOf": [{"type": "null"}, {}]}, ANY),
        ({"allOf": [{"type": "boolean"}]}, {"type": "boolean"}),
        ({"description": "anything"}, ANY),
        (True, ANY),
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"type": "object"}),
        ({"type": "object", "properties": {"": {}}}, {"type": "object"}),
    ],
)  # fmt: skip
def test_schemas_say_what_every_grammar_can_hold(schema: object, expected: object) -> None:
    assert prop(schema) == expected


def test_references_are_put_in_place_and_end() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    made = one({"type": "object", "properties": {"n": {"$ref": "#/$defs/node"}},
                "$defs": {"node": node}})  # fmt: skip
    assert "$ref" not in json.dumps(made)
    assert made["properties"]["n"]["properties"]["next"] == ANY


def test_a_tool_without_arguments_takes_none() -> None:
    assert one({"type": "object", "properties": {}})["properties"] == {}
    assert one({"type": "string"}) == {"type": "object"}
    assert one({}) == {"type": "object"}


def test_schemas_that_grow_without_end_are_refused() -> None:
    doubled: dict[str, Any] = {"type": "string"}
    defs: dict[str, Any] = {}
    for n in range(20):
        defs[f"d{n}"] = doubled
        ref = {"$ref": f"#/$defs/d{n}"}
        doubled = {"type": "object", "properties": {"a": ref, "b": ref}}
    with pytest.raises(BadRequest, match="too large"):
        one({**doubled, "$defs": defs})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "enum", "anyOf", "$ref", "required", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_schema_is_an_error_of_one_of_several_tools(schema: object) -> None:
    odd = {"function": {"name": "f", "parameters": schema}}
    json.dumps(make_call_schema([odd, {"function": {"name": "g", "parameters": CITY}}])[0])
    with suppress(BadRequest):
        make_call_schema([odd])


# -- thinking ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked", [{"response_format": {"type": "json_object"}}, {"tool_choice": "required"}]
)
def test_a_grammar_that_holds_from_the_start_switches_thinking_off(asked: dict[str, Any]) -> None:
    body, passage = chat(SILENT, KNOWS, reasoning_effort="high", **asked)
    assert body["chat_template_kwargs"]["enable_thinking"] is False
    assert passage.think is False and passage.constrained
    # where the engine tells thinking apart, the grammar begins after it
    body, passage = chat(
        replace(SILENT, splits_reasoning=True), KNOWS, reasoning_effort="high", **asked
    )
    assert body["chat_template_kwargs"]["reasoning_effort"] == "high"
    assert not passage.constrained


@pytest.mark.parametrize(
    ("template", "switches"),
    [
        ("{% if enable_thinking is defined and not enable_thinking %}", {"enable_thinking"}),
        ("{%- if not thinking is defined %}{% set thinking = false %}", {"thinking"}),
        ("{% if message.thinking %}{{ message['thinking'] }}", set()),
        ("{%- set effort = reasoning_effort | default('medium') %}", {"reasoning_effort"}),
        ("{{ '<think>' if thinking else '' }}", {"thinking"}),
        ("{{ message }} thinking {{ message }}", set()),
        ("Reply with thinking.", set()),
        ("", set()),
    ],
)
def test_switches_of_a_template(template: str, switches: set[str]) -> None:
    assert read_style(template).switches == switches


def test_levels_reach_every_family() -> None:
    assert template_switches(None) == {}
    assert template_switches(True) == {"enable_thinking": True, "thinking": True}
    assert template_switches("low") == {
        "enable_thinking": True, "thinking": True, "reasoning_effort": "low",
    }  # fmt: skip
    # gpt-oss cannot be switched off
    assert template_switches(False)["reasoning_effort"] == "low"


def test_thinking_is_on_unless_asked_otherwise() -> None:
    off_by_itself = read_style("{% if thinking %}<think>{% endif %}")
    assert choose_think(None, off_by_itself) is True
    assert choose_think(False, off_by_itself) is False
    assert choose_think(None, read_style("{% if enable_thinking %}")) is True
    assert choose_think(None, read_style("{{ messages }}")) is None
    assert choose_think(None, None) is None


def test_a_hostile_template_is_read_in_one_pass() -> None:
    assert read_style("Action:" * 400_000).form is Form.TAGGED  # looked on from each: an hour
    assert read_style("Action:" * 3 + "tool_name").form is Form.ACTION
    assert read_style("tool_name Action:").form is Form.TAGGED


WRONG = {"type": "object", "properties": {"a": {"type": "nonsense"}}}
ODD = {"type": "function", "function": {"name": "odd", "parameters": WRONG}}
ODD_CHOICE = {"type": "function", "function": {"name": "odd"}}


@pytest.mark.parametrize(
    ("tools", "choice", "is_refused"),
    [
        ([ODD], ODD_CHOICE, True),
        ([*TOOLS, ODD], ODD_CHOICE, True),
        ([ODD], "required", True),
        ([*TOOLS, ODD], "required", False),
        ([*TOOLS, ODD], NAMED, False),
        ([ODD], "auto", False),
        ([ODD], "none", False),
    ],
)
def test_parameters_of_the_one_tool_to_be_called_are_a_schema(
    tools: list[Any], choice: object, is_refused: bool
) -> None:
    if is_refused:
        with pytest.raises(BadRequest) as caught:
            chat(LCP, KNOWS, tools=tools, tool_choice=choice)
        place = '#/properties/a/type: "nonsense" is not a type'
        said = f"cannot call the tool 'odd': cannot use the JSON schema: {place}"
        assert caught.value.message.startswith(said)
        return
    _, passage = chat(LCP, KNOWS, tools=tools, tool_choice=choice)
    named = choice == "required" and len(tools) > 1
    assert passage.ignored == (("tools[2].parameters",) if named else ())
