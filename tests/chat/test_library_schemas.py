"""Schemas as libraries and public MCP servers produce them: held, or named, by each compiler."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.schemas import NO_TYPES, read_schemas
from vllama.base.errors import BadRequest
from vllama.chat.grammar_schema import (
    CONVERTER,
    FRAGILE,
    LLGUIDANCE,
    XGRAMMAR,
    Compiler,
    SchemaWriter,
)
from vllama.chat.prepare import make_call_schema
from vllama.chat.schema import check_schema
from vllama.chat.schema_merge import NEVER_HELD

SCHEMAS = {name: schema for name, schema in read_schemas().items() if name not in NO_TYPES}
MAY_BE_HELD = {"not", "unevaluatedProperties", "unevaluatedItems"}  # some mean what is held
# how often a keyword cannot be held, over all schemas: what changes here changes for users
LEFT_OUT: list[tuple[str, Compiler, dict[str, int]]] = [
    (
        "llguidance",
        LLGUIDANCE,
        {
            "format": 78,
            "pattern": 16,
            "uniqueItems": 5,
            "maximum": 3,
            "minimum": 3,
            "maxLength": 2,
            "minLength": 2,
            "contains": 1,
            "not": 1,
            "unevaluatedProperties": 1,
            "oneOf": 1,
            "propertyNames": 1,
        },
    ),
    (
        "xgrammar",
        XGRAMMAR,
        {
            "format": 78,
            "maxLength": 36,
            "pattern": 16,
            "minLength": 10,
            "multipleOf": 9,
            "uniqueItems": 5,
            "maximum": 3,
            "minimum": 3,
            "contains": 1,
            "not": 1,
            "unevaluatedProperties": 1,
            "oneOf": 1,
            "propertyNames": 1,
        },
    ),
    (
        "converter",
        CONVERTER,
        {
            "format": 102,
            "maximum": 97,
            "pattern": 95,
            "minimum": 95,
            "maxLength": 36,
            "multipleOf": 9,
            "patternProperties": 9,
            "exclusiveMinimum": 8,
            "uniqueItems": 5,
            "exclusiveMaximum": 3,
            "minLength": 2,
            "maxProperties": 1,
            "contains": 1,
            "not": 1,
            "unevaluatedProperties": 1,
            "oneOf": 1,
            "propertyNames": 1,
            "maxItems": 1,
        },
    ),
    (
        "fragile",
        FRAGILE,
        {
            "maximum": 213,
            "minimum": 202,
            "format": 102,
            "pattern": 95,
            "exclusiveMinimum": 45,
            "maxLength": 36,
            "additionalProperties": 27,
            "$ref": 18,
            "prefixItems": 17,
            "multipleOf": 9,
            "patternProperties": 9,
            "exclusiveMaximum": 5,
            "uniqueItems": 5,
            "minLength": 2,
            "maxProperties": 1,
            "contains": 1,
            "not": 1,
            "unevaluatedProperties": 1,
            "oneOf": 1,
            "propertyNames": 1,
            "enum": 1,
            "maxItems": 1,
        },
    ),
]


def write(schema: dict[str, Any], compiler: Compiler) -> tuple[dict[str, Any], list[str]]:
    writer = SchemaWriter(compiler)
    out = writer.write(check_schema(schema), "schema")
    assert out is not None
    return writer.finish(out), [*writer.left_out]


def find_keywords(schema: object, *, is_map: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield all keywords with their values, wherever they are but in definitions."""
    if isinstance(schema, list):
        for one in schema:
            yield from find_keywords(one)
    elif isinstance(schema, dict):
        for name, value in schema.items():
            if is_map:
                yield from find_keywords(value)
            elif name not in ("$defs", "definitions", "enum", "const"):
                yield name, value
                maps = ("properties", "patternProperties", "dependentSchemas")
                yield from find_keywords(value, is_map=name in maps)


@pytest.mark.parametrize(("name", "compiler", "left_out"), LEFT_OUT, ids=[x[0] for x in LEFT_OUT])
def test_what_is_left_out_of_all(name: str, compiler: Compiler, left_out: dict[str, int]) -> None:
    found: Counter[str] = Counter()
    for schema in SCHEMAS.values():
        found.update(path.rpartition(".")[2] for path in write(schema, compiler)[1])
    assert found == left_out


@pytest.mark.parametrize("compiler", [LLGUIDANCE, XGRAMMAR, CONVERTER, FRAGILE])
def test_nothing_is_left_out_in_silence(compiler: Compiler) -> None:
    for name, schema in SCHEMAS.items():
        out, left_out = write(schema, compiler)
        named = {path.rpartition(".")[2] for path in left_out}
        sent = [*find_keywords([out, *out.get("$defs", {}).values()])]
        assert not NEVER_HELD & {word for word, _ in sent}, name
        assert compiler.formats >= {value for word, value in sent if word == "format"}, name
        for word, value in find_keywords(schema):
            if word in NEVER_HELD and word not in MAY_BE_HELD and value is not False:
                assert word in named, (name, word)
            is_of_strings = word in ("format", "pattern") and value != "int32"
            if is_of_strings and not compiler.converts:
                is_sent = (word, value) in sent or f'"{value}"' in json.dumps(sent)
                assert is_sent or named & {word, "propertyNames"}, (name, word, value)


@pytest.mark.parametrize("name", NO_TYPES)
def test_what_is_no_json_schema_is_refused(name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_schema(read_schemas()[name])
    assert NO_TYPES[name] in str(caught.value)


def test_all_are_taken_as_parameters() -> None:
    for name, schema in read_schemas().items():
        tools = [{"function": {"name": one, "parameters": schema}} for one in "ab"]
        _, left_out = make_call_schema(tools, LLGUIDANCE)
        assert name not in NO_TYPES or "tools[0].parameters" in left_out


def test_llguidance_compiles_them() -> None:
    llguidance = pytest.importorskip("llguidance")
    for name, schema in SCHEMAS.items():
        text = json.dumps(write(schema, LLGUIDANCE)[0])
        grammar = llguidance.LLMatcher.grammar_from_json_schema(text)
        assert not llguidance.LLMatcher.validate_grammar(grammar), name
