"""The events of an engine's stream, decoded into typed structs.

One decoder for chats and completions, tolerant of what engines leave out or add: a first chunk
without `finish_reason`, usage inside the last chunk, `object: "error"` (docs/reference/engines.md).
This is also the one place that knows how an error looks in a stream. Typed decoding is several
times as fast as decoding into dictionaries.
"""

from __future__ import annotations

from typing import Any

import msgspec

from vllama.chat.error_text import clean_text
from vllama.errors import EngineCrashed, UpstreamError


class FunctionDelta(msgspec.Struct, gc=False, omit_defaults=True):
    """A piece of a call's function."""

    name: str | None = None
    arguments: Any = None  # a string by the book; some engines give the object


class ToolDelta(msgspec.Struct, gc=False, omit_defaults=True):
    """A piece of a tool call."""

    index: int | None = None
    id: str | None = None
    type: Any = None
    function: FunctionDelta | None = None


class Delta(msgspec.Struct, gc=False):
    """What one chunk adds to a message."""

    role: Any = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolDelta] | None = None


class Choice(msgspec.Struct, gc=False):
    """One choice of a chunk; `text` in completions, `message` in answers that are whole.

    `stop_reason` is vLLM's: the stop sequence, or a token's number.
    """

    index: int = 0
    delta: Delta | None = None
    message: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None
    stop_reason: Any = None


class EngineUsage(msgspec.Struct, gc=False):
    """OpenAI's usage object; `prompt_tokens_details` has `cached_tokens`."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: dict[str, int] | None = None


class Timings(msgspec.Struct, gc=False):
    """llama-server's own measurements, in its last chunk."""

    prompt_n: int | None = None
    cache_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None


class Chunk(msgspec.Struct, gc=False):
    """The JSON of one event."""

    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    timings: Timings | None = None
    id: str | None = None
    object: str | None = None
    created: int | None = None
    model: str | None = None
    system_fingerprint: str | msgspec.UnsetType | None = msgspec.UNSET
    error: Any = None
    message: Any = None
    detail: Any = None


class Event:
    """One event on its way from the engine to the client.

    `payload` is its JSON as the engine sent it; a writer may pass it on while no filter has
    `changed` the `chunk`. `text` is that of a plain event, which adds text to its only choice and
    says nothing else, as it came; None for any other. A `silent` event has nothing for the client:
    what it said is held back.
    """

    __slots__ = ("changed", "chunk", "payload", "silent", "text")

    def __init__(self, payload: bytes, chunk: Chunk) -> None:
        self.payload = payload
        self.chunk = chunk
        self.changed = False
        self.silent = False
        self.text = plain_text(chunk)


_decode = msgspec.json.Decoder(Chunk).decode


def decode_event(payload: bytes) -> Event:
    """Decode one event. Raises UpstreamError for one that is broken or reports an error."""
    try:
        chunk = _decode(payload)
    except (ValueError, RecursionError):
        raise UpstreamError("the engine sent an event that is not valid JSON") from None
    if chunk.choices is None or chunk.error is not None:
        check_error(chunk)
    return Event(payload, chunk)


def plain_text(chunk: Chunk) -> str | None:
    """Return the text of a plain event: text of the only choice and nothing else; else None."""
    choices = chunk.choices
    if not choices or len(choices) > 1 or chunk.usage is not None or chunk.timings is not None:
        return None
    choice = choices[0]
    delta = choice.delta
    if (
        choice.finish_reason is not None
        or choice.logprobs is not None
        or choice.message is not None
    ):
        return None
    if delta is None:
        return choice.text or None
    if delta.reasoning or delta.reasoning_content or delta.tool_calls:
        return None
    return delta.content or None


def check_error(chunk: Chunk) -> None:
    """Raise UpstreamError if an event is an engine's error report."""
    if chunk.error is not None:
        raise UpstreamError(_error_text(chunk.error))
    if chunk.object == "error" or chunk.detail is not None:
        raise UpstreamError(_error_text(chunk.detail or chunk.message))


def check_finish(reason: str) -> None:
    """Raise EngineCrashed when an engine says that it gave up (vLLM does so on SIGTERM)."""
    if reason in ("abort", "error"):
        raise EngineCrashed("the engine ended the answer before it was complete")


def _error_text(error: object) -> str:
    match error:
        case {"message": str(text)} if text:
            return clean_text(text)
        case str() if error:
            return clean_text(error)
        case _:
            return "the engine reported an error without a message"
