"""Numbers in the headers of model files: none is believed before it is compared with a limit."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vllama.base.errors import BadModelFile
from vllama.models.headers.gguf.header import read_header
from vllama.models.headers.info import read_info
from vllama.models.headers.safetensors import list_weight_files, read_folder
from vllama.models.stores.folder import FolderStore
from vllama.models.types import Bundle, Format

MB = 1024 * 1024
U8, U32, I32, U64, STRING, ARRAY = 0, 4, 5, 10, 8, 9


@contextmanager
def memory(most_bytes: int) -> Iterator[None]:
    """Fail where Python allocates more than that at once."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= most_bytes


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(element: int, count: int, content: bytes = b"") -> bytes:
    return struct.pack("<IQ", element, count) + content


def tensor(name: bytes, shape: tuple[int, ...], kind: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + sizes + struct.pack("<IQ", kind, 0)


def gguf(pairs: list[bytes], tensors: list[bytes], *, keys: int | None = None) -> bytes:
    count = len(pairs) if keys is None else keys
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), count)
    return head + b"".join(pairs) + b"".join(tensors) + bytes(64)


NAME = pair(b"general.architecture", STRING, text(b"llama"))
WEIGHTS = [tensor(b"w", (1,))]


def number(key: bytes, value: int, kind: int = U32) -> bytes:
    form = {U32: "<I", I32: "<i", U64: "<Q"}[kind]
    return pair(b"llama." + key, kind, struct.pack(form, value))


def numbers(key: bytes, value: int, count: int) -> bytes:
    return pair(b"llama." + key, ARRAY, array(U32, count, struct.pack("<I", value) * count))


GGUFS: dict[str, Callable[[], bytes]] = {
    "300 million layers": lambda: gguf(
        [NAME, number(b"block_count", 300_000_000), number(b"attention.head_count", 1)], WEIGHTS
    ),
    "2^64 layers": lambda: gguf(
        [NAME, number(b"block_count", 2**64 - 1, U64), number(b"attention.head_count", 1)], WEIGHTS
    ),
    "4097 layers": lambda: gguf([NAME, number(b"block_count", 4097)], WEIGHTS),
    "-1 layers": lambda: gguf([NAME, number(b"block_count", -1, I32)], WEIGHTS),
    "many layers in a list": lambda: gguf([NAME, numbers(b"block_count", 5000, 3)], WEIGHTS),
    "2^32 - 1 heads": lambda: gguf([NAME, number(b"attention.head_count", 2**32 - 1)], WEIGHTS),
    "2^32 - 1 heads in a layer": lambda: gguf(
        [NAME, numbers(b"attention.head_count_kv", 2**32 - 1, 32)], WEIGHTS
    ),
    "a context of 2^64": lambda: gguf([NAME, number(b"context_length", 2**64 - 1, U64)], WEIGHTS),
    "a width of 2^63": lambda: gguf([NAME, number(b"embedding_length", 2**63, U64)], WEIGHTS),
    "a key of 2^40": lambda: gguf([NAME, number(b"attention.key_length", 2**40, U64)], WEIGHTS),
    "a string of 2^63 bytes": lambda: gguf([struct.pack("<Q", 2**63)], WEIGHTS),
    "a string of 5 MB": lambda: gguf([pair(b"k", STRING, text(bytes(5 * MB)))], WEIGHTS),
    "20 strings of 1 MB": lambda: gguf(
        [pair(b"%d" % n, STRING, text(bytes(MB))) for n in range(20)], WEIGHTS
    ),
    "an array of 2^62 strings": lambda: gguf([pair(b"k", ARRAY, array(STRING, 2**62))], WEIGHTS),
    "an array of 2 million bytes": lambda: gguf(
        [pair(b"k", ARRAY, array(U8, 2_000_000, bytes(2_000_000)))], WEIGHTS
    ),
    "short arrays that are many": lambda: gguf(
        [pair(b"%d" % n, ARRAY, array(U8, 4096, bytes(4096))) for n in range(66)], WEIGHTS
    ),
    "an array of arrays": lambda: gguf(
        [pair(b"k", ARRAY, array(ARRAY, 1, array(ARRAY, 1)))], WEIGHTS
    ),
    "70,000 keys": lambda: gguf([pair(b"%d" % n, U8, b"\0") for n in range(70_000)], WEIGHTS),
    "2^40 keys": lambda: gguf([], WEIGHTS, keys=2**40),
    "70,000 tensors": lambda: gguf([NAME], [tensor(b"%d" % n, (1,)) for n in range(70_000)]),
    "an alignment of 2^31": lambda: gguf(
        [pair(b"general.alignment", U32, struct.pack("<I", 2**31))], WEIGHTS
    ),
    "5 dimensions": lambda: gguf([NAME], [tensor(b"w", (1,) * 5)]),
    "a tensor of (2^64)^4": lambda: gguf([NAME], [tensor(b"w", (2**64 - 1,) * 4)]),
    "a tensor of 2^50 of no known type": lambda: gguf([NAME], [tensor(b"w", (2**50,), 99)]),
    "weights that are not there": lambda: gguf([NAME], [tensor(b"w", (2**40,))]),
}


@pytest.mark.parametrize("content", GGUFS.values(), ids=GGUFS)
def test_a_gguf_is_refused_before_anything_is_made_of_it(
    tmp_path: Path, content: Callable[[], bytes]
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content())
    bundle = Bundle(
        name="m:latest",
        store="folder",
        format=Format.GGUF,
        path=path,
        files=(path,),
        size_bytes=path.stat().st_size,
        digest="",
        modified_s=0.0,
    )
    with memory(32 * MB), pytest.raises(BadModelFile):
        read_info(bundle)


def test_a_header_ends_somewhere(tmp_path: Path) -> None:
    """A file with holes takes no room on the disk, however long a header it announces."""
    path = tmp_path / "m.gguf"
    entry = 4 * MB - 100
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 1, 40))
        for n in range(40):
            file.write(pair(b"%d" % n, ARRAY, array(STRING, 4097)) + bytes(8 * 4097))
            file.write(text(b"")[:0] + pair(b"s%d" % n, STRING, struct.pack("<Q", entry)))
            file.seek(entry, 1)
        file.truncate(2**33)
    with memory(64 * MB), pytest.raises(BadModelFile):
        read_header(path)


CONFIG = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 1}
TENSOR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
CONFIGS: dict[str, bytes] = {
    "a billion layers": json.dumps(CONFIG | {"num_hidden_layers": 10**9}).encode(),
    "10^30 layers": json.dumps(CONFIG | {"num_hidden_layers": 10**30}).encode(),
    "a billion heads": json.dumps(CONFIG | {"num_key_value_heads": 10**9}).encode(),
    "a context of 10^30": json.dumps(CONFIG | {"max_position_embeddings": 10**30}).encode(),
    "layers inside": json.dumps({"text_config": {"num_hidden_layers": 10**9}}).encode(),
    "a number of 5,000 digits": b'{"hidden_size": ' + b"9" * 5000 + b"}",
    "200,000 brackets": b"[" * 200_000,
    "brackets in a value": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a million empty lists": b'{"a": [' + b"[]," * 1_000_000 + b"[]]}",
    "no object": b"[1]",
}


def header(content: bytes, *, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(content) if length is None else length) + content + bytes(8)


def entry(**changes: object) -> bytes:
    return header(json.dumps({"w": TENSOR | changes}).encode())


HEADERS: dict[str, bytes] = {
    "2^63 bytes": header(b"{}", length=2**63),
    "more than there are": header(b"{}", length=100),
    "200,000 brackets": header(b"[" * 200_000),
    "brackets in a tensor": header(b'{"w": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a shape of 10^30": entry(shape=[10**30]),
    "a shape that is too much in all": entry(shape=[2**40, 2**40]),
    "a negative shape": entry(shape=[-1]),
    "a shape of text": entry(shape="12345"),
    "no list for a shape": entry(shape=5),
    "1,000 dimensions": entry(shape=[1] * 1000),
    "offsets of 10^30": entry(data_offsets=[0, 10**30]),
    "offsets backwards": entry(data_offsets=[4, 0]),
    "one offset": entry(data_offsets=[0]),
    "infinite offsets": header(
        b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1e999]}}'
    ),
    "200,000 tensors": header(
        b"{" + b",".join(b'"%d":{}' % n for n in range(200_000)) + b"}",
    ),
    "a tensor that is a list": header(b'{"w": []}'),
    "no object": header(b"[1]"),
}


def folder(tmp_path: Path, config: bytes, weights: bytes) -> Path:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_bytes(config)
    (tmp_path / "m/model.safetensors").write_bytes(weights)
    return tmp_path / "m"


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_config_is_refused(tmp_path: Path, config: bytes) -> None:
    place = folder(tmp_path, config, entry())
    with memory(32 * MB), pytest.raises(BadModelFile):
        read_folder(place)


@pytest.mark.parametrize("weights", HEADERS.values(), ids=HEADERS)
def test_weights_are_refused(tmp_path: Path, weights: bytes) -> None:
    place = folder(tmp_path, json.dumps(CONFIG).encode(), weights)
    with memory(64 * MB), pytest.raises(BadModelFile):
        read_folder(place)


@pytest.mark.parametrize(
    "index",
    [
        b"[" * 200_000,
        b"not JSON",
        json.dumps({"weight_map": {"w": "../secret.safetensors"}}).encode(),
        json.dumps({"weight_map": {"w": "/etc/passwd"}}).encode(),
        json.dumps({"weight_map": {"w": 5}}).encode(),
        json.dumps({"weight_map": "../secret.safetensors"}).encode(),
    ],
)
def test_an_index_names_files_of_its_folder_and_hides_no_other_model(
    tmp_path: Path, index: bytes
) -> None:
    place = folder(tmp_path, json.dumps(CONFIG).encode(), entry())
    (tmp_path / "secret.safetensors").write_bytes(entry())
    (place / "model.safetensors.index.json").write_bytes(index)
    assert list_weight_files(place) == ()
    (tmp_path / "fine.gguf").write_bytes(gguf([NAME], WEIGHTS))
    assert [bundle.name for bundle in FolderStore([tmp_path]).list()] == ["fine:latest"]
