"""The bodies of requests in Anthropic's API."""

from __future__ import annotations

from vllama.dialects.anthropic.request_types import MESSAGES
from vllama.dialects.go_types import Schema
from vllama.routes.fields import OWN_FIELDS, TEXT, TEXT_OR_NULL
from vllama.routes.operation import Body

_FIELDS: dict[str, Schema] = {
    **OWN_FIELDS,
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
        "anyOf": [TEXT_OR_NULL, {"type": "array"}],
        "description": "the system message: a text, or blocks of text",
    },
}
_QUESTION = {"messages": [{"role": "user", "content": "Say hello."}]}
MESSAGE = Body(
    type=MESSAGES,
    required=("max_tokens", "messages"),
    fields=_FIELDS | {"max_tokens": {"type": "integer", "minimum": 1}},
    examples={
        "A question": _QUESTION | {"max_tokens": 50},
        "Streamed": _QUESTION | {"max_tokens": 50, "stream": True},
    },
)
COUNT = Body(
    type=MESSAGES,
    required=("messages",),
    fields=_FIELDS,
    examples={"A question": _QUESTION},
)
