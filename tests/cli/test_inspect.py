"""What `vllama inspect` reads from its command line."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from vllama.base.errors import ConfigError
from vllama.cli.commands.inspect_ import read_layers, read_steering, read_vector
from vllama.models.headers.safetensors import write_tensor


@pytest.mark.parametrize(
    ("text", "layers"),
    [("3", [3]), ("0-2", [0, 1, 2]), ("3, 7", [3, 7]), ("0-1,5", [0, 1, 5])],
)
def test_layers(text, layers) -> None:
    assert read_layers(text) == layers


@pytest.mark.parametrize("text", ["", "a", "-1", "0-", "3-1", "0-100000000000", "1,,2"])
def test_what_is_no_list_of_layers(text) -> None:
    with pytest.raises(ConfigError, match="cannot read the layers"):
        read_layers(text)


ROW = (0.5, -1.0, 2.0, 0.25)


def write(path: Path, dtype: str, data: bytes, shape: tuple[int, ...] = (4,)) -> Path:
    path.write_bytes(write_tensor("v", dtype, shape, data, {}))
    return path


@pytest.mark.parametrize(
    ("dtype", "data", "shape"),
    [
        ("F32", struct.pack("<4f", *ROW), (4,)),
        ("F64", struct.pack("<4d", *ROW), (4,)),
        ("F16", struct.pack("<4e", *ROW), (1, 4)),
        ("BF16", b"".join(struct.pack("<f", number)[2:] for number in ROW), (1, 1, 4)),
    ],
)
def test_steering_reads_numbers_of_all_types(tmp_path: Path, dtype, data, shape) -> None:
    file = write(tmp_path / "a@b.safetensors", dtype, data, shape)
    assert read_steering(f"{file}@1") == {"vector": ROW, "layers": [1], "strength": 1.0}
    assert read_steering(f"{file}@1-2=0.5") == {
        "vector": ROW, "layers": [1, 2], "strength": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["calm", "@1", "calm@1=x", "calm@1=nan", "calm@1=inf"])
def test_what_is_no_steering(text) -> None:
    with pytest.raises(ConfigError, match="--steer") as caught:
        read_steering(text)
    assert caught.value.hint is not None and "calm.safetensors@15=0.3" in caught.value.hint


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="calm': No such file"):
        read_steering(f"{tmp_path}/calm@1")


@pytest.mark.parametrize(
    ("dtype", "data", "shape"),
    [
        ("F32", struct.pack("<8f", *ROW, *ROW), (2, 4)),
        ("F32", b"", (0,)),
        ("I32", struct.pack("<4i", 1, 2, 3, 4), (4,)),
        ("F32", struct.pack("<4f", 1, 2, 3, float("nan")), (4,)),
    ],
)
def test_what_is_no_vector(tmp_path: Path, dtype, data, shape) -> None:
    with pytest.raises(ConfigError, match="not a vector"):
        read_vector(write(tmp_path / "f", dtype, data, shape))


def test_other_files(tmp_path: Path) -> None:
    file = tmp_path / "f"
    header = b'{"__metadata__":{}}'
    for content in (b"no safetensors", struct.pack("<Q", len(header)) + header):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="not a vector"):
            read_vector(file)
