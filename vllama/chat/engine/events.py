"""The events of an engine's stream, decoded into typed structs.

One decoder for chats and completions, tolerant of what engines leave out or add: a first chunk
without `finish_reason`, usage inside the last chunk, `object: "error"` (docs/reference/engines.md).
This is also the one place that knows how an error looks in a stream. Typed decoding is several
times as fast as decoding into dictionaries.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from vllama.base.errors import EngineCrashed, UpstreamError
from vllama.chat.bodies import MAX_NAMES, has_too_many_values, read_float
from vllama.chat.engine.claims import Count, Milliseconds, clean_text, clean_usage, warn_of_counts

BROKEN_EVENT = "the engine sent an event that is not valid JSON"


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


class Timings(msgspec.Struct, gc=False):
    """llama-server's own measurements, in its last chunk."""

    prompt_n: Count | None = None
    cache_n: Count | None = None
    prompt_ms: Milliseconds | None = None
    predicted_n: Count | None = None
    predicted_ms: Milliseconds | None = None


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
_decode_large = msgspec.json.Decoder(Chunk, float_hook=read_float).decode  # see `bodies`


def decode_event(payload: bytes) -> Event:
    """Decode one event. Raises UpstreamError for one that is broken or reports an error."""
    is_large = len(payload) > MAX_NAMES
    if is_large and has_too_many_values(payload):
        raise UpstreamError("cannot use the engine's answer: an event has too many values")
    try:
        chunk = _decode_large(payload) if is_large else _decode(payload)
    except msgspec.ValidationError:
        payload, chunk = _decode_without_counts(payload)
    except (ValueError, RecursionError):
        raise UpstreamError(BROKEN_EVENT) from None
    if chunk.choices is None or chunk.error is not None:
        check_error(chunk)
    event = Event(payload, chunk)
    if chunk.usage is not None and (cleaned := clean_usage(chunk.usage)) != chunk.usage:
        chunk.usage, event.changed = cleaned, True
    return event


def _decode_without_counts(payload: bytes) -> tuple[bytes, Chunk]:
    """Take the numbers out of an event, if these are what cannot be read, and decode it."""
    try:
        fields = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
        for name in ("timings", "usage"):
            if fields.pop(name, None) is not None:
                warn_of_counts(f"the {name}")
                with suppress(msgspec.ValidationError):
                    return (payload := msgspec.json.encode(fields)), _decode(payload)
    except (ValueError, RecursionError):
        pass
    raise UpstreamError(BROKEN_EVENT)


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
