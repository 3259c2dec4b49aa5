"""Which `llama-quantize` is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.convert.tools import write_quantiser
from vllama.base.errors import EngineMissing
from vllama.engines.base import DiscoveredEngines, Installation
from vllama.engines.llamacpp.quantiser import find_quantiser


def discovered(executable: Path | None) -> DiscoveredEngines:
    found = Installation(engine="llama-server", version="b1", executable=executable)
    return DiscoveredEngines(installations={found.engine: found})


def test_the_one_beside_the_engine_comes_before_that_on_path(tmp_path: Path) -> None:
    own, other = write_quantiser(tmp_path / "own"), write_quantiser(tmp_path / "other")
    environ = {"PATH": str(other.parent), "SECRET": "s"}
    quantiser = find_quantiser(discovered(own.with_name("llama-server")), environ)
    assert quantiser.program == str(own)
    assert "SECRET" not in quantiser.env
    for without in (tmp_path / "bin" / "llama-server", None):
        assert find_quantiser(discovered(without), environ).program == str(other)


def test_without_one_the_way_to_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match="llama-quantize is not installed") as caught:
        find_quantiser(DiscoveredEngines(), {"PATH": str(tmp_path)})
    assert "--compile" in str(caught.value.hint) and "Q8_0" in str(caught.value.hint)
