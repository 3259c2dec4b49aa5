"""How a completion is asked to keep to a form, in the words of each engine."""

import json

import pytest

from vllama.translate.adapt import adapt_completion
from vllama.translate.openai_in import completion_call
from vllama.translate.traits import SchemaStyle, Traits
from vllama.translate.types import Sampling

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}}
OPENAI = {"type": "json_schema", "json_schema": {"name": "response", "schema": SCHEMA}}
BARE = Traits(context_length=512, completion_schema="json_schema")
ROWS = [
    (Traits(context_length=512), SCHEMA, {"response_format": OPENAI}),
    (Traits(context_length=512), "json", {"response_format": {"type": "json_object"}}),
    (BARE, SCHEMA, {"json_schema": SCHEMA}),
    (BARE, "json", {"json_schema": {"type": "object"}}),
    (BARE, None, {}),
    (
        Traits(context_length=512, schema_style=SchemaStyle.JSON_OBJECT),
        SCHEMA,
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
    ),
]


def forms(body):
    """Return what a body says of the answer's form."""
    return {name: body[name] for name in ("response_format", "json_schema") if name in body}


@pytest.mark.parametrize(("traits", "format_", "expected"), ROWS)
def test_a_finished_prompt(traits, format_, expected):
    call = completion_call("a", Sampling(), traits, model="m", format=format_)
    assert forms(json.loads(call.body)) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (OPENAI, {"json_schema": SCHEMA}),
        ({"type": "json_object"}, {"json_schema": {"type": "object"}}),
        ({"type": "text"}, {}),
    ],
)
def test_an_openai_clients_completion(given, expected):
    body, _ = adapt_completion({"prompt": "a", "response_format": given}, BARE, model="m")
    assert forms(json.loads(body)) == expected
