"""The example of an engine: built as a wheel, installed into a fresh environment, and served."""

import http.client
import json
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.lacking import lacking
from tests.server_process import Server
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
SAID = [{"role": "user", "content": "one two three four"}]


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the example as its author would."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    run("cp", "-r", ROOT / "examples/engine", source / "package")  # the build leaves files there
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder)
    done = run(*pip, source / "package")
    if "No matching distribution found for hatchling" in done.stderr:
        lacking("pip cannot fetch hatchling, which builds the package")
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """Return the Python of a fresh environment that has vllama and the example."""
    folder = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", folder)
    fresh = folder / "bin/python"
    (packages,) = folder.glob("lib/python*/site-packages")
    # vllama and what it needs are those of this environment: nothing else has to be fetched
    paths = [str(ROOT), *site.getsitepackages()]
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in paths)
    (packages / "vllama.pth").write_text(lines)
    done = run(fresh, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    assert done.returncode == 0, done.stderr
    return fresh


def serve(home: Path, python: Path, *arguments: str) -> Server:
    model = write_tiny_gguf(home.parent / f"{home.name}.gguf", n_ctx=4096)
    return Server(home, "--model", str(model), *arguments, fake=False, python=python)


@pytest.fixture(scope="module")
def server(python, tmp_path_factory):
    home = tmp_path_factory.mktemp("echo")
    with serve(home, python, "--engine", "parrot") as running:
        running.wait_for("ready: http")
        yield running


def name(server: Server) -> str:
    return f"{server.home.name}:latest"


def test_the_wheel_is_whole(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (points,) = (item for item in names if item.endswith("entry_points.txt"))
        assert b"echo = vllama_echo.adapter:ENGINE" in archive.read(points)
    files = ("__init__.py", "adapter.py", "server.py", "py.typed")
    assert {f"vllama_echo/{file}" for file in files} <= names


def test_it_is_listed_with_the_others(python):
    listed = json.loads(run(python, "-m", "vllama", "engines", "--json").stdout)
    engines = {engine["name"]: engine for engine in listed["engines"]}
    assert engines["echo"]["installed"] and engines["echo"]["path"] == str(python)
    assert "llama-cpp-python" in engines


def test_the_command_checks_it(python):
    done = run(python, "-m", "vllama", "engines", "check", "vllama_echo.adapter:ENGINE")
    assert done.returncode == 0 and "no problems" in done.stdout


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
        ("/api/generate", {"prompt": "a", "raw": True}, "only chats"),
        ("/api/chat", {"messages": SAID, "logprobs": True}, "logprobs"),
        ("/api/embed", {"input": "a"}, "with Echo: no embedding support"),
    ],
)
def test_what_it_lacks_is_said(server, path, more, words):
    status, answer = server.post(path, {"model": name(server), "stream": False, **more})
    assert status >= 400
    assert words in answer["error"]


def test_only_vllama_can_use_its_server(server):
    words = next(words for words in server.commands().values() if "--port" in words)
    connection = http.client.HTTPConnection("127.0.0.1", int(words[words.index("--port") + 1]))
    connection.request("GET", "/v1/models")
    assert connection.getresponse().status == 404
    connection.close()


def test_its_own_failures_are_told_by_its_own_words(python, tmp_path):
    arguments = ("--engine", "echo", "--", "--voice", "hoarse")
    with serve(tmp_path / "hoarse", python, *arguments) as server:
        output = server.wait_for("hoarse(?s:.*)Hint")
    assert "it does not have the voice hoarse" in output
    assert "choose one of: loud, plain" in output
