"""An engine's streamed answer, for an OpenAI client.

`PassThrough` relays events as they come, but for the model's name, the name of the reasoning field,
the usage chunk and what `Rewriter` mends; `Whole` collects them into one object, since the engine
always streams. With `think` (the engine leaves `<think>` in the text) or tools that it does not
parse, the text is rewritten on its way. Sources: contract §1.0, §1.8, §1.9.
"""

from __future__ import annotations

from typing import Any

import msgspec

from vllama.chat.engine.events import Chunk, decode_chunk, plain_text
from vllama.chat.engine.request import Passage
from vllama.chat.engine.traits import Traits
from vllama.chat.event_template import surroundings
from vllama.chat.framing import DONE, sse
from vllama.chat.logprobs import tidy
from vllama.chat.reply import EVENT_STREAM, Tap
from vllama.dialects.errors import openai_error, openai_error_object
from vllama.dialects.openai.rewrite import Rewriter
from vllama.dialects.openai.whole import FINGERPRINT, ChoiceParts, whole_object
from vllama.errors import VllamaError
from vllama.parsers.thinking import Trim

_encode = msgspec.json.Encoder().encode
_FINGERPRINT = b'"system_fingerprint":' + _encode(FINGERPRINT)


class PassThrough(Tap):
    """A stream for a client that asked for one."""

    def __init__(self, passage: Passage, traits: Traits, **options: Any) -> None:
        super().__init__(passage, traits, **options)
        self.content_type = EVENT_STREAM
        self._plain: list[str] = []  # the texts of the plain events of this read
        self._rewriter = Rewriter(split=self._split, opened=self._opened, scan=self._scan)
        self._trims: dict[int, Trim] = {}
        self._last: Chunk | None = None
        self._usage_sent = False
        self._closed = False

    def feed(self, chunk: bytes, now_ns: int) -> bytes:
        """Take bytes of the engine's stream; return what they are to the client."""
        usual = self.usual
        texts = usual.match(chunk)
        if texts is not None:
            usual.count(texts, now_ns)
            return usual.write(texts, now_ns)
        plain = self._plain
        plain.clear()
        events = self.events
        whole = not self._reader.pending
        out = super().feed(chunk, now_ns)
        if self._reader.pending or self._failure is not None:
            usual.forget()
        elif whole and plain and len(plain) == self.events - events:
            around = surroundings(out[: out.find(b"\n\n") + 2], plain[0])
            if around is not None and usual.learn(chunk, plain[0]):
                usual.graft(around)
        return out

    def finish(self, now_ns: int) -> bytes:
        """Return what is left: usage and `[DONE]` where the engine gave none.

        Raises EngineCrashed when the stream ended without a `finish_reason`.
        """
        out: list[bytes] = []
        self._take_rest(now_ns, out)
        self._close(out)
        return b"".join(out)

    def fail(self, error: VllamaError) -> bytes:
        """Return an error event and the end; Ollama's own cut without a word helps nobody."""
        return sse(_encode(openai_error_object(error))) + sse(DONE)

    def _take(self, payloads: list[bytes], now_ns: int, out: list[bytes]) -> None:
        for payload in payloads:
            if payload == DONE:
                self.ended = True
                if self._finish_reason is not None and not self._unfinished:
                    self._close(out)
                continue
            chunk = decode_chunk(payload)
            self._watch(chunk, now_ns)
            if not chunk.choices and chunk.usage is not None:
                if not self._passage.include_usage:
                    continue
                self._usage_sent = True
            self._last = chunk
            as_it_is = not (self._rewriter.active or self._trims) and _is_text(chunk)
            mended = payload if as_it_is else self._mended(payload, chunk)
            if not self._rewriter.active and (text := plain_text(chunk)) is not None:
                self._plain.append(text)
            if mended is not None:
                out.append(b"data: %b\n\n" % self._renamed(mended, chunk))

    def _mended(self, payload: bytes, chunk: Chunk) -> bytes | None:
        """Return what the client gets for a chunk; None: nothing yet."""
        payload = self._trimmed(payload, chunk)
        if chunk.choices and (self._rewriter.active or _has_calls(chunk)):
            rewritten = self._rewriter.rewrite(payload)
            if rewritten is None:
                return None
            payload = rewritten
        if _tidied(chunk, self._passage.top_logprobs):
            payload = _with_logprobs(payload, chunk)
        return payload

    def _trimmed(self, payload: bytes, chunk: Chunk) -> bytes:
        """Take off white space around thinking, in the chunk too; most have none."""
        changed = False
        for choice in chunk.choices or ():
            delta = choice.delta
            thinking = delta and (delta.reasoning or delta.reasoning_content)
            trim = self._trims.get(choice.index)
            if thinking and trim is None:
                trim = self._trims[choice.index] = Trim()
            if delta is None or trim is None or not (thinking or trim.after):
                continue
            before = (thinking or "", delta.content or "")
            after = trim.feed(*before)
            if after != before:
                changed = True
                delta.reasoning, delta.reasoning_content = after[0] or None, None
                delta.content = after[1]
        if not changed:
            return payload
        value = msgspec.json.decode(payload)
        for written, choice in zip(value["choices"], chunk.choices or (), strict=True):
            if choice.delta is not None and isinstance(written.get("delta"), dict):
                delta = written["delta"]
                had = delta.pop("reasoning_content", None) or delta.pop("reasoning", None)
                if had:
                    left = choice.delta.reasoning or choice.delta.reasoning_content
                    delta["reasoning"] = left or ""
                if delta.get("content"):
                    delta["content"] = choice.delta.content
        return _encode(value)

    def _renamed(self, payload: bytes, chunk: Chunk) -> bytes:
        """Put the client's model name, and Ollama's name of the reasoning (§1.8)."""
        model = chunk.model
        if model is not None and model != self._passage.model:
            theirs, ours = _encode(model), _encode(self._passage.model)
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

    def _close(self, out: list[bytes]) -> None:
        """Append the usage that was asked for, then the end; once."""
        if self._closed:
            return
        self._closed = True
        if self._passage.include_usage and not self._usage_sent:
            last = self._last or Chunk()
            chat = self._passage.kind == "chat"
            closing: dict[str, Any] = {
                "id": last.id or "",
                "object": "chat.completion.chunk" if chat else "text_completion",
                "created": last.created or 0,
                "model": self._passage.model,
                "choices": [],
                "usage": self._usage_object(),
            }
            out.append(sse(_encode(closing)))
        out.append(sse(DONE))


def _is_text(chunk: Chunk) -> bool:
    """Tell whether nothing of it can need mending."""
    choices = chunk.choices
    if not choices:
        return True
    delta = choices[0].delta
    return (
        len(choices) == 1
        and choices[0].logprobs is None
        and not (delta and (delta.reasoning or delta.reasoning_content or delta.tool_calls))
    )


def _with_logprobs(payload: bytes, chunk: Chunk) -> bytes:
    """Put the logprobs of `chunk` into the payload that it was decoded from."""
    value = msgspec.json.decode(payload)
    for written, choice in zip(value["choices"], chunk.choices or (), strict=True):
        written["logprobs"] = choice.logprobs
    return _encode(value)


def _has_calls(chunk: Chunk) -> bool:
    for choice in chunk.choices or ():
        if choice.delta is not None and choice.delta.tool_calls:
            return True
    return False


def _tidied(chunk: Chunk, top: int) -> bool:
    """Mend the logprobs of all choices in place; False if there was nothing to do."""
    changed = False
    for choice in chunk.choices or ():
        if choice.logprobs is not None and tidy(choice.logprobs, top):
            changed = True
    return changed


class Whole(Tap):
    """One object for a client that did not ask for a stream."""

    def __init__(self, passage: Passage, traits: Traits, **options: Any) -> None:
        super().__init__(passage, traits, **options)
        self._first: Chunk | None = None
        self._choices: dict[int, ChoiceParts] = {}

    def finish(self, now_ns: int) -> bytes:
        """Return the object. Raises EngineCrashed when the answer is not complete."""
        self._take_rest(now_ns, [])
        return whole_object(
            self._passage,
            self._first or Chunk(),
            self._choices,
            self._usage_object(),
            now_ns,
            split=self._split,
            opened=self._opened,
            scan=self._scan,
        )

    def fail(self, error: VllamaError) -> bytes:
        """Return the error's body."""
        return openai_error(error)[1]

    def _take(self, payloads: list[bytes], now_ns: int, out: list[bytes]) -> None:
        """Collect; nothing is sent before the end."""
        for payload in payloads:
            if payload == DONE:
                self.ended = True
                continue
            chunk = decode_chunk(payload)
            self._watch(chunk, now_ns)
            if self._first is None and chunk.choices:
                self._first = chunk
            for choice in chunk.choices or ():
                self._choices.setdefault(choice.index, ChoiceParts()).add(
                    choice, self._passage.top_logprobs
                )
