"""The body of a request for a response, in items."""

from __future__ import annotations

from vllama.dialects.go_types import Schema
from vllama.dialects.responses.request_types import RESPONSES
from vllama.routes.fields import (
    BOOLEAN,
    IMAGE_URL,
    NON_EMPTY,
    NUMBER,
    OWN_FIELDS,
    TEXT,
    TEXT_OR_NULL,
    make_object,
)
from vllama.routes.operation import Body

_PART: Schema = {
    "anyOf": [
        make_object(type={"enum": ["input_text", "output_text"]}, text=TEXT),
        make_object(type={"const": "input_image"}, image_url=IMAGE_URL),
    ]
}
_CONTENT: Schema = {"anyOf": [TEXT, {"type": "array", "items": _PART}]}
MESSAGE = make_object({"type": {"const": "message"}}, role=NON_EMPTY, content=_CONTENT)
_ITEM: Schema = {
    "anyOf": [
        MESSAGE,
        make_object(
            {"arguments": TEXT}, type={"const": "function_call"}, call_id=TEXT, name=NON_EMPTY
        ),
        make_object({"output": _CONTENT}, type={"const": "function_call_output"}, call_id=TEXT),
        make_object({"encrypted_content": TEXT}, type={"const": "reasoning"}),
    ]
}
_RESPONSE_TOOL: Schema = {
    "required": ["type"],
    "anyOf": [
        {"required": ["name"], "properties": {"type": {"const": "function"}, "name": NON_EMPTY}},
        {
            "required": ["name", "tools"],
            "properties": {
                "type": {"const": "namespace"},
                "name": TEXT,
                "tools": {"type": "array", "items": {"required": ["name"]}},
            },
        },
        {"properties": {"type": {"type": "string", "not": {"enum": ["function", "namespace"]}}}},
    ],
}
RESPONSE = Body(
    type=RESPONSES,
    fields={
        **OWN_FIELDS,
        "input": {
            "description": "a text, or items: messages, calls, results of calls, reasoning",
            "anyOf": [TEXT_OR_NULL, {"type": "array", "items": _ITEM}],
        },
        "previous_response_id": TEXT_OR_NULL
        | {"description": "the response that this one goes on from"},
        "store": {"description": "whether it outlives the server"},
        "metadata": {"type": ["object", "null"]},
        "parallel_tool_calls": BOOLEAN,
        "presence_penalty": NUMBER,
        "frequency_penalty": NUMBER,
        "tools": {"allOf": [{"items": _RESPONSE_TOOL}]},
        "tool_choice": {
            "description": "whether the model may, must or must not call a function, and which",
            "anyOf": [
                {"enum": ["auto", "none", "required", None]},
                make_object(type=TEXT),
            ],
        },
    },
    examples={
        "A question": {"input": "Say hello.", "max_output_tokens": 20},
        "Streamed": {"input": "Say hello.", "stream": True},
    },
)
