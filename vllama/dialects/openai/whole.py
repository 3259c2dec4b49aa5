"""One OpenAI answer object from the chunks of a stream (contract §1.8, §1.9)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from vllama.chat.engine.events import Choice, Chunk
from vllama.chat.logprobs import tidy
from vllama.dialects.openai.read import Passage
from vllama.parsers.thinking import Trim, split_thinking
from vllama.parsers.tool_calls import CallCollector, CallScanner, Toolset, openai_calls

FINGERPRINT = "fp_ollama"


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
                    known.extend(value)
            elif value is not None:
                self.logprobs[name] = value
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason


def whole_object(
    passage: Passage,
    first: Chunk,
    choices: Mapping[int, ChoiceParts],
    usage: Mapping[str, Any],
    now_ns: int,
    *,
    split: bool,
    opened: bool,
    scan: Toolset | bool,
) -> bytes:
    """Build a `chat.completion` or `text_completion`; id and time are the engine's if given."""
    chat = passage.kind == "chat"
    made = hashlib.blake2b(str(now_ns).encode(), digest_size=6).hexdigest()
    parts = sorted(choices.items())
    return msgspec.json.encode(
        {
            "id": first.id or f"{'chatcmpl' if chat else 'cmpl'}-{made}",
            "object": "chat.completion" if chat else "text_completion",
            "created": first.created or now_ns // 1_000_000_000,
            "model": passage.model,
            "system_fingerprint": FINGERPRINT,
            "choices": [
                _chat_choice(index, part, split=split, opened=opened, scan=scan)
                if chat
                else _completion_choice(index, part)
                for index, part in parts
            ],
            "usage": usage,
        }
    )


def _chat_choice(
    index: int, part: ChoiceParts, *, split: bool, opened: bool, scan: Toolset | bool
) -> dict[str, Any]:
    text, reasoning = "".join(part.texts), "".join(part.thoughts)
    if reasoning:
        reasoning, text = Trim().feed(reasoning, text)
    if split:
        more, text = split_thinking(text, opened=opened, calls=bool(scan))
        reasoning += more
    calls = part.calls.openai()
    if scan:
        scanner = CallScanner(scan)
        before = scanner.feed(text)
        found, rest = scanner.finish()
        text = before + rest
        calls += openai_calls(found)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return {
        "index": index,
        "message": message,
        "finish_reason": "tool_calls" if calls else part.finish_reason,
        **({"logprobs": part.logprobs} if part.logprobs else {}),
    }


def _completion_choice(index: int, part: ChoiceParts) -> dict[str, Any]:
    return {
        "index": index,
        "text": "".join(part.texts),
        "finish_reason": part.finish_reason,
        "logprobs": part.logprobs or None,
    }
