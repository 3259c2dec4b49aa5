"""Finished texts against schemas of which an engine holds a part."""

import json
from typing import Any

import pytest

from vllama.chat.engine.events import Event, decode_event
from vllama.chat.schema_check import MAX_CHARACTERS, SchemaCheck, find_violations

TEXT = {"type": "string"}
KEYWORDS: list[tuple[dict[str, Any], Any, Any, str]] = [
    ({"uniqueItems": True}, [1, 2], [1, 1], "uniqueItems"),
    ({"uniqueItems": True}, [{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 1}], "uniqueItems"),
    ({"format": "uri"}, "https://a.b/c?d#e", "a b", "format"),
    ({"format": "email"}, "a@b.org", "a@", "format"),
    ({"format": "date"}, "2024-02-29", "2023-02-29", "format"),
    ({"format": "ipv6"}, "::1", "::g", "format"),
    ({"format": "no such format"}, "a", 5, "type"),
    ({"propertyNames": {"pattern": "^a"}}, {"ab": 1}, {"b": 1}, "propertyNames.pattern"),
    ({"contains": {"const": 3}}, [1, 3], [1, 2], "contains"),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1, "b": 2}, {"a": 1}, "dependentRequired"),
    ({"not": {"const": 3}}, 4, 3, "not"),
    ({"if": {"minimum": 5}, "then": {"multipleOf": 2}}, 6, 7, "then.multipleOf"),
    ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, 1, 2, "oneOf"),
    ({"pattern": "^(?=.*b)a"}, "ab", "ac", "pattern"),
    ({"anyOf": [{"allOf": [{"minimum": 2}]}]}, 2, 1, "anyOf[0].allOf[0].minimum"),
    ({"unevaluatedProperties": False, "properties": {"a": True}}, {"a": 1}, {"b": 1},
     "unevaluatedProperties"),
]  # fmt: skip


def find(schema: dict[str, Any], *texts: str) -> str:
    return find_violations([("schema", json.dumps(schema), texts)])


@pytest.mark.parametrize(("keywords", "good", "bad", "place"), KEYWORDS)
def test_keywords(keywords: dict[str, Any], good: Any, bad: Any, place: str) -> None:
    if place == "type":
        keywords = TEXT | keywords
    schema = {"properties": {"x": {"$ref": "#/$defs/x"}}, "$defs": {"x": keywords}}
    texts = [json.dumps({"x": good})]
    assert find(schema, *texts) == ""
    found = find(schema, *texts, json.dumps({"x": bad})).split("\n")
    assert f"schema.properties.x.{place}" in found or found == ["schema.properties.x.anyOf"]


@pytest.mark.parametrize(
    ("schema", "text", "found"),
    [
        ({"type": "object"}, "Sure! {}", "schema"),
        ({"type": "object"}, "", "schema"),
        ({"items": [TEXT]}, "[5]", ""),  # of an older draft: nothing is said
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [TEXT]}, "[5]",
         "schema.items[0].type"),
        ({"$ref": "http://localhost:1/s"}, "5", ""),  # nothing is fetched
        ({"$ref": "#"}, "5", ""),
        ({"not": {}}, "[" * 100_000, ""),
        ({"minimum": 5}, "1e999", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_judged(schema: dict[str, Any], text: str, found: str) -> None:
    assert find(schema, text) == found


def events(*pieces: tuple[int, str, str | None]) -> list[Event]:
    return [
        decode_event(json.dumps({"choices": [
            {"index": index, "delta": {"content": text}, "finish_reason": reason}
        ]}).encode())
        for index, text, reason in pieces
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        ([(0, "a", None), (0, "b", "stop")], ["ab"]),
        ([(0, "a", None), (1, "b", None), (0, "", "length"), (1, "c", "stop")], ["bc"]),
        ([(0, "a", None)], []),
        ([(0, "a", "tool_calls")], []),
        ([(0, "a" * MAX_CHARACTERS, None), (0, "", "stop")], ["a" * MAX_CHARACTERS]),
        ([(0, "a" * MAX_CHARACTERS, None), (0, "b", None), (0, "", "stop")], []),
    ],
)
def test_only_texts_that_end_by_themselves_are_collected(
    pieces: list[tuple[int, str, str | None]], texts: list[str]
) -> None:
    check = SchemaCheck({"": ("schema", {})})
    for event in events(*pieces):
        check.take(event)
        assert not event.changed
    assert check.found == [("", text) for text in texts]


def call(index: int, name: str | None, arguments: str, reason: str | None = None) -> Event:
    function = {"name": name, "arguments": arguments}
    delta = {"tool_calls": [{"index": index, "function": function}]}
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return decode_event(json.dumps({"choices": [choice]}).encode())


UNIQUE = {"properties": {"a": {"uniqueItems": True}}}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([call(0, "f", '{"a": [1'), call(0, None, ", 1]}", "tool_calls")],
         "tools[3].parameters.properties.a.uniqueItems"),
        ([call(0, "f", '{"a": [1]}'), call(1, "f", '{"a": [1, 1]}', "tool_calls")],
         "tools[3].parameters.properties.a.uniqueItems"),
        ([call(0, "f", '{"a": [1]}', "tool_calls")], ""),
        ([call(0, "f", '{"a": [1, 1]', "length")], ""),
        ([call(0, "g", "{}", "tool_calls")], "tool_choice"),
        (events((0, "no, thanks", "stop")), "tool_choice"),
        ([*events((0, "well,", None)), call(0, "f", "{}", "tool_calls")], ""),
        ([call(0, "f", '{"a": [1, 1]}'), call(0, None, " " * MAX_CHARACTERS, "tool_calls")], ""),
    ],
)  # fmt: skip
def test_arguments_of_calls(given: list[Event], found: str) -> None:
    check = SchemaCheck({"f": ("tools[3].parameters", UNIQUE)})
    for event in given:
        check.take(event)
    assert find_violations(check.make_jobs()) == found
