"""GGUF headers: key/values and tensor table, by the standard library alone.

Layout (github.com/ggml-org/ggml, docs/gguf.md), little endian::

    "GGUF"  u32 version  u64 tensor_count  u64 kv_count
    kv     = string key, u32 type, value      string = u64 length, bytes (UTF-8)
    array  = u32 element type, u64 count, elements
    tensor = string name, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset
    padding to general.alignment (32), then the tensors' data

Reads a local file by mmap (`read_header`), or any prefix of a remote one (`parse_header`, which
raises NeedMore). Every length is checked against the file's size before it is trusted. Token
lists are skipped, not built: they are most of a header and nearly nobody wants them.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from vllama.errors import BadModelFile

Buffer: TypeAlias = bytes | mmap.mmap

SHORT_ARRAY = 4096
_STRIDE = 1024  # entries between two remembered positions of a skipped string array
_MAX_DIMS = 4  # GGML_MAX_DIMS
_SUPPORTED = (2, 3)
_STRING, _ARRAY = 8, 9

_SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_u32 = struct.Struct("<I").unpack_from
_u64 = struct.Struct("<Q").unpack_from
_u32u64 = struct.Struct("<IQ").unpack_from

# ggml tensor types (ggml.h, ggml-common.h): number → name, elements and bytes per block
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}

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


class NeedMore(Exception):
    """The buffer ends inside the header; at least `at_least` bytes of the file are needed."""

    def __init__(self, at_least: int) -> None:
        super().__init__(at_least)
        self.at_least = at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class LongArray:
    """An array that was skipped: where it lies, and for strings every 1024th entry's place."""

    element_type: int
    count: int
    offset: int
    path: Path | None = None
    marks: tuple[int, ...] = field(default=(), repr=False)
    end: int = 0

    def load(self) -> list[object]:
        """Read the whole array from its file; an empty list if that is gone or remote."""
        if self.path is None or not self.path.is_file():
            return []
        with _mapped(self.path) as data:
            return _Parser(data, len(data), str(self.path)).elements(
                self.element_type, self.count, self.offset
            )[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One line of the tensor table; `size_bytes` is None for a type not known here."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int | None

    @property
    def elements(self) -> int:
        """Number of weights."""
        product = 1
        for size in self.shape:
            product *= size
        return product


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """A parsed header. `special_tokens` has the text of the BOS, EOS … ids under their keys."""

    version: int
    metadata: Mapping[str, object]
    tensors: tuple[Tensor, ...]
    data_offset: int
    special_tokens: Mapping[str, str] = field(default_factory=dict)

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
            raise BadModelFile(f"cannot read '{path}': the file is empty", hint=_AGAIN)
        with _mapped(path) as data:
            header = parse_header(data, total_bytes=size, source=str(path), path=path)
    except OSError as error:
        raise BadModelFile(f"cannot read '{path}': {error.strerror or error}") from error
    if header.announced_bytes > size:
        missing = header.announced_bytes - size
        raise BadModelFile(
            f"cannot use '{path}': it is cut: {missing} bytes of tensor data are missing "
            f"(file has {size}, header announces {header.announced_bytes})",
            hint=_AGAIN,
        )
    return header


_AGAIN = "fetch the file again"


def parse_header(
    data: Buffer, *, total_bytes: int, source: str, path: Path | None = None
) -> GgufHeader:
    """Parse a header from `data`, the first bytes of a file of `total_bytes`.

    Raises NeedMore if `data` ends too early, BadModelFile if the file itself does or is no GGUF.
    """
    parser = _Parser(data, total_bytes, source)
    try:
        return parser.header(path)
    except (struct.error, IndexError, OverflowError):
        raise parser.ends_early(len(data) + 1) from None


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class _Parser:
    def __init__(self, data: Buffer, total_bytes: int, source: str) -> None:
        self.data, self.have, self.total, self.source = data, len(data), total_bytes, source

    def bad(self, reason: str) -> BadModelFile:
        return BadModelFile(f"cannot use '{self.source}': {reason}", hint=_AGAIN)

    def ends_early(self, at_least: int) -> Exception:
        """Return what to raise when byte `at_least` is needed and not in the buffer."""
        if self.have < self.total:
            return NeedMore(max(min(at_least, self.total), self.have + 1))
        return self.bad(
            f"it is cut or damaged inside its header (the file has {self.total} bytes, "
            f"the header needs at least {at_least})"
        )

    def need(self, position: int, size: int) -> None:
        if position + size > self.have:
            if position + size > self.total:
                self.have = self.total  # no amount of reading helps
            raise self.ends_early(position + size)

    def string(self, position: int) -> tuple[str, int]:
        self.need(position, 8)
        (size,) = _u64(self.data, position)
        self.need(position + 8, size)
        end = position + 8 + size
        return self.data[position + 8 : end].decode("utf-8", "replace"), end

    def header(self, path: Path | None) -> GgufHeader:
        version, tensor_count, kv_count = self.preamble()
        position = 24
        metadata: dict[str, object] = {}
        for _ in range(kv_count):
            key, position = self.string(position)
            self.need(position, 4)
            (kind,) = _u32(self.data, position)
            metadata[key], position = self.value(kind, position + 4, path)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise self.bad(f"its alignment is {alignment!r}")
        tensors: list[Tensor] = []
        for _ in range(tensor_count):
            tensor, position = self.tensor(position)
            tensors.append(tensor)
        return GgufHeader(
            version=version,
            metadata=metadata,
            tensors=tuple(tensors),
            data_offset=-(-position // alignment) * alignment,
            special_tokens=self.special_tokens(metadata),
        )

    def preamble(self) -> tuple[int, int, int]:
        magic = bytes(self.data[:4])
        if magic != b"GGUF"[: len(magic)] or not magic:
            # not what it begins with: the name may come from a client that may not read the file
            raise self.bad("it is not a GGUF file")
        self.need(0, 24)
        (version,) = _u32(self.data, 4)
        if version not in _SUPPORTED:
            if version & 0xFFFF == 0:
                raise self.bad("it is a big-endian GGUF, made for another kind of machine")
            raise self.bad(f"its GGUF version {version} is not supported (only 2 and 3 are)")
        (tensors,), (pairs,) = _u64(self.data, 8), _u64(self.data, 16)
        # an entry takes at least 24 and 13 bytes: refuse absurd counts before looping over them
        if tensors * 24 > self.total or pairs * 13 > self.total:
            raise self.bad(f"it is damaged: it announces {tensors} tensors and {pairs} keys")
        return version, tensors, pairs

    def value(self, kind: int, position: int, path: Path | None) -> tuple[object, int]:
        if kind == _STRING:
            return self.string(position)
        if kind != _ARRAY:
            return self.scalar(kind, position)
        self.need(position, 12)
        element, count = _u32u64(self.data, position)
        position += 12
        if count <= SHORT_ARRAY:
            return self.elements(element, count, position)
        end, marks = self.skip(element, count, position)
        array = LongArray(
            element_type=element, count=count, offset=position, path=path, marks=marks, end=end
        )
        return array, end

    def scalar(self, kind: int, position: int) -> tuple[object, int]:
        layout = _SCALARS.get(kind)
        if layout is None:
            raise self.bad(f"it is damaged: there is no value type {kind}")
        self.need(position, layout.size)
        return layout.unpack_from(self.data, position)[0], position + layout.size

    def elements(self, kind: int, count: int, position: int) -> tuple[list[object], int]:
        values: list[object] = []
        for _ in range(count):
            value: object
            value, position = (
                self.string(position) if kind == _STRING else self.scalar(kind, position)
            )
            values.append(value)
        return values, position

    def skip(self, kind: int, count: int, position: int) -> tuple[int, tuple[int, ...]]:
        if kind != _STRING:
            layout = _SCALARS.get(kind)
            if layout is None:
                raise self.bad(f"it is damaged: there is no array of type {kind}")
            self.need(position, count * layout.size)
            return position + count * layout.size, ()
        if position + count * 8 > self.total:
            self.need(position, count * 8)
        marks: list[int] = []
        data, unpack = self.data, _u64
        for start in range(0, count, _STRIDE):
            marks.append(position)
            for _ in range(min(_STRIDE, count - start)):  # the hot loop: no checks, no calls
                position += 8 + unpack(data, position)[0]
        self.need(position, 0)
        return position, tuple(marks)

    def tensor(self, position: int) -> tuple[Tensor, int]:
        name, position = self.string(position)
        self.need(position, 4)
        (dimensions,) = _u32(self.data, position)
        if dimensions > _MAX_DIMS:
            raise self.bad(f"it is damaged: tensor {name[:80]!r} has {dimensions} dimensions")
        position += 4
        self.need(position, 8 * dimensions + 12)
        shape = struct.unpack_from(f"<{dimensions}Q", self.data, position)
        position += 8 * dimensions
        kind, offset = _u32u64(self.data, position)
        type_name, block, block_bytes = TENSOR_TYPES.get(kind, (f"type {kind}", 0, 0))
        size: int | None = None
        if block:
            # rows are padded to whole blocks (ggml_row_size)
            size = block_bytes * -(-(shape[0] if shape else 1) // block)
            for length in shape[1:]:
                size *= length
        tensor = Tensor(name=name, type_name=type_name, shape=shape, offset=offset, size_bytes=size)
        return tensor, position + 12

    def special_tokens(self, metadata: Mapping[str, object]) -> dict[str, str]:
        tokens = metadata.get("tokenizer.ggml.tokens")
        found: dict[str, str] = {}
        for key in ("bos", "eos", "eot", "unknown", "padding"):
            number = metadata.get(f"tokenizer.ggml.{key}_token_id")
            text = self.entry(tokens, number) if isinstance(number, int) else None
            if text is not None:
                found[key] = text
        for key, (old, _) in _FIM.items():
            for name in (key, old):
                number = metadata.get(f"tokenizer.ggml.{name}_token_id")
                text = self.entry(tokens, number) if isinstance(number, int) else None
                if text is not None:
                    found.setdefault(key, text)
        # most files do not say; llama.cpp too goes by the tokens' texts then
        return self.fim_by_text(tokens) | found

    def fim_by_text(self, tokens: object) -> dict[str, str]:
        """Find the tokens that mark a gap by their texts, without building the list."""
        if isinstance(tokens, list):
            known = {t for t in tokens if isinstance(t, str)}
            return {
                key: next(text for text in texts if text in known)
                for key, (_, texts) in _FIM.items()
                if known & set(texts)
            }
        if not isinstance(tokens, LongArray) or tokens.element_type != _STRING:
            return {}
        entries = self.data[tokens.offset : tokens.end]
        if not any(sign in entries for sign in (b"fim", b"PRE>", b"code_prefix")):
            return {}
        found: dict[str, str] = {}
        for key, (_, texts) in _FIM.items():
            for text in texts:
                entry = text.encode()
                if struct.pack("<Q", len(entry)) + entry in entries:
                    found.setdefault(key, text)
        return found

    def entry(self, array: object, index: int) -> str | None:
        """Read one string of an array, from the nearest remembered position."""
        if isinstance(array, list):
            value = array[index] if 0 <= index < len(array) else None
            return value if isinstance(value, str) else None
        if not isinstance(array, LongArray) or array.element_type != _STRING:
            return None
        if not 0 <= index < array.count:
            return None
        position = array.marks[index // _STRIDE]
        for _ in range(index % _STRIDE):
            position += 8 + _u64(self.data, position)[0]
        return self.string(position)[0]
