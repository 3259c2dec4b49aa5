"""`vllama verify` with real engines: two of llama.cpp, and vLLM against one of them.

Two engines with the same trained weights are near each other, and no more: they add up in another
order. The model that counts has one answer, whatever adds it up.
"""

import json
import subprocess
import sys

import pytest

from tests.e2e.conftest import COUNTS, MODEL, SMILES, engine_at, weights
from tests.e2e.test_vllm_real import environment, make_folder  # noqa: F401 (a fixture)
from tests.server_process import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PROMPTS = [
    "The capital of France is",
    "Monday, Tuesday, Wednesday,",
    "The rice 🍚, the cat 🐈, 東京は",
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
    assert told["compared"] >= len(PROMPTS)  # the first token of each answer, if no other
    assert 0 <= told["logprob_mean"] < 0.25 and told["logprob_mean"] <= told["logprob_max"]
    assert 0 <= told["kl_mean"] < 0.1


@pytest.mark.other_engines
def test_two_servers_of_llama_cpp(tmp_path):
    weights()
    arguments = (MODEL, "--engines", "llama-cpp-python,llama-server", "--max-tokens", "12")
    status, told = verify(tmp_path, *arguments, paths=f"llama-server={engine_at()}")
    check_numbers(told)
    assert status == 0, told["reason"]  # the weights are the same, whatever the texts are
    assert [one["engine"] for one in told["engines"]] == ["llama-cpp-python", "llama-server"]


@pytest.mark.other_engines
@pytest.mark.parametrize(("model", "said"), [(COUNTS, " one two three four"), (SMILES, "😀")])
def test_two_servers_that_cannot_but_agree(counting, tmp_path, model, said):
    """One of them drops characters of several tokens from answers with log probabilities."""
    arguments = (str(counting / f"{model}.gguf"), "--engines", "llama-cpp-python,llama-server")
    limits = ("--max-tokens", "4", "--min-agreement", "1")
    status, told = verify(tmp_path, *arguments, *limits, paths=f"llama-server={engine_at()}")
    assert (status, told["agreement"], told["same_answers"]) == (0, 1.0, len(PROMPTS))
    # nothing is compared where no token is a character
    assert all((told[key] or 0.0) < 1e-3 for key in ("logprob_max", "kl_max"))
    assert [prompt["answers"] for prompt in told["prompts"]] == [[said, said]] * len(PROMPTS)


@pytest.mark.vllm
def test_vllm_and_llama_cpp(environment, tmp_path):  # noqa: F811
    folder = make_folder(environment, weights(), tmp_path / "smol")
    engines = f"vllm={folder},llama-server={MODEL}"
    paths = f"vllm={environment},llama-server={engine_at()}"
    status, told = verify(tmp_path, "--engines", engines, paths=paths)
    check_numbers(told)
    assert status == 0, told["reason"]  # the weights are the same, whatever the texts are
    assert [one["format"] for one in told["engines"]] == ["safetensors", "gguf"]
