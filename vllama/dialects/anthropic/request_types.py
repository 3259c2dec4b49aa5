"""Anthropic's requests, as far as Ollama reads them (its `anthropic/anthropic.go`).

Bodies of these types are checked, and stay as they are.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from vllama.chat.bodies import Body
from vllama.chat.request import MAX_MESSAGES, MAX_TOOLS
from vllama.dialects.ollama.request_types import Int


class Citation(Struct):
    """Where a text comes from."""

    type: str | None = None
    url: str | None = None
    title: str | None = None
    encrypted_index: str | None = None
    cited_text: str | None = None


class ImageSource(Struct):
    """Where a picture is."""

    type: str | None = None
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class ContentBlock(Struct):
    """A part of a message. The source of a search result, which Ollama does not know, is a text."""

    type: str | None = None
    text: str | None = None
    citations: list[Citation | None] | None = None
    source: ImageSource | str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: Any = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None


class AnthropicMessage(Struct):
    """A turn of the conversation."""

    content: str | list[ContentBlock | None] | None
    role: str | None = None


class AnthropicTool(Struct):
    """A tool that the model may use."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: Any = None
    max_uses: Int | None = None


class AnthropicToolChoice(Struct):
    """Whether the model uses a tool, and which."""

    type: str | None = None
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct):
    """Whether the model thinks first."""

    type: str | None = None
    budget_tokens: Int | None = None


class MessageMetadata(Struct):
    """What the client says of the request."""

    user_id: str | None = None


class OutputConfig(Struct):
    """How the model answers."""

    effort: str | None = None


class MessagesBody(Body):
    """`POST /v1/messages`."""

    model: str | None = None
    max_tokens: Int | None = None
    messages: Annotated[list[AnthropicMessage], Meta(max_length=MAX_MESSAGES)] | None = None
    system: Any = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    stop_sequences: list[str | None] | None = None
    tools: Annotated[list[AnthropicTool | None], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingConfig | None = None
    metadata: MessageMetadata | None = None
    output_config: OutputConfig | None = None
