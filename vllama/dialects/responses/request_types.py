"""`POST /v1/responses`, as far as Ollama reads it (its `openai/responses.go`).

Bodies of these types are checked, and stay as they are. vllama takes more kinds of items and of
content than Ollama does; the check of those passes over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from msgspec import Meta, Struct

from vllama.chat.bodies import Body, convert
from vllama.chat.request import MAX_MESSAGES, MAX_TOOLS
from vllama.dialects.ollama.request_types import Int


class _Head(Struct):
    type: str | None = None
    role: str | None = None


class _Typed(dict[str, Any]):
    """An object whose type decides which fields it has; a role alone makes it a message."""

    schema: ClassVar[dict[str, Any]] = {"type": "object"}
    kinds: ClassVar[Mapping[str, Any]]

    @classmethod
    def read(cls, value: object) -> Self:
        """Check an object."""
        head = convert(value, _Head)
        name = head.type or ("message" if head.role else "")
        if name not in cls.kinds:
            raise ValueError(f"Unknown type '{name[:80]}'")
        convert(value, cls.kinds[name])
        return cls()


class InputText(Struct):
    """A text."""

    text: str | None = None


class InputImage(Struct):
    """A picture."""

    detail: str | None = None
    file_id: str | None = None
    image_url: str | None = None


class InputFile(Struct):
    """A file."""

    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None


class InputPart(_Typed):
    """A part of a message's content."""

    kinds: ClassVar[Mapping[str, Any]] = {
        "input_text": InputText,
        "output_text": InputText,
        "input_image": InputImage,
        "input_file": InputFile,
        **dict.fromkeys(("text", "refusal", "summary_text", "input_audio"), Any),
    }


class InputMessage(Struct):
    """A turn of the conversation."""

    content: str | list[InputPart] | None = None


class FunctionCall(Struct):
    """The call of a function."""

    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class FunctionOutput(Struct):
    """What a function returned."""

    call_id: str | None = None
    output: str | list[InputPart] | None = None


class ReasoningItem(Struct):
    """What the model thought."""

    id: str | None = None
    summary: list[InputText | None] | None = None
    encrypted_content: str | None = None


_CALLS_OF_SERVERS = (
    "web_search_call", "file_search_call", "computer_call", "computer_call_output",
    "code_interpreter_call", "image_generation_call", "mcp_list_tools", "mcp_call",
)  # fmt: skip


class InputItem(_Typed):
    """An item of the input. Calls that OpenAI's servers ran are known, and passed over."""

    kinds: ClassVar[Mapping[str, Any]] = {
        "message": InputMessage,
        "function_call": FunctionCall,
        "function_call_output": FunctionOutput,
        "reasoning": ReasoningItem,
        **dict.fromkeys(_CALLS_OF_SERVERS, Any),
    }


Input: TypeAlias = str | Annotated[list[InputItem], Meta(max_length=MAX_MESSAGES)]


class ResponsesTool(Struct):
    """A tool, or a namespace of tools."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    parameters: dict[str, Any] | None = None
    tools: list[ResponsesTool | None] | None = None


class TextFormat(Struct):
    """The form of the text."""

    type: str | None = None
    name: str | None = None
    schema: Any = None
    strict: bool | None = None


class TextOptions(Struct):
    """The form of the text."""

    format: TextFormat | None = None


class ResponsesReasoning(Struct):
    """How the model thinks."""

    effort: str | None = None
    generate_summary: str | None = None
    summary: str | None = None


class DecisionsBody(Body):
    """`POST /v1/decisions`, as far as it is the same."""

    model: str | None = None
    input: Input | None = None


class ResponsesBody(DecisionsBody):
    """`POST /v1/responses`."""

    background: bool | None = None
    conversation: Any = None
    include: list[str | None] | None = None
    instructions: str | None = None
    max_output_tokens: Int | None = None
    reasoning: ResponsesReasoning | None = None
    temperature: float | None = None
    text: TextOptions | None = None
    top_p: float | None = None
    truncation: str | None = None
    tools: Annotated[list[ResponsesTool | None], Meta(max_length=MAX_TOOLS)] | None = None
    stream: bool | None = None
