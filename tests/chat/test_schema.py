from __future__ import annotations

import pytest

from tests.chat.bodies import adapt_chat, adapt_completion, chat_call, completion_call
from vllama.base.errors import BadRequest
from vllama.chat.engine.traits import SchemaStyle, Traits
from vllama.chat.grammar_schema import FRAGILE, SchemaWriter
from vllama.chat.request import Sampling
from vllama.chat.schema import (
    MOST_COUNT,
    MOST_DEPTH,
    MOST_ITEMS,
    MOST_NESTED,
    References,
    check_schema,
)

TREE = {"$defs": {"t": {"type": "object", "properties": {"n": {"$ref": "#/$defs/t"}}}}}
ENGINES = (
    Traits(context_length=512),
    Traits(context_length=512, schema_style=SchemaStyle.JSON_OBJECT),
    Traits(context_length=512, completion_schema="json_schema", chats_by_completion=True),
)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"description": "anything", "title": "T", "$schema": "s", "$comment": "c", "x-own": [1]},
        {"type": "object", "properties": {"a": {}, "b": True, "c": False}, "required": ["a", "z"]},
        # members that are called like keywords
        {"properties": {"type": {"type": "string"}, "$ref": {}, "enum": {}, "required": {}}},
        {"enum": [{"type": "nonsense", "$ref": 5}], "default": {"type": 5}, "examples": "x"},
        {"const": {"$ref": "#/nowhere"}},
        {"const": None},
        {"type": "array", "items": True, "minItems": 0, "uniqueItems": True},
        {"type": "array", "items": [{"type": "string"}], "additionalItems": False},
        {"prefixItems": [{"type": "string"}], "items": False, "minItems": 2.0},
        {"type": ["object", "null"], "properties": {"a": {"type": ["string", "null"]}}},
        {"type": None},
        {"anyOf": [{"type": "string"}, True]},
        {"allOf": [{"properties": {"a": {}}}, {"required": ["a"]}]},
        {"if": {"type": "string"}, "then": {"minLength": 1}, "else": False, "not": {}},
        {"additionalProperties": {"type": "string"}, "patternProperties": {"^a": {}}},
        {"dependentRequired": {"a": ["b"]}, "propertyNames": {"pattern": "^a"}},
        {"minLength": 5, "maxLength": 5, "minimum": 1, "maximum": 1},
        {"type": "string", "minItems": 5, "maxItems": 2},  # says nothing about strings
        {"minimum": 1, "exclusiveMinimum": True, "maximum": 2},  # draft 4
        {"exclusiveMinimum": 0, "exclusiveMaximum": 0.5, "multipleOf": 0.1},
        {"pattern": ""}, {"pattern": "a"}, {"pattern": "^a{$"}, {"pattern": "[^]"},
        {"pattern": "^(?=a)(?<name>b)\\p{L}$"},  # of JavaScript, not of Python
        {"type": "string", "format": "of-my-own"},
        {**TREE, "$ref": "#/$defs/t"},
        {"properties": {"child": {"$ref": "#"}}},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}},
        {"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "string"}}},
        {"$ref": "#/anyOf/0", "anyOf": [{"type": "string"}]},
        {"items": {"$ref": "#node"}, "$defs": {"n": {"$anchor": "node"}}},
        {"$id": "https://x/y", "items": {"$ref": "https://x/y#/$defs/a"}, "$defs": {"a": {}}},
        {"items": {"$ref": "https://x/z"}, "$defs": {"a": {"$id": "https://x/z"}}},
        # nothing refers to these
        {"$defs": {"a": {"type": "nonsense"}, "b": {"$ref": "#/nowhere"}}, "type": "string"},
    ],
)  # fmt: skip
def test_what_is_valid_is_not_refused(schema: dict[str, object]) -> None:
    check_schema(schema)
    for traits in ENGINES:
        chat_call((), Sampling(), traits, format=schema)
        completion_call("a", Sampling(), traits, format=schema)


BAD = [
    ({"type": "nonsense"}, '#/type: "nonsense" is not a type; the types are string, number'),
    ({"type": "String"}, "#/type: "),
    ({"type": 5}, "#/type: 5 is not a type"),
    ({"type": True}, "#/type: "),
    ({"type": {}}, "#/type: "),
    ({"type": []}, "#/type: it specifies no type"),
    ({"type": ["string", "int"]}, '#/type: "int" is not a type'),
    ({"properties": 5}, "#/properties: it must be an object, not 5"),
    ({"properties": None}, "#/properties: "),
    ({"properties": {"a": 5}}, "#/properties/a: a schema is an object or a boolean, not 5"),
    ({"properties": {"a/b~": "string"}}, "#/properties/a~1b~0: "),
    ({"properties": {"a": {"type": "nonsense"}}}, "#/properties/a/type: "),
    ({"required": "a"}, "#/required: it must be a list of names"),
    ({"required": [1]}, "#/required: "),
    ({"items": "string"}, "#/items: "),
    ({"items": [{"type": "x"}]}, "#/items/0/type: "),
    ({"prefixItems": 5}, "#/prefixItems: "),
    ({"additionalProperties": 5}, "#/additionalProperties: "),
    ({"additionalProperties": {"type": "x"}}, "#/additionalProperties/type: "),
    ({"not": 5}, "#/not: "),
    ({"not": [{}]}, "#/not: "),
    ({"enum": "a"}, "#/enum: it must be a non-empty list"),
    ({"enum": []}, "#/enum: "),
    ({"anyOf": {}}, "#/anyOf: "),
    ({"anyOf": []}, "#/anyOf: "),
    ({"oneOf": [{"type": "string"}, 5]}, "#/oneOf/1: "),
    ({"allOf": [{"items": {"type": "x"}}]}, "#/allOf/0/items/type: "),
    ({"$ref": "#/nowhere"}, '#/$ref: "#/nowhere" is not in the schema'),
    ({"$ref": "#/$defs/x", "$defs": {}}, "#/$ref: "),
    ({"$defs": 5}, "#/$defs: "),
    ({"$ref": 5}, "#/$ref: it must be a string, not 5"),
    ({"$ref": "nowhere"}, "#/$ref: "),
    ({"$ref": "#anchor"}, "#/$ref: "),
    ({"$ref": "https://example.com/x"}, "#/$ref: "),
    ({"$ref": "#"}, '#/$ref: "#" only refers to itself'),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
     "#/$ref: "),
    ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"type": "x"}}}, "#/$defs/a/type: "),
    ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": 5}}, "#/$defs/a: "),
    ({"pattern": 5}, "#/pattern: "),
    ({"pattern": "^[$"}, "#/pattern: "),
    ({"pattern": "^($"}, "#/pattern: "),
    ({"pattern": "^a)$"}, "#/pattern: "),
    ({"pattern": "^*$"}, "#/pattern: "),
    ({"pattern": "a{3,2}"}, "#/pattern: "),
    ({"format": 5}, "#/format: "),
    ({"minLength": -1}, "#/minLength: it must be a whole number of 0 or more, not -1"),
    ({"minLength": 1.5}, "#/minLength: "),
    ({"maxItems": "x"}, "#/maxItems: "),
    ({"maxItems": True}, "#/maxItems: "),
    ({"minLength": 5, "maxLength": 2}, "#: minLength is larger than maxLength"),
    ({"items": {"type": "array", "minItems": 2, "maxItems": 1}}, "#/items: minItems is larger"),
    ({"minProperties": 2, "maxProperties": 1}, "#: minProperties is larger"),
    ({"minimum": "x"}, "#/minimum: it must be a number"),
    ({"minimum": None}, "#/minimum: "),
    ({"multipleOf": 0}, "#/multipleOf: it must be a number above 0"),
    ({"minimum": 5, "maximum": 1}, "#: no number is within its limits"),
    ({"exclusiveMinimum": 5, "maximum": 5}, "#: "),
    ({"minimum": 1, "exclusiveMaximum": 1}, "#: "),
    ({"minimum": 1, "maximum": 1, "exclusiveMinimum": True}, "#: "),
    ({"minimum": 1, "exclusiveMinimum": 3, "maximum": 2}, "#: "),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "where"), BAD)
def test_what_cannot_be_used_is_refused_for_every_engine(
    schema: dict[str, object], where: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        check_schema(schema)
    assert caught.value.message.startswith(f"cannot use the JSON schema: {where}")
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "a"}], "response_format": wanted}
    for traits in ENGINES:
        with pytest.raises(BadRequest, match="cannot use the JSON schema"):
            chat_call((), Sampling(), traits, format=schema)
        with pytest.raises(BadRequest, match="cannot use the JSON schema"):
            completion_call("a", Sampling(), traits, format=schema)
        with pytest.raises(BadRequest, match="cannot use the JSON schema"):
            adapt_chat(body, traits)
    own = {"prompt": "a", "json_schema": schema}  # the engine's own word, which passes through
    with pytest.raises(BadRequest, match="cannot use the JSON schema"):
        adapt_completion(own, ENGINES[2])


def test_counts_that_no_answer_reaches_are_kept_from_engines() -> None:
    largest = 2**31 - 1  # what generators write for a list or a text without a limit
    text = {"type": "string", "minLength": 2, "maxLength": largest}
    schema = {
        "type": "array",
        "items": {"properties": {"maxItems": text}, "maxProperties": 1e300},
        "minItems": 10**9,
        "maxItems": largest,
        "default": {"maxItems": largest},
    }
    bounded = {
        "type": "array",
        "items": {"properties": {"maxItems": {"type": "string", "minLength": 2}}},
        "minItems": MOST_COUNT,
        "default": {"maxItems": largest},
    }
    assert check_schema(schema) == bounded
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    body = {"messages": [{"role": "user", "content": "a"}], "response_format": wanted}
    for traits in ENGINES:
        for sent in (
            chat_call((), Sampling(), traits, format=schema),
            completion_call("a", Sampling(), traits, format=schema),
            adapt_chat(body, traits)[0],
        ):
            assert str(10**9) not in str(sent), sent
            assert f"'maxLength': {largest}" not in str(sent), sent


def test_lists_cannot_add_up_to_a_grammar_without_end() -> None:
    def schema(count: int) -> dict[str, object]:
        one = {"type": "array", "maxItems": MOST_COUNT}
        return {"properties": {str(number): one for number in range(count)}}

    most = MOST_ITEMS // MOST_COUNT
    assert check_schema(schema(most)) == schema(most)
    with pytest.raises(BadRequest, match="add up to more than"):
        check_schema(schema(most + 1))


def test_a_grammar_is_nested_so_deeply_only() -> None:
    takes_grammars = Traits(
        context_length=512, refused_fields=frozenset(), passed_fields=frozenset({"grammar"})
    )
    for depth in (MOST_NESTED, MOST_NESTED + 1):
        body = {"prompt": "a", "grammar": "root ::= " + "(" * depth + '"a"' + ")" * depth}
        if depth == MOST_NESTED:
            adapt_completion(body, takes_grammars)
            continue
        with pytest.raises(BadRequest, match="nested more than"):
            adapt_completion(body, takes_grammars)


def test_a_schema_that_has_no_end() -> None:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(MOST_DEPTH):
        schema = {"items": schema}
    check_schema(schema)
    for _ in range(10_000):
        schema = {"items": schema}
    with pytest.raises(BadRequest, match="recursion"):
        check_schema(schema)


def test_references() -> None:
    root = {"$id": "u", "a": [{"$anchor": "n", "b/c": 1}], "d": {"$id": "v", "e f": 2}}
    resolve = References(root).resolve
    assert resolve("#") is resolve("u") is root
    assert resolve("#/a/0/b~1c") == 1
    assert resolve("#n") == root["a"][0]  # type: ignore[index]
    assert resolve("v#/e%20f") == 2
    for reference in ("#/a/1", "#/a/x", "#/a/0/b~1c/d", "#m", "w", "v#/a"):
        with pytest.raises(LookupError):
            resolve(reference)


def test_a_tool_whose_bounds_contradict_each_other() -> None:
    """Its schema is not checked, but no engine may build the grammar of it for ever."""

    def write(schema: dict[str, object]) -> object:
        return SchemaWriter(FRAGILE).write({"properties": {"a": schema}}, "schema")

    none = {"type": "object", "properties": {}, "additionalProperties": False}
    assert write({"type": "string", "minLength": 5, "maxLength": 2}) == none
    assert write({"type": "array", "minItems": 3, "maxItems": 1}) == none
