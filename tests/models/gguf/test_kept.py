"""Kept headers are those that the files have, whatever happens to files and database."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.models.gguf.test_header import header, strings, text
from vllama.base.errors import BadModelFile
from vllama.models.headers.gguf import header as module
from vllama.models.headers.kept import FILE_NAME, KeptHeaders

LONG = [f"token{number}" for number in range(5000)]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the files that are really read."""
    found: list[Path] = []
    map_file = module.map_file
    monkeypatch.setattr(module, "map_file", lambda path: found.append(path) or map_file(path))
    return found


def write(path: Path, tokens: list[str]) -> Path:
    """Write a model that has the first token as its name."""
    extra = text("general.name") + b"\x08\x00\x00\x00" + text(tokens[0])
    path.write_bytes(header(strings("tokenizer.ggml.tokens", tokens) + extra, 2))
    return path


@pytest.fixture(autouse=True)
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the files have been written a while ago."""
    monkeypatch.setattr("vllama.models.headers.kept.FRESH_NS", -(10**12))


def spoil(database: Path) -> None:
    database.write_bytes(b"no database" * 1000)


def empty(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE headers SET header = x'00'")
    connection.close()


def block(database: Path) -> None:
    database.unlink()
    database.mkdir()


def test_a_header_is_read_once(tmp_path: Path, reads: list[Path]) -> None:
    model = write(tmp_path / "a.gguf", LONG)
    first = KeptHeaders(tmp_path / "data").read(model)
    again = KeptHeaders(tmp_path / "data").read(model)
    assert again == first
    assert again.metadata["tokenizer.ggml.tokens"].load() == LONG  # type: ignore[attr-defined]
    assert reads == [model]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    kept = KeptHeaders(tmp_path / "data")
    for first in ("one", "two"):
        model = write(tmp_path / "a.gguf", [first, *LONG])
        os.utime(model, ns=(1, 1))
        assert kept.read(model).metadata["general.name"] == first


def test_a_file_that_is_being_written_is_not_kept(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllama.models.headers.kept.FRESH_NS", 10**12)
    model, kept = write(tmp_path / "a.gguf", LONG), KeptHeaders(tmp_path / "data")
    kept.read(model)
    kept.read(model)
    assert reads == [model, model]


@pytest.mark.parametrize("damage", [spoil, empty, block, Path.unlink])
def test_without_its_database_all_is_read(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    model = write(tmp_path / "a.gguf", LONG)
    first = KeptHeaders(tmp_path / "data").read(model)
    damage(tmp_path / "data" / FILE_NAME)
    assert KeptHeaders(tmp_path / "data").read(model) == first


def test_files_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    models = [write(tmp_path / f"{name}.gguf", LONG) for name in "ab"]
    kept = KeptHeaders(tmp_path / "data")
    for model in models:
        kept.read(model)
    models[0].unlink()
    with pytest.raises(BadModelFile, match="No such file"):
        kept.read(models[0])
    KeptHeaders(tmp_path / "data").read(models[1])
    with sqlite3.connect(tmp_path / "data" / FILE_NAME) as database:
        rows = database.execute("SELECT path FROM headers").fetchall()
    database.close()
    assert rows == [(str(models[1]),)]
