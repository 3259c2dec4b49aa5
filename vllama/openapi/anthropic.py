"""Anthropic's routes."""

from __future__ import annotations

from vllama.dialects.anthropic import answer_types as answers
from vllama.dialects.anthropic.request_types import MESSAGES
from vllama.dialects.go_types import Schema
from vllama.openapi.fields import EXAMPLE_MODEL, MODEL, OWN_FIELDS, TEXT
from vllama.openapi.operation import Body, Operation, Stream, StreamKind, Tag

_FIELDS: dict[str, Schema] = {
    **OWN_FIELDS,
    "model": MODEL,
    "messages": {"type": "array", "minItems": 1, "allOf": [{"items": {"type": "object"}}]},
    "stop_sequences": {"items": TEXT},
    "tool_choice": {
        "allOf": [
            {
                "required": ["type"],
                "properties": {"type": {"enum": ["auto", "any", "tool", "none"]}},
            }
        ],
    },
    "system": {
        "anyOf": [
            {"type": ["string", "null"]},
            {"type": "array"},
        ],
        "description": "the system message: a text, or blocks of text",
    },
}
_QUESTION = {"model": EXAMPLE_MODEL, "messages": [{"role": "user", "content": "Say hello."}]}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        paths=("/v1/messages",),
        tag=Tag.ANTHROPIC,
        summary="Continue a conversation",
        body=Body(
            type=MESSAGES,
            required=("model", "max_tokens", "messages"),
            fields=_FIELDS | {"max_tokens": {"type": "integer", "minimum": 1}},
            examples={
                "A question": _QUESTION | {"max_tokens": 50},
                "Streamed": _QUESTION | {"max_tokens": 50, "stream": True},
            },
        ),
        answer=answers.Message,
        stream=Stream(kind=StreamKind.EVENTS, type=answers.MessageEvent, named=True),
        runs_model=True,
    ),
    Operation(
        paths=("/v1/messages/count_tokens",),
        tag=Tag.ANTHROPIC,
        summary="Count the tokens of a conversation",
        body=Body(
            type=MESSAGES,
            required=("model", "messages"),
            fields=_FIELDS,
            examples={"A question": _QUESTION},
        ),
        answer=answers.TokenCount,
        runs_model=True,
    ),
)
