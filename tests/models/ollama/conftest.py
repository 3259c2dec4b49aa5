"""Registries, and what a pull leaves on the disk."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest

from tests.hub import Fault
from tests.lacking import lacking
from tests.registry import (
    PARAMS,
    OllamaModel,
    RealRegistry,
    StandInRegistry,
    find_registry,
)
from vllama.models.ollama.layout import OllamaModels
from vllama.models.settings import ModelsSettings

WEIGHTS = Random(5).randbytes(1_000_000)  # 16 parts of 64 KiB
NAME = "library/tiny:latest"
STATUSES = ["verifying sha256 digest", "writing manifest", "success"]


@pytest.fixture
def settings(tmp_path: Path) -> ModelsSettings:
    return ModelsSettings(
        hf_cache_dir=tmp_path / "hub",
        data_dir=tmp_path / "data",
        hf_endpoint="http://127.0.0.1:9",
        package_dirs=(),
        ollama_dirs=(tmp_path / "ollama",),
        part_bytes=64 * 1024,
        stall_timeout_s=10.0,
        request_timeout_s=5.0,
        attempts=3,
        backoff_s=0.01,
    )


@pytest.fixture
def registry() -> Iterator[StandInRegistry]:
    with StandInRegistry() as running:
        running.add(NAME, model())
        yield running


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRegistry]:
    program = find_registry()
    if program is None:
        lacking("docker-registry is not installed; make test fetches it with apt")
    with RealRegistry(program, tmp_path_factory.mktemp("registry")) as running:
        yield running


def model(weights: bytes = WEIGHTS, **texts: object) -> OllamaModel:
    layers = {"template": "{{ .Prompt }}", "system": "Be brief.", "params": PARAMS, **texts}
    return OllamaModel([("model", weights), *layers.items()])


def stored(settings: ModelsSettings) -> OllamaModels:
    return OllamaModels(settings.ollama_dirs[0])


def files(settings: ModelsSettings) -> list[str]:
    """Return what real Ollama would see: manifests and blobs."""
    root = settings.ollama_dirs[0]
    found = [*root.glob("manifests/**/*"), *root.glob("blobs/*")]
    return sorted(p.relative_to(root).as_posix() for p in found if p.is_file())


def expected(host: str, *models: OllamaModel, name: str = "library/tiny/latest") -> list[str]:
    blobs = {f"blobs/sha256-{digest}" for m in models for digest in m.blobs}
    return sorted([*blobs, f"manifests/{host}/{name}"])


class Once:
    """A fault at the first `times` requests for the weights' bytes."""

    def __init__(self, fault: Fault, times: int = 1) -> None:
        self.fault, self.left, self.lock = fault, times, threading.Lock()
        self.digest = hashlib.sha256(WEIGHTS).hexdigest()

    def __call__(
        self, method: str, path: str, headers: Mapping[str, str], server: str
    ) -> Fault | None:
        asked = {name.lower(): value for name, value in headers.items()}.get("range")
        with self.lock:
            if self.digest not in path or asked == "bytes=0-0" or self.left == 0:
                return None
            self.left -= 1
            return self.fault
