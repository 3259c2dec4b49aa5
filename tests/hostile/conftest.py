"""A hostile server, and models that are to be had from there; a fixture of the models' tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.rogue import Rogue, rogue
from tests.models.conftest import hub_library
from vllama.models.library import Library, open_library
from vllama.models.settings import ModelsSettings

__all__ = ["hub_library"]


@pytest.fixture
def server() -> Iterator[Rogue]:
    with rogue() as running:
        yield running


@pytest.fixture
def settings(tmp_path: Path, server: Rogue, hub_library: None) -> ModelsSettings:
    return ModelsSettings(
        hf_cache_dir=tmp_path / "hub",
        hf_endpoint=server.url,
        hf_token="hf_secret",
        package_dirs=(),
        ollama_dirs=(tmp_path / "ollama",),
        data_dir=tmp_path / "data",
        request_timeout_s=30.0,
        stall_timeout_s=30.0,
        attempts=1,
        backoff_s=0.01,
    )


@pytest.fixture
def library(settings: ModelsSettings) -> Library:
    return open_library(settings)
