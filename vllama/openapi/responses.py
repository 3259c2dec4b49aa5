"""OpenAI's responses."""

from __future__ import annotations

from vllama.dialects.go_types import Schema
from vllama.dialects.responses import answer_types as responses
from vllama.dialects.responses.request_types import RESPONSES
from vllama.openapi.fields import (
    BOOLEAN,
    EXAMPLE_MODEL,
    IMAGE_URL,
    MODEL,
    NON_EMPTY,
    NUMBER,
    OWN_FIELDS,
    TEXT,
)
from vllama.openapi.operation import Body, Operation, Parameter, Stream, StreamKind, Tag

_RESPONSE_ID = Parameter(name="id", help="the response's id, such as `resp_1a2b`")
_CONTENT: Schema = {
    "anyOf": [
        TEXT,
        {
            "type": "array",
            "items": {
                "anyOf": [
                    {
                        "type": "object",
                        "required": ["type", "text"],
                        "properties": {
                            "type": {"enum": ["input_text", "output_text"]},
                            "text": TEXT,
                        },
                    },
                    {
                        "type": "object",
                        "required": ["type", "image_url"],
                        "properties": {"type": {"const": "input_image"}, "image_url": IMAGE_URL},
                    },
                ]
            },
        },
    ]
}
MESSAGE: Schema = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"type": {"const": "message"}, "role": NON_EMPTY, "content": _CONTENT},
}
_ITEM: Schema = {
    "anyOf": [
        MESSAGE,
        {
            "type": "object",
            "required": ["type", "call_id", "name"],
            "properties": {
                "type": {"const": "function_call"},
                "call_id": TEXT,
                "name": NON_EMPTY,
                "arguments": TEXT,
            },
        },
        {
            "type": "object",
            "required": ["type", "call_id"],
            "properties": {
                "type": {"const": "function_call_output"},
                "call_id": TEXT,
                "output": _CONTENT,
            },
        },
        {
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"const": "reasoning"}, "encrypted_content": TEXT},
        },
    ]
}
_INPUT: Schema = {
    "description": "a text, or items: messages, calls, results of calls, reasoning",
    "anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": _ITEM}],
}
_RESPONSE_TOOL: Schema = {
    "required": ["type"],
    "anyOf": [
        {
            "required": ["name"],
            "properties": {
                "type": {"const": "function"},
                "name": {"type": "string", "minLength": 1},
            },
        },
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
_RESPONSE_TOOL_CHOICE: Schema = {
    "description": "whether the model may, must or must not call a function, and which",
    "anyOf": [
        {"enum": ["auto", "none", "required", None]},
        {"type": "object", "required": ["type"], "properties": {"type": TEXT}},
    ],
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        paths=("/v1/responses",),
        tag=Tag.OPENAI,
        summary="Continue a conversation, in items and events",
        body=Body(
            type=RESPONSES,
            required=("model",),
            fields={
                **OWN_FIELDS,
                "model": MODEL,
                "input": _INPUT,
                "previous_response_id": {
                    "type": ["string", "null"],
                    "description": "the response that this one goes on from",
                },
                "store": {"description": "whether it outlives the server"},
                "metadata": {"type": ["object", "null"]},
                "parallel_tool_calls": BOOLEAN,
                "presence_penalty": NUMBER,
                "frequency_penalty": NUMBER,
                "tools": {"allOf": [{"items": _RESPONSE_TOOL}]},
                "tool_choice": _RESPONSE_TOOL_CHOICE,
            },
            examples={
                "A question": {
                    "model": EXAMPLE_MODEL,
                    "input": "Say hello.",
                    "max_output_tokens": 20,
                },
                "Streamed": {"model": EXAMPLE_MODEL, "input": "Say hello.", "stream": True},
            },
        ),
        answer=responses.Response,
        stream=Stream(kind=StreamKind.EVENTS, type=responses.ResponseEvent, named=True),
        errors=(415,),
        runs_model=True,
    ),
    Operation(
        paths=("/v1/responses/{id}",),
        methods=("get",),
        tag=Tag.OPENAI,
        summary="Return a response that was kept",
        parameters=(_RESPONSE_ID,),
        answer=responses.Response,
        errors=(404,),
    ),
    Operation(
        paths=("/v1/responses/{id}",),
        methods=("delete",),
        tag=Tag.OPENAI,
        summary="Forget a response",
        parameters=(_RESPONSE_ID,),
        answer=responses.DeletedResponse,
        errors=(404,),
    ),
    Operation(
        paths=("/v1/responses/{id}/cancel",),
        methods=("post",),
        tag=Tag.OPENAI,
        summary="Refuse to cancel a response, since none is made in the background",
        parameters=(_RESPONSE_ID,),
        answer=responses.Response,
        errors=(404,),
    ),
    Operation(
        paths=("/v1/responses/{id}/input_items",),
        methods=("get",),
        tag=Tag.OPENAI,
        summary="List the input of a response, the newest item first",
        parameters=(_RESPONSE_ID,),
        answer=responses.InputItems,
        errors=(404,),
    ),
)
