"""What `serve` offers where no engine is installed, on a terminal and without one."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines.test_install import Painter, make_offer, wheels
from tests.facts import CPU
from tests.machine.environments.installer import Fake
from vllama.base.errors import EnvironmentFailed
from vllama.cli.engine_install import describe_offer, find_offers, install_first
from vllama.engines import recipe
from vllama.engines.base import Installation, SearchPaths
from vllama.engines.install import Offer
from vllama.engines.llamacpp.llama_cpp_python import ENGINE as PYTHON_SERVER
from vllama.engines.llamacpp.llama_server import ENGINE as NATIVE
from vllama.engines.recipe import Recipe


@pytest.fixture
def offers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Offer]:
    monkeypatch.setattr(recipe, "find_libc", lambda: ("glibc", "2.39"))
    compiler = tmp_path / "bin" / "c++"
    compiler.parent.mkdir()
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    search = os.pathsep.join([str(compiler.parent), os.environ["PATH"]])
    return [
        make_offer(engine, CPU, tmp_path / "environments", search=search)
        for engine in (NATIVE, PYTHON_SERVER)
    ]


def test_what_each_offer_says(offers: list[Offer]) -> None:
    first, second = ("\n".join(describe_offer(each)) for each in offers)
    assert "why       runs on CPUs and GPUs" in first
    assert "llama.cpp (llama-server): llama.cpp b11434" in first
    assert "note      the project's own build, for any processor" in first
    assert "note      it is compiled, which takes about 4 minutes" in second


@pytest.mark.parametrize("yes", [False, True])
def test_no_wheel_turns_into_a_build_without_a_question(
    yes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in Fake(tmp_path / "uv").environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    painter = Painter(install=Recipe(wheels=(wheels("paint==1"),)))
    built = make_offer(painter, CPU, tmp_path / "e")
    built = replace(built, wheels=wheels("paint==1", compiled=True))
    ready = replace(built, wheels=wheels("nowhere"))
    if yes:
        install_first([ready, built], yes=True)
        assert "paint==1 is built from source instead" in capsys.readouterr().err
    else:
        with pytest.raises(EnvironmentFailed, match="nowhere"):
            install_first([ready, built], yes=False)


def test_the_wheel_is_installed_where_the_build_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in Fake(tmp_path / "uv").environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    painter, environments = Painter(install=Recipe(wheels=(wheels("paint==1"),))), tmp_path / "e"
    ready = make_offer(painter, CPU, environments)
    built = replace(ready, wheels=wheels("nowhere", compiled=True))
    install_first([built, ready], yes=False)
    assert "paint==1 is installed instead" in capsys.readouterr().err
    assert isinstance(painter.find(SearchPaths(environments=environments)), Installation)
    with pytest.raises(EnvironmentFailed):
        install_first([replace(built, folder=tmp_path / "other")], yes=False)


def test_what_cannot_be_installed_here_is_left_out(tmp_path: Path) -> None:
    assert find_offers(["external", "sglang-jax"], tmp_path) == []
