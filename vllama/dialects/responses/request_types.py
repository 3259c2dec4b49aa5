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
    """A turn of the conversation."""

    content: str | list[Any] | dict[str, Any] | None = None


class ResponsesTool(Struct):
    """A tool, or a namespace of tools."""

    type: Annotated[str | None, says("`function`, `custom` or `namespace`", required=True)] = None
    name: str | None = None
    description: Annotated[str | None, says("the purpose of the tool, for the model")] = None
    strict: bool | None = None
    parameters: Annotated[dict[str, Any] | None, says("a JSON schema of the arguments")] = None
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
    """The form of the text."""

    type: Annotated[str | None, says("`text`, `json_object` or `json_schema`")] = None
    name: str | None = None
    schema: Annotated[Any, says("a JSON schema of the response")] = None
    strict: bool | None = None


class TextOptions(Struct):
    """The form of the text."""

    format: TextFormat | None = None


class ResponsesReasoning(Struct):
    """Options of thinking."""

    effort: Annotated[str | None, says("how much the model thinks first: `none` to `max`")] = None
    generate_summary: Annotated[str | None, says("ignored: the thinking is not summarized")] = None
    summary: Annotated[str | None, says("ignored: the thinking is not summarized")] = None


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
    background: Annotated[bool | None, says("ignored: the response comes at once")] = None
    conversation: Annotated[Any, says("ignored: use `previous_response_id`")] = None
    include: Annotated[
        list[str | None] | None, says("`reasoning.encrypted_content`, for example")
    ] = None
    input: Annotated[
        str | Annotated[list[_Item | None], Meta(max_length=MAX_MESSAGES)] | None,
        says("a text, or items: messages, calls, results of calls, reasoning"),
    ] = None
    instructions: Annotated[str | None, says("the system message")] = None
    max_output_tokens: Int | None = None
    reasoning: ResponsesReasoning | None = None
    temperature: float | None = None
    presence_penalty: Annotated[Any, says(type="number")] = None
    frequency_penalty: Annotated[Any, says(type="number")] = None
    text: TextOptions | None = None
    top_p: float | None = None
    truncation: Annotated[str | None, says("`auto`: a prompt longer than the context is cut")] = (
        None
    )
    tools: Annotated[
        Annotated[list[ResponsesTool | None], Meta(max_length=MAX_TOOLS)] | None,
        says("tools that the model may use"),
    ] = None
    tool_choice: Annotated[
        Any, says("whether the model may or must use a tool, and which", anyOf=_TOOL_CHOICE)
    ] = None
    parallel_tool_calls: Annotated[Any, says(type="boolean")] = None
    previous_response_id: Annotated[Any, says("the response to continue from", **TEXT)] = None
    store: Annotated[Any, says("whether the response outlives the server")] = None
    metadata: Annotated[Any, says("pairs of texts", type="object")] = None
    stream: bool | None = None
