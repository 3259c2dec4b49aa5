"""The fields of Anthropic's requests and their types, as Ollama declares them.

Source: `anthropic/anthropic.go`.
"""

from __future__ import annotations

from vllama.dialects.go_types import GoError, Schema, Struct, Walk, find_error
from vllama.dialects.go_values import (
    STRINGS,
    ListOf,
    MessagesOf,
    anything,
    boolean,
    float64,
    integer,
    string,
)
from vllama.dialects.ollama.request_types import ARGUMENTS

CITATION = Struct(
    "anthropic.Citation",
    {
        "type": string,
        "url": string,
        "title": string,
        "encrypted_index": string,
        "cited_text": string,
    },
)
SOURCE = Struct(
    "anthropic.ImageSource", {"type": string, "media_type": string, "data": string, "url": string}
)


class _Source:
    """A picture's source. That of a search result, which Ollama does not know, is a text."""

    def __call__(self, value: object, walk: Walk, /) -> None:
        """Check a source."""
        if not isinstance(value, str):
            SOURCE(value, walk)

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        return {"anyOf": [SOURCE.describe(structs), {"type": "string"}]}


BLOCK = Struct(
    "anthropic.ContentBlock",
    {
        "type": string,
        "text": string,
        "citations": ListOf(CITATION, "[]anthropic.Citation"),
        "source": _Source(),
        "id": string,
        "name": string,
        "input": ARGUMENTS,
        "tool_use_id": string,
        "content": anything,
        "is_error": boolean,
        "thinking": string,
        "signature": string,
    },
)
_BLOCKS = ListOf(BLOCK, "[]anthropic.ContentBlock")
_MESSAGE = Struct(
    "",
    {"role": string, "content": anything},
    shown='struct { Role string "json:\\"role\\""; Content json.RawMessage "json:\\"content\\"" }',
)


class _MessageParam:
    """An `anthropic.MessageParam`, which decodes itself: its content is a text or blocks."""

    def __call__(self, value: object, walk: Walk, /) -> None:
        """Check a message."""
        error = find_error(value, _MESSAGE)
        if error is None:
            fields = value if isinstance(value, dict) else {}
            keys = {key.lower(): key for key in fields}
            if "content" not in keys:
                raise GoError("unexpected end of JSON input")
            content = fields[keys["content"]]
            error = None if isinstance(content, str) else find_error(content, _BLOCKS)
        if error is not None:
            raise error

    def describe(self, structs: dict[str, Schema]) -> Schema:
        """Return the schema."""
        content = {"anyOf": [{"type": "string"}, _BLOCKS.describe(structs)]}
        role = {"type": "string"}
        return {
            "type": "object",
            "properties": {"role": role, "content": content},
            "required": ["content"],
        }


MESSAGE = _MessageParam()
TOOL = Struct(
    "anthropic.Tool",
    {
        "type": string,
        "name": string,
        "description": string,
        "input_schema": anything,
        "max_uses": integer,
    },
)
MESSAGES = Struct(
    "anthropic.MessagesRequest",
    {
        "model": string,
        "max_tokens": integer,
        "messages": MessagesOf(MESSAGE, "[]anthropic.MessageParam"),
        "system": anything,
        "stream": boolean,
        "temperature": float64,
        "top_p": float64,
        "top_k": integer,
        "stop_sequences": STRINGS,
        "tools": ListOf(TOOL, "[]anthropic.Tool"),
        "tool_choice": Struct(
            "anthropic.ToolChoice",
            {"type": string, "name": string, "disable_parallel_tool_use": boolean},
        ),
        "thinking": Struct("anthropic.ThinkingConfig", {"type": string, "budget_tokens": integer}),
        "metadata": Struct("anthropic.Metadata", {"user_id": string}),
        "output_config": Struct("anthropic.OutputConfig", {"effort": string}),
    },
)
