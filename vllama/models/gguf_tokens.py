"""The tokens of a GGUF's vocabulary that mean something: its ends, and what marks a gap to fill."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from vllama.models.gguf_parser import Buffer, LongArray, Parser
from vllama.models.gguf_types import STRING

# what marks the text before a gap, after it, and what fills it (llama.cpp's llama-vocab.cpp)
# key → key in older files, texts
_FIM: dict[str, tuple[str, tuple[str, ...]]] = {
    "fim_pre": ("prefix", (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>",
    )),
    "fim_suf": ("suffix", (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>",
    )),
    "fim_mid": ("middle", (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>",
    )),
}  # fmt: skip
_CONTROL = (3, 4)  # control, user-defined (llama.h, enum llama_token_type)


def special_tokens(parser: Parser, metadata: Mapping[str, object]) -> dict[str, str]:
    """Return the texts of the BOS, EOS … and of the tokens that mark a gap, by their keys."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    found: dict[str, str] = {}
    for key in ("bos", "eos", "eot", "unknown", "padding"):
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        text = parser.entry(tokens, number) if isinstance(number, int) else None
        if text is not None:
            found[key] = text
    for key, (old, _) in _FIM.items():
        for name in (key, old):
            number = metadata.get(f"tokenizer.ggml.{name}_token_id")
            text = parser.entry(tokens, number) if isinstance(number, int) else None
            if text is not None:
                found.setdefault(key, text)
    # most files do not say; llama.cpp too goes by the tokens' texts then
    return _fim_by_text(parser.data, tokens) | found


def control_tokens(
    parser: Parser, metadata: Mapping[str, object], texts: Iterable[str]
) -> dict[str, int]:
    """Return those of `texts` that are control or user-defined tokens, with their numbers."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    kinds = metadata.get("tokenizer.ggml.token_type")
    return {
        text: number
        for text, number in parser.indexes(tokens, texts).items()
        if parser.number(kinds, number) in _CONTROL
    }


def _fim_by_text(data: Buffer, tokens: object) -> dict[str, str]:
    """Find the tokens that mark a gap by their texts, without building the list."""
    if isinstance(tokens, list):
        known = {t for t in tokens if isinstance(t, str)}
        return {
            key: next(text for text in texts if text in known)
            for key, (_, texts) in _FIM.items()
            if known & set(texts)
        }
    if not isinstance(tokens, LongArray) or tokens.element_type != STRING:
        return {}
    entries = data[tokens.offset : tokens.end]
    if not any(sign in entries for sign in (b"fim", b"PRE>", b"code_prefix")):
        return {}
    found: dict[str, str] = {}
    for key, (_, texts) in _FIM.items():
        for text in texts:
            entry = text.encode()
            if struct.pack("<Q", len(entry)) + entry in entries:
                found.setdefault(key, text)
    return found
