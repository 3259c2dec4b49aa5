"""GGUF headers: key/values and tensor table, by the standard library alone.

Reads a local file by mmap (`read_header`), or any prefix of a remote one (`parse_header`, which
raises NeedMore).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vllama.errors import BadModelFile
from vllama.models.gguf_parser import AGAIN, Buffer, LongArray, NeedMore, Parser, Tensor, mapped
from vllama.models.gguf_tokens import control_tokens, special_tokens
from vllama.models.gguf_types import TENSOR_TYPES
from vllama.models.known_templates import MARKS

_MOST_ALIGNMENT = 2**20

__all__ = [
    "TENSOR_TYPES",
    "GgufHeader",
    "LongArray",
    "NeedMore",
    "Tensor",
    "parse_header",
    "read_header",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """A parsed header. `special_tokens` has the text of the BOS, EOS … ids under their keys.

    `turn_tokens` are the control tokens that mark turns, with their numbers; they are only looked
    for where there is no chat template to tell the same.
    """

    version: int
    metadata: Mapping[str, object]
    tensors: tuple[Tensor, ...]
    data_offset: int
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    turn_tokens: Mapping[str, int] = field(default_factory=dict)

    @property
    def announced_bytes(self) -> int:
        """Size that the file must have at least for all its tensors to be there."""
        ends = [t.offset + t.size_bytes for t in self.tensors if t.size_bytes is not None]
        return self.data_offset + max(ends) if ends else 0


def read_header(path: Path) -> GgufHeader:
    """Read a local file's header and check that all tensor data is there.

    Raises BadModelFile, with the reason and the path in its message.
    """
    try:
        size = path.stat().st_size
        if size == 0:
            raise BadModelFile(f"cannot read '{path}': the file is empty", hint=AGAIN)
        with mapped(path) as data:
            header = parse_header(data, total_bytes=size, source=str(path), path=path)
    except OSError as error:
        raise BadModelFile(f"cannot read '{path}': {error.strerror or error}") from error
    if header.announced_bytes > size:
        missing = header.announced_bytes - size
        raise BadModelFile(
            f"cannot use '{path}': it is cut: {missing} bytes of tensor data are missing "
            f"(file has {size}, header announces {header.announced_bytes})",
            hint=AGAIN,
        )
    return header


def parse_header(
    data: Buffer, *, total_bytes: int, source: str, path: Path | None = None
) -> GgufHeader:
    """Parse a header from `data`, the first bytes of a file of `total_bytes`.

    Raises NeedMore if `data` ends too early, BadModelFile if the file itself does or is no GGUF.
    """
    parser = Parser(data, total_bytes, source)
    try:
        return _header(parser, path)
    except (struct.error, IndexError, OverflowError):
        raise parser.ends_early(len(data) + 1) from None


def _header(parser: Parser, path: Path | None) -> GgufHeader:
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
    if not isinstance(alignment, int) or not 1 <= alignment <= _MOST_ALIGNMENT:
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
        special_tokens=special_tokens(parser, metadata),
        turn_tokens=(
            {} if "tokenizer.chat_template" in metadata else control_tokens(parser, metadata, MARKS)
        ),
    )
