"""Steering vectors with names: what is taken, for which model, and what is refused."""

import struct
from pathlib import Path

import pytest

from tests.facts import bundle
from vllama.base.errors import BadModelFile, BadRequest
from vllama.models.headers.safetensors import write_tensor
from vllama.models.vectors import VectorStore

WIDTH = 4
ROW = (0.5, -1.0, 2.0, 0.25)
MODEL, OTHER = bundle("a:latest", digest="a" * 64), bundle("b:latest", digest="b" * 64)


def write(path: Path, dtype: str, data: bytes, shape=(WIDTH,)) -> Path:
    path.write_bytes(write_tensor("v", dtype, shape, data, {}))
    return path


HALVES = b"".join(struct.pack("<f", number)[2:] for number in ROW)


@pytest.mark.parametrize(
    ("dtype", "data", "shape"),
    [
        ("F32", struct.pack("<4f", *ROW), (WIDTH,)),
        ("F64", struct.pack("<4d", *ROW), (WIDTH,)),
        ("F16", struct.pack("<4e", *ROW), (1, WIDTH)),
        ("BF16", HALVES, (1, 1, WIDTH)),
    ],
)
def test_numbers_of_all_types_become_float32(tmp_path, dtype, data, shape):
    store = VectorStore(tmp_path)
    added = store.add(MODEL, WIDTH, "v1", write(tmp_path / "f", dtype, data, shape))
    assert (added.model, added.name, added.size) == ("a:latest", "v1", WIDTH)
    assert struct.unpack("<4f", store.read(MODEL, "v1")) == ROW
    assert added.path.stat().st_mode & 0o777 == 0o600
    assert added.path.parent.stat().st_mode & 0o777 == 0o700


def test_they_belong_to_one_model(tmp_path):
    store, file = VectorStore(tmp_path), write(tmp_path / "f", "F32", struct.pack("<4f", *ROW))
    store.add(MODEL, WIDTH, "mine", file)
    store.add(MODEL, WIDTH, "mine", file)
    assert [(each.model, each.name) for each in store.list()] == [("a:latest", "mine")]
    with pytest.raises(BadRequest, match="with b:latest: it belongs to a:latest"):
        store.read(OTHER, "mine")
    with pytest.raises(BadRequest, match="there is none of that name") as caught:
        store.read(MODEL, "yours")
    assert caught.value.hint == "this model has: mine"
    store.remove(MODEL, "mine")
    assert store.list() == []
    with pytest.raises(BadRequest):
        store.remove(MODEL, "mine")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".x", "x" * 81, "a b", "\0"])
def test_names_that_are_no_names(tmp_path, name):
    store, file = VectorStore(tmp_path), write(tmp_path / "f", "F32", struct.pack("<4f", *ROW))
    with pytest.raises(BadRequest, match="cannot name a vector"):
        store.add(MODEL, WIDTH, name, file)
    with pytest.raises(BadRequest, match="there is none of that name"):
        store.read(MODEL, name)


@pytest.mark.parametrize(
    ("dtype", "data", "shape", "words"),
    [
        ("F32", struct.pack("<3f", 1, 2, 3), (3,), "3 numbers: a:latest needs 4"),
        ("F32", struct.pack("<8f", *ROW, *ROW), (2, WIDTH), "F32 of the shape"),
        ("I32", struct.pack("<4i", 1, 2, 3, 4), (WIDTH,), "I32 of the shape"),
        ("F32", struct.pack("<4f", 1, 2, 3, float("nan")), (WIDTH,), "float32 cannot hold"),
        ("F64", struct.pack("<4d", 1, 2, 3, 1e300), (WIDTH,), "float32 cannot hold"),
    ],
)
def test_what_is_no_vector_of_the_model_is_refused(tmp_path, dtype, data, shape, words):
    store = VectorStore(tmp_path)
    with pytest.raises(BadRequest, match=words):
        store.add(MODEL, WIDTH, "v", write(tmp_path / "f", dtype, data, shape))
    assert store.list() == []


def test_damaged_files(tmp_path):
    store, file = VectorStore(tmp_path), write(tmp_path / "f", "F32", struct.pack("<4f", *ROW))
    path = store.add(MODEL, WIDTH, "v", file).path
    path.write_bytes(b"no safetensors")
    with pytest.raises(BadRequest, match="its file is damaged"):
        store.read(MODEL, "v")
    assert store.list() == []
    with pytest.raises(BadModelFile):
        store.add(MODEL, WIDTH, "v", path)
