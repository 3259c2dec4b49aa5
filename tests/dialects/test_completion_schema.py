"""How a completion is asked to keep to a form, in the words of each engine."""

import json
from dataclasses import replace

import pytest

from tests.chat.bodies import adapt_completion, completion_call
from vllama.chat.conversation import should_render
from vllama.chat.engine.traits import SchemaStyle, Traits
from vllama.chat.grammar_schema import close_schema
from vllama.chat.request import Sampling

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}}
REFERRED = {"$ref": "#/$defs/a"}
CLOSED = SCHEMA | {"additionalProperties": False}
OPENAI = {"type": "json_schema", "json_schema": {"name": "response", "schema": SCHEMA}}
# one space at most between two values: a model may not go on with white space
SPACED = {
    "x-guidance": {
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
    }
}
BARE = Traits(context_length=512, completion_schema="json_schema")
ROWS = [
    (Traits(context_length=512), SCHEMA, {"response_format": OPENAI}),
    (Traits(context_length=512), "json", {"response_format": {"type": "json_object"}}),
    (BARE, SCHEMA, {"json_schema": SPACED | CLOSED}),
    (BARE, "json", {"json_schema": SPACED | {"type": "object"}}),
    (BARE, None, {}),
    (
        Traits(context_length=512, schema_style=SchemaStyle.JSON_OBJECT),
        SCHEMA,
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
    ),
]


def forms(body):
    """Return what a body says of the answer's form."""
    fields = ("response_format", "json_schema")
    return {name: body[name] for name in fields if name in body}


@pytest.mark.parametrize(("traits", "format_", "expected"), ROWS)
def test_a_finished_prompt(traits, format_, expected):
    call = completion_call("a", Sampling(), traits, format=format_)
    assert forms(json.loads(call.body)) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (OPENAI, {"json_schema": SPACED | CLOSED}),
        ({"type": "json_object"}, {"json_schema": SPACED | {"type": "object"}}),
        ({"type": "text"}, {}),
    ],
)
def test_an_openai_clients_completion(given, expected):
    body = adapt_completion({"prompt": "a", "response_format": given}, BARE)
    assert forms(body) == expected


def test_who_renders_a_chat_that_keeps_to_a_form():
    own = replace(BARE, chats_by_completion=True)
    assert should_render((), own, plain=True)
    assert not should_render((), own)
    assert not should_render((), BARE, plain=True)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (SCHEMA, CLOSED),
        (CLOSED | {"additionalProperties": True}, CLOSED | {"additionalProperties": True}),
        ({"type": "object"}, {"type": "object"}),
        ({"type": "object", "properties": {}}, {"type": "object", "properties": {}}),
        ({"type": "array", "items": SCHEMA}, {"type": "array", "items": CLOSED}),
        ({"anyOf": [SCHEMA, True]}, {"anyOf": [CLOSED, {}]}),
        (
            {"$defs": {"a": SCHEMA}, "$ref": "#/$defs/a"},
            {"$defs": {"r0": CLOSED}, "$ref": "#/$defs/r0"},
        ),
        # a reference to the whole, which llama.cpp has no word for
        (
            {"properties": {"a": {"$ref": "#"}}},
            {
                "properties": {"a": {"$ref": "#/$defs/r0"}},
                "additionalProperties": False,
                "$defs": {
                    "r0": {
                        "properties": {"a": {"$ref": "#/$defs/r0"}},
                        "additionalProperties": False,
                    }
                },
            },
        ),
        (
            {"properties": {"a": True, "b": False}},
            {"properties": {"a": {}}, "additionalProperties": False},
        ),
        (
            {"prefixItems": [True], "items": False},
            {"prefixItems": [{}]},
        ),
        ({"allOf": [SCHEMA, SCHEMA]}, {"allOf": [SCHEMA, SCHEMA]}),
        (SCHEMA | {"anyOf": [SCHEMA]}, SCHEMA | {"anyOf": [CLOSED]}),
        # a member of that name is no keyword
        ({"enum": [{"properties": {"a": 1}}]}, {"enum": [{"properties": {"a": 1}}]}),
    ],
)
def test_objects_have_the_members_that_are_listed(schema, expected):
    assert close_schema(schema) == expected
