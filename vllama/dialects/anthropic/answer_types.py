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
    """Text of a response."""

    text: str


class ThinkingBlock(Struct, tag="thinking"):
    """Thinking before a response; the signature is to be sent back as it is."""

    thinking: str
    signature: Annotated[str | UnsetType, says("is sent back as it is")] = UNSET


class ToolUseBlock(Struct, tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


Block: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(Struct, kw_only=True):
    """Tokens; the prompt's are the sum of the three kinds of input."""

    input_tokens: int
    cache_creation_input_tokens: Annotated[
        int | UnsetType, says("tokens of the prompt that were put into the cache")
    ] = UNSET
    cache_read_input_tokens: Annotated[
        int | UnsetType, says("tokens of the prompt that needed no work")
    ] = UNSET
    output_tokens: int


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class Message(Struct, kw_only=True):
    """A whole response of `/v1/messages`."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: Annotated[list[Block], says("text, thinking and calls")]
    stop_reason: StopReason | UnsetType | None = UNSET
    stop_sequence: str | UnsetType | None = UNSET
    usage: MessageUsage
    inspect: MaybeInspected = UNSET


class MessageStart(Struct, tag="message_start"):
    """The first event."""

    message: Annotated[Message, says("the response, still without content")]


class BlockStart(Struct, tag="content_block_start"):
    """A block begins."""

    index: int
    content_block: Annotated[Block, says("the block, still empty")]


class TextDelta(Struct, tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(Struct, tag="thinking_delta"):
    """More thinking."""

    thinking: str


class SignatureDelta(Struct, tag="signature_delta"):
    """The signature of the thinking before."""

    signature: Annotated[str, says("is sent back as it is")]


class ArgumentsDelta(Struct, tag="input_json_delta"):
    """More of a call's arguments: a piece of JSON."""

    partial_json: Annotated[str, says("a piece of the arguments as JSON")]


class BlockDelta(Struct, tag="content_block_delta"):
    """A block goes on."""

    index: int
    delta: Annotated[
        TextDelta | ThinkingDelta | SignatureDelta | ArgumentsDelta, says("what is added")
    ]


class BlockStop(Struct, tag="content_block_stop"):
    """A block ends."""

    index: int


class EndOfMessage(Struct):
    """Why the response ends."""

    stop_reason: StopReason | None
    stop_sequence: str | UnsetType | None = UNSET


class MessageDelta(Struct, tag="message_delta"):
    """The end of the response, and what it took."""

    delta: Annotated[EndOfMessage, says("why the response ends")]
    usage: MessageUsage


class MessageStop(Struct, tag="message_stop"):
    """The last event."""


class InspectEvent(Struct, tag="inspect"):
    """Results of `inspect`: vllama's own event, before the end."""

    inspect: Annotated[Inspected, says("what was collected inside the model")]


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
    """The tokens of a prompt."""

    input_tokens: int
