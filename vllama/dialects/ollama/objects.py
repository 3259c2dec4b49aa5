"""Answers of Ollama's that are one object and no stream: of a load, of embeddings.

Shapes: docs/reference/ollama-api.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from vllama.base.units import rfc3339_utc
from vllama.dialects.ollama.answer_types import EmbedAnswer, LegacyEmbedAnswer

_encode = msgspec.json.Encoder().encode


def write_load(
    model: str,
    now_ns: int,
    kind: Literal["chat", "generate"],
    reason: Literal["load", "unload"] = "load",
) -> bytes:
    """Build the one plain object that answers an empty prompt."""
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


def write_embed(
    model: str,
    vectors: Sequence[msgspec.Raw],
    *,
    total_ns: int,
    load_ns: int,
    prompt_tokens: int,
) -> bytes:
    """Build the answer of `POST /api/embed`, of finished vectors, without numbers that are 0."""
    return _encode(EmbedAnswer(model, vectors, total_ns, load_ns, prompt_tokens))


def write_legacy_embed(vectors: Sequence[msgspec.Raw]) -> bytes:
    """Build the answer of `POST /api/embeddings`: one vector, none for no prompt."""
    return _encode(LegacyEmbedAnswer(vectors[0] if vectors else msgspec.Raw(b"[]")))
