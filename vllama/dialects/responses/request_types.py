"""`POST /v1/responses`, as far as Ollama reads it (its `openai/responses.go`).

Bodies of these types are checked, and stay as they are. vllama takes more kinds of items and of
content than Ollama does; the check of those passes over them.
"""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeAlias

from msgspec import Meta, Struct

from vllama.base.meaning import TEXT, Schema, make_object, make_word, says
from vllama.chat.bodies import convert
from vllama.chat.request import MAX_MESSAGES, MAX_TOOLS
from vllama.dialects.ollama.request_types import Int, Model, TextFields
from vllama.dialects.openai.request_types import IMAGE_URL


class _Head(Struct):
    type: str | None = None
    role: str | None = None
    id: Any = None


class InputMessage(Struct):
    """A message of the conversation."""

    content: str | list[Any] | dict[str, Any] | None = None


class ResponsesTool(Struct):
    """A tool, or a namespace of tools."""

    type: Annotated[str | None, says("`function`, `custom` or `namespace`", required=True)] = None
    name: str | None = None
    description: Annotated[str | None, says("description of the tool for the model")] = None
    strict: bool | None = None
    parameters: Annotated[dict[str, Any] | None, says("JSON schema of the arguments")] = None
    tools: list[ResponsesTool | None] | None = None


class InputItem(dict[str, Any]):
    """An item of the input; a role alone makes it a message.

    Others are taken as they are: a conversation may hold what another server has said.
    """

    @classmethod
    def read(cls, value: object) -> Self:
        """Check an object."""
        head = convert(value, _Head)
        name = head.type or ("message" if head.role else "")
        if not (name or head.id):
            raise ValueError("It has neither a type nor a role")
        # additional tools have `tools`
        convert(value, {"message": InputMessage, "additional_tools": ResponsesTool}.get(name, Any))
        return cls()


class TextFormat(Struct):
    """The text format."""

    type: Annotated[str | None, says("`text`, `json_object` or `json_schema`")] = None
    name: str | None = None
    schema: Annotated[Any, says("JSON schema of the response")] = None
    strict: bool | None = None


class TextOptions(Struct):
    """The text options."""

    format: TextFormat | None = None


class ResponsesReasoning(Struct):
    """Reasoning options."""

    effort: Annotated[str | None, says("reasoning effort: `none` to `max`")] = None
    generate_summary: Annotated[str | None, says("ignored: reasoning is not summarized")] = None
    summary: Annotated[str | None, says("ignored: reasoning is not summarized")] = None


NON_EMPTY: Schema = {"type": "string", "minLength": 1}
_ITEM_PART: Schema = {
    "anyOf": [
        make_object(type=make_word("input_text", "output_text"), text=TEXT),
        make_object(type=make_word("input_image"), image_url=IMAGE_URL),
    ]
}
_TEXTS: Schema = {"anyOf": [TEXT, {"type": "array", "items": _ITEM_PART}]}
MESSAGE = make_object({"type": make_word("message")}, role=NON_EMPTY, content=_TEXTS)
_CALL = make_object(
    {"arguments": TEXT}, call_id=TEXT, name=NON_EMPTY, type=make_word("function_call")
)
_RESULT = make_object({"output": _TEXTS}, call_id=TEXT, type=make_word("function_call_output"))
_THINKING = make_object({"encrypted_content": TEXT}, type=make_word("reasoning"))
_Item: TypeAlias = Annotated[InputItem, says(anyOf=[MESSAGE, _CALL, _RESULT, _THINKING])]
_TOOL_CHOICE = [make_word("auto", "none", "required"), make_object(type=TEXT)]


class ResponsesBody(TextFields):
    """`POST /v1/responses`."""

    model: Model = ""
    background: Annotated[bool | None, says("ignored: responses are synchronous")] = None
    conversation: Annotated[Any, says("ignored: use `previous_response_id`")] = None
    include: Annotated[
        list[str | None] | None, says("extra output, such as `reasoning.encrypted_content`")
    ] = None
    input: Annotated[
        str | Annotated[list[_Item | None], Meta(max_length=MAX_MESSAGES)] | None,
        says("text, or items: messages, calls, call results, reasoning"),
    ] = None
    instructions: Annotated[str | None, says("system message")] = None
    max_output_tokens: Int | None = None
    reasoning: ResponsesReasoning | None = None
    temperature: float | None = None
    presence_penalty: Annotated[Any, says(type="number")] = None
    frequency_penalty: Annotated[Any, says(type="number")] = None
    text: TextOptions | None = None
    top_p: float | None = None
    truncation: Annotated[str | None, says("`auto`: truncate prompts longer than the context")] = (
        None
    )
    tools: Annotated[
        Annotated[list[ResponsesTool | None], Meta(max_length=MAX_TOOLS)] | None,
        says("tools that the model may call"),
    ] = None
    tool_choice: Annotated[
        Any, says("tool calls: none, optional, required, or a specific one", anyOf=_TOOL_CHOICE)
    ] = None
    parallel_tool_calls: Annotated[Any, says(type="boolean")] = None
    previous_response_id: Annotated[Any, says("ID of the response to continue", **TEXT)] = None
    store: Annotated[Any, says("true: keep the response after a server restart")] = None
    metadata: Annotated[Any, says("key-value pairs", type="object")] = None
    stream: bool | None = None
