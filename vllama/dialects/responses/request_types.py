"""The fields of `POST /v1/responses` and their types, as Ollama declares them.

Source: `openai/responses.go`. vllama takes more kinds of items and of content than Ollama does; the
check of those passes over them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from vllama.chat.go_json import check_messages, kind
from vllama.dialects.go_types import GoError, GoType, Struct, Walk, find_error
from vllama.dialects.go_values import (
    ANY_MAP,
    STRINGS,
    ListOf,
    anything,
    boolean,
    described,
    float64,
    integer,
    string,
)

_TYPE = Struct("", {"type": string}, shown='struct { Type string "json:\\"type\\"" }')
_ITEM = Struct(
    "",
    {"type": string, "role": string},
    shown='struct { Type string "json:\\"type\\""; Role string "json:\\"role\\"" }',
)
_CONTENT: Mapping[str, GoType] = {
    "input_text": Struct("openai.ResponsesTextContent", {"type": string, "text": string}),
    "output_text": Struct("openai.ResponsesOutputTextContent", {"type": string, "text": string}),
    "input_image": Struct(
        "openai.ResponsesImageContent",
        {"type": string, "detail": string, "file_id": string, "image_url": string},
    ),
    "input_file": Struct(
        "openai.ResponsesFileContent",
        {
            "type": string,
            "file_data": string,
            "file_id": string,
            "file_url": string,
            "filename": string,
        },
    ),
    **dict.fromkeys(("text", "refusal", "summary_text", "input_audio"), anything),
}
_SUMMARY = Struct("openai.ResponsesReasoningSummary", {"type": string, "text": string})
_CALLS_OF_SERVERS = (
    "web_search_call", "file_search_call", "computer_call", "computer_call_output",
    "code_interpreter_call", "image_generation_call", "mcp_list_tools", "mcp_call",
)  # fmt: skip


def _check_each(values: Sequence[object], name: str, go_type: GoType) -> None:
    """Check the values of a list that is decoded one by one. Raises GoError."""
    for number, value in enumerate(values):
        error = find_error(value, go_type)
        if error is not None:
            raise GoError(f"{name}[{number}]: {error}")


def _check_text_or_list(value: object, name: str, go_type: GoType) -> None:
    """Check a value that is a text or a list. Raises GoError."""
    if isinstance(value, list):
        _check_each(value, name, go_type)
    elif value is not None and not isinstance(value, str):
        raise GoError(
            f"{name} must be a string or array: json: cannot unmarshal {kind(value)} "
            "into Go value of type []json.RawMessage"
        )


@described({"type": "object"})
def _check_part(value: object, walk: Walk) -> None:
    """Check a `ResponsesContent`, which its type tells apart."""
    _TYPE(value, walk)
    if walk.first is None:
        name = (value.get("type") or "") if isinstance(value, dict) else ""
        if name not in _CONTENT:
            raise GoError(f"unknown content type: {name}")
        _CONTENT[name](value, walk)


def _check_message(value: dict[str, object], walk: Walk) -> None:
    _check_text_or_list(value.get("content"), "content", _check_part)


def _check_output(value: dict[str, object], walk: Walk) -> None:
    Struct("", {"type": string, "call_id": string})(value, walk)
    if walk.first is None:
        _check_text_or_list(value.get("output"), "output", _check_part)


ITEMS: Mapping[str, Callable[[dict[str, object], Walk], None]] = {
    "message": _check_message,
    "function_call": Struct(
        "openai.ResponsesFunctionCall",
        {"id": string, "type": string, "call_id": string, "name": string, "arguments": string},
    ),
    "function_call_output": _check_output,
    "reasoning": Struct(
        "openai.ResponsesReasoningInput",
        {
            "id": string,
            "type": string,
            "summary": ListOf(_SUMMARY, "[]openai.ResponsesReasoningSummary"),
            "encrypted_content": string,
        },
    ),
    **dict.fromkeys(_CALLS_OF_SERVERS, anything),
}
"""The kinds of items in `input`. Calls that OpenAI's servers ran are known, and passed over."""


@described({"type": "object"})
def _check_item(value: object, walk: Walk) -> None:
    """Check a `ResponsesInputItem`, which its type tells apart; a role makes it a message."""
    _ITEM(value, walk)
    if walk.first is not None:
        return
    fields = value if isinstance(value, dict) else {}
    name = fields.get("type") or ("message" if fields.get("role") else "")
    if not name:
        raise GoError("input item missing required 'type' field")
    if name not in ITEMS:
        raise GoError(f'unknown input item type: "{name}"')
    ITEMS[name](fields, walk)


@described({"anyOf": [{"type": "string"}, {"type": "array"}]})
def _input(value: object, walk: Walk) -> None:
    if isinstance(value, list):
        check_messages(value)
    _check_text_or_list(value, "input", _check_item)


TOOL = Struct(
    "openai.ResponsesTool",
    {
        "type": string,
        "name": string,
        "description": string,
        "strict": boolean,
        "parameters": ANY_MAP,
    },
)
TOOL.add("tools", ListOf(TOOL, "[]openai.ResponsesTool"))
FORMAT = Struct(
    "openai.ResponsesTextFormat",
    {"type": string, "name": string, "schema": anything, "strict": boolean},
)
RESPONSES = Struct(
    "openai.ResponsesRequest",
    {
        "model": string,
        "background": boolean,
        "conversation": anything,
        "include": STRINGS,
        "input": _input,
        "instructions": string,
        "max_output_tokens": integer,
        "reasoning": Struct(
            "openai.ResponsesReasoning",
            {"effort": string, "generate_summary": string, "summary": string},
        ),
        "temperature": float64,
        "text": Struct("openai.ResponsesText", {"format": FORMAT}),
        "top_p": float64,
        "truncation": string,
        "tools": ListOf(TOOL, "[]openai.ResponsesTool"),
        "stream": boolean,
    },
)
