"""`POST /v1/responses` as Ollama declares it (`openai/responses.go`).

vllama takes more kinds of items and of content than Ollama does; the check of those passes over
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from vllama.chat.go_json import check_messages, kind
from vllama.dialects.go_structs import GoStruct, find_struct, list_of, make_struct
from vllama.dialects.go_types import GoError, GoType, Walk, find_error
from vllama.dialects.go_values import Int, anything, described

_Type = make_struct("", type=str, go_shown='struct { Type string "json:\\"type\\"" }')
_Item = make_struct(
    "",
    type=str,
    role=str,
    go_shown='struct { Type string "json:\\"type\\""; Role string "json:\\"role\\"" }',
)
Text = make_struct("openai.ResponsesTextContent", type=str, text=str)
OutputText = make_struct("openai.ResponsesOutputTextContent", type=str, text=str)
Image = make_struct(
    "openai.ResponsesImageContent", type=str, detail=str, file_id=str, image_url=str
)
File = make_struct(
    "openai.ResponsesFileContent", type=str, file_data=str, file_id=str, file_url=str, filename=str
)
Summary = make_struct("openai.ResponsesReasoningSummary", type=str, text=str)
FunctionCall = make_struct(
    "openai.ResponsesFunctionCall", id=str, type=str, call_id=str, name=str, arguments=str
)
_Output = make_struct("", type=str, call_id=str)
ReasoningItem = make_struct(
    "openai.ResponsesReasoningInput",
    id=str,
    type=str,
    summary=list_of(Summary),
    encrypted_content=str,
)


_CONTENT: Mapping[str, GoType] = {
    "input_text": find_struct(Text),
    "output_text": find_struct(OutputText),
    "input_image": find_struct(Image),
    "input_file": find_struct(File),
    **dict.fromkeys(("text", "refusal", "summary_text", "input_audio"), anything),
}
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
def _check_part(value: object, walk: Walk) -> object:
    """Check a `ResponsesContent`, which its type tells apart."""
    find_struct(_Type)(value, walk)
    if walk.first is None:
        name = (value.get("type") or "") if isinstance(value, dict) else ""
        if name not in _CONTENT:
            raise GoError(f"unknown content type: {name}")
        _CONTENT[name](value, walk)
    return value


def _check_message(value: dict[str, object], walk: Walk) -> None:
    _check_text_or_list(value.get("content"), "content", _check_part)


def _check_output(value: dict[str, object], walk: Walk) -> None:
    find_struct(_Output)(value, walk)
    if walk.first is None:
        _check_text_or_list(value.get("output"), "output", _check_part)


ITEMS: Mapping[str, Callable[[dict[str, object], Walk], object]] = {
    "message": _check_message,
    "function_call": find_struct(FunctionCall),
    "function_call_output": _check_output,
    "reasoning": find_struct(ReasoningItem),
    **dict.fromkeys(_CALLS_OF_SERVERS, anything),
}
"""The kinds of items in `input`. Calls that OpenAI's servers ran are known, and passed over."""


@described({"type": "object"})
def _check_item(value: object, walk: Walk) -> object:
    """Check a `ResponsesInputItem`, which its type tells apart; a role makes it a message."""
    find_struct(_Item)(value, walk)
    if walk.first is not None:
        return value
    fields = value if isinstance(value, dict) else {}
    name = fields.get("type") or ("message" if fields.get("role") else "")
    if not name:
        raise GoError("input item missing required 'type' field")
    if name not in ITEMS:
        raise GoError(f'unknown input item type: "{name}"')
    ITEMS[name](fields, walk)
    return value


@described({"anyOf": [{"type": "string"}, {"type": "array"}]})
def _check_input(value: object, walk: Walk) -> object:
    if isinstance(value, list):
        check_messages(value)
    _check_text_or_list(value, "input", _check_item)
    return value


class Input:
    """A text or items, which their types tell apart."""

    go_type: ClassVar[GoType] = _check_input

    def __init__(self, value: object) -> None:
        self.value = value


class Tool(GoStruct):
    """A tool, or a namespace of tools."""

    go_name = "openai.ResponsesTool"
    type: str = ""
    name: str = ""
    description: str = ""
    strict: bool = False
    parameters: dict[str, Any] = {}
    tools: list[Tool | None] = []


TextFormat = make_struct(
    "openai.ResponsesTextFormat",
    "The form of the text.",
    type=str,
    name=str,
    schema=Any,
    strict=bool,
)
TextOptions = make_struct("openai.ResponsesText", "The form of the text.", format=TextFormat)
Reasoning = make_struct(
    "openai.ResponsesReasoning",
    "How the model thinks.",
    effort=str,
    generate_summary=str,
    summary=str,
)
DecisionsBody = make_struct("openai.Request", model=str, input=Input)
ResponsesBody = make_struct(
    "openai.ResponsesRequest",
    model=str,
    background=bool,
    conversation=Any,
    include=list_of(str),
    input=Input,
    instructions=str,
    max_output_tokens=Int,
    reasoning=Reasoning,
    temperature=float,
    text=TextOptions,
    top_p=float,
    truncation=str,
    tools=list_of(Tool),
    stream=bool,
)


DECISIONS = find_struct(DecisionsBody)
RESPONSES = find_struct(ResponsesBody)
