"""Folders that cannot be written to: noticed before the server listens, and worked around."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.server_process import Server
from vllama import config
from vllama.base.errors import ConfigError
from vllama.server.preflight import move_unwritable


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A folder that nobody can make anything in, not even root: it is a file."""
    (tmp_path / "blocked").touch()
    return tmp_path / "blocked"


def test_a_server_runs_without_its_folders(tmp_path: Path, blocked: Path) -> None:
    env = {"VLLAMA_LOG_DIR": str(blocked / "logs"), "VLLAMA_RUN_DIR": str(blocked / "run")}
    with Server(tmp_path / "home", env=env | {"TMPDIR": str(tmp_path)}) as server:
        before, _, _ = server.output.partition("listening on")
        assert f"Warning: cannot write to '{blocked}/logs': " in before
        assert before.count("cannot write to") == 1 and "VLLAMA_DATA_DIR=FOLDER" in before
        server.model("plain")
        status, answer = server.post(
            "/api/generate", {"model": "plain", "prompt": "x", "stream": False}
        )
        assert status == 200, answer
    assert list(tmp_path.glob("vllama-*/log/plain-*/*.log"))


def test_nowhere_to_write(blocked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(config.load({}, {}), log_dir=blocked / "logs")
    monkeypatch.setattr(tempfile, "tempdir", str(blocked))
    with pytest.raises(ConfigError, match="cannot write to ") as caught:
        move_unwritable(settings)
    assert "VLLAMA_DATA_DIR" in str(caught.value.hint)


def test_nothing_to_move(tmp_path: Path) -> None:
    settings = replace(config.load({}, {}), log_dir=tmp_path / "l", run_dir=tmp_path / "r")
    assert move_unwritable(settings) == ({}, "")
