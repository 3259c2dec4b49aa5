"""How a completion is asked to keep to a form, in the words of each engine."""

import json
from dataclasses import replace

import pytest

from tests.chat.bodies import adapt_completion, completion_call
from vllama.chat.conversation import should_render
from vllama.chat.engine.traits import SchemaStyle, Traits
from vllama.chat.grammar_schema import CONVERTER, FRAGILE
from vllama.chat.request import Sampling

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}}
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
BARE = Traits(context_length=512, completion_schema="json_schema", schema_compiler=CONVERTER)
ROWS = [
    (Traits(context_length=512), SCHEMA, {"response_format": OPENAI}),
    (Traits(context_length=512), "json", {"response_format": {"type": "json_object"}}),
    (BARE, SCHEMA, {"json_schema": SPACED | CLOSED}),
    (BARE, "json", {"json_schema": SPACED | {"type": "object"}}),
    (BARE, None, {}),
    (
        Traits(context_length=512, schema_style=SchemaStyle.JSON_OBJECT, schema_compiler=FRAGILE),
        SCHEMA,
        {"response_format": {"type": "json_object", "schema": CLOSED}},
    ),
]


def forms(body):
    """Return what a body says of the answer's form."""
    fields = ("response_format", "json_schema")
    return {name: body[name] for name in fields if name in body}


@pytest.mark.parametrize(("traits", "format_", "expected"), ROWS)
def test_a_finished_prompt(traits, format_, expected):
    call = completion_call("a", Sampling(), traits, format=format_)
    assert forms(json.loads(call.encode())) == expected


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
