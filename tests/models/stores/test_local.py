"""Models created here: what is kept, what it stands on, what removal frees."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.models.conftest import open_offline
from tests.tiny import TEMPLATE, make_weights, write_tiny_gguf
from vllama.base.errors import BadModelFile, BadRequest, DiskFull, InvalidModelRef
from vllama.models.create import NewModel, check_new_name, choose_quant, copy, create, make_bundle
from vllama.models.library import Library, open_library
from vllama.models.names.ref import CloudDisabled, ModelRef
from vllama.models.settings import ModelsSettings
from vllama.models.stores.base import Store
from vllama.models.stores.blobs import ORPHAN_S, BlobStore
from vllama.models.stores.local import LocalStore
from vllama.models.types import Bundle, Format


@pytest.fixture
def home(tmp_path: Path, tiny: Path) -> Path:
    """A folder with one model of the user's own."""
    (tmp_path / "own").mkdir()
    shutil.copy(tiny, tmp_path / "own" / "tiny.gguf")
    return tmp_path


@pytest.fixture
def library(home: Path) -> Library:
    return open_offline(home, folders=(home / "own",))


def make(library: Library, name: str, base: str = "tiny", **settings):
    return create(library, NewModel(name=name, base=library.find(base).bundle, **settings))


def upload(library: Library, path: Path) -> str:
    content = path.read_bytes()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    writer = library.local.blobs.writer(digest, len(content))
    writer.write(content)
    writer.finish()
    writer.discard()
    return digest


def blobs(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "data" / "blobs").iterdir())


def test_a_created_model_is_a_small_file_that_points_at_its_base(library: Library, home: Path):
    base = library.find("tiny").bundle
    said: list[str] = []
    recipe = NewModel(
        name="Mine",
        base=base,
        parameters={"temperature": 0.1},
        system="Be brief.",
        template="{{ .Prompt }}",
        messages=({"role": "user", "content": "hi"},),
        license="MIT",
    )
    made = create(library, recipe, said.append)
    path = home / "data/models/registry.ollama.ai/library/mine/latest.json"
    assert path.stat().st_size < 1000
    assert made.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (made.name, made.store, made.base) == ("Mine:latest", "created", "tiny:latest")
    assert (made.key, made.path, made.size_bytes) == (base.key, base.path, base.size_bytes)
    assert (made.parameters, made.system) == ({"temperature": 0.1}, "Be brief.")
    assert (made.template, made.license) == ("{{ .Prompt }}", "MIT")
    assert made.messages == ({"role": "user", "content": "hi"},)
    assert library.find("MINE:Latest").bundle == made
    assert {b.name for b in library.list()} == {"Mine:latest", "tiny:latest"}
    assert library.info(made).chat_template == TEMPLATE
    assert said[0] == f"using existing layer sha256:{base.digest}"
    assert sum(line.startswith("creating new layer sha256:") for line in said) == 5
    assert said[-2:] == ["writing manifest", "success"]


def test_on_top_of_a_created_model(library: Library):
    make(library, "one", parameters={"seed": 1, "top_k": 2}, system="a", template="t")
    two = make(library, "two", "one", parameters={"seed": 3})
    assert two.parameters == {"seed": 3, "top_k": 2}
    assert (two.system, two.template, two.base) == ("a", "t", "tiny:latest")
    assert make(library, "two", "two", system="b").parameters == two.parameters
    library.remove("one")
    assert library.info(library.find("two").bundle).context_length == 256


def test_a_name_keeps_its_spelling_and_may_hide_another(library: Library, home: Path):
    make(library, "TINY", system="x")
    assert [b.name for b in library.list()] == ["TINY:latest"]
    assert make(library, "tiny", system="y").name == "TINY:latest"
    assert library.find("tiny").bundle.system == "y"
    assert library.find("tiny").bundle.path == home / "own" / "tiny.gguf"
    library.remove("tiny")
    assert library.find("tiny").bundle.store == "folder"


def test_copies(library: Library):
    made = make(library, "one", system="a")
    second = copy(library, made, "team/two:v1")
    assert (second.name, second.system, second.path) == ("team/two:v1", "a", made.path)
    assert second.digest == made.digest  # clients group the names of one model by it
    assert library.find("Team/Two:V1").bundle == second
    assert copy(library, library.find("tiny").bundle, "three:latest").base == "tiny:latest"
    assert copy(library, made, "ONE:latest").name == "one:latest"


@pytest.mark.parametrize(
    ("text", "display"),
    [
        ("a", "a:latest"),
        ("A:b", "A:b"),
        ("n/a", "n/a:latest"),
        ("localhost:5000/n/a:b", "localhost:5000/n/a:b"),
        ("", None),
        ("a b", None),
        ("./a", None),
        ("http://n/a", None),
        ("hf.co/o/r", None),
        ("a:cloud", None),
        ("n/a:8b-cloud", None),
        ("a:" + "t" * 81, None),
        ("n/a:" + "t" * 81, None),
    ],
)
def test_names(text: str, display: str | None):
    if display is None:
        with pytest.raises(BadRequest, match="invalid model name"):
            check_new_name(text)
    else:
        assert check_new_name(text) == display


def test_a_base_that_has_gone(library: Library, home: Path):
    make(library, "mine")
    (home / "own" / "tiny.gguf").unlink()
    made = library.find("mine").bundle
    assert [b.name for b in library.list()] == ["mine:latest"]
    with pytest.raises(BadModelFile) as caught:
        library.info(made)
    assert caught.value.message == ("cannot use 'mine:latest': its base, 'tiny:latest', is missing")
    assert "vllama pull tiny:latest" in str(caught.value.hint)
    library.remove("mine")
    assert "mine:latest" not in [bundle.name for bundle in library.list()]


def test_a_base_that_has_moved_is_found_by_its_name(library: Library, home: Path):
    make(library, "mine", system="s")
    (home / "own" / "sub").mkdir()
    (home / "own" / "tiny.gguf").rename(home / "own" / "sub" / "tiny.gguf")
    moved = (
        open_library(
            ModelsSettings(
                hf_cache_dir=home / "hub",
                data_dir=home / "data",
                folders=(home / "own" / "sub",),
                package_dirs=(),
            )
        )
        .find("mine")
        .bundle
    )
    assert (moved.path, moved.system) == (home / "own" / "sub" / "tiny.gguf", "s")


def test_bases_of_other_servers_do_not_have_all_records_read_again(library: Library, home: Path):
    class Elsewhere(Store):
        """A server that comes and goes; `served` are its models now."""

        is_elsewhere, is_watched = True, False
        served: tuple[Bundle, ...] = ()

        def read_all(self):
            return self.served

        def find(self, ref):
            return next(iter(self.served), None)

    make(library, "mine")
    other = Elsewhere()
    store = LocalStore(home / "data", (other,))
    assert [bundle.name for bundle in store.list()] == ["mine:latest"]
    assert store.is_watched
    (home / "own" / "tiny.gguf").unlink()  # from now on its base may be anywhere
    assert store.list()[0].files and not store.is_watched
    other.served = (replace(library.local.list()[0], path=home / "there", store="there"),)
    assert store.list()[0].path == home / "there"


def test_of_a_file_that_nobody_lists(library: Library, home: Path, tiny: Path):
    made = make(library, "mine", str(tiny))
    assert (made.base, made.path) == (None, tiny)
    assert library.info(library.find("mine").bundle).context_length == 256


def test_the_template_of_the_file_is_not_kept_again(library: Library):
    said: list[str] = []
    recipe = NewModel(name="mine", base=library.find("tiny").bundle, template=TEMPLATE)
    assert create(library, recipe, said.append).template is None
    assert not any("template" in line for line in said)


@pytest.mark.parametrize(
    ("wanted", "quant"),
    [(None, None), ("", None), ("f16", None), ("q4_k_m", "Q4_K_M"), ("Q8_0", "Q8_0")],
)
def test_what_has_to_be_made_of_a_base(library: Library, wanted: str | None, quant: str | None):
    assert choose_quant(library, library.find("tiny").bundle, wanted, tuple) == quant


@pytest.mark.parametrize(
    ("wanted", "formats", "quant"),
    [
        (None, (Format.GGUF,), "BF16"), (None, (), "BF16"), ("Q8_0", (Format.GGUF,), "Q8_0"),
        (None, (Format.SAFETENSORS, Format.GGUF), None), (None, (Format.SAFETENSORS,), None),
        ("q4_k_m", (Format.SAFETENSORS,), "Q4_K_M"),
    ],
)  # fmt: skip
def test_safetensors_that_no_engine_reads_are_converted(home, library, wanted, formats, quant):
    folder = home / "weights"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(make_weights(2, 2))
    assert choose_quant(library, library.find(str(folder)).bundle, wanted, lambda: formats) == quant


@pytest.mark.parametrize("kind", ["adapter", "mmproj"])
def test_what_is_no_model_becomes_none(library: Library, home: Path, kind: str):
    path = write_tiny_gguf(home / "x.gguf", extra=lambda writer: writer.add_type(kind))
    with pytest.raises(BadRequest, match=f"its type is {kind}"):
        create(library, NewModel(name="mine", base=library.find(str(path)).bundle))


@pytest.mark.parametrize("quant", ["Q2", "Q5_K_M"])
def test_what_ollama_does_not_quantize_to(library: Library, quant: str):
    with pytest.raises(BadRequest, match=f'unsupported quantization "{quant}"'):
        choose_quant(library, library.find("tiny").bundle, quant, tuple)


def test_damaged_files_of_ours_hide_nothing_else(library: Library, home: Path):
    make(library, "one")
    path = home / "data/models/registry.ollama.ai/library"
    (path / "bad").mkdir()
    (path / "bad" / "latest.json").write_text('{"name": 3}')
    assert {b.name for b in library.list()} == {"one:latest", "tiny:latest"}


def test_many_at_once(library: Library):
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            make(library, "same", system=str(number))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert library.find("same").bundle.system in {str(n) for n in range(12)}


# -- uploads ----------------------------------------------------------------------------------


def test_uploads_live_as_long_as_a_model_needs_them(library: Library, home: Path, tiny: Path):
    digest = upload(library, tiny)
    base = make_bundle([("t-F16.gguf", library.local.blobs.path(digest))])
    made = create(library, NewModel(name="one", base=base))
    record = json.loads(
        (home / "data/models/registry.ollama.ai/library/one/latest.json").read_text()
    )
    assert record["base"]["path"] == f"blobs/{digest.replace(':', '-')}"
    assert library.info(made).parameter_count == 119_488
    copy(library, made, "two:latest")
    assert library.remove("one") < 1000
    assert len(blobs(home)) == 1
    assert library.remove("two") > tiny.stat().st_size
    assert blobs(home) == []
    with pytest.raises(BadRequest, match=r"blob sha256:\w+ not found"):
        library.local.write(made)


def test_replacing_a_model_frees_its_upload(library: Library, home: Path, tiny: Path):
    first = upload(library, tiny)
    base = make_bundle([("t.gguf", library.local.blobs.path(first))])
    create(library, NewModel(name="one", base=base))
    second = upload(library, write_tiny_gguf(home / "other.gguf", seed=7))
    base = make_bundle([("t.gguf", library.local.blobs.path(second))])
    create(library, NewModel(name="one", base=base))
    assert blobs(home) == [second.replace(":", "-")]


def test_what_a_killed_server_has_left_half_written_goes_at_the_next_start(
    library: Library, home: Path, tiny: Path
):
    make(library, "one")
    blob_folder = library.local.blobs.path("sha256:" + "0" * 64).parent
    records = [path for path in home.rglob("*.json") if "one" in str(path)]
    folders = [blob_folder, *(path.parent for path in records)]
    assert len(folders) > 1
    blob_folder.mkdir(exist_ok=True)
    old, new = ([folder / f".upload-{age}" for folder in folders] for age in ("old", "new"))
    for path in (*old, *new):
        path.write_text("x")
        if path in old:
            os.utime(path, (1, 1))
    library.local.sweep()
    assert [path.exists() for path in (*old, *new)] == [False] * len(old) + [True] * len(new)
    assert library.find("one").bundle


def test_forgotten_uploads_go_with_the_next_removal(library: Library, home: Path, tiny: Path):
    old = library.local.blobs.path(upload(library, tiny))
    upload(library, write_tiny_gguf(home / "other.gguf", seed=7))
    os.utime(old, (0, old.stat().st_mtime - ORPHAN_S - 1))
    make(library, "one")
    library.remove("one")
    assert len(blobs(home)) == 1
    assert old.name not in blobs(home)


def test_files_that_are_no_model(library: Library, home: Path, tiny: Path):
    text = home / "x.txt"
    text.write_text("hello")
    adapter = write_tiny_gguf(home / "a.gguf", extra=lambda w: w.add_type("adapter"))
    part = write_tiny_gguf(home / "p.gguf", extra=lambda w: w.add_uint16("split.count", 3))
    projector = write_tiny_gguf(home / "m.gguf", extra=lambda w: w.add_type("mmproj"))
    for files, says in (
        ([text], "cannot use 'x.txt'"),
        ([adapter], "it is an adapter"),
        ([part], "one part of a split model"),
        ([projector], "0 model files and 1 projectors"),
        ([tiny, tiny], "2 model files"),
    ):
        with pytest.raises(BadRequest) as caught:
            make_bundle([(path.name, path) for path in files])
        assert says in caught.value.message
    both = make_bundle([(path.name, path) for path in (projector, tiny)])
    assert (both.path, both.projector) == (tiny, projector)


def test_a_blob_has_its_name_only_when_it_is_right(tmp_path: Path):
    store = BlobStore(tmp_path / "blobs")
    digest = "sha256:" + hashlib.sha256(b"abc").hexdigest()
    writer = store.writer(digest, None)
    writer.write(b"ab")
    assert not store.has(digest)
    with pytest.raises(BadRequest, match="digest mismatch"):
        writer.finish()
    writer.discard()
    assert list(store.folder.iterdir()) == []
    for bad in (
        "sha256:abc",
        "abc",
        "",
        "sha256:../../etc/passwd",
        digest + "0",
        f"md5:{'0' * 64}",
    ):
        with pytest.raises(BadRequest, match="invalid digest format"):
            store.has(bad)


def test_an_upload_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vllama.models.stores.blobs.get_free_bytes", lambda path: 10**9)
    store = BlobStore(tmp_path / "blobs")
    with pytest.raises(DiskFull, match=r"2 GB is needed and 1 GB is free"):
        store.writer("sha256:" + "0" * 64, 2 * 10**9)
    assert not (tmp_path / "blobs").exists()


def test_cloud_names(library: Library):
    for name in ("gpt-oss:120b-cloud", "m:cloud", "n/m:cloud"):
        with pytest.raises(CloudDisabled, match="remote model is unavailable") as caught:
            library.find(name)
        assert caught.value.status == 403
    with pytest.raises(CloudDisabled):
        library.remote.pull("m:cloud")
    assert library.find("tiny:local").bundle.name == library.find("tiny:latest:local").bundle.name
    for name in ("m:cloud:local", "m:local:cloud"):
        with pytest.raises(InvalidModelRef, match="use either :local or :cloud, not both"):
            ModelRef.parse(name)
