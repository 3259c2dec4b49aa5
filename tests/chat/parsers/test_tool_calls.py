from __future__ import annotations

import random
import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chat.parsers.calls import parse_calls
from vllama.chat.engine.events import FunctionDelta, ToolDelta
from vllama.chat.parsers import python_calls, tag_calls
from vllama.chat.parsers.call_values import Form, Toolset
from vllama.chat.tool_calls import CallCollector, CallScanner

HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TEXTS = [
    (HERMES, "", [("f", {"a": 1})]),
    (HERMES + "\n" + HERMES.replace('"f"', '"g"'), "", [("f", {"a": 1}), ("g", {"a": 1})]),
    ("I will. " + HERMES, "I will. ", [("f", {"a": 1})]),
    ('[TOOL_CALLS][{"name": "f", "arguments": {}}]', "", [("f", {})]),
    ('<|python_tag|>{"name": "f", "parameters": {"x": "y"}}', "", [("f", {"x": "y"})]),
    ('{"name": "f", "parameters": {"x": "y"}}', "", [("f", {"x": "y"})]),
    ('{"type": "function", "function": {"name": "f", "arguments": "{}"}}', "", [("f", {})]),
    ('{"name": "f"}; {"name": "g"}', "", [("f", {}), ("g", {})]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}}', "", [("f", {"a": 1})]),
    ("plain text", "plain text", []),
    ('{"answer": 42}', '{"answer": 42}', []),
    ('{"answer": 42, "why": "because of all"}', '{"answer": 42, "why": "because of all"}', []),
    ('<tool_call>{"name": "f", ', '{"name": "f", ', []),
    (HERMES + "\n\nDone.", "Done.", [("f", {"a": 1})]),
    (HERMES + "\nand then\n" + HERMES, "and then\n", [("f", {"a": 1}), ("f", {"a": 1})]),
    ("<tool_call>{bad}</tool_call>" + HERMES, "{bad}", [("f", {"a": 1})]),
    (HERMES + "<tool_call>{bad}</tool_call>", "{bad}", [("f", {"a": 1})]),
    ("\n" + HERMES + "\n", "", [("f", {"a": 1})]),
    ("```python\nf()\n```", "```python\nf()\n```", []),
    (
        '<tool_call>{"name": "f", "arguments": {"a": "two\nlines"}}</tool_call>',
        "",
        [("f", {"a": "two\nlines"})],
    ),
    (
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call> é 😀"}}</tool_call>',
        "",
        [("f", {"a": "</tool_call> é 😀"})],
    ),
    ('{"tool_calls": [{"name": "f", "arguments": {}}, {"name": "g"}]}', "", [("f", {}), ("g", {})]),
    ('{"name": "Bob", "age": ', '{"name": "Bob", "age": ', []),
    ("a < b [TOOL_CALL", "a < b [TOOL_CALL", []),
    ('{"name": "f", "arguments": "not json"}', '{"name": "f", "arguments": "not json"}', []),
    ("", "", []),
    # the tags are only talked about
    *(
        (text, text, [])
        for text in (
            "Write `<tool_call>` first and `</tool_call>` last.",
            "The <tool_call> tag and the </tool_call> tag hold JSON.",
            'It begins with "<tool_call>".',
            "Templates of Mistral use [TOOL_CALLS] for that, others `<function=NAME>`.",
            "```xml\n<tool_call>\n{...}\n</tool_call>\n```\nThat is all.",
            "`<|python_tag|>`",
        )
    ),
    ("`<tool_call>` it is:\n" + HERMES, "`<tool_call>` it is:\n", [("f", {"a": 1})]),
]


@pytest.mark.parametrize(("text", "content", "calls"), TEXTS)
def test_scanner_any_cut(text: str, content: str, calls: list[object]) -> None:
    form = Form.BARE if text.startswith("{") else Form.TAGGED
    for seed in range(40):
        chance = random.Random(seed)
        places = sorted(chance.randint(0, len(text)) for _ in range(min(seed, 9)))
        scanner = CallScanner(Toolset(form=form))
        ends = [*places, len(text)]
        given_ = "".join(scanner.feed(text[a:b]) for a, b in zip([0, *places], ends, strict=True))
        found, rest = scanner.finish()
        assert given_ + rest == content
        assert [(call.name, call.arguments) for call in found] == calls


@given(
    st.lists(
        st.sampled_from(['{"name":', '"f"', "}", "{", "<tool_call>", "[TOOL_CALLS]", "]", "x", " "])
    )
)
def test_scanner_loses_nothing(parts: list[str]) -> None:
    scanner = CallScanner()
    content = "".join(map(scanner.feed, parts))
    calls, rest = scanner.finish()
    text, said = "".join(parts), content + rest
    for tag in ("<tool_call>", "[TOOL_CALLS]"):  # stay only where they are part of a sentence
        text, said = text.replace(tag, ""), said.replace(tag, "")
    assert calls or "".join(said.split()) == "".join(text.split())


def test_plain_text_flows() -> None:
    scanner = CallScanner()
    assert [scanner.feed(part) for part in ("Hello", " wor", "ld [", "1]")] == [
        "Hello", " wor", "ld ", "[1]",
    ]  # fmt: skip


def delta(arguments: object, name: str | None = None, id: str | None = None, index: int = 0):  # type: ignore[no-untyped-def]
    return ToolDelta(index=index, id=id, function=FunctionDelta(name=name, arguments=arguments))


@pytest.mark.parametrize(
    ("deltas", "calls", "text"),
    [
        ([delta('{"a":', "f", "i"), delta("1}")], [("i", "f", {"a": 1})], ""),
        ([delta('{"a":', "f", "i"), delta("1}", "f", "i")], [("i", "f", {"a": 1})], ""),
        ([delta("{}", "f", "i")], [("i", "f", {})], ""),
        ([delta("", "f", "i")], [], '{"name": "f", "arguments": }'),
        ([delta('"{\\"a\\": 1}"', "f", "i")], [("i", "f", {"a": 1})], ""),
        ([delta('"Paris"', "f", "i")], [], '{"name": "f", "arguments": "Paris"}'),
        ([delta('{"a":', "f", "i")], [], '{"name": "f", "arguments": {"a":}'),
        ([delta("{}", None, "i")], [], '{"name": "", "arguments": {}}'),
        ([delta("[" * 5000, "f", "i")], [], '{"name": "f", "arguments": ' + "[" * 5000 + "}"),
        ([delta('{"a":1e999}', "f", "i")], [], '{"name": "f", "arguments": {"a":1e999}}'),
    ],
)
def test_collector(deltas: list[ToolDelta], calls: list[object], text: str) -> None:
    collector = CallCollector()
    for one in deltas:
        collector.add([one])
    found, rest = collector.finish()
    assert [(c.id, c.name, c.arguments) for c in found] == calls
    assert rest == text


def test_ids() -> None:
    """The same call may come again in a later turn, so its id is another one."""
    made = [call.id for _ in range(2) for call in parse_calls(HERMES)]
    assert all(re.fullmatch("call_[a-z0-9]{8}", identity) for identity in made)
    assert made[0] != made[1]


def test_many_calls_are_read_in_linear_time() -> None:
    assert len(parse_calls(HERMES * 5_000)) == 5_000


@pytest.mark.parametrize(
    ("reader", "text", "most"),
    [
        (f"{python_calls.__name__}._calls", "<|python_tag|>now()\n" * 20, 20),
        # each takes as long as the rest of the text
        (
            f"{tag_calls.__name__}._pairs",
            "<function=f>\n<parameter=a>\n" * 70 + "</b> x" * 50_000,
            12,
        ),
    ],
)
def test_a_call_is_read_once_and_one_that_cannot_be_read_not_often(
    monkeypatch: pytest.MonkeyPatch, reader: str, text: str, most: int
) -> None:
    place, _, name = reader.rpartition(".")
    read = getattr(sys.modules[place], name)
    tried = 0

    def count(*args: Any) -> Any:
        nonlocal tried
        tried += 1
        return read(*args)

    monkeypatch.setattr(reader, count)
    parse_calls(text)
    assert 0 < tried <= most
