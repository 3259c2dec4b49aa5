"""The body of a request for a response, in items."""

from __future__ import annotations

from vllama.dialects.go_types import Schema, make_enum
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
    make_word,
    refer,
)
from vllama.routes.operation import Body

_PART: Schema = {
    "anyOf": [
        make_object(type=make_word("input_text", "output_text"), text=TEXT),
        make_object(type=make_word("input_image"), image_url=IMAGE_URL),
    ]
}
_CONTENT: Schema = {"anyOf": [TEXT, {"type": "array", "items": _PART}]}
MESSAGE = make_object({"type": make_word("message")}, role=NON_EMPTY, content=_CONTENT)
_ITEM: Schema = {
    "anyOf": [
        MESSAGE,
        make_object(
            {"arguments": TEXT}, type=make_word("function_call"), call_id=TEXT, name=NON_EMPTY
        ),
        make_object({"output": _CONTENT}, type=make_word("function_call_output"), call_id=TEXT),
        make_object({"encrypted_content": TEXT}, type=make_word("reasoning")),
    ]
}
RESPONSE = Body(
    type=RESPONSES,
    parts={"openai.ResponsesTool": make_object(type=TEXT)},
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
        "tools": {"items": refer("openai.ResponsesTool")},
        "tool_choice": {
            "description": "whether the model may, must or must not call a function, and which",
            "anyOf": [
                *make_enum("auto", "none", "required", None)["anyOf"],
                make_object(type=TEXT),
            ],
        },
    },
    examples={
        "A question": {"input": "Say hello.", "max_output_tokens": 20},
        "Streamed": {"input": "Say hello.", "stream": True},
    },
)
