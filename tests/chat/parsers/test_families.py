# ruff: noqa: E501 (tables of exact texts)
"""What the families of models write, as their templates ask for it, cut anywhere."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chat.parsers.calls import parse_calls
from vllama.chat.parsers.call_values import Form, Toolset
from vllama.chat.tool_calls import CallScanner

SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "hourly": {"type": ["boolean", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "code": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "unit": {"enum": ["c", "f"]},
        },
    },
    "now": {"type": "object", "properties": {}},
}
TOOLS = Toolset(schemas=SCHEMAS)
PARIS = ("weather", {"city": "Paris"})
DAYS = ("weather", {"city": "Zürich 😀", "days": 3})
NOW: tuple[str, dict[str, object]] = ("now", {})

FAMILIES: list[tuple[str, Form, str, str, list[Any]]] = [
    ("hermes", Form.TAGGED, 'Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', "Let me look.\n", [PARIS, NOW]),
    ("qwen coder", Form.TAGGED, "<tool_call>\n<function=weather>\n<parameter=city>\nZürich 😀\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", "", [DAYS]),
    ("qwen coder, types", Form.TAGGED, "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=tags>\n[\"a\", \"b\"]\n</parameter>\n<parameter=hourly>\nTrue\n</parameter>\n<parameter=code>\n7\n</parameter>\n<parameter=unit>\nc\n</parameter>\n</function>\n</tool_call>", "", [("weather", {"city": "12", "tags": ["a", "b"], "hourly": True, "code": 7, "unit": "c"})]),
    ("qwen coder, tags in a value", Form.TAGGED, "<function=weather>\n<parameter=city>\n<b>x</b>\ny </parameter> z\n</parameter>\n</function>", "", [("weather", {"city": "<b>x</b>\ny </parameter> z"})]),
    ("qwen coder, two and text", Form.TAGGED, "a\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call> b", "a\nb", [NOW, NOW]),
    ("seed", Form.TAGGED, "<seed:tool_call>\n<function=weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>", "", [PARIS]),
    ("llama tag", Form.TAGGED, '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}<|eom_id|>', "", [PARIS]),
    ("llama bare", Form.BARE, '{"name": "weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    ("llama bare, typed", Form.BARE, '{"type": "function", "name": "weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    ("llama two", Form.BARE, '{"name": "weather", "parameters": {"city": "Paris"}}; {"name": "now", "parameters": {}}', "", [PARIS, NOW]),
    ("llama own tool", Form.TAGGED, '<|python_tag|>weather.call(city="Paris")', "", [PARIS]),
    ("llama code", Form.TAGGED, "<|python_tag|>print(1 + 1)", "print(1 + 1)", []),
    ("llama pythonic", Form.BARE, '[weather(city="Zürich 😀", days=3), now()]', "", [DAYS, NOW]),
    ("llama 4 pythonic", Form.TAGGED, '<|python_start|>[weather(city=\'Paris\', hourly=true)]<|python_end|>', "", [("weather", {"city": "Paris", "hourly": True})]),
    ("lfm 2", Form.TAGGED, '<|tool_call_start|>[weather(city="Paris")]<|tool_call_end|>Looking.', "Looking.", [PARIS]),
    ("olmo 3", Form.TAGGED, '<function_calls>\nweather(city="Paris")\nnow()\n</function_calls>', "", [PARIS, NOW]),
    ("mistral list", Form.NAMED, '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}, {"name": "now", "arguments": {}}]', "", [PARIS, NOW]),
    ("mistral names", Form.NAMED, '[TOOL_CALLS]weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}', "", [PARIS, NOW]),
    ("mistral, text first", Form.NAMED, 'Sure.[TOOL_CALLS]weather{"city": "Paris"}', "Sure.", [PARIS]),
    ("mistral, tokens left out", Form.NAMED, 'weather{"city": "Paris"}now{}', "", [PARIS, NOW]),
    ("mistral list, token left out", Form.NAMED, '[{"name": "weather", "arguments": {"city": "Paris"}}]', "", [PARIS]),
    ("mistral, a word of the answer", Form.NAMED, "weather is fine {today}", "weather is fine {today}", []),
    ("deepseek v3", Form.TAGGED, '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', "", [PARIS, NOW]),
    ("deepseek v3.1", Form.TAGGED, 'Looking.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>', "Looking.", [PARIS, NOW]),
    ("deepseek v3.2", Form.TAGGED, '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Zürich 😀</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>', "", [DAYS]),
    ("kimi k2", Form.TAGGED, '<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>', "", [PARIS, NOW]),
    ("deepseek v4", Form.TAGGED, '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>', "", [PARIS]),
    ("dots", Form.TAGGED, '<dots_function_call>\n<invoke name="weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n</dots_function_call>', "", [PARIS]),
    ("granite 20b", Form.TAGGED, '<function_call> {"name": "weather", "arguments": {"city": "Paris"}}', "", [PARIS]),
    ("longcat", Form.TAGGED, '<longcat_tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</longcat_tool_call>', "", [PARIS]),
    ("minimax m2", Form.TAGGED, '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Zürich 😀</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>', "", [DAYS, NOW]),
    ("glm 4.5", Form.TAGGED, "Looking.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Zürich 😀</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>", "Looking.\n", [DAYS, NOW]),
    ("granite 3", Form.TAGGED, '<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}]', "", [PARIS]),
    ("phi 4 mini", Form.TAGGED, '<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}]<|/tool_call|>', "", [PARIS]),
    ("phi 4 mini, older", Form.TAGGED, 'functools[{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]', "", [PARIS, NOW]),
    ("phi 4 mini, after text", Form.TAGGED, 'Sure. functools[{"name": "weather", "arguments": {"city": "Paris"}}]<|end|>', "Sure. ", [PARIS]),
    ("python's module", Form.TAGGED, "Use functools[x] or functools.", "Use functools[x] or functools.", []),
    ("gigachat 3", Form.TAGGED, 'Sure.function call<|role_sep|>\n{"name": "weather", "arguments": {"city": "Paris"}}<|message_sep|>', "Sure.", [PARIS]),
    ("gigachat 3.5", Form.TAGGED, 'Sure.<|function_call|>{"name": "weather", "arguments": {"city": "Paris"}}<|message_sep|>', "Sure.", [PARIS]),
    ("nemotron", Form.TAGGED, '<TOOLCALL>[{"name": "weather", "arguments": {"city": "Paris"}}]</TOOLCALL>', "", [PARIS]),
    ("hunyuan", Form.TAGGED, '<tool_calls>[{"name": "now", "arguments": {}}]</tool_calls>', "", [NOW]),
    ("internlm 2", Form.TAGGED, '<|action_start|><|plugin|>\n{"name": "weather", "parameters": {"city": "Paris"}}<|action_end|>', "", [PARIS]),
    ("command r7b", Form.TAGGED, '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Paris"}}\n]<|END_ACTION|>', "", [PARIS]),
    ("command r", Form.ACTION, 'Action: ```json\n[\n    {\n        "tool_name": "weather",\n        "parameters": {\n            "city": "Paris"\n        }\n    }\n]```', "", [PARIS]),
    ("command r answers", Form.ACTION, 'Action: ```json\n[{"tool_name": "directly_answer", "parameters": {}}]\n```\nHello.', "\nHello.", []),
    ("functionary 3.1", Form.TAGGED, '<function=weather>{"city": "Paris"}</function><function=now>{}</function>', "", [PARIS, NOW]),
    ("functionary 3.2", Form.RECIPIENT, 'weather\n{"city": "Paris"}>>>now\n{}', "", [PARIS, NOW]),
    ("functionary 3.2, text", Form.RECIPIENT, 'all\nI look it up.\n>>>weather\n{"city": "Paris"}', "I look it up.\n", [PARIS]),
    ("functionary 3.2, only text", Form.RECIPIENT, "all\n>>> 1 + 1\n2", ">>> 1 + 1\n2", []),
    ("gpt-oss", Form.TAGGED, '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>', "", [PARIS]),
    ("functiongemma", Form.TAGGED, "<start_function_call>call:weather{city:<escape>Zürich 😀<escape>,days:3}<end_function_call>", "", [DAYS]),
    ("gemma 4", Form.TAGGED, '<|tool_call>call:weather{city:<|"|>Paris, {"a"}<|"|>,tags:[<|"|>x<|"|>],hourly:null}<tool_call|>', "", [("weather", {"city": 'Paris, {"a"}', "tags": ["x"], "hourly": None})]),
    ("gemma nothing", Form.TAGGED, "<|tool_call>call:now{}<tool_call|>", "", [NOW]),
]  # fmt: skip
IDS = [row[0] for row in FAMILIES]
ROWS = [row[1:] for row in FAMILIES]


def scan(tools: Toolset, parts: list[str]) -> tuple[str, list[Any]]:
    scanner = CallScanner(tools)
    content = "".join(map(scanner.feed, parts))
    calls, rest = scanner.finish()
    assert [call.index for call in calls] == list(range(len(calls)))
    return content + rest, [(call.name, call.arguments) for call in calls]


def cuts(text: str) -> list[list[str]]:
    ways = [[text], list(text)]
    for seed in range(20):
        chance = random.Random(seed)
        places = sorted(chance.randint(0, len(text)) for _ in range(chance.randint(1, 12)))
        ways.append([text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)])
    return ways


@pytest.mark.parametrize(("form", "text", "content", "calls"), ROWS, ids=IDS)
def test_each_family(form: Form, text: str, content: str, calls: list[Any]) -> None:
    tools = Toolset(schemas=SCHEMAS, form=form)
    for parts in cuts(text):
        assert scan(tools, parts) == (content, calls)


@pytest.mark.parametrize(("form", "text", "content", "calls"), ROWS, ids=IDS)
def test_an_answer_cut_short_loses_no_words(
    form: Form, text: str, content: str, calls: list[Any]
) -> None:
    """Wherever the length limit falls: no error, whole calls stay calls, the rest is text."""
    tools = Toolset(schemas=SCHEMAS, form=form)
    for end in range(len(text)):
        short, found = scan(tools, [text[:end]])
        assert found == calls[: len(found)]
        for tag in ("<tool_call>", "[TOOL_CALLS]", "<｜tool▁call▁begin｜>", "<function="):
            assert tag not in short
        if not found and "Paris" in text[:end]:
            assert "Paris" in short


@given(st.data())
def test_any_cut_of_any_mixture_is_the_same(data: st.DataObject) -> None:
    pieces = [text[a:b] for _, text, _, _ in ROWS for a, b in ((0, None), (0, 30), (12, None))]
    picked = data.draw(st.lists(st.sampled_from([*pieces, " ", "\n", "and", "{", "["]), max_size=6))
    form = data.draw(st.sampled_from(Form))
    text = "".join(picked)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    tools = Toolset(schemas=SCHEMAS, form=form)
    parts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert scan(tools, parts) == scan(tools, [text])


@given(st.text(alphabet="<>|[]{}\"':=,/ \nabtoolcal_function", max_size=60), st.sampled_from(Form))
def test_no_text_is_an_error(text: str, form: Form) -> None:
    scan(Toolset(schemas=SCHEMAS, form=form), list(text))


@pytest.mark.parametrize("tag", ["<tool_call>", "<function=f>\n<parameter=x>", "<tool_call>[", '<tool_call>{"a":[', "<|tool_call>call:f{a:["])  # fmt: skip
def test_what_cannot_be_read_takes_no_long(tag: str) -> None:
    assert parse_calls(tag * 20_000) == []


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bob", "parameters": {"age": 3}}',
        '{"name": "weather"',
        '[{"name": "Bob"}]',
        "[1, 2, 3]",
        "[weather] is a word",
        "[weather(1)]",
        "```json\n{\"name\": \"Bob\"}\n```",
        '{"function": "none", "arguments": {}}',
        "{}",
        "{\"city\": 1}",
    ],
)  # fmt: skip
def test_answers_that_only_look_like_calls_are_text(text: str) -> None:
    for tools in (TOOLS, Toolset(schemas=SCHEMAS, form=Form.BARE)):
        for parts in cuts(text):
            assert scan(tools, parts) == (text, [])


def test_plain_json_flows_once_its_first_key_is_no_call_s() -> None:
    scanner = CallScanner(Toolset(schemas=SCHEMAS, form=Form.BARE))
    assert [scanner.feed(part) for part in ('{"', "ans", 'wer": 4', "2}")] == [
        "", '{"ans', 'wer": 4', "2}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (
            Form.TAGGED,
            '<tool_call>{"name": "Hello Group", "arguments": {}}</tool_call>',
            '<tool_call>{"name": "Hello Group", "arguments": {}}</tool_call>',
            [],
        ),
        (
            Form.TAGGED,
            "Look: <tool_call><function=sky><parameter=at>noon</parameter></function></tool_call>",
            "Look: <tool_call><function=sky><parameter=at>noon</parameter></function></tool_call>",
            [],
        ),
        (
            Form.TAGGED,
            '<tool_call>{"name": "now"}</tool_call><tool_call>{"name": "then"}</tool_call>',
            '<tool_call>{"name": "then"}</tool_call>',
            [NOW],
        ),
        (
            Form.TAGGED,
            '<|tool_call|>[{"name": "now"}, {"name": "then"}]',
            '{"name": "then", "arguments": {}}',
            [NOW],
        ),
        (
            Form.TAGGED,
            '<｜tool▁call▁begin｜>then<｜tool▁sep｜>{"a": 1}',
            '<｜tool▁call▁begin｜>then<｜tool▁sep｜>{"a": 1}',
            [],
        ),
        (
            Form.NAMED,
            '[TOOL_CALLS]then{"a": 1}',
            '[TOOL_CALLS]then{"a": 1}',
            [],
        ),
    ],
)
def test_a_call_of_a_tool_that_nobody_offered_is_text(
    form: Form, text: str, content: str, calls: list[Any]
) -> None:
    tools = Toolset(schemas=SCHEMAS, form=form)
    for parts in cuts(text):
        assert scan(tools, parts) == (content, calls)


@pytest.mark.parametrize("most", [1, 2])
def test_at_most_so_many_calls(most: int) -> None:
    text = '<tool_call>{"name": "now"}</tool_call>' * 3
    assert len(scan(Toolset(schemas=SCHEMAS, most=most), [text])[1]) == most


def test_forced_calls_are_never_shown_as_text() -> None:
    tools = Toolset(schemas=SCHEMAS, forced=True, most=1)
    text = '  { "name" : "weather", "arguments": {"city": "Paris"} } '
    for parts in cuts(text):
        scanner = CallScanner(tools)
        assert not any(scanner.feed(part) for part in parts)
        calls, rest = scanner.finish()
        assert [(call.name, call.arguments) for call in calls] == [PARIS]
        assert not rest.strip()
    assert scan(tools, [text[:30]]) == (text[:30], [])


def test_types_of_bare_values_follow_the_schema() -> None:
    def value(key: str, raw: str) -> object:
        text = f"<function=weather><parameter={key}>{raw}</parameter></function>"
        ((_, arguments),) = scan(TOOLS, [text])[1]
        return arguments[key]

    assert value("city", "true") == "true"
    assert value("days", "x") == "x"
    assert value("days", "2.5") == 2.5
    assert value("code", "true") == "true"
    assert value("hourly", "null") is None
    assert value("unknown", '{"a": 1}') == {"a": 1}
    assert value("unknown", "word") == "word"
    assert value("unknown", "1e999") == "1e999"
