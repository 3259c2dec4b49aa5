"""Which `llama-quantize` is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.convert.tools import write_quantizer
from vllama.base.errors import EngineMissing
from vllama.engines.base import DiscoveredEngines, Installation
from vllama.engines.llamacpp.quantizer import find_quantizer


def discovered(executable: Path | None) -> DiscoveredEngines:
    found = Installation(engine="llama-server", version="b1", executable=executable)
    return DiscoveredEngines(installations={found.engine: found})


def test_the_one_beside_the_engine_comes_before_that_on_path(tmp_path: Path) -> None:
    own, other = write_quantizer(tmp_path / "own"), write_quantizer(tmp_path / "other")
    environ = {"PATH": str(other.parent), "SECRET": "s"}
    quantizer = find_quantizer(discovered(own.with_name("llama-server")), environ)
    assert quantizer.command == (str(own),)
    assert "SECRET" not in quantizer.env
    for without in (tmp_path / "bin" / "llama-server", None):
        assert find_quantizer(discovered(without), environ).command == (str(other),)


def test_the_command_of_the_program_with_commands(tmp_path: Path) -> None:
    engine = Installation(
        engine="llama-server", version="b1", executable=tmp_path / "llama", command=("serve",)
    )
    found = DiscoveredEngines(installations={engine.engine: engine})
    other = write_quantizer(tmp_path / "other")
    quantizer = find_quantizer(found, {"PATH": str(other.parent)})
    assert quantizer.command == (str(tmp_path / "llama"), "quantize")
    beside = write_quantizer(tmp_path)  # Homebrew has both
    assert find_quantizer(found, {}).command == (str(beside),)


def test_without_one_the_way_to_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match="llama-quantize is not installed") as caught:
        find_quantizer(DiscoveredEngines(), {"PATH": str(tmp_path)})
    assert "--compile" in str(caught.value.hint) and "Q8_0" in str(caught.value.hint)
