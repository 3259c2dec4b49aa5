"""Adapters as PEFT writes them become GGUF, or are refused with the reason."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.models.convert.conftest import local
from tests.tiny import write_tiny_gguf
from vllama.base.errors import BadRequest
from vllama.models.convert.adapter import CONFIG, WEIGHTS, bring_adapters, interleave, read_tensors
from vllama.models.create import NewModel, create
from vllama.models.headers.gguf.header import read_header
from vllama.models.types import ModelInfo

PEFT = {"peft_type": "LORA", "r": 2, "lora_alpha": 8}
PREFIX = "base_model.model.model.layers.1."
# the tiny model: (rows, columns) of what an adapter may change
MODULES = {
    "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "mlp.down_proj": (64, 128),
}  # fmt: skip


def pairs(modules=MODULES, prefix=PREFIX, rank=2) -> dict[str, np.ndarray]:
    made: dict[str, np.ndarray] = {}
    for module, (rows, columns) in modules.items():
        for part, shape in (("A", (rank, columns)), ("B", (rows, rank))):
            numbers = np.arange(shape[0] * shape[1], dtype=np.float32)
            made[f"{prefix}{module}.lora_{part}.weight"] = numbers.reshape(shape)
    return made


def write(folder: Path, tensors=None, config=PEFT, dtype: str = "F32") -> dict[str, Path]:
    """Write an adapter; return its files by their names."""
    folder.mkdir(exist_ok=True)
    header, data = {}, b""
    for name, numbers in (pairs() if tensors is None else tensors).items():
        start = len(data)
        data += numbers.astype(np.float16 if dtype == "F16" else np.float32).tobytes()
        header[name] = {
            "dtype": dtype, "shape": numbers.shape, "data_offsets": [start, len(data)]
        }  # fmt: skip
    text = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / CONFIG).write_text(json.dumps(config))
    return {name: folder / name for name in (CONFIG, WEIGHTS)}


@pytest.fixture
def base(library, tmp_path):
    return library.find(str(write_tiny_gguf(tmp_path / "tiny.gguf"))).bundle


def read(path: Path) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    import gguf

    found = {each.name: each.data for each in gguf.GGUFReader(path).tensors}
    return dict(read_header(path).metadata), found


@pytest.mark.parametrize(
    ("changes", "alpha"),
    [({}, 8.0), ({"use_rslora": True}, 8.0 * 2**0.5), ({"lora_alpha": 3.5}, 3.5)],
)
def test_an_adapter_of_peft(library, base, tmp_path, changes, alpha):
    files = write(tmp_path / "lora", config=PEFT | changes)
    (made,) = bring_adapters(library, base, "lora", {**files, "README.md": tmp_path})
    about, tensors = read(made)
    assert (about["general.type"], about["adapter.type"]) == ("adapter", "lora")
    assert about["adapter.lora.alpha"] == pytest.approx(alpha)
    given = pairs()
    assert len(tensors) == len(given)
    down = tensors["blk.1.ffn_down.weight.lora_b"]
    assert np.array_equal(down, given[f"{PREFIX}mlp.down_proj.lora_B.weight"])
    # llama.cpp's own formula (conversion/llama.py: permute): 2 heads, 1 of keys
    for own, module, heads in (("attn_q", "q_proj", 2), ("attn_k", "k_proj", 1)):
        rows = given[f"{PREFIX}self_attn.{module}.lora_B.weight"]
        halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, 2).swapaxes(1, 2)
        assert np.array_equal(tensors[f"blk.1.{own}.weight.lora_b"], halves.reshape(rows.shape))
    assert made.parent == library.local.blobs.folder
    model = create(library, NewModel(name="mine", base=base, adapters=(made,)))
    assert library.find("mine").bundle.adapters == (made,) == model.adapters


def test_the_types_and_the_names_of_trainers(tmp_path):
    plain = ModelInfo(architecture="qwen2", head_count=2, head_count_kv=(1,), block_count=2)
    for prefix in (PREFIX, "model.layers.1.", "base_model.model.model.language_model.layers.1."):
        files = write(tmp_path / "lora", pairs(prefix=prefix), dtype="F16")
        tensors = read_tensors(files[WEIGHTS], plain)
        kind, shape, data = tensors["blk.1.attn_q.weight.lora_b"]
        given = pairs(prefix=prefix)[f"{prefix}self_attn.q_proj.lora_B.weight"]
        assert (kind, shape) == (1, [2, 64])
        assert data == given.astype(np.float16).tobytes()  # its rows stay where they are


def test_rows_that_are_no_heads_stay_whole():
    assert interleave(bytes(range(8)), 8, 1) == bytes([0, 4, 1, 5, 2, 6, 3, 7])
    assert interleave(b"", 0, 4) == b""


@pytest.mark.parametrize(
    ("config", "tensors", "reason"),
    [
        ({"peft_type": "IA3"}, None, "it is not a PEFT LoRA adapter"),
        ([], None, "it is not a PEFT LoRA adapter"),
        (PEFT, {}, "it has no tensors"),
        (PEFT | {"alpha_pattern": {"q_proj": 2}}, None, "scales them individually"),
        (PEFT, {f"{PREFIX}mlp.experts.0.w1.lora_A.weight": np.ones((2, 4))}, "is not supported"),
        (PEFT, {f"{PREFIX}self_attn.q_proj.lora_magnitude_vector": np.ones(4)}, "not supported"),
        (PEFT, {f"{PREFIX}self_attn.q_proj.lora_A.weight": np.ones(4)}, "(F32) is not supported"),
        (PEFT, pairs({"mlp.up_proj": (8, 8)}), "'blk.1.ffn_up.weight' have a different shape"),
        (PEFT, pairs(prefix="model.layers.7."), "the model has no tensor 'blk.7."),
    ],
)
def test_what_is_no_adapter_for_the_base(library, base, tmp_path, config, tensors, reason):
    files = write(tmp_path / "lora", tensors, config)
    with pytest.raises(BadRequest) as caught:
        bring_adapters(library, base, "./lora", files)
    assert "'./lora'" in caught.value.message and reason in caught.value.message
    assert caught.value.hint
    assert not list(library.local.blobs.folder.glob("*"))


def test_folders_that_lack_something(library, base, tmp_path):
    files = write(tmp_path / "lora")
    for name in (CONFIG, WEIGHTS):
        rest = {CONFIG: files[CONFIG], WEIGHTS: files[WEIGHTS]}
        del rest[name]
        with pytest.raises(BadRequest, match=f"it has no {name}") as caught:
            bring_adapters(library, base, "lora", rest)
        assert "convert_lora_to_gguf.py" in str(caught.value.hint)
    with pytest.raises(BadRequest, match=r"no adapter_config\.json and no adapter_model"):
        bring_adapters(library, base, "lora", {})
    files[WEIGHTS].write_bytes(b"cut")
    with pytest.raises(BadRequest, match="not a safetensors file"):
        bring_adapters(library, base, "lora", files)
    assert bring_adapters(library, base, "x", {"x.gguf": tmp_path}) == (tmp_path,)


def test_architectures_and_formats_without_adapters(library, tmp_path):
    weights = write(tmp_path / "lora")
    uploads = {name: path.rename(tmp_path / f"blob-{name}") for name, path in weights.items()}
    with pytest.raises(BadRequest, match="not a GGUF file; use vllama create -q F16"):
        bring_adapters(library, library.find(str(local(tmp_path / "m"))).bundle, "lora", uploads)
    with pytest.raises(Exception, match="the architecture mamba is not supported"):
        read_tensors(uploads[WEIGHTS], ModelInfo(architecture="mamba"))
