"""An engine's answer as one object for an OpenAI client."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from vllama.base.errors import VllamaError
from vllama.chat.call_collector import CallCollector
from vllama.chat.engine.events import Choice, Chunk, Event
from vllama.chat.event_template import EventTemplate
from vllama.chat.logprobs import pack, tidy
from vllama.chat.reply import JSON, ReplyOptions, Tally
from vllama.dialects.errors import write_openai_error
from vllama.dialects.openai.answer_types import Embedding, Embeddings, Usage

FINGERPRINT = "fp_ollama"


class WholeWriter:
    """Collects the events; everything is written at the end."""

    content_type = JSON
    streams = False

    def __init__(self, options: ReplyOptions) -> None:
        self.template = EventTemplate(tries=0)  # every event is looked at
        self._options = options
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
        write_choice = _chat_choice if chat else _completion_choice
        return msgspec.json.encode(
            {
                "id": first.id or f"{'chatcmpl' if chat else 'cmpl'}-{made}",
                "object": "chat.completion" if chat else "text_completion",
                "created": first.created or now_ns // 1_000_000_000,
                "model": self._options.model,
                "system_fingerprint": FINGERPRINT,
                "choices": [write_choice(*item) for item in sorted(self._choices.items())],
                "usage": tally.usage_object,
            }
        )

    def fail(self, error: VllamaError) -> bytes:
        """Return the error's body."""
        return write_openai_error(error)[1]


class ChoiceParts:
    """What the chunks said about one choice."""

    __slots__ = ("calls", "finish_reason", "logprobs", "texts", "thoughts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls = CallCollector()
        self.finish_reason: str | None = None
        self.logprobs: dict[str, Any] = {}

    def add(self, choice: Choice, top_logprobs: int = 0) -> None:
        """Take one chunk's share."""
        delta = choice.delta
        if delta is not None:
            self.texts.append(delta.content or "")
            self.thoughts.append(delta.reasoning or delta.reasoning_content or "")
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
            self.finish_reason = choice.finish_reason


def write_embeddings(model: str, vectors: Sequence[msgspec.Raw], prompt_tokens: int) -> bytes:
    """Build the answer of `POST /v1/embeddings` of finished vectors."""
    rows = [Embedding("embedding", vector, number) for number, vector in enumerate(vectors)]
    usage = Usage(prompt_tokens, prompt_tokens)
    return msgspec.json.encode(Embeddings("list", rows, model, usage))


def _chat_choice(index: int, part: ChoiceParts) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(part.texts)}
    if reasoning := "".join(part.thoughts):
        message["reasoning"] = reasoning
    if calls := part.calls.openai():
        message["tool_calls"] = calls
    return {
        "index": index,
        "message": message,
        "finish_reason": "tool_calls" if calls else part.finish_reason,
        **({"logprobs": part.logprobs} if part.logprobs else {}),
    }


def _completion_choice(index: int, part: ChoiceParts) -> dict[str, Any]:
    return {
        "text": "".join(part.texts),
        "index": index,
        "finish_reason": part.finish_reason,
        **({"logprobs": part.logprobs} if part.logprobs else {}),
    }
