"""The fields of Anthropic's requests and their types, as Ollama declares them.

Source: `anthropic/anthropic.go`.
"""

from __future__ import annotations

from vllama.dialects.go_types import (
    STRINGS,
    GoError,
    Struct,
    Walk,
    anything,
    boolean,
    decodes_itself,
    find_error,
    float64,
    integer,
    list_of,
    messages_of,
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


def _source(value: object, walk: Walk) -> None:
    """Check a picture's source. That of a search result, which Ollama does not know, is a text."""
    if not isinstance(value, str):
        SOURCE(value, walk)


BLOCK = Struct(
    "anthropic.ContentBlock",
    {
        "type": string,
        "text": string,
        "citations": list_of(CITATION, "[]anthropic.Citation"),
        "source": _source,
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
_BLOCKS = list_of(BLOCK, "[]anthropic.ContentBlock")
_MESSAGE = Struct(
    "",
    {"role": string, "content": anything},
    shown='struct { Role string "json:\\"role\\""; Content json.RawMessage "json:\\"content\\"" }',
)


def _decode_message(value: object, walk: Walk) -> None:
    """Check an `anthropic.MessageParam`, whose content is a text or blocks."""
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


MESSAGE = decodes_itself(_decode_message)
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
        "messages": messages_of(MESSAGE, "[]anthropic.MessageParam"),
        "system": anything,
        "stream": boolean,
        "temperature": float64,
        "top_p": float64,
        "top_k": integer,
        "stop_sequences": STRINGS,
        "tools": list_of(TOOL, "[]anthropic.Tool"),
        "tool_choice": Struct(
            "anthropic.ToolChoice",
            {"type": string, "name": string, "disable_parallel_tool_use": boolean},
        ),
        "thinking": Struct("anthropic.ThinkingConfig", {"type": string, "budget_tokens": integer}),
        "metadata": Struct("anthropic.Metadata", {"user_id": string}),
        "output_config": Struct("anthropic.OutputConfig", {"effort": string}),
    },
)
