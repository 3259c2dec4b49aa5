"""On Linux the platform's folders are told without `platformdirs`, and are the same."""

from __future__ import annotations

import sys
from pathlib import Path

import platformdirs
import pytest

from vllama import config
from vllama.base import folders

PLACES = (None, "", "relative", "/somewhere", "/with/slash/", "~/x", " /spaced")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="XDG is for Linux")
@pytest.mark.parametrize("chosen", PLACES)
@pytest.mark.parametrize("home", ["/home/somebody", "/", "relative", None])
def test_the_folders_are_those_of_platformdirs(
    chosen: str | None, home: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("XDG_DATA_HOME", chosen), ("XDG_CONFIG_HOME", chosen), ("HOME", home)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    expected = platformdirs.user_data_path("vllama", appauthor=False)
    assert folders.default_data_dir() == expected
    expected = platformdirs.user_config_path("vllama", appauthor=False)
    assert folders.default_config_dir() == expected


def test_relative_folders_hold_wherever_an_engine_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"VLLAMA_DATA_DIR": "data", "OLLAMA_MODELS": "models", "HF_HOME": "hf"}
    loaded = config.load({}, names | {"VLLAMA_ENGINE_PATHS": "llama-server=bin/llama-server"})
    assert (loaded.data_dir, loaded.log_dir) == (tmp_path / "data", tmp_path / "data" / "logs")
    assert (loaded.models_dir, loaded.hf_cache_dir) == (
        tmp_path / "models",
        tmp_path / "hf" / "hub",
    )
    assert loaded.engine_paths == (("llama-server", tmp_path / "bin" / "llama-server"),)
