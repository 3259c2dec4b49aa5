"""Anthropic's requests as Ollama declares them (`anthropic/anthropic.go`)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Struct

from vllama.base.meaning import TEXT, says
from vllama.chat.request import MAX_MESSAGES, MAX_TOOLS
from vllama.dialects.ollama.request_types import AT_MOST, Int, Model, TextFields


class ImageSource(Struct):
    """An image."""

    type: Annotated[str | None, says("`base64`; URLs are not fetched")] = None
    media_type: Annotated[str | None, says("media type, such as `image/png`")] = None
    data: Annotated[str | None, says("image data, base64-encoded")] = None
    url: str | None = None


class ContentBlock(Struct):
    """A content block."""

    type: Annotated[
        str | None, says("`text`, `image`, `tool_use`, `tool_result` or `thinking`")
    ] = None
    text: str | None = None
    source: ImageSource | str | None = None
    id: str | None = None
    name: str | None = None
    input: Annotated[Any, says("tool arguments", type="object")] = None
    tool_use_id: Annotated[str | None, says("ID of the tool call with this result")] = None
    content: Annotated[Any, says("tool result: text, or content blocks")] = None
    is_error: Annotated[bool | None, says("true if the tool failed")] = None
    thinking: str | None = None
    signature: Annotated[str | None, says("opaque; send it back unchanged")] = None


class AnthropicMessage(Struct):
    """A message of the conversation."""

    content: Annotated[
        str | list[ContentBlock | str | None] | ContentBlock | None, says("text or blocks")
    ] = None
    role: Annotated[str | None, says("`user` or `assistant`")] = None


class AnthropicTool(Struct):
    """A tool that the model may call."""

    type: str | None = None
    name: str | None = None
    description: Annotated[str | None, says("description of the tool for the model")] = None
    input_schema: Annotated[Any, says("JSON schema of the arguments", type=["object", "null"])] = (
        None
    )
    max_uses: Annotated[
        Int | None, says("ignored: tools that Anthropic runs are not available")
    ] = None


class AnthropicToolChoice(Struct):
    """Tool choice."""

    type: Annotated[str | None, says(enum=["auto", "any", "tool", "none"], required=True)] = None
    name: Annotated[str | None, says("name of the tool to call")] = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct):
    """Thinking mode and budget."""

    type: Annotated[str | None, says("`enabled`, `adaptive` or `disabled`")] = None
    budget_tokens: Annotated[Int | None, says("maximum thinking tokens")] = None


class MessageMetadata(Struct):
    """Client metadata."""

    user_id: Annotated[str | None, says("ignored")] = None


class OutputConfig(Struct):
    """Output options."""

    effort: Annotated[str | None, says("reasoning effort")] = None


_SYSTEM = [TEXT, {"type": "array", "items": {}}]


class MessagesBody(TextFields):
    """`POST /v1/messages`."""

    model: Model = ""
    max_tokens: Annotated[int, AT_MOST, says(minimum=1, required=True)] = 0
    messages: Annotated[
        list[AnthropicMessage | None],
        says("the conversation so far, oldest message first", minItems=1, required=True),
        msgspec.Meta(max_length=MAX_MESSAGES),
    ] = []
    system: Annotated[Any, says("system prompt: text, or content blocks", anyOf=_SYSTEM)] = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    stop_sequences: Annotated[list[str] | None, says("stop sequences")] = None
    tools: Annotated[
        Annotated[list[AnthropicTool | None], msgspec.Meta(max_length=MAX_TOOLS)] | None,
        says("tools that the model may call"),
    ] = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingConfig | None = None
    metadata: MessageMetadata | None = None
    output_config: OutputConfig | None = None


class CountBody(MessagesBody):
    """`POST /v1/messages/count_tokens`."""

    max_tokens: Int = 0
