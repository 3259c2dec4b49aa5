"""An engine from a distribution of its own works by its entry point alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lacking import lacking
from tests.server_process import Server
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PACKAGE = Path(__file__).parents[1] / "third_party"
SAID = [{"role": "user", "content": "one two three four"}]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Return a folder with the example package, as pip installs it."""
    source = tmp_path_factory.mktemp("source")  # the build leaves its files there
    subprocess.run(["cp", "-r", PACKAGE, source / "package"], check=True)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
    done = subprocess.run([*command, source / "package"], capture_output=True, text=True)
    if "No matching distribution found for hatchling" in done.stderr:
        lacking("pip cannot fetch hatchling, which builds the package")
    assert done.returncode == 0, done.stderr
    return folder


def serving(home: Path, installed: Path, *arguments: str) -> Server:
    model = write_tiny_gguf(home.parent / f"{home.name}.gguf", n_ctx=4096)
    env = {"PYTHONPATH": str(installed)}
    return Server(home, "--model", str(model), *arguments, fake=False, env=env)


@pytest.fixture(scope="module")
def server(installed, tmp_path_factory):
    home = tmp_path_factory.mktemp("echo")
    with serving(home, installed, "--engine", "parrot") as running:
        running.wait_for("is ready")
        yield running


def name(server: Server) -> str:
    return f"{server.home.name}:latest"


def test_it_serves_ollamas_chat(server):
    asked = {"model": name(server), "messages": SAID, "options": {"temperature": 0.1, "top_k": 3}}
    *tokens, last = server.lines("/api/chat", asked)
    assert [token["message"]["content"] for token in tokens] == ["one", " two", " three", " four"]
    assert (last["prompt_eval_count"], last["eval_count"], last["done_reason"]) == (4, 4, "stop")


def test_it_serves_openais_chat_whatever_the_client_sends(server):
    asked = {
        "model": name(server), "messages": SAID, "max_completion_tokens": 2, "user": "me",
        "seed": 1, "metadata": {"a": "b"}, "logit_bias": {"1": 1}, "x": 1,
    }  # fmt: skip
    status, answer = server.post("/v1/chat/completions", asked)
    assert status == 200, answer
    assert answer["model"] == name(server)
    assert answer["choices"][0]["message"]["content"] == "one two"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 6


def test_its_stream_ends_as_clients_expect(server):
    asked = {"model": name(server), "messages": SAID, "stream": True, "stop": " three"}
    status, _, data = server.request("POST", "/v1/chat/completions", asked)
    assert status == 200
    *events, done = [part.removeprefix("data: ") for part in data.decode().split("\n\n")[:-1]]
    choices = [one for event in events for one in json.loads(event)["choices"]]
    assert done == "[DONE]"
    assert "".join(one["delta"].get("content") or "" for one in choices) == "one two"
    assert choices[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("path", "more", "words"),
    [
        ("/api/chat", {"messages": SAID, "format": "json"}, "structured outputs"),
        ("/api/generate", {"prompt": "a", "raw": True}, "chats only"),
        ("/api/chat", {"messages": SAID, "logprobs": True}, "logprobs"),
        ("/api/embed", {"input": "a"}, "with Echo: it makes no embeddings"),
    ],
)
def test_what_it_lacks_is_said(server, path, more, words):
    status, answer = server.post(path, {"model": name(server), "stream": False, **more})
    assert status >= 400
    assert words in answer["error"]


def test_its_own_failures_are_told_by_its_own_words(installed, tmp_path):
    arguments = ("--engine", "echo", "--", "--voice", "hoarse")
    server = serving(tmp_path / "hoarse", installed, *arguments)
    with server:
        output = server.wait_for("hoarse(?s:.*)Hint")
    assert "it does not have the voice hoarse" in output
    assert "choose one of: loud, plain" in output


def test_it_is_listed_with_the_others(installed):
    command = [sys.executable, "-c", "from vllama.engines.registry import load_engines as l; "
               "print(*l())"]  # fmt: skip
    out = subprocess.run(
        command, env={"PYTHONPATH": str(installed)}, capture_output=True, text=True
    )
    assert {"echo", "llama-cpp-python"} <= set(out.stdout.split())
