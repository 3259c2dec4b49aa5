"""The fields of Anthropic's responses and their types.

The deltas of text are written by hand for speed; the tests compare them with their types. What has
`UNSET` as its default may be missing.

See docs/reference/ollama-api.md#messages.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from vllama.base.meaning import says
from vllama.chat.inspect import Inspected, MaybeInspected
from vllama.dialects.errors import AnthropicError


class TextBlock(Struct, tag="text"):
    """Text content."""

    text: str


class ThinkingBlock(Struct, tag="thinking"):
    """Thinking content. Send the signature back unchanged."""

    thinking: str
    signature: Annotated[str | UnsetType, says("opaque; send it back unchanged")] = UNSET


class ToolUseBlock(Struct, tag="tool_use"):
    """A tool call."""

    id: str
    name: str
    input: dict[str, Any]


Block: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(Struct, kw_only=True):
    """Token counts. The prompt's tokens are the sum of the three kinds of input."""

    input_tokens: int
    cache_creation_input_tokens: Annotated[
        int | UnsetType, says("prompt tokens written to the cache")
    ] = UNSET
    cache_read_input_tokens: Annotated[
        int | UnsetType, says("prompt tokens read from the cache")
    ] = UNSET
    output_tokens: int


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class Message(Struct, kw_only=True):
    """A complete response of `/v1/messages`."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: Annotated[list[Block], says("text, thinking and tool calls")]
    stop_reason: StopReason | UnsetType | None = UNSET
    stop_sequence: str | UnsetType | None = UNSET
    usage: MessageUsage
    inspect: MaybeInspected = UNSET


class MessageStart(Struct, tag="message_start"):
    """The first event of a stream."""

    message: Annotated[Message, says("the response, without content yet")]


class BlockStart(Struct, tag="content_block_start"):
    """The start of a content block."""

    index: int
    content_block: Annotated[Block, says("the empty content block")]


class TextDelta(Struct, tag="text_delta"):
    """A text delta."""

    text: str


class ThinkingDelta(Struct, tag="thinking_delta"):
    """A thinking delta."""

    thinking: str


class SignatureDelta(Struct, tag="signature_delta"):
    """The signature of the preceding thinking."""

    signature: Annotated[str, says("opaque; send it back unchanged")]


class ArgumentsDelta(Struct, tag="input_json_delta"):
    """A delta of a tool call's arguments."""

    partial_json: Annotated[str, says("a fragment of the arguments' JSON")]


class BlockDelta(Struct, tag="content_block_delta"):
    """A delta of a content block."""

    index: int
    delta: Annotated[
        TextDelta | ThinkingDelta | SignatureDelta | ArgumentsDelta, says("the added content")
    ]


class BlockStop(Struct, tag="content_block_stop"):
    """The end of a content block."""

    index: int


class EndOfMessage(Struct):
    """The stop reason."""

    stop_reason: StopReason | None
    stop_sequence: str | UnsetType | None = UNSET


class MessageDelta(Struct, tag="message_delta"):
    """The stop reason and the token counts."""

    delta: Annotated[EndOfMessage, says("stop reason")]
    usage: MessageUsage


class MessageStop(Struct, tag="message_stop"):
    """The last event of a stream."""


class InspectEvent(Struct, tag="inspect"):
    """Results of `inspect`: a vllama extension, sent before the end."""

    inspect: Annotated[Inspected, says("the collected activations and logits")]


MessageEvent: TypeAlias = (
    MessageStart
    | BlockStart
    | BlockDelta
    | BlockStop
    | InspectEvent
    | MessageDelta
    | MessageStop
    | AnthropicError
)


class TokenCount(Struct):
    """The prompt's token count."""

    input_tokens: int
