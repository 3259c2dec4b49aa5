"""A model named by its path, which the server could not read from its own folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllama.config.parse import whole_path


def test_paths_are_made_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").touch()
    assert whole_path("m.gguf") == whole_path("./m.gguf") == str(tmp_path / "m.gguf")
    assert whole_path("~/m.gguf") == str(Path.home() / "m.gguf")
    assert whole_path("/a/../m.gguf") == "/a/../m.gguf"
    for name in ("smollm2:135m", "org/repo", "hf.co/org/repo:Q4_K_M", "other.gguf", "a/b.gguf"):
        assert whole_path(name) == name
