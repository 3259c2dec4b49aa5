"""The schemas by which types of requests are described allow what the types themselves allow."""

import pytest
from jsonschema import Draft202012Validator

from vllama.dialects.anthropic.request_types import MESSAGE, MESSAGES
from vllama.dialects.go_structs import find_struct
from vllama.dialects.go_types import find_error
from vllama.dialects.go_values import (
    ANY_MAP,
    STRINGS,
    boolean,
    float64,
    image_data,
    integer,
    string,
)
from vllama.dialects.ollama import request_types as ollama
from vllama.dialects.openai import request_types as openai
from vllama.dialects.responses.request_types import RESPONSES

VALUES = [
    *(None, True, False, 0, 1, -1, 1.5, 2.0, 2**70, "", "x", "high", "5m", "-1", "1h30m", "m"),
    *("YWJj", "YWI=", "YWI", "a b", [], {}, ["x"], [1], [["x"]], [{}], {"a": 1}, {"a": "x"}),
    *({"role": "user"}, {"content": "x"}, {"content": [{"type": "text", "text": "x"}]}),
    *({"content": 5}, {"function": {"name": "x"}}, {"function": "x"}, {"type": ["a"]}),
]
VALUE_TYPES = {
    "string": string, "boolean": boolean, "integer": integer, "float64": float64,
    "image": image_data, "strings": STRINGS, "map": ANY_MAP, "think": ollama.think,
    "keep_alive": ollama.keep_alive, "tool": find_struct(ollama.Tool),
    "property": find_struct(ollama.ToolProperty),
    "message": ollama.MESSAGE, "openai_message": openai.MESSAGE, "anthropic_message": MESSAGE,
}  # fmt: skip
STRUCTS = [
    *(ollama.CHAT, ollama.GENERATE, ollama.EMBED, ollama.CREATE, ollama.SHOW, ollama.PULL),
    *(ollama.TOKENIZE, openai.CHAT, openai.COMPLETION, openai.EMBEDDING, MESSAGES, RESPONSES),
]


def is_described(go_type, value):
    structs = {}
    document = {**go_type.describe(structs), "components": {"schemas": structs}}
    return Draft202012Validator(document).is_valid(value)


@pytest.mark.parametrize("name", VALUE_TYPES)
def test_a_type_and_its_schema_allow_the_same(name):
    go_type = VALUE_TYPES[name]
    for value in VALUES[1:]:  # null is a matter of the field
        assert is_described(go_type, value) is (find_error(value, go_type) is None), value


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.name)
def test_the_fields_of_a_struct_and_their_schemas_allow_the_same(struct):
    for field in struct.fields:
        for value in VALUES:
            if value == [None] or not isinstance(value, list):  # only Ollama takes null in a list
                body = {field: value}
                assert is_described(struct, body) is (find_error(body, struct) is None), body


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.name)
def test_what_msgspec_takes_go_takes(struct):
    for field in struct.fields:
        for name in (field, field.upper()):
            for value in VALUES:
                body = {name: value, "other": 1}
                assert not struct.fits(body) or find_error(body, struct) is None, body
