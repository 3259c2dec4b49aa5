"""LM Studio's folders read in place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.models.conftest import Events, open_offline
from tests.tiny import make_weights
from vllama.base.errors import BadRequest, ModelNotFound
from vllama.models.library import Library
from vllama.models.stores.folder import LMStudioStore
from vllama.models.types import Format


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def library(tmp_path: Path, root: Path) -> Library:
    return open_offline(tmp_path, lmstudio_dirs=(tmp_path / "older", root))


def put(root: Path, path: str, content: bytes) -> Path:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return place


def test_models_by_their_names_on_the_hub(root: Path, library: Library, tiny: Path) -> None:
    content = tiny.read_bytes()
    for quant in ("Q4_K_M", "Q8_0"):
        put(root, f"org/Tiny-GGUF/Tiny-{quant}.gguf", content)
    mmproj = put(root, "org/Tiny-GGUF/mmproj-Tiny-f16.gguf", content)
    put(root, "org/Tiny-GGUF/README.md", b"# card")
    names = {bundle.name: bundle for bundle in library.list()}
    assert set(names) == {"hf.co/org/Tiny-GGUF:Q4_K_M", "hf.co/org/Tiny-GGUF:Q8_0"}
    chosen = names["hf.co/org/Tiny-GGUF:Q4_K_M"]
    assert (chosen.store, chosen.format, chosen.quant) == ("lmstudio", Format.GGUF, "Q4_K_M")
    assert chosen.projector == mmproj
    assert chosen.path == root / "org/Tiny-GGUF/Tiny-Q4_K_M.gguf"
    for name in ("org/tiny-gguf", "hf.co/Org/Tiny-GGUF", "hf://org/Tiny-GGUF:q4_k_m"):
        assert library.find(name).bundle == chosen
    assert library.find("org/tiny-gguf:Q8_0").bundle == names["hf.co/org/Tiny-GGUF:Q8_0"]
    assert library.info(chosen).parameter_count == 119_488
    for name in ("org/tiny-gguf:Q2_K", "org/other", "tiny"):
        with pytest.raises(ModelNotFound):
            library.find(name)


def test_shards_in_order_and_an_incomplete_set(root: Path, library: Library) -> None:
    for number in (2, 1):
        put(root, f"org/big/Big-Q8_0-0000{number}-of-00002.gguf", bytes([number]))
    put(root, "org/cut/Cut-Q8_0-00001-of-00002.gguf", b"x")
    (bundle,) = library.list()
    assert [p.name[-11:-5] for p in bundle.files] == ["-00002", "-00002"]
    assert [p.read_bytes() for p in bundle.files] == [b"\1", b"\2"]
    (left,) = library.list_skipped()
    assert left.name == "hf.co/org/cut:latest" and "Cut-Q8_0-00002-of-00002.gguf" in left.reason


@pytest.mark.parametrize(
    ("config", "about"),
    [
        ({"model_type": "llama", "quantization": {"group_size": 64, "bits": 4}}, None),
        ({"model_type": "llama"}, {"format": "mlx"}),
    ],
)
def test_mlx_is_left_out_with_a_reason(
    root: Path, library: Library, config: dict[str, object], about: dict[str, str] | None
) -> None:
    put(root, "mlx-community/Tiny-4bit/config.json", json.dumps(config).encode())
    put(root, "mlx-community/Tiny-4bit/model.safetensors", make_weights(2, about=about))
    assert library.list() == []
    (left,) = library.list_skipped()
    assert "MLX" in left.reason and left.path == root / "mlx-community/Tiny-4bit"
    with pytest.raises(ModelNotFound) as caught:
        library.find("mlx-community/tiny-4bit")
    assert "MLX" in str(caught.value.hint)


def test_other_safetensors_are_served(root: Path, library: Library) -> None:
    put(root, "org/Tiny/config.json", b'{"model_type": "llama"}')
    put(root, "org/Tiny/model.safetensors", make_weights(2, about={"format": "pt"}))
    (bundle,) = library.list()
    assert (bundle.name, bundle.format) == ("hf.co/org/Tiny:latest", Format.SAFETENSORS)
    assert bundle.path == root / "org/Tiny" and library.find("org/tiny").bundle == bundle
    assert library.list_skipped() == ()


def test_links_odd_names_and_loose_files(
    root: Path, library: Library, tiny: Path, tmp_path: Path
) -> None:
    elsewhere = put(tmp_path, "elsewhere/x-Q8_0.gguf", tiny.read_bytes()).parent
    (root / "me").mkdir(parents=True)
    (root / "me" / "linked").symlink_to(elsewhere)
    (root / "me" / "dangling").symlink_to(tmp_path / "nowhere")
    put(root, "loose.gguf", b"x")
    put(root, "me/loose.gguf", b"x")
    put(root, ".hidden/repo/x.gguf", tiny.read_bytes())
    put(root, "no name/at all/x.gguf", tiny.read_bytes())
    (bundle,) = library.list()
    assert bundle.name == "hf.co/me/linked:Q8_0" and library.find("me/linked").bundle == bundle


def test_the_newer_folder_and_the_older_one(root: Path, tmp_path: Path, tiny: Path) -> None:
    for folder in (root, tmp_path / "older"):
        put(folder, "org/a/a-Q8_0.gguf", tiny.read_bytes())
    put(tmp_path / "older", "org/b/b-Q8_0.gguf", tiny.read_bytes())
    both = LMStudioStore([root, tmp_path / "older"]).list()
    assert [b.name for b in both] == ["hf.co/org/a:Q8_0", "hf.co/org/b:Q8_0"]
    assert both[0].path.is_relative_to(root)


def test_it_is_not_deleted_untold_and_not_fetched_again(
    root: Path, library: Library, tiny: Path, events: Events
) -> None:
    path = put(root, "org/tiny/tiny-Q8_0.gguf", tiny.read_bytes())
    with pytest.raises(BadRequest, match="belongs to LM Studio") as caught:
        library.remove("org/tiny")
    assert "vllama rm --force hf.co/org/tiny:Q8_0" in str(caught.value.hint)
    assert path.exists()
    assert library.remote.pull("org/tiny:Q8_0", progress=events).path == path
    assert events.statuses[-1] == "success"


def test_told_to_it_deletes_a_model_but_not_what_another_one_uses(
    root: Path, library: Library, tiny: Path
) -> None:
    content = tiny.read_bytes()
    small, large = (put(root, f"org/tiny/tiny-{quant}.gguf", content) for quant in ("Q4_0", "Q8_0"))
    eyes = put(root, "org/tiny/mmproj-tiny-F16.gguf", content)
    freed_bytes = library.remove("org/tiny:Q8_0", force=True)
    assert freed_bytes == len(content)
    assert (small.exists(), large.exists(), eyes.exists()) == (True, False, True)
    assert library.remove("org/tiny:Q4_0", force=True) == 2 * len(content)
    assert root.exists() and not (root / "org").exists()
