"""An engine's streamed answer, in Ollama's dialect.

`ChatReply` and `GenerateReply` take the engine's bytes in any cut and give NDJSON lines (stream)
or, at the end, one object; `load_reply`, `embed_reply` and `legacy_embed_reply` are whole objects.
Sources: contract §1.2–1.4 (shapes), §3.1 (load and unload).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from vllama.chat.reply import CUT_SHORT, Reply
from vllama.chat.request import ToolCall
from vllama.dialects.ollama.reply import JSON, NDJSON, OllamaReply
from vllama.parsers.tool_calls import ollama_calls
from vllama.units import rfc3339_utc

__all__ = [
    "CUT_SHORT",
    "JSON",
    "NDJSON",
    "ChatReply",
    "GenerateReply",
    "Reply",
    "embed_reply",
    "legacy_embed_reply",
    "load_reply",
]

_encode = msgspec.json.Encoder().encode


class ChatReply(OllamaReply):
    """`POST /api/chat`. Tool calls come whole in one chunk before the last."""

    _around = (b'Z","message":{"role":"assistant","content":"', b'"},"done":false}\n')

    def _body(self, text: str, thinking: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = ollama_calls(calls)
        return {"message": message}


class GenerateReply(OllamaReply):
    """`POST /api/generate`, from a chat or a completion stream.

    `context` may be set until `finish`; it is not given when `raw`.
    """

    def __init__(self, *, raw: bool = False, **common: Any) -> None:
        super().__init__(**common)
        self.context: Sequence[int] | None = None
        self._raw = raw
        if not raw:  # for `context`
            self._keep_all()

    _around = (b'Z","response":"', b'","done":false}\n')

    def _body(self, text: str, thinking: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
        body: dict[str, Any] = {"response": text}
        if thinking:
            body["thinking"] = thinking
        if calls:
            body["tool_calls"] = ollama_calls(calls)
        return body

    def _extra(self) -> dict[str, Any]:
        if self._raw or self.context is None:
            return {}
        return {"context": list(self.context)}


def load_reply(
    model: str,
    now_ns: int,
    kind: Literal["chat", "generate"],
    reason: Literal["load", "unload"] = "load",
) -> bytes:
    """Build the one plain object that answers an empty prompt (§3.1)."""
    empty: dict[str, Any] = (
        {"message": {"role": "assistant", "content": ""}} if kind == "chat" else {"response": ""}
    )
    return _encode(
        {
            "model": model,
            "created_at": rfc3339_utc(now_ns),
            **empty,
            "done": True,
            "done_reason": reason,
        }
    )


def embed_reply(
    model: str,
    vectors: Sequence[msgspec.Raw],
    *,
    total_ns: int,
    load_ns: int,
    prompt_tokens: int,
) -> bytes:
    """Build the answer of `POST /api/embed`, of `finished` vectors (§1.4)."""
    return _encode(
        {
            "model": model,
            "embeddings": vectors,
            "total_duration": max(1, total_ns),
            "load_duration": max(1, load_ns),
            "prompt_eval_count": prompt_tokens,
        }
    )


def legacy_embed_reply(vectors: Sequence[msgspec.Raw]) -> bytes:
    """Build the answer of `POST /api/embeddings`: one vector, none for no prompt (§1.4)."""
    return _encode({"embedding": vectors[0] if vectors else ()})
