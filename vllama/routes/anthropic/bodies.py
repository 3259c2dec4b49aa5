"""The bodies of requests in Anthropic's API."""

from __future__ import annotations

from vllama.dialects.anthropic.request_types import MESSAGES
from vllama.dialects.go_types import Schema
from vllama.routes.fields import (
    OWN_FIELDS,
    TEXT,
    TEXT_OR_NULL,
    make_array,
    make_object,
    make_word,
    refer,
)
from vllama.routes.operation import Body

_FIELDS: dict[str, Schema] = {
    **OWN_FIELDS,
    "messages": make_array(refer("anthropic.MessageParam")),
    "stop_sequences": {"items": TEXT},
    "system": {
        "anyOf": [TEXT_OR_NULL, {"type": "array", "items": {}}],
        "description": "the system message: a text, or blocks of text",
    },
}
_PARTS = {
    "anthropic.ToolChoice": make_object(type=make_word("auto", "any", "tool", "none")),
}
_QUESTION = {"messages": [{"role": "user", "content": "Say hello."}]}
MESSAGE = Body(
    type=MESSAGES,
    required=("max_tokens", "messages"),
    parts=_PARTS,
    fields=_FIELDS | {"max_tokens": {"type": "integer", "minimum": 1}},
    examples={
        "A question": _QUESTION | {"max_tokens": 50},
        "Streamed": _QUESTION | {"max_tokens": 50, "stream": True},
    },
)
COUNT = Body(
    name="anthropic.CountTokensRequest",
    type=MESSAGES,
    required=("messages",),
    parts=_PARTS,
    fields=_FIELDS,
    examples={"A question": _QUESTION},
)
