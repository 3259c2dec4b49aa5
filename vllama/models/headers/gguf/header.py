"""GGUF headers: key/value pairs, the tensor table, and special tokens; without a library.

`read_header` maps a local file into memory. `parse_header` parses the first bytes of a remote file,
and raises NeedMore if they are too few.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vllama.base.errors import BadModelFile
from vllama.models.headers.chat_templates import MARKS
from vllama.models.headers.gguf.parser import (
    AGAIN,
    STRING,
    Buffer,
    LongArray,
    Parser,
    Tensor,
    map_file,
)

_MAX_ALIGNMENT = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """A parsed header. `special_tokens` maps `bos`, `eos` … to the texts of these tokens.

    `turn_tokens` are the control tokens that mark turns, with their numbers. They are only searched
    if there is no chat template, which would contain the same information.
    """

    version: int
    metadata: Mapping[str, object]
    tensors: tuple[Tensor, ...]
    data_offset: int
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    turn_tokens: Mapping[str, int] = field(default_factory=dict)

    @property
    def announced_bytes(self) -> int:
        """The minimum size of a file that contains all its tensors."""
        ends = [t.offset + t.size_bytes for t in self.tensors if t.size_bytes is not None]
        return self.data_offset + max(ends) if ends else 0


def read_header(path: Path) -> GgufHeader:
    """Read the header of a local file, and check that the file contains all tensor data.

    Raises BadModelFile, with the reason and the path in its message.
    """
    try:
        size = path.stat().st_size
        if size == 0:
            raise BadModelFile(f"cannot read '{path}': the file is empty", hint=AGAIN)
        with map_file(path) as data:
            header = parse_header(data, total_bytes=size, source=str(path), path=path)
    except OSError as error:
        raise BadModelFile(f"cannot read '{path}': {error.strerror or error}") from error
    if header.announced_bytes > size:
        missing = header.announced_bytes - size
        raise BadModelFile(
            f"cannot use '{path}': it is truncated: {missing} bytes of tensor data are missing "
            f"(file has {size}, header announces {header.announced_bytes})",
            hint=AGAIN,
        )
    return header


def parse_header(
    data: Buffer, *, total_bytes: int, source: str, path: Path | None = None
) -> GgufHeader:
    """Parse a header from `data`, the first bytes of a file of `total_bytes`.

    Raises NeedMore if `data` ends too early, and BadModelFile if the file is truncated or not GGUF.
    """
    parser = Parser(data, total_bytes, source)
    try:
        return _parse(parser, path)
    except (struct.error, IndexError, OverflowError):
        raise parser.ends_early(len(data) + 1) from None


def _parse(parser: Parser, path: Path | None) -> GgufHeader:
    version, tensor_count, kv_count = parser.preamble()
    position = 24
    metadata: dict[str, object] = {}
    for _ in range(kv_count):
        start = position
        key, position = parser.string(position)
        value, position = parser.value(position, path)
        metadata[key] = value
        parser.keep(1, 0 if isinstance(value, LongArray) else position - start)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= _MAX_ALIGNMENT:
        raise parser.bad(f"its alignment is {alignment!r}")
    tensors: list[Tensor] = []
    for _ in range(tensor_count):
        start = position
        tensor, position = parser.tensor(position)
        tensors.append(tensor)
        parser.keep(1, position - start)
    return GgufHeader(
        version=version,
        metadata=metadata,
        tensors=tuple(tensors),
        data_offset=-(-position // alignment) * alignment,
        special_tokens=find_special_tokens(parser, metadata),
        turn_tokens=(
            {}
            if "tokenizer.chat_template" in metadata
            else find_control_tokens(parser, metadata, MARKS)
        ),
    )


# The tokens for fill-in-the-middle: before the gap, after it, and before its filling (llama.cpp's
# llama-vocab.cpp). key → key in older files, texts
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


def find_special_tokens(parser: Parser, metadata: Mapping[str, object]) -> dict[str, str]:
    """Return the texts of the BOS, EOS … and fill-in-the-middle tokens, by their keys."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    special: dict[str, str] = {}
    for key in ("bos", "eos", "eot", "unknown", "padding"):
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        text = parser.entry(tokens, number) if isinstance(number, int) else None
        if text is not None:
            special[key] = text
    for key, (old, _) in _FIM.items():
        for name in (key, old):
            number = metadata.get(f"tokenizer.ggml.{name}_token_id")
            text = parser.entry(tokens, number) if isinstance(number, int) else None
            if text is not None:
                special.setdefault(key, text)
    # most files lack these keys, and llama.cpp too then finds the tokens by their texts
    return _find_fim_by_text(parser.data, tokens) | special


def find_control_tokens(
    parser: Parser, metadata: Mapping[str, object], texts: Iterable[str]
) -> dict[str, int]:
    """Return the control and user-defined tokens among `texts`, with their numbers."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    kinds = metadata.get("tokenizer.ggml.token_type")
    return {
        text: number
        for text, number in parser.indexes(tokens, texts).items()
        if parser.number(kinds, number) in _CONTROL
    }


def _find_fim_by_text(data: Buffer, tokens: object) -> dict[str, str]:
    """Find the fill-in-the-middle tokens by their texts, without building the list of tokens."""
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
    special: dict[str, str] = {}
    for key, (_, texts) in _FIM.items():
        for text in texts:
            entry = text.encode()
            if struct.pack("<Q", len(entry)) + entry in entries:
                special.setdefault(key, text)
    return special
