"""How long a prompt is, as far as its text tells."""

from __future__ import annotations

from vllama.chat.go_json import encode_json
from vllama.chat.request import ChatRequest

BYTES_PER_TOKEN = 4
"""Ollama's estimate, for engines that count by themselves and at the end only."""


def count_bytes(asked: ChatRequest) -> int:
    """Return the bytes of all texts in a request; media have none. Raises BadRequest."""
    texts = [asked.prompt, asked.suffix]
    for message in asked.messages:
        texts += (message.content, message.thinking or "")
        texts += (call.text or encode_json(call.arguments).decode() for call in message.tool_calls)
    size = sum(map(_count_bytes, texts)) + BYTES_PER_TOKEN * len(asked.context)
    return size + (len(encode_json(asked.tools)) if asked.tools else 0)


def estimate_tokens(asked: ChatRequest) -> int:
    """Guess the tokens of a request, where no tokenizer is at hand. Raises BadRequest."""
    return max(1, count_bytes(asked) // BYTES_PER_TOKEN)


def guess_tokens(text: str) -> int:
    """Guess the tokens of a text, where no tokenizer is at hand."""
    return max(1, _count_bytes(text) // BYTES_PER_TOKEN)


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
