"""Grammars made of schemas: they take what the schema takes, and nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chat.gbnf_match import Grammar
from vllama.chat.gbnf import make_grammar
from vllama.chat.grammar_schema import make_safe_schema

AGE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "x": {"type": "null"}},
    "required": ["age"],
}
ROWS = [
    ({"type": "object"}, ['{}', '{"a": [1, {"b": null}]}', '{\n  "a": "é猪🍎"\n}'], ["[]", "{} "]),
    ({"type": "array"}, ["[]", '[1, "a", []]'], ["{}", "[1,]"]),
    ({"type": "integer"}, ["0", "-12"], ["01", "1.5", "1e3", ""]),
    ({"type": "number"}, ["0", "-1.5", "1e9", "2.5E-3"], [".5", "1.", "+1"]),
    ({"type": "boolean"}, ["true", "false"], ["True", "null"]),
    ({"type": "string"}, ['""', r'"a\n\u00e9\""'], ["a", '"\n"', r'"\x"']),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"abc"'], ['"a"', '"abcd"']),
    ({"type": "string", "maxLength": 0}, ['""'], ['"a"']),
    ({"type": "string", "pattern": r"^[A-Z]{2}-\d+.?$"}, ['"AB-1"', '"AB-12x"'], ['"A-1"']),
    ({"type": "string", "pattern": "^[^a-]+$"}, ['"bc"'], ['"a"', '"b"c"', '"-"']),
    ({"type": "string", "format": "date"}, ['"2026-11-21"'], ['"2026-13-21"', '"x"']),
    ({"type": "string", "format": "date-time"}, ['"2026-11-21T09:00:00Z"'], ['"2026-11-21"']),
    ({"type": "string", "format": "time"}, ['"09:00:00.123+01:00"'], ['"9:00"']),
    (
        {"type": "string", "format": "uuid"},
        ['"123e4567-e89b-12d3-a456-426614174000"'],
        ['"123e4567"'],
    ),
    ({"enum": ["a b", 1, None, {"x": 1}]}, ['"a b"', "1", "null", '{"x": 1}'], ["2", '"a"']),
    ({"const": "yes"}, ['"yes"'], ['"no"', "yes"]),
    (
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        ["[1]", "[1,2]", "[ 1, 2 ]"],
        ["[]", "[1,2,3]", '["a"]'],
    ),
    ({"type": "array", "items": {"type": "null"}, "maxItems": 0}, ["[]", "[ ]"], ["[null]"]),
    ({"type": "array", "items": {"type": "null"}, "maxItems": 1}, ["[null]"], ["[null,null]"]),
    ({"type": "array", "items": {"type": "null"}, "minItems": 2}, ["[null,null]"], ["[null]"]),
    (
        AGE,
        ['{"age":1}', '{"name": "a", "age": 1}', '{"age": 1, "x": null}',
         '{\n  "name": "a",\n  "age": 1,\n  "x": null\n}'],
        ["{}", '{"name": "a"}', '{"age": 1,}', '{"age": 1, "y": 2}', '{"x": null, "age": 1}',
         '{,"age":1}'],
    ),
    (
        {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}},
        ["{}", '{"a":null}', '{"b":null}', '{"a":null,"b":null}'],
        ['{"a":null"b":null}', '{,"b":null}', '{"b":null,"a":null}'],
    ),
    ({"type": "object", "properties": {}}, ["{}", "{ }"], ['{"a":1}']),
    ({"anyOf": [{"type": "null"}, AGE]}, ["null", '{"age": 2}'], ["{}", "1"]),
    ({"type": ["string", "null"]}, ['"a"', "null"], ["1"]),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}}, ["1"], ["2"]),
    ({}, ["1", '"a"', "[]", "{}", "null", "true"], ["x"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "fine", "wrong"), ROWS)
def test_rows(schema: dict[str, object], fine: list[str], wrong: list[str]) -> None:
    grammar = Grammar(make_grammar(make_safe_schema(schema)))
    assert [text for text in fine if not grammar.matches(text)] == []
    assert [text for text in wrong if grammar.matches(text)] == []


NAMES = st.sampled_from(["a", "b c", "é", 'q"', "猪", "|)#"])
LEAVES: st.SearchStrategy[dict[str, object]] = st.one_of(
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "boolean", "null")]),
    st.lists(st.one_of(NAMES, st.integers(-(10**9), 10**9), st.none()), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
)


def inner(schemas: st.SearchStrategy[dict[str, object]]) -> st.SearchStrategy[dict[str, object]]:
    objects = st.tuples(st.dictionaries(NAMES, schemas, max_size=4), st.sets(NAMES)).map(
        lambda pair: {"type": "object", "properties": pair[0], "required": sorted(pair[1])}
    )
    arrays = st.tuples(schemas, st.integers(0, 2), st.integers(0, 3)).map(
        lambda row: {
            "type": "array",
            "items": row[0],
            "minItems": row[1],
            "maxItems": row[1] + row[2],
        }
    )
    return st.one_of(
        objects, arrays, st.lists(schemas, min_size=1, max_size=2).map(lambda s: {"anyOf": s})
    )


SCHEMAS = st.recursive(LEAVES, inner, max_leaves=6)


def example(draw: st.DrawFn, schema: dict[str, object]) -> object:
    """Draw a value that the schema takes."""
    match schema:
        case {"enum": list(values)}:
            return draw(st.sampled_from(values))
        case {"anyOf": list(parts)}:
            return example(draw, draw(st.sampled_from(parts)))
        case {"type": "object", "properties": dict(properties), "required": list(required)}:
            return {
                name: example(draw, one)
                for name, one in properties.items()
                if name in required or draw(st.booleans())
            }
        case {"type": "array", "items": dict(items), "minItems": int(low), "maxItems": int(high)}:
            return [example(draw, items) for _ in range(draw(st.integers(low, high)))]
        case {"type": "string"}:
            return draw(st.text(max_size=5))
        case {"type": "integer"}:
            return draw(st.integers(-999, 999))
        case {"type": "boolean"}:
            return draw(st.booleans())
    return None


@st.composite
def schemas_and_values(draw: st.DrawFn) -> tuple[dict[str, object], object]:
    schema = draw(SCHEMAS)
    return schema, example(draw, schema)


@settings(max_examples=40, deadline=None)
@given(schemas_and_values(), st.sampled_from([None, 2]), st.booleans())
def test_what_a_schema_takes_its_grammar_takes(
    pair: tuple[dict[str, object], object], indent: int | None, ascii_only: bool
) -> None:
    schema, value = pair
    text = json.dumps(
        value, indent=indent, ensure_ascii=ascii_only and "\\" not in json.dumps(schema)
    )
    assert Grammar(make_grammar(make_safe_schema(schema))).matches(text)


def test_a_large_schema_stays_small() -> None:
    one = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(300)}}
    assert (
        len(make_grammar(make_safe_schema({"type": "array", "items": one, "maxItems": 200})))
        < 60_000
    )
