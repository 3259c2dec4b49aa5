"""Ollama's store read in place: what a model is made of, what is left out, what a removal frees."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.conftest import open_offline
from tests.registry import PARAMS, OllamaModel, store
from tests.registry.models import CONFIG, IMAGE
from tests.tiny import write_tiny_gguf, write_tiny_lora
from vllama.base.errors import BadModelFile, BadRequest, ModelNotFound, VllamaError
from vllama.models.library import Library
from vllama.models.names.ref import ModelRef
from vllama.models.ollama.layout import OllamaModels, find_target
from vllama.models.ollama.manifest import find_digests, parse_manifest
from vllama.models.stores.ollama import OllamaStore
from vllama.models.types import Capability, Format

LIBRARY = "registry.ollama.ai/library/"
TOOLS = "{{ if .Tools }}{{ .Tools }}{{ end }}{{ .Prompt }}{{ .Suffix }}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def library(tmp_path: Path, root: Path) -> Library:
    return open_offline(tmp_path, ollama_dirs=(root,))


def blobs(root: Path) -> set[str]:
    return {path.name.removeprefix("sha256-") for path in (root / "blobs").iterdir()}


def ours(root: Path, name: str) -> None:
    """Mark a model as one that vllama has pulled."""
    models, ref = OllamaModels(root), ModelRef.parse(name)
    content = models.manifest(ref).read_bytes()
    models.manifest(ref).unlink()
    with models.locked():
        models.write_manifest(ref, content)


def test_everything_a_model_is_made_of(
    root: Path, library: Library, tiny: Path, tmp_path: Path
) -> None:
    lora = write_tiny_lora(tmp_path / "lora.gguf")
    projector = write_tiny_gguf(tmp_path / "mmproj.gguf", seed=9)
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    made = OllamaModel(
        [
            ("model", tiny),
            ("projector", projector),
            ("adapter", lora),
            ("template", TOOLS),
            ("system", "Be brief."),
            ("params", PARAMS),
            ("messages", turns),
            ("license", "MIT"),
            ("license", "Apache"),
        ],
        {"file_type": "Q4_K_M", "parser": "qwen3", "requires": "0.14.0"},
    )
    path = store(root, LIBRARY + "tiny:1b", made)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    (bundle,) = library.list()
    assert library.find("TINY:1B").bundle == bundle
    assert (bundle.name, bundle.store, bundle.format) == ("tiny:1b", "ollama", Format.GGUF)
    assert (bundle.digest, bundle.size_bytes) == (made.digest, made.size)
    assert (bundle.modified_s, bundle.quant) == (1_700_000_000, "Q4_K_M")
    assert (bundle.system, bundle.template) == ("Be brief.", TOOLS)
    assert bundle.parameters == PARAMS
    assert bundle.messages == tuple(turns)
    assert bundle.license == "MIT\nApache"
    assert (bundle.renderer, bundle.parser, bundle.requires) == (None, "qwen3", "0.14.0")
    place = root / "blobs"
    assert bundle.path == place / f"sha256-{made.layer('model')}"
    assert bundle.projector == place / f"sha256-{made.layer('projector')}"
    assert bundle.adapters == (place / f"sha256-{made.layer('adapter')}",)
    assert bundle.files == (bundle.path, bundle.projector, *bundle.adapters)
    info = library.info(bundle)
    assert info.parameter_count == 119_488
    assert {Capability.TOOLS, Capability.INSERT, Capability.VISION} <= info.capabilities


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (LIBRARY + "tiny:latest", "tiny:latest"),
        ("registry.ollama.ai/someone/tiny:x", "someone/tiny:x"),
        ("hf.co/Org/Tiny-GGUF:Q4_K_M", "hf.co/Org/Tiny-GGUF:Q4_K_M"),
        ("localhost:5000/team/tiny:1", "localhost:5000/team/tiny:1"),
    ],
)
def test_names(root: Path, library: Library, tiny: Path, place: str, name: str) -> None:
    store(root, place, OllamaModel([("model", tiny)]))
    (bundle,) = library.list()
    assert bundle.name == name
    assert library.find(name).bundle == library.find(name.upper()).bundle == bundle
    assert library.find(place).bundle.digest == bundle.digest
    with pytest.raises(ModelNotFound):
        library.find("tinier")


def test_blobs_of_older_stores(root: Path, library: Library, tiny: Path) -> None:
    store(root, LIBRARY + "old:latest", OllamaModel([("model", tiny)]), dash=":")
    bundle = library.find("old").bundle
    assert bundle.path.name.startswith("sha256:") and library.info(bundle).block_count == 2


def test_prompts_that_ollamas_own_code_makes_leave_the_files_template(
    root: Path, library: Library, tiny: Path
) -> None:
    layers = [("model", tiny), ("template", "{{ .Prompt }}")]
    store(root, LIBRARY + "new:latest", OllamaModel(layers, {"renderer": "qwen3-coder"}))
    bundle = library.find("new").bundle
    assert bundle.template is None
    assert "assistant: " in str(library.info(bundle).chat_template)


def test_what_is_left_out_is_told_and_hides_nothing(
    root: Path, library: Library, tiny: Path
) -> None:
    store(root, LIBRARY + "good:latest", OllamaModel([("model", tiny)]))
    good = library.find("good").bundle
    for name, content in (("text", b"{"), ("list", b"[]"), ("none", b""), ("odd", b"\xff")):
        path = root / "manifests" / LIBRARY / f"{name}" / "latest"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    store(root, LIBRARY + "mlx:latest", OllamaModel([("tensor", b"x")]))
    cloud = OllamaModel([], {"remote_host": "https://ollama.com", "remote_model": "big"})
    store(root, LIBRARY + "big:cloud", cloud)
    store(root, LIBRARY + "split:latest", OllamaModel([("model", b"a"), ("model", b"b")]))
    store(root, LIBRARY + "torch:latest", OllamaModel([("model", b"a")], {"model_format": "pt"}))
    store(root, LIBRARY + "words:latest", OllamaModel([("model", tiny), ("params", "no JSON")]))
    holes = OllamaModel([("model", b"weights")])
    store(root, LIBRARY + "holes:latest", holes)
    (root / "blobs" / f"sha256-{holes.layer('model')}").unlink()
    (root / "manifests" / LIBRARY / "not a name").mkdir()
    (root / "manifests" / LIBRARY / "not a name" / "x").write_text("{}")
    (root / "manifests" / "file").write_text("junk")
    assert library.list() == [good]
    reasons = {item.name: item.reason for item in library.list_skipped()}
    said = {
        "text:latest": "damaged",
        "list:latest": "damaged",
        "none:latest": "damaged",
        "odd:latest": "damaged",
        "mlx:latest": "MLX",
        "big:cloud": "cloud",
        "split:latest": "split",
        "torch:latest": "format is pt",
        "words:latest": "params are not valid JSON",
        "holes:latest": "incomplete",
    }
    assert reasons.keys() == said.keys()
    for name, words in said.items():
        assert words in reasons[name], (name, reasons[name])
    with pytest.raises(ModelNotFound) as caught:
        library.find("mlx")
    assert "MLX" in str(caught.value.hint)


def test_a_missing_config_is_no_loss(root: Path, library: Library, tiny: Path) -> None:
    made = OllamaModel([("model", tiny)])
    store(root, LIBRARY + "tiny:latest", made)
    (root / "blobs" / made.document["config"]["digest"].replace(":", "-")).unlink()
    assert library.find("tiny").bundle.quant is None


def test_a_folder_that_is_not_there_has_no_models(tmp_path: Path) -> None:
    empty = OllamaStore([tmp_path / "nowhere"])
    assert (empty.list(), empty.list_skipped()) == ([], ())
    assert not (tmp_path / "nowhere").exists()


def test_of_two_stores_the_first_comes_first(tmp_path: Path, tiny: Path) -> None:
    for folder, system in (("a", "A"), ("b", "B")):
        model = OllamaModel([("model", tiny), ("system", system)])
        store(tmp_path / folder, LIBRARY + "tiny:latest", model)
    store(tmp_path / "b", LIBRARY + "more:latest", OllamaModel([("model", tiny)]))
    both = OllamaStore([tmp_path / "a", tmp_path / "b"])
    assert {b.name: b.system for b in both.list()} == {"tiny:latest": "A", "more:latest": None}
    assert both.find(ModelRef.parse("tiny")).system == "A"  # type: ignore[union-attr]


# -- removal -------------------------------------------------------------------------------------


def test_a_model_of_ollamas_is_kept_unless_told(root: Path, library: Library, tiny: Path) -> None:
    path = store(root, LIBRARY + "tiny:latest", OllamaModel([("model", b"weights")]))
    before = blobs(root)
    with pytest.raises(BadRequest) as caught:
        library.remove("tiny")
    assert "vllama did not pull it" in caught.value.message
    assert "--force" in str(caught.value.hint)
    assert path.exists() and blobs(root) == before
    freed_bytes = library.remove("tiny", force=True)
    assert freed_bytes > 7
    assert not path.parent.exists() and blobs(root) == set()


def test_shared_blobs_stay_and_what_is_freed_is_told(root: Path, library: Library) -> None:
    one = OllamaModel([("model", b"w" * 5000), ("system", "one")])
    two = OllamaModel([("model", b"w" * 5000), ("system", "two, which is longer")])
    paths = {}
    for name, model in (("one", one), ("two", two)):
        paths[name] = store(root, f"{LIBRARY}{name}:latest", model)
        ours(root, name)
    size = paths["one"].stat().st_size
    assert library.remove("one") == len("one") + size
    assert blobs(root) == set(two.blobs)
    before = sum(p.stat().st_size for p in root.rglob("*") if p.is_file())
    freed = library.remove("two")
    after = sum(p.stat().st_size for p in root.rglob("*") if p.is_file())
    assert blobs(root) == set() and freed > 5000
    assert before - after == freed + 64  # our mark was a digest


def test_a_broken_manifest_still_protects_what_it_names(root: Path, library: Library) -> None:
    shared = OllamaModel([("model", b"weights")])
    store(root, LIBRARY + "tiny:latest", shared)
    broken = root / "manifests" / LIBRARY / "cut" / "latest"
    broken.parent.mkdir()
    broken.write_bytes(shared.manifest[:-3])
    freed = library.remove("tiny", force=True)
    assert shared.layer("model") in blobs(root)
    assert freed == len(shared.manifest)  # the config is named by both too


def test_links_and_second_names_free_nothing(root: Path, library: Library, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(b"w" * 9000)
    made = OllamaModel([("model", weights), ("system", "x" * 700)])
    path = store(root, LIBRARY + "tiny:latest", made)  # the weights are a link
    config = made.document["config"]
    (root / "blobs" / f"sha256-{made.layer('system')}").rename(tmp_path / "text")
    os.link(tmp_path / "text", root / "blobs" / f"sha256-{made.layer('system')}")
    size = path.stat().st_size
    assert library.remove("tiny", force=True) == size + config["size"]
    assert weights.exists() and blobs(root) == set()


def test_what_ollama_pulled_again_is_ollamas(root: Path, library: Library) -> None:
    path = store(root, LIBRARY + "tiny:latest", OllamaModel([("model", b"weights")]))
    ours(root, "tiny")
    path.write_bytes(path.read_bytes() + b"\n")  # another manifest of the same name
    with pytest.raises(BadRequest):
        library.remove("tiny")


def test_a_store_that_cannot_be_written(root: Path, library: Library) -> None:
    path = store(root, LIBRARY + "tiny:latest", OllamaModel([("model", b"weights")]))
    (root / ".vllama").write_text("no folder: root may write into any")
    with pytest.raises(VllamaError, match="cannot remove 'tiny:latest'"):
        library.remove("tiny", force=True)
    assert path.exists()


def test_a_created_model_stands_on_one_of_ollamas(
    root: Path, library: Library, tiny: Path, tmp_path: Path
) -> None:
    from vllama.models.create import NewModel, copy, create

    store(root, LIBRARY + "tiny:latest", OllamaModel([("model", tiny), ("system", "a")]))
    base = library.find("tiny").bundle
    made = create(library, NewModel(name="mine", base=base, template="{{ .Prompt }}"))
    assert (made.path, made.key, made.base, made.system) == (base.path, base.key, base.name, "a")
    assert copy(library, base, "second:latest").path == base.path
    assert not (tmp_path / "data" / "blobs").exists() or not any(
        (tmp_path / "data" / "blobs").iterdir()
    )
    library.remove("tiny", force=True)
    with pytest.raises(BadModelFile, match="is missing"):
        library.info(library.find("mine").bundle)


# -- pure ----------------------------------------------------------------------------------------


@given(st.binary(max_size=300))
def test_any_bytes_are_a_manifest_or_a_reason(content: bytes) -> None:
    try:
        parse_manifest(content)
    except ValueError as error:
        assert str(error).startswith("its manifest ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["layers", "config", "digest", "size", "mediaType"]), inner
        )
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_a_manifest_or_a_reason(value: object) -> None:
    try:
        parse_manifest(json.dumps(value).encode())
    except ValueError as error:
        assert str(error).startswith("its manifest ")


@given(st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=6))
def test_manifests_name_each_blob_once(contents: list[bytes]) -> None:
    made = OllamaModel([("license", content) for content in contents])
    manifest = parse_manifest(made.manifest)
    assert {blob.digest for blob in manifest.blobs} == set(made.blobs)
    assert len(manifest.blobs) == len(set(manifest.blobs))
    assert manifest.size_bytes == made.size
    assert find_digests(made.manifest) == set(made.blobs)
    assert manifest.config is not None and manifest.config.kind == CONFIG
    assert IMAGE not in manifest.layers[0].kind


HUB = None
MIRROR = "https://mirror.example/x"


@pytest.mark.parametrize(
    ("text", "registry", "address", "stored", "asked"),
    [
        ("tiny", None, HUB, None, None),
        ("user/tiny", None, HUB, None, None),
        ("user/tiny", MIRROR, HUB, None, None),
        ("hf.co/org/tiny", MIRROR, HUB, None, None),
        ("./tiny.gguf", MIRROR, HUB, None, None),
        ("tiny", MIRROR, MIRROR, "tiny:latest", False),
        ("tiny", "127.0.0.1:5000", "http://127.0.0.1:5000", "tiny:latest", False),
        ("tiny", "mirror.example", "https://mirror.example", "tiny:latest", False),
        ("tiny", "http://mirror.example/", "http://mirror.example", "tiny:latest", False),
        ("ollama://tiny:1b", None, "https://registry.ollama.ai", "tiny:1b", True),
        ("ollama://user/tiny", None, "https://registry.ollama.ai", "user/tiny:latest", True),
        ("ollama://user/tiny", MIRROR, MIRROR, "user/tiny:latest", True),
        ("ollama://hf.co/org/tiny:Q8_0", None, "https://hf.co", "hf.co/org/tiny:Q8_0", True),
        ("reg.example/a/b", None, "https://reg.example", "reg.example/a/b:latest", True),
        ("reg.example/a/b", MIRROR, "https://reg.example", "reg.example/a/b:latest", True),
        ("https://reg.example/a/b:c", None, "https://reg.example", "reg.example/a/b:c", True),
        ("localhost:5000/a/b", None, "http://localhost:5000", "localhost:5000/a/b:latest", True),
        ("https://localhost:5000/a/b", None, "https://localhost:5000", None, True),
        ("http://127.0.0.2:80/a/b", None, "http://127.0.0.2:80", None, True),
    ],
)
def test_which_registry_a_name_means(
    text: str, registry: str | None, address: str | None, stored: str | None, asked: bool | None
) -> None:
    found = find_target(ModelRef.parse(text), registry)
    if address is None:
        assert found is None
        return
    assert found is not None
    assert (found.address, found.asked) == (address, asked)
    if stored:
        assert found.name.display == stored
