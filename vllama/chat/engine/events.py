"""The events of an engine's stream, decoded into typed structs.

One decoder for chats and completions, tolerant of what engines leave out or add: a first chunk
without `finish_reason`, usage inside the last chunk, `object: "error"` (docs/reference/engines.md).
An event with fields of other types is mended, and decoded again.
This is also the one place that knows how an error looks in a stream. Typed decoding is several
times as fast as decoding into dictionaries.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from vllama.base.errors import EngineCrashed, UpstreamError
from vllama.chat.bodies import MAX_NAMES, has_too_many_values, read_float, write_well_formed
from vllama.chat.engine.claims import Count, Milliseconds, clean_text, clean_usage, warn_left_out
from vllama.chat.engine.refusals import clean_engine_error, find_words

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
    name: str | None = None  # of a call without `function`
    arguments: Any = None
    custom: Any = None  # of a call to a client that gave a custom tool
    extra_content: Any = None  # Gemini wants its signature back


class Delta(msgspec.Struct, gc=False):
    """Addition of one chunk to a message."""

    role: Any = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: Any = None  # OpenRouter's, usually beside `reasoning`
    thought: str | None = msgspec.field(name="thinking", default=None)
    refusal: str | None = None
    tool_calls: list[ToolDelta] | None = None
    function_call: FunctionDelta | None = None  # the older form of the only call

    @property
    def thinking(self) -> str:
        """The thinking, under whichever name."""
        plain = self.reasoning or self.reasoning_content or self.thought
        return plain or (_read_text(self.reasoning_details) if self.reasoning_details else "") or ""

    @property
    def said(self) -> str:
        """The text, also one with which the model refuses."""
        return (self.content or "") + (self.refusal or "")


class ChunkChoice(msgspec.Struct, gc=False):
    """One choice of a chunk; `text` in completions, `message` in answers that are whole.

    `stop_reason` is vLLM's: the stop sequence, or a token's number. `error` is OpenRouter's.
    """

    index: int = 0
    delta: Delta | None = None
    message: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None
    stop_reason: Any = None
    error: Any = None

    @property
    def speaks(self) -> bool:
        """True if it adds anything to its message."""
        delta = self.delta
        if delta is None:
            return bool(self.text)
        return bool(delta.said or delta.thinking or delta.tool_calls)


class Timings(msgspec.Struct, gc=False):
    """llama-server's own measurements, in its last chunk."""

    prompt_n: Count | None = None
    cache_n: Count | None = None
    prompt_ms: Milliseconds | None = None
    predicted_n: Count | None = None
    predicted_ms: Milliseconds | None = None


class Chunk(msgspec.Struct, gc=False):
    """The JSON of one event."""

    choices: list[ChunkChoice] | None = None
    usage: dict[str, Any] | None = None
    timings: Timings | None = None
    id: str | None = None
    object: str | None = None
    created: int | None = None
    model: str | None = None
    system_fingerprint: str | msgspec.UnsetType | None = msgspec.UNSET
    x_groq: Any = None  # Groq's, with the usage
    error: Any = None
    message: Any = None
    detail: Any = None
    code: Any = None
    errors: Any = None  # Cloudflare's


class Event:
    """One event on its way from the engine to the client.

    `payload` is its JSON as the engine sent it; a writer may pass it on while no filter has
    `changed` the `chunk`. `text` is that of a plain event, which adds text to its only choice and
    says nothing else, as it came; None for any other. A `silent` event has nothing for the client:
    what it said is held back. Texts of a `torn` event have halves of surrogate pairs.
    """

    __slots__ = ("changed", "chunk", "payload", "silent", "text", "torn")

    def __init__(self, payload: bytes, chunk: Chunk, *, torn: bool = False) -> None:
        self.payload = payload
        self.chunk = chunk
        self.changed = self.torn = torn
        self.silent = False
        self.text = None if torn else plain_text(chunk)


_decode = msgspec.json.Decoder(Chunk).decode
_decode_large = msgspec.json.Decoder(Chunk, float_hook=read_float).decode  # see `bodies`


_decode_any = msgspec.json.Decoder(float_hook=float).decode  # 1e999 is no error


def decode_event(payload: bytes) -> Event:
    """Decode one event. Raises UpstreamError for one that is broken, or the error it reports."""
    is_large, torn = len(payload) > MAX_NAMES, False
    if is_large and has_too_many_values(payload):
        raise UpstreamError("cannot use the engine's answer: an event has too many values")
    try:
        chunk = _decode_large(payload) if is_large else _decode(payload)
    except msgspec.ValidationError:
        payload, chunk = _decode_odd(payload)
    except (ValueError, RecursionError):
        payload, chunk = _decode_odd(payload, torn := True)
    if chunk.choices is None or chunk.error:
        check_error(chunk, payload)
    event = Event(payload, chunk, torn=torn)
    for error in () if event.text else [x.error for x in chunk.choices or () if x.error]:
        check_error(Chunk(error=error), msgspec.json.encode({"error": error}))
    groqs = chunk.x_groq.get("usage") if isinstance(chunk.x_groq, dict) else None
    if chunk.usage is None and isinstance(groqs, dict):
        chunk.usage, event.changed, event.text = groqs, True, None
    # 5.0 is 5 to Python
    if chunk.usage is not None and str(cleaned := clean_usage(chunk.usage)) != str(chunk.usage):
        chunk.usage, event.changed = cleaned, True
    return event


def _decode_odd(payload: bytes, torn: bool = False) -> tuple[bytes, Chunk]:
    """Decode an event with fields of other types; what cannot be read of it is left out.

    `torn`: it may have halves of surrogate pairs, which become U+FFFD but for those in its texts.
    """
    try:
        value = _repair(json.loads(payload)) if torn else _decode_any(payload)
        if not isinstance(value, dict):
            warn_left_out("an event that is no object")
            value = {}
        value = _mend(value, Chunk)
        payload = write_well_formed(value).encode() if torn else msgspec.json.encode(value)
        return msgspec.json.encode(_decode_any(payload)), msgspec.convert(value, Chunk)
    except (ValueError, OverflowError, RecursionError):
        text = payload[:500].decode(errors="replace")
        raise UpstreamError(f"{BROKEN_EVENT}: {clean_text(text)}") from None


_PARTS: dict[str, type[msgspec.Struct]] = {
    "choices": ChunkChoice, "delta": Delta, "message": Delta, "tool_calls": ToolDelta,
    "function": FunctionDelta, "function_call": FunctionDelta, "timings": Timings,
}  # fmt: skip
_TORN = ("content", "reasoning", "reasoning_content", "refusal", "text", "arguments")
_WORDS = ("text", "content", "thinking", "reasoning", "refusal", "summary")


def _mend(value: dict[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return an object with what can be read of the fields of `kind`; further fields stay."""
    parts = value.get("content")
    if kind is ChunkChoice and isinstance(value.get("delta"), str):
        value["delta"] = {"content": value["delta"]}
    if kind is Delta and isinstance(parts, list):  # Mistral's: thinking and text side by side
        split: dict[bool, list[object]] = {True: [], False: []}
        for part in parts:
            is_thought = isinstance(part, dict) and part.get("type") in ("thinking", "reasoning")
            split[is_thought].append(part)
        value["content"], thoughts = split[False], split[True]
        value["reasoning"] = value.get("reasoning") or thoughts or None
    for field in msgspec.structs.fields(kind):
        name, given = field.encode_name, value.get(field.encode_name)
        if name in ("choices", "tool_calls") and isinstance(given, dict):  # the only one
            given = [given]
        inner = _PARTS.get(name)
        if inner and isinstance(given, list):
            given = [_mend(one, inner) for one in given if isinstance(one, dict)]
        elif inner and isinstance(given, dict):
            given = _mend(given, inner)
        elif field.type == str | None:
            given = _read_text(given)
        try:
            read = msgspec.convert(given, field.type, strict=False)
        except msgspec.ValidationError:
            given, read = None, 0 if field.type is int else None
        if given is None and value.get(name) is not None:
            warn_left_out(f"the field '{name}'")
        if name in value:
            value[name] = given if inner else read
    return value


def _repair(value: Any, name: str = "") -> Any:
    """Return a value in which only texts have halves of surrogate pairs."""
    if isinstance(value, dict) and name != "arguments":
        return {key: _repair(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_repair(inner, name) for inner in value]
    is_text = isinstance(value, str) and name in _TORN
    return value if is_text else json.loads(write_well_formed(value))


def _read_text(value: object) -> str | None:
    """Return the text of a part or of parts, or a number as text; None for what has none."""
    match value:
        case str():
            return value
        case list():
            return "".join(_read_text(one) or "" for one in value)
        case dict():
            return next((x for name in _WORDS if (x := _read_text(value.get(name)))), None)
    return None if value is None or isinstance(value, bool) else str(value)


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
        or choice.error
    ):
        return None
    if delta is None:
        return choice.text or None
    if delta.reasoning or delta.reasoning_content or delta.tool_calls or delta.refusal:
        return None
    if delta.reasoning_details or delta.thought:
        return None
    return delta.content or None


STATUSES = {
    "context_length_exceeded": 400, "invalid_request_error": 400, "insufficient_quota": 429,
    "rate_limit_exceeded": 429, "rate_limit_error": 429, "overloaded_error": 529,
}  # fmt: skip
"""Codes and types of OpenAI's and Anthropic's errors, with the statuses that come with them."""


def check_error(chunk: Chunk, payload: bytes) -> None:
    """Raise the error that an event reports; one with a status of its own keeps it.

    vLLM refuses much only after the stream has begun: `{"error": {…, "code": 400}}`.
    """
    error, told = chunk.error, chunk.detail or chunk.message or chunk.errors
    if error is None and chunk.object != "error" and (chunk.usage is not None or told is None):
        return
    named = error if isinstance(error, dict) else {}
    for code in (named.get("code"), named.get("status"), chunk.code, named.get("type")):
        if isinstance(code, str):
            code = int(code) if code.isdecimal() else STATUSES.get(code)
        if isinstance(code, int) and (400 <= code < 500 or code in (501, 503, 529)):
            raise clean_engine_error(code, payload)
    text = clean_text(find_words(told if error is None else error))
    raise UpstreamError(text or "the engine reported an error without a message")


def check_finish(reason: str) -> None:
    """Raise EngineCrashed when an engine says that it gave up (vLLM does so on SIGTERM)."""
    if reason in ("abort", "error"):
        raise EngineCrashed("the engine ended the answer before it was complete")
