"""Anthropic's requests as Ollama declares them (`anthropic/anthropic.go`)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Struct

from vllama.base.meaning import TEXT, says
from vllama.chat.request import MAX_MESSAGES, MAX_TOOLS
from vllama.dialects.ollama.request_types import AT_MOST, Int, Model, TextFields


class ImageSource(Struct):
    """A picture."""

    type: Annotated[str | None, says("`base64`; no URL is fetched")] = None
    media_type: Annotated[str | None, says("such as `image/png`")] = None
    data: Annotated[str | None, says("the picture in base64")] = None
    url: str | None = None


class ContentBlock(Struct):
    """A part of a message."""

    type: Annotated[
        str | None, says("`text`, `image`, `tool_use`, `tool_result` or `thinking`")
    ] = None
    text: str | None = None
    source: ImageSource | str | None = None
    id: str | None = None
    name: str | None = None
    input: Annotated[Any, says("the arguments", type="object")] = None
    tool_use_id: Annotated[str | None, says("the call with this result")] = None
    content: Annotated[Any, says("the result of a tool: a text, or blocks")] = None
    is_error: Annotated[bool | None, says("whether the tool failed")] = None
    thinking: str | None = None
    signature: Annotated[str | None, says("is sent back as it is")] = None


class AnthropicMessage(Struct):
    """A turn of the conversation."""

    content: Annotated[
        str | list[ContentBlock | str | None] | ContentBlock | None, says("a text, or blocks")
    ] = None
    role: Annotated[str | None, says("`user` or `assistant`")] = None


class AnthropicTool(Struct):
    """A tool that the model may use."""

    type: str | None = None
    name: str | None = None
    description: Annotated[str | None, says("the purpose of the tool, for the model")] = None
    input_schema: Annotated[
        Any, says("a JSON schema of the arguments", type=["object", "null"])
    ] = None
    max_uses: Annotated[Int | None, says("ignored: tools that Anthropic runs are not run here")] = (
        None
    )


class AnthropicToolChoice(Struct):
    """Choice of a tool."""

    type: Annotated[str | None, says(enum=["auto", "any", "tool", "none"], required=True)] = None
    name: Annotated[str | None, says("the tool that it uses")] = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct):
    """Switch and budget of thinking."""

    type: Annotated[str | None, says("`enabled`, `adaptive` or `disabled`")] = None
    budget_tokens: Annotated[Int | None, says("max tokens of thinking")] = None


class MessageMetadata(Struct):
    """The client's description of the request."""

    user_id: Annotated[str | None, says("ignored")] = None


class OutputConfig(Struct):
    """Options of the response."""

    effort: Annotated[str | None, says("how much the model thinks first")] = None


_SYSTEM = [TEXT, {"type": "array", "items": {}}]


class MessagesBody(TextFields):
    """`POST /v1/messages`."""

    model: Model = ""
    max_tokens: Annotated[int, AT_MOST, says(minimum=1, required=True)] = 0
    messages: Annotated[
        list[AnthropicMessage | None],
        says("the conversation so far, the oldest message first", minItems=1, required=True),
        msgspec.Meta(max_length=MAX_MESSAGES),
    ] = []
    system: Annotated[Any, says("the system message: a text, or blocks", anyOf=_SYSTEM)] = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    stop_sequences: Annotated[list[str] | None, says("texts that end the response")] = None
    tools: Annotated[
        Annotated[list[AnthropicTool | None], msgspec.Meta(max_length=MAX_TOOLS)] | None,
        says("tools that the model may use"),
    ] = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingConfig | None = None
    metadata: MessageMetadata | None = None
    output_config: OutputConfig | None = None


class CountBody(MessagesBody):
    """`POST /v1/messages/count_tokens`."""

    max_tokens: Int = 0
