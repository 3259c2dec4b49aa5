"""Schemas in the words that an engine's compiler holds, and the names of what it does not.

The tables were checked with the compilers: random walks through their grammars gave no value that
the schema refuses and that is not named.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.chat.bodies import adapt_chat
from vllama.base.errors import BadRequest
from vllama.chat.engine.traits import Traits
from vllama.chat.grammar_schema import (
    COMPILERS,
    CONVERTER,
    LLGUIDANCE,
    XGRAMMAR,
    Compiler,
    SchemaWriter,
)

STRING, INTEGER = {"type": "string"}, {"type": "integer"}


def write(schema: dict[str, Any], compiler: Compiler = LLGUIDANCE) -> tuple[Any, list[str]]:
    writer = SchemaWriter(compiler)
    out = writer.write(schema, "schema")
    return None if out is None else writer.finish(out), [*writer.left_out]


def closed(**members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members, "additionalProperties": False}


NEVER: list[dict[str, Any]] = [
    {"type": "array", "items": STRING, "uniqueItems": True},
    {"type": "array", "contains": {"const": 1}},
    {"type": "object", "propertyNames": {"maxLength": 2}},
    {"type": "object", "dependentRequired": {"a": ["b"]}},
    {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    {"type": "integer", "not": {"const": 1}},
    {"type": "string", "pattern": "^(?=a)[ab]+$"},
    {"type": "string", "pattern": r"^(a|b)\1$"},
    {"type": "string", "pattern": r"a\b"},
    {"type": "string", "pattern": "a^b"},
    {"type": "string", "format": "idn-email"},
    {"oneOf": [{"type": "number"}, {"type": "integer"}]},
]


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("schema", NEVER, ids=str)
def test_what_no_compiler_holds_is_named(schema: dict[str, Any], compiler: Compiler) -> None:
    word = next(name for name in schema if name not in ("type", "items"))
    out, left_out = write({"properties": {"x": schema}}, compiler)
    assert left_out == [f"schema.properties.x.{word}"]
    assert f"'{word}'" not in str(out)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": INTEGER}}, INTEGER | {"maximum": 3}),
        (
            {"allOf": [{"minimum": 1, "type": "integer"}, {"maximum": 4}, {"maximum": 9}]},
            INTEGER | {"minimum": 1, "maximum": 4},
        ),
        (
            {"allOf": [{"properties": {"a": STRING}}, {"properties": {"b": INTEGER}}]},
            closed(a=STRING, b=INTEGER),
        ),
        (
            {"type": "integer", "anyOf": [{"minimum": 3}, {"maximum": 0}]},
            {"anyOf": [INTEGER | {"minimum": 3}, INTEGER | {"maximum": 0}]},
        ),
        (INTEGER | {"minimum": 3, "exclusiveMinimum": True}, INTEGER | {"exclusiveMinimum": 3}),
        (INTEGER | {"minimum": 2.5}, INTEGER | {"minimum": 3}),
        (
            {"properties": {"a": STRING}, "required": ["b"]},
            closed(b={}, a=STRING) | {"required": ["b"]},
        ),
        ({"anyOf": [{"not": {}}, STRING]}, STRING),
        ({"const": 1, "type": "string"}, None),
        (
            {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INTEGER},
            closed(a=INTEGER, b=INTEGER),
        ),
        (
            {"propertyNames": {"type": "string"}, "additionalProperties": INTEGER},
            {"type": "object", "additionalProperties": INTEGER},
        ),
        (
            {"propertyNames": {"$ref": "#/$defs/k"}, "additionalProperties": INTEGER,
             "$defs": {"k": {"type": "string", "enum": ["a"]}}},
            closed(a=INTEGER),
        ),
        (
            {"type": "array", "items": [STRING, INTEGER], "additionalItems": False},
            {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "maxItems": 2},
        ),
        (
            {"oneOf": [{"properties": {"k": {"const": x}}, "required": ["k"], "type": "object"}
                       for x in "ab"]},
            {"anyOf": [closed(k={"enum": [x]}) | {"required": ["k"]} for x in "ab"]},
        ),
        (
            {"properties": {"a": {"$ref": "#"}}},
            closed(a={"$ref": "#/$defs/r0"}) | {"$defs": {"r0": closed(a={"$ref": "#/$defs/r0"})}},
        ),
        (
            {"properties": {"a": {"allOf": [{"$ref": "#"}], "description": "d"}}},
            closed(a={"$ref": "#/$defs/r0"}) | {"$defs": {"r0": closed(a={"$ref": "#/$defs/r0"})}},
        ),
        ({"properties": {"a": True, "b": False}}, closed(a={})),
        ({"enum": [{"properties": {"a": 1}}]}, {"enum": [{"properties": {"a": 1}}]}),
    ],
)  # fmt: skip
def test_other_words_for_the_same(schema: dict[str, Any], expected: object) -> None:
    assert write(schema) == (expected, [])


@pytest.mark.parametrize(
    ("compiler", "schema", "left_out"),
    [
        (LLGUIDANCE, {"type": "integer", "multipleOf": 3}, []),
        (XGRAMMAR, {"type": "integer", "multipleOf": 3}, ["schema.multipleOf"]),
        (LLGUIDANCE, STRING | {"pattern": "^a+$", "maxLength": 3}, []),
        (XGRAMMAR, STRING | {"pattern": "^a+$", "maxLength": 3}, ["schema.maxLength"]),
        # 14 seconds in xgrammar
        (XGRAMMAR, STRING | {"pattern": "^a{1,2083}$"}, ["schema.pattern"]),
        (XGRAMMAR, STRING | {"format": "uri"}, []),
        (LLGUIDANCE, STRING | {"format": "uri"}, ["schema.format"]),
        (LLGUIDANCE, {"type": "number", "minimum": 1.5}, []),
        (LLGUIDANCE, {"type": "number", "multipleOf": 0.01}, []),
        (LLGUIDANCE, {"type": "number", "multipleOf": 0.07}, ["schema.multipleOf"]),
        (LLGUIDANCE, INTEGER | {"minimum": -(2**53), "maximum": 2**53}, []),
        (LLGUIDANCE, INTEGER | {"minimum": -(2**63), "maximum": 9}, ["schema.minimum"]),
        (LLGUIDANCE, {"type": "number", "maximum": 3.4e38}, ["schema.maximum"]),
        (CONVERTER, {"type": "number", "minimum": 1.5}, ["schema.minimum"]),
    ],
)
def test_what_each_compiler_holds(compiler: Compiler, schema: Any, left_out: list[str]) -> None:
    assert write(schema, compiler)[1] == left_out


def test_a_schema_of_which_nothing_is_held_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"does not support schema\.not"):
        write({"not": {"type": "string"}})


TRAITS = Traits(
    context_length=512, completion_schema="json_schema", schema_compiler=LLGUIDANCE,
    passed_fields=frozenset({"json_schema"}),
)  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": STRING},
        {"guided_json": '{"type": "string"}'},
        {"structured_outputs": {"json": STRING}},
        {"json_schema": STRING},
    ],
)
def test_schemas_in_words_of_engines(fields: dict[str, Any]) -> None:
    body, chat = adapt_chat({"messages": [{"role": "user", "content": "a"}], **fields}, TRAITS)
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema.pop("x-guidance") and schema == STRING
    assert (chat.ignored, fields.keys() & body.keys()) == ((), set())


def test_a_second_schema_is_named() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": STRING}}
    fields = {"guided_json": INTEGER, "json_schema": INTEGER, "structured_outputs": {"json": {}}}
    asked = {"messages": [{"role": "user", "content": "a"}], "response_format": form, **fields}
    body, chat = adapt_chat(asked, TRAITS)
    assert (set(chat.ignored), fields.keys() & body.keys()) == (fields.keys(), set())


def test_forms_that_an_engine_does_not_know_are_named() -> None:
    fields = {"structured_outputs": {"regex": "a"}, "guided_regex": "a"}
    chat = adapt_chat({"messages": [{"role": "user", "content": "a"}], **fields}, TRAITS)[1]
    assert set(chat.ignored) == fields.keys()


def test_what_a_forced_call_cannot_hold_is_named() -> None:
    tool = {"name": "f", "parameters": {"properties": {"u": STRING | {"format": "uri"}}}}
    body = {"messages": [{"role": "user", "content": "a"}], "tool_choice": "required",
            "tools": [{"type": "function", "function": tool}]}  # fmt: skip
    chat = adapt_chat(body, replace(TRAITS, parses_tools=False))[1]
    assert chat.ignored == ("tools[0].parameters.properties.u.format",)


@pytest.mark.parametrize("count", [3, 12, 100])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_options_of_options_stay_few(compiler: Compiler, count: int) -> None:
    """Twelve alternatives of twelve each are 12 ** 12 pairs."""

    def one(name: str) -> dict[str, Any]:
        return {"type": "object", "properties": {name: STRING}, "required": [name]}

    several = [{"anyOf": [one(f"p{a}_{b}") for b in range(count)]} for a in range(count)]
    out, left_out = write({"allOf": several}, compiler)
    assert out is not None and left_out == ([] if count == 3 else ["schema.anyOf"])
