"""Models of many gigabytes for the stand-in hub: real headers, and zeros for the data."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from functools import cached_property

from tests.hub.repos import CHUNK, HubFile

GB = 10**9
ALIGNMENT = 32
# quantization → (number in `general.file_type`, tensor type, values of a block, its bytes): ggml.h
QUANTS = {
    "F16": (1, 1, 1, 2),
    "Q8_0": (7, 8, 32, 34),
    "Q6_K": (18, 14, 256, 210),
    "Q5_K_M": (17, 13, 256, 176),
    "Q4_K_M": (15, 12, 256, 144),
    "Q4_K": (15, 12, 256, 144),
    "Q3_K_M": (12, 11, 256, 110),
    "Q2_K": (10, 10, 256, 84),
}


class LargeFile(HubFile):
    """A file that begins with `head` and goes on with zeros; its checksum is made up."""

    def __init__(self, name: str, head: bytes, size: int) -> None:
        super().__init__(name, head)
        self._size = size

    @cached_property
    def size(self) -> int:
        return self._size

    @cached_property
    def sha256(self) -> str:
        assert isinstance(self.content, bytes)
        return hashlib.sha256(self.content + str(self._size).encode()).hexdigest()

    def read(self, start: int, end: int) -> Iterator[bytes]:
        assert isinstance(self.content, bytes)
        for offset in range(start, end, CHUNK):
            stop = min(offset + CHUNK, end)
            head = self.content[offset:stop]
            yield head + bytes(stop - offset - len(head))


def make_gguf(
    name: str,
    quant: str,
    billions: float,
    *,
    architecture: str = "llama",
    layers: int = 32,
    width: int = 4096,
    heads: int = 32,
    kv_heads: int = 8,
    vocabulary: int = 128_000,
    context: int = 131_072,
) -> LargeFile:
    """Make a GGUF whose weights are one tensor of so many parameters."""
    number, type_, values, block_bytes = QUANTS[quant]
    keys: dict[str, str | int] = {
        "general.architecture": architecture,
        "general.file_type": number,
        f"{architecture}.block_count": layers,
        f"{architecture}.embedding_length": width,
        f"{architecture}.feed_forward_length": 3 * width,
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": kv_heads,
        f"{architecture}.context_length": context,
        f"{architecture}.vocab_size": vocabulary,
        "tokenizer.chat_template": "{{ messages }}",
    }
    if not architecture:
        del keys["general.architecture"]
    rows = int(billions * GB) // 4096
    tensor = _text("token_embd.weight") + struct.pack("<IQQIQ", 2, 4096, rows, type_, 0)
    head = struct.pack("<4sIQQ", b"GGUF", 3, 1, len(keys))
    head += b"".join(_text(key) + _value(value) for key, value in keys.items()) + tensor
    head += bytes(-len(head) % ALIGNMENT)
    return LargeFile(name, head, len(head) + rows * 4096 // values * block_bytes)


def make_safetensors(name: str, gigabytes: float) -> LargeFile:
    """Make a safetensors file whose weights are one tensor in BF16."""
    size = int(gigabytes * GB) // 2 * 2
    header = json.dumps(
        {name: {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}
    ).encode()
    head = struct.pack("<Q", len(header)) + header
    return LargeFile(name, head, len(head) + size)


def make_model(
    gigabytes: float, *, shards: int = 1, config: Mapping[str, object] | None = None
) -> dict[str, bytes | HubFile]:
    """Make the files of a safetensors model, in shards with an index if there are several."""
    about = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128_000,
        "max_position_embeddings": 32_768,
    }
    files: dict[str, bytes | HubFile] = {
        "config.json": json.dumps({**about, **(config or {})}).encode(),
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b'{"chat_template": "{{ messages }}"}',
    }
    if shards == 1:
        return files | {"model.safetensors": make_safetensors("model.safetensors", gigabytes)}
    names = [f"model-{n:05d}-of-{shards:05d}.safetensors" for n in range(1, shards + 1)]
    index = {"metadata": {}, "weight_map": {f"part.{name}": name for name in names}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    return files | {name: make_safetensors(name, gigabytes / shards) for name in names}


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: str | int) -> bytes:
    """Write a value with its type: 8 is a text, 4 an unsigned 32-bit number."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    return struct.pack("<II", 4, value)
