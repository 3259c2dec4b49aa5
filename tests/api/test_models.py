"""`vllama.api`: resolve, plan and pull, with typed results, against the stand-in hub."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import vllama
from tests.hub import StandInHub
from tests.tiny import write_tiny_gguf
from vllama.api import plan, pull, resolve
from vllama.base.errors import ModelNotFound

NAME = "hf.co/test/Tiny-GGUF:Q8_0"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, with the fake engine."""
    from tests.server_process import FAKE

    monkeypatch.syspath_prepend(str(FAKE))
    for name, value in {
        "HOME": tmp_path, "VLLAMA_DATA_DIR": tmp_path / "data", "HF_HOME": tmp_path / "hf",
        "VLLAMA_FOLDERS": tmp_path / "own",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))
    (tmp_path / "own").mkdir()
    return tmp_path


def test_a_model_on_this_disk(home: Path) -> None:
    write_tiny_gguf(home / "own" / "mine.gguf", n_ctx=4096)
    found = resolve("mine")
    assert found.is_here and found.bundle.name == "mine:latest"
    decided = plan("mine", engine="fake", context_length=1024)
    assert (decided.engine, decided.settings.context_length) == ("fake", 1024)
    assert decided.reasons
    assert pull("mine").path == found.bundle.path


def test_a_model_of_the_hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = home / "repo"
    repo.mkdir()
    write_tiny_gguf(repo / "Tiny-Q8_0.gguf", n_ctx=4096)
    with StandInHub() as hub:
        hub.add_repo("test/Tiny-GGUF", repo)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        found = resolve(NAME, engine="fake")
        assert not found.is_here and found.resolution is not None
        assert found.resolution.repository.hub_id == "test/Tiny-GGUF"
        assert plan(NAME, engine="fake").engine == "fake"
        seen: list[str] = []
        bundle = pull(NAME, progress=lambda event: seen.append(event.status))
        assert bundle.path.is_file() and bundle.name == NAME
        assert seen[0] == "pulling manifest" and seen[-1] == "success"
        assert resolve(NAME).is_here
    shutil.rmtree(repo)


def test_what_is_nowhere(home: Path) -> None:
    with pytest.raises(ModelNotFound):
        resolve("no-such-model-anywhere")


def test_the_package_has_few_names_of_its_own() -> None:
    assert set(vllama.__all__) == {"Server", "serve", "__version__"}
    with pytest.raises(AttributeError, match="has no attribute 'sever'"):
        vllama.sever  # noqa: B018
