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
    for place in ("org/repo", "notes", "llama3.2", "hf.co/org/repo"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "llama3.2/config.json").touch()
    (tmp_path / "org/read.me").touch()
    for path in ("org/repo", "org/read.me", "llama3.2", "../" + tmp_path.name):
        assert whole_path(path) == str(tmp_path / path)
    for name in (
        "smollm2:135m",
        "org/other",
        "hf.co/org/repo",
        "other.gguf",
        "a/b.gguf",
        "notes",
        "n" * 300,
    ):
        assert whole_path(name) == name
