"""The events of an engine's stream, decoded into typed structs.

One decoder for chat and completion chunks, tolerant of what the engines leave out or add
(engines-other §1: no `finish_reason` key in a first chunk, usage inside the finish chunk,
`object: "error"`), and the one place that knows how an error looks in a stream. Typed decoding is
the fast one: proxy-performance §3.
"""

from __future__ import annotations

from typing import Any

import msgspec

from vllama.chat.error_text import clean_text
from vllama.errors import EngineCrashed, UpstreamError


class FunctionDelta(msgspec.Struct, gc=False):
    """A piece of a call's function."""

    name: str | None = None
    arguments: Any = None  # a string by the book; some engines give the object


class ToolDelta(msgspec.Struct, gc=False):
    """A piece of a tool call."""

    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None


class Delta(msgspec.Struct, gc=False):
    """What one chunk adds to a message."""

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
    """OpenAI's usage object."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Timings(msgspec.Struct, gc=False):
    """llama-server's own measurements, in its last chunk (engines-llamacpp §3)."""

    prompt_n: int | None = None
    cache_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None


class Event(msgspec.Struct, gc=False):
    """One event of the stream."""

    choices: list[Choice] | None = None
    usage: EngineUsage | None = None
    timings: Timings | None = None
    error: Any = None
    object: str | None = None
    message: Any = None
    detail: Any = None


class Chunk(msgspec.Struct, gc=False):
    """One event of the stream with the fields that a pass-through needs."""

    choices: list[Choice] | None = None
    usage: dict[str, Any] | None = None
    id: str | None = None
    object: str | None = None
    created: int | None = None
    model: str | None = None
    system_fingerprint: str | msgspec.UnsetType | None = msgspec.UNSET
    error: Any = None
    message: Any = None
    detail: Any = None


_decode_chunk = msgspec.json.Decoder(Chunk).decode
_decode = msgspec.json.Decoder(Event).decode


def decode_event(payload: bytes) -> Event:
    """Decode one event. Raises UpstreamError for one that is broken or reports an error."""
    try:
        event = _decode(payload)
    except (ValueError, RecursionError):
        raise UpstreamError("the engine sent an event that is not valid JSON") from None
    if event.choices is None:
        check_error(event)
    elif event.error is not None:
        raise UpstreamError(_error_text(event.error))
    return event


def decode_chunk(payload: bytes) -> Chunk:
    """Decode one event as `decode_event` does, keeping what OpenAI's clients are told."""
    try:
        chunk = _decode_chunk(payload)
    except (ValueError, RecursionError):
        raise UpstreamError("the engine sent an event that is not valid JSON") from None
    if chunk.choices is None or chunk.error is not None:
        check_error(chunk)
    return chunk


def plain_text(event: Event | Chunk) -> str | None:
    """Return the text of the usual event: text of the only choice and nothing else; else None."""
    choices = event.choices
    if not choices or len(choices) > 1 or event.usage is not None:
        return None
    if type(event) is Event and event.timings is not None:
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


def check_error(event: Event | Chunk) -> None:
    """Raise UpstreamError if an event is an engine's error report."""
    if event.error is not None:
        raise UpstreamError(_error_text(event.error))
    if event.object == "error" or event.detail is not None:
        raise UpstreamError(_error_text(event.detail or event.message))


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
