"""What the converter is shown of a model, what is refused before, and where it works."""

import json
import os

import pytest
from filelock import FileLock

from tests.models.convert.conftest import CONFIG, weights
from vllama.base.errors import BadModelFile, DiskFull, VllamaError
from vllama.models.convert.workspace import (
    check_folder,
    check_free_space,
    link_folder,
    open_workspace,
    remove_leftovers,
    sync_and_hash,
)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "m"
    made.mkdir()
    weights(made / "model.safetensors")
    (made / "config.json").write_text(json.dumps(CONFIG))
    (made / "tokenizer.json").write_text("{}")
    return made


def change(folder, **values):
    (folder / "config.json").write_text(json.dumps(CONFIG | values))


def test_a_usual_folder_is_taken(folder):
    check_folder(folder, "m")


@pytest.mark.parametrize("method", ["awq", "AWQ", "bitsandbytes"])
def test_what_cannot_be_undone(folder, method):
    change(folder, quantization_config={"quant_method": method, "bits": 4})
    with pytest.raises(BadModelFile, match=f"quantized with {method.lower()}") as caught:
        check_folder(folder, "m")
    assert "original model" in caught.value.hint


@pytest.mark.parametrize("method", ["fp8", "gptq", "compressed-tensors", "mxfp4", "new"])
def test_what_the_converter_has_to_judge(folder, method):
    change(folder, quantization_config={"quant_method": method})
    check_folder(folder, "m")


def test_mlx(folder):
    weights(folder / "model.safetensors", {"format": "mlx"})
    with pytest.raises(BadModelFile, match="MLX"):
        check_folder(folder, "m")


def test_no_tokenizer(folder):
    (folder / "tokenizer.json").rename(folder / "tokenizer_config.json")
    with pytest.raises(BadModelFile, match="has no tokenizer"):
        check_folder(folder, "m")


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.txt", "qwen.tiktoken", "tekken.json"])
def test_tokenizers(folder, name):
    (folder / "tokenizer.json").rename(folder / name)
    check_folder(folder, "m")


def test_a_missing_shard(folder):
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadModelFile, match=r"model-00001-of-00002\.safetensors is missing"):
        check_folder(folder, "m")


def test_neither_code_nor_pickles_are_shown(folder, tmp_path):
    for name in ("modeling_x.py", "pytorch_model.bin", "old.gguf", ".hidden", "x.pth"):
        (folder / name).write_text("x")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    change(folder, auto_map={"AutoModel": "modeling_x.X"})
    shown = link_folder(folder, tmp_path / "shown")
    assert sorted(path.name for path in shown.iterdir()) == [
        "1_Pooling", "config.json", "model.safetensors", "tokenizer.json"
    ]  # fmt: skip
    assert json.loads((shown / "config.json").read_text()) == CONFIG
    assert (shown / "model.safetensors").resolve() == folder / "model.safetensors"
    assert (shown / "1_Pooling" / "config.json").is_file()


def test_code_is_shown_to_those_who_trust_it(folder, tmp_path):
    (folder / "modeling_x.py").write_text("x")
    change(folder, auto_map={"AutoModel": "modeling_x.X"})
    shown = link_folder(folder, tmp_path / "shown", trusted=True)
    assert (shown / "modeling_x.py").read_text() == "x"
    assert "auto_map" in (shown / "config.json").read_text()


def test_links_of_a_hub_snapshot_keep_their_names(folder, tmp_path):
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in folder.iterdir():
        (snapshot / path.name).symlink_to(os.path.relpath(path, snapshot))
    shown = link_folder(snapshot, tmp_path / "shown")
    assert json.loads((shown / "config.json").read_text()) == CONFIG
    assert (shown / "model.safetensors").read_bytes()


def test_a_workplace_is_gone_afterwards(tmp_path):
    with open_workspace(tmp_path / "new") as place:
        (place / "half.gguf").write_text("x")
        assert place.parent == tmp_path / "new"
    assert list((tmp_path / "new").iterdir()) == []
    with pytest.raises(KeyboardInterrupt), open_workspace(tmp_path / "new") as place:
        raise KeyboardInterrupt
    assert list((tmp_path / "new").iterdir()) == []


def test_what_a_killed_one_left_is_swept_and_a_working_one_is_not(tmp_path):
    for name in ("dead", "alive"):
        (tmp_path / f".convert-{name}").mkdir()
        (tmp_path / f".convert-{name}" / "half.gguf").write_text("x")
    with FileLock(tmp_path / ".convert-alive" / "lock"):
        remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".convert-alive"]
    with open_workspace(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_the_disk_refuses_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(VllamaError, match="cannot write"), open_workspace(tmp_path / "file" / "x"):
        pass
    with pytest.raises(DiskFull, match="No space left"), open_workspace(tmp_path):
        raise OSError(28, "No space left on device", "x")


def test_room(tmp_path):
    check_free_space(tmp_path, 10, "do it", lambda path: 10**9)
    with pytest.raises(
        DiskFull, match=r"cannot do it: it temporarily needs about 2 GB.* 1 GB is free"
    ):
        check_free_space(tmp_path / "not" / "there", 2 * 10**9, "do it", lambda path: 10**9)


def test_a_settled_file_is_known_by_its_checksum(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert sync_and_hash(tmp_path / "x").startswith("ba7816bf8f01cfea")
