"""Fields of requests are described as they are read: what is allowed is taken, and vice versa."""

from typing import Any, get_args

import msgspec
import pytest

from tests.routes.openapi.validation import DOCUMENT, find_operation, make_open_validator
from vllama.chat.bodies import Body, find_error
from vllama.routes.route_table import ROUTES

VALUES = [
    *(None, True, False, 0, 1, -1, 1.5, 2.0, 2**70, "", "x", "high", "5m", "-1", "1h30m", "m"),
    *("YWJj", "YWI=", "YWI", "a b", [], {}, ["x"], [1], [["x"]], [{}], {"a": 1}, {"a": "x"}),
    *({"role": "user"}, {"content": "x"}, {"content": [{"type": "text", "text": "x"}]}),
    *({"content": 5}, {"function": {"name": "x"}}, {"function": "x"}, {"type": ["a"]}),
]
BODIES = [route for route in ROUTES if route.body and issubclass(route.body, Body)]
CHECKED_LATER = {
    *(
        "model",
        "from",
        "source",
        "destination",
        "query",
        "url",
        "adapters",
        "files",
        "documents",
        "draft_files",
    ),
    *(
        "input",
        "max_tokens",
        "messages",
        "questions",
        "text",
        "think",
        "tokens",
        "tool_choice",
        "tools",
    ),
    *("context_length", "encoding_format", "logprobs", "reasoning_effort", "top_logprobs"),
    *("completion_window", "file", "input_file_id"),
}
"""Fields with a type of which not every value is allowed; those of any type are checked later."""

NEEDED = {"endpoint": "/v1/embeddings", "file": "x", "input_file_id": "x", "purpose": "batch"}
"""Fields without which a body is not read."""


@pytest.mark.parametrize("route", BODIES, ids=lambda route: route.spelling)
def test_a_field_is_described_as_it_is_read(route):
    (content,) = find_operation(route.methods[0], route.paths[0])["requestBody"]["content"].values()
    name = content["schema"]["$ref"].rpartition("/")[2]
    fields = msgspec.structs.fields(route.body)
    needed = {field.name: NEEDED[field.name] for field in fields if field.required}
    schemas = DOCUMENT["components"]["schemas"][name]["properties"]
    assert schemas.keys() == {field.encode_name for field in fields}
    for field in fields:
        name, validator = field.encode_name, make_open_validator(schemas[field.encode_name])
        may_differ = name in CHECKED_LATER or Any in (field.type, *get_args(field.type))
        for value in VALUES:
            is_taken = not find_error({**needed, name: value}, route.body)
            is_described = validator.is_valid(value)
            assert is_described <= is_taken, (name, value)
            assert is_described == is_taken or may_differ, (name, value)
