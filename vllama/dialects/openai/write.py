"""An engine's answer for an OpenAI client, as a stream or as one object.

In a stream, events that no filter has changed pass as the engine wrote them, with all that it may
have put into them, but for the model's name, the name of the reasoning field and the fingerprint.
Of several choices that are made by requests of their own, each has a `NthChoice` of the answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from functools import partial
from typing import Any

import msgspec

from vllama.base.errors import VllamaError
from vllama.chat.bodies import decode_value
from vllama.chat.engine.events import Chunk, ChunkChoice, Delta, Event, ToolDelta
from vllama.chat.event_template import EventTemplate
from vllama.chat.framing import DONE, frame_event
from vllama.chat.inspect import WholeReader
from vllama.chat.logprobs import pack, tidy
from vllama.chat.tally import Tally
from vllama.chat.tool_calls import CallCollector
from vllama.chat.writer import EVENT_STREAM, JSON, ReplyOptions
from vllama.dialects.errors import make_openai_error
from vllama.dialects.openai.choices import NthChoice

_encode = msgspec.json.Encoder().encode
FINGERPRINT = "fp_ollama"
_FINGERPRINT = b'"system_fingerprint":' + _encode(FINGERPRINT)


class StreamWriter:
    """Chunks of a chat, then the usage if it was asked for, and the end."""

    content_type = EVENT_STREAM
    streams = True

    def __init__(self, options: ReplyOptions, part: NthChoice | None = None) -> None:
        """`part`: which choice this is, where there are several."""
        self.template = EventTemplate()
        self._options = options
        self._part = part
        self._last: Chunk | None = None
        self._usage_sent = False
        self._customs: dict[int, CallCollector] = {}

    def write(self, event: Event, tally: Tally, now_ns: int) -> bytes:
        """Return one event for the client."""
        chunk, part = event.chunk, self._part
        if not chunk.choices and chunk.usage is not None:
            told, known = chunk.usage, tally.usage
            if not (self._options.include_usage and part is None and known.prompt_tokens):
                return b""  # the end tells it, also of a prompt that is still to be counted
            self._usage_sent = True
            if event.changed or told != tally.usage_object:
                # older versions of llama-server tell what was cached in their timings only
                chunk.usage, event.changed = tally.usage_object, True
        if chunk.choices and chunk.usage is not None:
            # it is sent once, at the end: clients add up the usage of all chunks
            chunk.usage, event.changed = None, True
        if self._options.customs and event.text is None:
            self._hold_customs(event)
        opening = b"" if self._last is not None else self._open(event)
        self._last = chunk
        if part is not None:
            part.identify(chunk)
            event.changed = True
        if event.text is None or event.changed:
            top = self._options.top_logprobs
            for choice in chunk.choices or ():
                if choice.logprobs is not None and tidy(choice.logprobs, top):
                    event.changed = True
        payload = self._write_changes(event) if event.changed else event.payload
        return opening + b"data: %b\n\n" % self._rename(payload, chunk)

    def _hold_customs(self, event: Event) -> None:
        """Hold back calls of custom tools until the end: a text in pieces of JSON is none yet."""
        customs = self._options.customs
        for choice in event.chunk.choices or ():
            held = self._customs.setdefault(choice.index, CallCollector())
            delta = choice.delta = choice.delta or Delta()
            named = [(x, x.function and x.function.name) for x in delta.tool_calls or ()]
            held.add(x for x, name in named if x.index in held or name in customs)
            rest = [x for x, _ in named if x.index not in held]
            if choice.finish_reason is not None:
                rest += msgspec.convert(held.openai(customs), list[ToolDelta])
            delta.tool_calls, event.changed = rest or None, event.changed or bool(held)

    def _open(self, event: Event) -> bytes:
        """Return a chunk with the role for an answer that ends without having said anything."""
        chunk = event.chunk
        choice = next(iter(chunk.choices or ()), None)
        if choice is None or choice.finish_reason is None or self._options.kind != "chat":
            return b""
        if choice.speaks:
            return b""
        choice.delta, event.changed = Delta(content=""), True
        index = choice.index if self._part is None else self._part.index
        said = {"role": "assistant", "content": ""}
        first = {"index": index, "delta": said, "finish_reason": None}
        return frame_event(_encode({**self._head(chunk), "choices": [first]}))

    def finish(self, tally: Tally, now_ns: int) -> bytes:
        """Return the rest: the usage, if it was requested and not sent, and `[DONE]`."""
        usage, part = tally.usage_object, self._part
        if part is not None:
            usage = part.add(tally.usage)
            if not part.is_last:
                return b""
        out, head = b"", self._head(self._last or Chunk())
        if tally.collected:
            out = frame_event(_encode({**head, "choices": [], **tally.collected}))
        if self._options.include_usage and not self._usage_sent:
            out += frame_event(_encode({**head, "choices": [], "usage": usage}))
        return out + frame_event(DONE)

    def _head(self, chunk: Chunk) -> dict[str, Any]:
        """Return the fields that every chunk begins with, those of the engine's `chunk`."""
        chat = self._options.kind == "chat"
        return {
            "id": chunk.id or "",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": chunk.created or 0,
            "model": self._options.model,
            "system_fingerprint": FINGERPRINT,
        }

    def fail(self, error: VllamaError) -> bytes:
        """Return an error event and the end; Ollama's own cut without a word helps nobody."""
        return frame_event(_encode(make_openai_error(error))) + frame_event(DONE)

    def _write_changes(self, event: Event) -> bytes:
        """Write the changes of filters into the event that the engine sent."""
        chunk = event.chunk
        value = decode_value(event.payload)
        known = {"id": chunk.id, "object": chunk.object, "created": chunk.created}
        value |= {name: given for name, given in known.items() if given is not None}
        value.pop("usage", None)
        if chunk.usage is not None:
            value["usage"] = chunk.usage
        if chunk.choices is not None:
            sent = {choice.get("index") or 0: choice for choice in value.get("choices") or ()}
            value["choices"] = [_put(choice, sent[choice.index]) for choice in chunk.choices]
            if self._part is not None:
                for choice in value["choices"]:
                    choice["index"] = self._part.index
        return _encode(value)

    def _rename(self, payload: bytes, chunk: Chunk) -> bytes:
        """Put the client's model name, and Ollama's name of the reasoning."""
        model = chunk.model
        if model is not None and model != self._options.model:
            theirs, ours = _encode(model), _encode(self._options.model)
            for colon in (b":", b": "):
                payload = payload.replace(b'"model"' + colon + theirs, b'"model":' + ours, 1)
        for choice in chunk.choices or ():
            delta = choice.delta
            if delta is not None and delta.reasoning_content and delta.reasoning is None:
                payload = payload.replace(b'"reasoning_content":', b'"reasoning":')
                break
        if chunk.system_fingerprint is msgspec.UNSET:  # Ollama's have it
            if chunk.choices is not None and payload.startswith(b"{"):
                payload = b"{%b,%b" % (_FINGERPRINT, payload[1:])
            return payload
        for mark in (b'"system_fingerprint":', b'"system_fingerprint": '):
            payload = payload.replace(mark + _encode(chunk.system_fingerprint), _FINGERPRINT, 1)
        return payload


def _put(choice: ChunkChoice, sent: dict[str, Any]) -> dict[str, Any]:
    """Put a choice into the JSON that it was decoded from."""
    sent.pop("message", None)
    if choice.finish_reason is not None or "finish_reason" in sent:
        sent["finish_reason"] = choice.finish_reason
    if choice.logprobs is not None:
        sent["logprobs"] = choice.logprobs
    else:
        sent.pop("logprobs", None)
    delta = choice.delta
    if delta is None:
        if choice.text is not None:
            sent["text"] = choice.text
        return sent
    sent.pop("text", None)
    before = sent.get("delta")
    out = {**before} if isinstance(before, dict) else {}
    if delta.role is not None:
        out = {"role": delta.role, **out}
    if delta.content is not None:
        out["content"] = delta.content
    if delta.reasoning is not None:
        out.pop("reasoning_content", None)
        out["reasoning"] = delta.reasoning
    if delta.refusal is not None:
        out["refusal"] = delta.refusal
    out.pop("function_call", None)
    if delta.tool_calls is not None:
        out["tool_calls"] = delta.tool_calls
    else:
        out.pop("tool_calls", None)
    if choice.finish_reason is not None and out.get("content") == "":
        del out["content"]  # the end has an empty delta
    return {**sent, "delta": out}


class WholeWriter:
    """Collects the events; everything is written at the end."""

    content_type = JSON
    streams = False

    def __init__(self, options: ReplyOptions, whole: WholeReader | None = None) -> None:
        """`whole` has the engine's own object, whose further fields are kept."""
        self.template = EventTemplate(tries=0)  # every event is looked at
        self._options, self._whole = options, whole
        self._first: Chunk | None = None
        self._choices: dict[int, ChoiceParts] = {}

    def write(self, event: Event, tally: Tally, now_ns: int) -> bytes:
        """Keep one event."""
        chunk = event.chunk
        if self._first is None and chunk.choices:
            self._first = chunk
        for choice in chunk.choices or ():
            parts = self._choices.setdefault(choice.index, ChoiceParts())
            parts.add(choice, self._options.top_logprobs)
        return b""

    def finish(self, tally: Tally, now_ns: int) -> bytes:
        """Return a `chat.completion` or `text_completion`; id and time are the engine's."""
        chat = self._options.kind == "chat"
        first = self._first or Chunk()
        made = hashlib.blake2b(str(now_ns).encode(), digest_size=6).hexdigest()
        write_choice = partial(_chat_choice, self._options.customs) if chat else _completion_choice
        choices = [write_choice(*item) for item in sorted(self._choices.items())]
        told: dict[str, Any] = msgspec.json.decode(self._whole.body) if self._whole else {}
        theirs = {choice.get("index"): choice for choice in told.pop("choices", ())}
        return _encode(
            {
                **told,
                "id": first.id or f"{'chatcmpl' if chat else 'cmpl'}-{made}",
                "object": "chat.completion" if chat else "text_completion",
                "created": first.created or now_ns // 1_000_000_000,
                "model": self._options.model,
                "system_fingerprint": FINGERPRINT,
                "choices": [theirs.get(choice["index"], {}) | choice for choice in choices],
                "usage": tally.usage_object,
                **tally.collected,
            }
        )

    def fail(self, error: VllamaError) -> bytes:
        """Return the error's body."""
        return _encode(make_openai_error(error))


class ChoiceParts:
    """Collected chunks of one choice."""

    __slots__ = (
        "calls", "finish_reason", "logprobs", "refusals", "stop_reason", "texts", "thoughts",
    )  # fmt: skip

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.refusals: list[str] = []
        self.calls = CallCollector()
        self.finish_reason: str | None = None
        self.stop_reason: Any = None
        self.logprobs: dict[str, Any] = {}

    def add(self, choice: ChunkChoice, top_logprobs: int = 0) -> None:
        """Take one chunk's share."""
        delta = choice.delta
        if delta is not None:
            self.texts.append(delta.content or "")
            self.thoughts.append(delta.thinking)
            self.refusals.append(delta.refusal or "")
            if delta.tool_calls:
                self.calls.add(delta.tool_calls)
        else:
            self.texts.append(choice.text or "")
        tidy(choice.logprobs, top_logprobs)
        for name, value in (choice.logprobs or {}).items():
            if isinstance(value, list):
                known = self.logprobs.setdefault(name, [])
                if isinstance(known, list):
                    known.extend(pack(value))
            elif value is not None:
                self.logprobs[name] = value
        if choice.finish_reason is not None:
            self.finish_reason, self.stop_reason = choice.finish_reason, choice.stop_reason


def _chat_choice(customs: Collection[str], index: int, part: ChoiceParts) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(part.texts)}
    if reasoning := "".join(part.thoughts):
        message["reasoning"] = reasoning
    if refusal := "".join(part.refusals):
        message["refusal"] = refusal
    if calls := part.calls.openai(customs):
        message["tool_calls"] = calls
    return {
        "index": index,
        "message": message,
        "finish_reason": part.finish_reason,
        **({"stop_reason": part.stop_reason} if part.stop_reason is not None else {}),
        **({"logprobs": part.logprobs} if part.logprobs else {}),
    }


def _completion_choice(index: int, part: ChoiceParts) -> dict[str, Any]:
    return {
        "text": "".join(part.texts),
        "index": index,
        "finish_reason": part.finish_reason,
        **({"logprobs": part.logprobs} if part.logprobs else {}),
    }
