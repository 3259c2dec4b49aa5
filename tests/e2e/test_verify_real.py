"""`vllama verify` with real engines: two of llama.cpp, and vLLM against one of them."""

import json
import subprocess
import sys

import pytest

from tests.e2e.conftest import MODEL
from tests.e2e.test_llama_server_real import engine_at, weights
from tests.e2e.test_vllm_real import environment, model  # noqa: F401 (fixtures)
from tests.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PROMPTS = [
    "The capital of France is",
    "Monday, Tuesday, Wednesday,",
    "The rice 🍚, the cat 🐈, 東京は",  # answered by characters of several tokens
]


def verify(home, *arguments: str, prompts=PROMPTS, paths: str):
    """Run the command in a home of its own; return its exit code and what it prints as JSON."""
    server = Server(home, fake=False, env={"VLLAMA_ENGINE_PATHS": paths})
    done = subprocess.run(
        [sys.executable, "-m", "vllama", "verify", *arguments, "--prompts", "-", "--json"],
        env=server.env, input=json.dumps(prompts), text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def check_numbers(told) -> None:
    """Two engines with the same weights cannot be far apart where they had the same text."""
    assert told["compared"] > 10
    assert 0 <= told["logprob_mean"] < 0.25 and told["logprob_mean"] <= told["logprob_max"]
    assert 0 <= told["kl_mean"] < 0.1
    first, second, _ = told["prompts"]
    assert all(answer.startswith(" Paris") for answer in first["answers"])
    assert all("Thursday" in answer for answer in second["answers"])


def test_two_servers_of_llama_cpp(tmp_path):
    weights()
    arguments = (MODEL, "--engines", "llama.cpp,llama-server", "--max-tokens", "12")
    status, told = verify(tmp_path, *arguments, paths=f"llama-server={engine_at()}")
    check_numbers(told)
    assert status == (0 if told["agreement"] >= told["min_agreement"] else 1)
    assert [one["engine"] for one in told["engines"]] == ["llama.cpp", "llama-server"]
    # the characters that the one drops from answers with log probabilities are there
    assert all(not text.isascii() for text in told["prompts"][2]["answers"])


def test_an_engine_agrees_with_itself(tmp_path):
    weights()
    arguments = (MODEL, "--engines", "llama-server,llama-server", "--max-tokens", "12")
    paths = f"llama-server={engine_at()}"
    status, told = verify(tmp_path, *arguments, "--min-agreement", "1", paths=paths)
    assert (status, told["agreement"], told["same_answers"]) == (0, 1.0, len(PROMPTS))
    assert told["logprob_max"] < 1e-3 and told["kl_max"] < 1e-3


def test_vllm_and_llama_cpp(environment, model, tmp_path):  # noqa: F811
    engines = f"vllm={model},llama.cpp={MODEL}"
    status, told = verify(tmp_path, "--engines", engines, paths=f"vllm={environment}")
    check_numbers(told)
    assert status == (0 if told["agreement"] >= told["min_agreement"] else 1)
    assert [one["format"] for one in told["engines"]] == ["safetensors", "gguf"]
