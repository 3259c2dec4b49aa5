"""Reads the parts of a GGUF header: numbers, strings, arrays, and the tensor table.

Layout (github.com/ggml-org/ggml, docs/gguf.md), little endian::

    "GGUF"  u32 version  u64 tensor_count  u64 kv_count
    kv     = string key, u32 type, value      string = u64 length, bytes (UTF-8)
    array  = u32 element type, u64 count, elements
    tensor = string name, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset
    padding to general.alignment (32), then the tensors' data

Every length is checked against the size of the file, and every count against a limit, before it is
used. Long arrays are skipped: lists of tokens are most of a header, and are rarely needed.
"""

from __future__ import annotations

import math
import mmap
import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from vllama.base.errors import BadModelFile
from vllama.models.limits import MOST_WEIGHTS

Buffer: TypeAlias = bytes | mmap.mmap

AGAIN = "download the file again"
SHORT_ARRAY = 4096
_STRIDE = 1024  # entries between two stored positions of a skipped string array
_MAX_DIMS = 4  # GGML_MAX_DIMS
# The largest real headers have some 20 MB, 2,000 tensors, 60 keys and 500,000 entries in an array.
MAX_HEADER_BYTES = 64 * 1024 * 1024
MAX_TENSORS = 65_536
MAX_KEYS = 65_536
MAX_ENTRIES = 2**20
MAX_STRING_BYTES = 4 * 1024 * 1024
MAX_KEPT_BYTES = 16 * 1024 * 1024
"""The limit on the sum of all strings in memory."""
MAX_KEPT = 2**18
"""The limit on the number of values in memory, counting the elements of short arrays."""
_SUPPORTED = (2, 3)

STRING, ARRAY = 8, 9

SCALARS: dict[int, struct.Struct] = {
    number: struct.Struct(f"<{code}")
    for number, code in ((0, "B"), (1, "b"), (2, "H"), (3, "h"), (4, "I"), (5, "i"), (6, "f"),
                         (7, "?"), (10, "Q"), (11, "q"), (12, "d"))
}  # fmt: skip

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

_BLOCKS = {name: (elements, size) for name, elements, size in TENSOR_TYPES.values()}

_u32 = struct.Struct("<I").unpack_from
_u64 = struct.Struct("<Q").unpack_from
_u64_bytes = struct.Struct("<Q").pack
_u32u64 = struct.Struct("<IQ").unpack_from


class NeedMore(Exception):
    """The buffer ends inside the header; at least `at_least` bytes of the file are needed."""

    def __init__(self, at_least: int) -> None:
        super().__init__(at_least)
        self.at_least = at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class LongArray:
    """A skipped array: its position, and in `marks` the position of every 1024th string."""

    element_type: int
    count: int
    offset: int
    path: Path | None = None
    marks: tuple[int, ...] = field(default=(), repr=False)
    end: int = 0

    def load(self) -> list[object]:
        """Read the whole array from its file; an empty list if there is no such file here."""
        if self.path is None or not self.path.is_file():
            return []
        with map_file(self.path) as data:
            return Parser(data, len(data), str(self.path)).elements(
                self.element_type, self.count, self.offset
            )[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An entry of the tensor table; `size_bytes` is None for an unknown type."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int | None

    @property
    def elements(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)


def map_file(path: Path) -> mmap.mmap:
    """Map a file into memory. Raises OSError."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def count_tensor_bytes(type_name: str, shape: Sequence[int]) -> int:
    """Return the size of a tensor; 0 for a type that is not known."""
    elements, size_bytes = _BLOCKS.get(type_name, (1, 0))
    return math.prod(shape) // elements * size_bytes


class Parser:
    """Reads the parts of one header; positions are offsets in the file.

    `data` are the first bytes of the file. Methods raise NeedMore and BadModelFile.
    """

    def __init__(self, data: Buffer, total_bytes: int, source: str) -> None:
        self.data, self.have, self.total, self.source = data, len(data), total_bytes, source
        self._kept = self._kept_bytes = 0

    def bad(self, reason: str, hint: str = AGAIN) -> BadModelFile:
        """Return the error for an unusable file."""
        return BadModelFile(f"cannot use '{self.source}': {reason}", hint=hint)

    def ends_early(self, at_least: int) -> Exception:
        """Return the error to raise if the buffer lacks some of the first `at_least` bytes."""
        if self.have < self.total:
            return NeedMore(max(min(at_least, self.total), self.have + 1))
        return self.bad(
            f"the header is truncated or corrupt (file size: {self.total} bytes; expected at least "
            f"{at_least})"
        )

    def need(self, position: int, size: int) -> None:
        """Check that `size` bytes follow."""
        if position + size > MAX_HEADER_BYTES:
            raise self.bad(f"its header is larger than {MAX_HEADER_BYTES} bytes")
        if position + size > self.have:
            if position + size > self.total:
                self.have = self.total  # more bytes cannot help
            raise self.ends_early(position + size)

    def string(self, position: int) -> tuple[str, int]:
        """Read a string; return it and the position after it."""
        self.need(position, 8)
        (size,) = _u64(self.data, position)
        if size > MAX_STRING_BYTES:
            raise self.bad(f"it is damaged: a string in it has {size} bytes")
        self.need(position + 8, size)
        end = position + 8 + size
        return self.data[position + 8 : end].decode("utf-8", "replace"), end

    def keep(self, values: int, size: int = 0) -> None:
        """Count values that stay in memory, against the limits."""
        self._kept, self._kept_bytes = self._kept + values, self._kept_bytes + size
        if self._kept > MAX_KEPT or self._kept_bytes > MAX_KEPT_BYTES:
            raise self.bad("it is damaged: its header has too many values")

    def preamble(self) -> tuple[int, int, int]:
        """Return the version, and the numbers of tensors and keys."""
        magic = bytes(self.data[:4])
        if magic != b"GGUF"[: len(magic)] or not magic:
            # without its first bytes: a client may name a file that it is not allowed to read
            raise self.bad(
                "it is not a GGUF file", "use a GGUF file; if it should be one, download it again"
            )
        self.need(0, 24)
        (version,) = _u32(self.data, 4)
        if version not in _SUPPORTED:
            if version & 0xFFFF == 0:
                raise self.bad("it is a big-endian GGUF, for a different type of machine")
            raise self.bad(f"its GGUF version {version} is not supported (only 2 and 3 are)")
        (tensors,), (pairs,) = _u64(self.data, 8), _u64(self.data, 16)
        # an entry has at least 24 or 13 bytes: refuse absurd counts before looping over them
        fits = tensors * 24 <= self.total and pairs * 13 <= self.total
        if not fits or tensors > MAX_TENSORS or pairs > MAX_KEYS:
            raise self.bad(f"it is damaged: it declares {tensors} tensors and {pairs} keys")
        return version, tensors, pairs

    def value(self, position: int, path: Path | None) -> tuple[object, int]:
        """Read a type and a value of that type; skip a long array."""
        self.need(position, 4)
        (kind,) = _u32(self.data, position)
        position += 4
        if kind == STRING:
            return self.string(position)
        if kind != ARRAY:
            return self.scalar(kind, position)
        self.need(position, 12)
        element, count = _u32u64(self.data, position)
        position += 12
        if count > MAX_ENTRIES:
            raise self.bad(f"it is damaged: an array in it has {count} entries")
        if count <= SHORT_ARRAY:
            self.keep(count)
            return self.elements(element, count, position)
        end, marks = self.skip(element, count, position)
        array = LongArray(
            element_type=element, count=count, offset=position, path=path, marks=marks, end=end
        )
        return array, end

    def scalar(self, kind: int, position: int) -> tuple[object, int]:
        """Read one number."""
        layout = SCALARS.get(kind)
        if layout is None:
            raise self.bad(f"it is damaged: unknown value type {kind}")
        self.need(position, layout.size)
        return layout.unpack_from(self.data, position)[0], position + layout.size

    def elements(self, kind: int, count: int, position: int) -> tuple[list[object], int]:
        """Read an array's elements."""
        values: list[object] = []
        for _ in range(count):
            value: object
            value, position = (
                self.string(position) if kind == STRING else self.scalar(kind, position)
            )
            values.append(value)
        return values, position

    def skip(self, kind: int, count: int, position: int) -> tuple[int, tuple[int, ...]]:
        """Find the end of an array; for strings, also collect the positions of some entries."""
        if kind != STRING:
            layout = SCALARS.get(kind)
            if layout is None:
                raise self.bad(f"it is damaged: unknown array type {kind}")
            self.need(position, count * layout.size)
            return position + count * layout.size, ()
        if position + count * 8 > self.total:
            self.need(position, count * 8)
        marks: list[int] = []
        data, unpack = self.data, _u64
        for start in range(0, count, _STRIDE):
            marks.append(position)
            for _ in range(min(_STRIDE, count - start)):  # the hot loop: no checks, few calls
                position += 8 + unpack(data, position)[0]
        self.need(position, 0)
        return position, tuple(marks)

    def tensor(self, position: int) -> tuple[Tensor, int]:
        """Read one entry of the tensor table."""
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
        if math.prod(shape) > MOST_WEIGHTS:
            raise self.bad(f"it is damaged: tensor {name[:80]!r} has the shape {shape}")
        type_name, block, block_bytes = TENSOR_TYPES.get(kind, (f"type {kind}", 0, 0))
        size: int | None = None
        if block:
            # rows are padded to whole blocks (ggml_row_size)
            size = block_bytes * -(-(shape[0] if shape else 1) // block)
            for length in shape[1:]:
                size *= length
        tensor = Tensor(name=name, type_name=type_name, shape=shape, offset=offset, size_bytes=size)
        return tensor, position + 12

    def entry(self, array: object, index: int) -> str | None:
        """Read one string of an array, starting at the nearest stored position."""
        if isinstance(array, list):
            value = array[index] if 0 <= index < len(array) else None
            return value if isinstance(value, str) else None
        if not isinstance(array, LongArray) or array.element_type != STRING:
            return None
        if not 0 <= index < array.count:
            return None
        position = array.marks[index // _STRIDE]
        for _ in range(index % _STRIDE):
            position += 8 + _u64(self.data, position)[0]
        return self.string(position)[0]

    def number(self, array: object, index: int) -> object:
        """Read one number of an array; None if there is no such entry."""
        if isinstance(array, list):
            return array[index] if 0 <= index < len(array) else None
        if not isinstance(array, LongArray) or array.element_type not in SCALARS:
            return None
        size = SCALARS[array.element_type].size
        if not 0 <= index < array.count:
            return None
        return self.scalar(array.element_type, array.offset + index * size)[0]

    def indexes(self, array: object, texts: Iterable[str]) -> dict[str, int]:
        """Return the indexes of the given strings that an array contains, without building it."""
        if isinstance(array, list):
            return {text: array.index(text) for text in texts if text in array}
        if not isinstance(array, LongArray) or array.element_type != STRING:
            return {}
        entries = bytes(self.data[array.offset : array.end])  # faster to search than a mapped file
        indexes: dict[str, int] = {}
        for text in texts:
            entry = _u64_bytes(len(text.encode())) + text.encode()
            place = entries.find(entry) + array.offset
            if place < array.offset:
                continue
            nearest = bisect_right(array.marks, place) - 1
            position, index = array.marks[nearest], nearest * _STRIDE
            while position < place:
                position += 8 + _u64(self.data, position)[0]
                index += 1
            if position == place:  # otherwise the match was inside another string
                indexes[text] = index
        return indexes
