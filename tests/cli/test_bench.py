"""`vllama bench`: what is refused, and a measurement of real servers with the fake engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Vllama
from tests.cli.stub import StubServer, answer
from tests.server_process import LIMIT_S, Server
from tests.tiny import write_tiny_gguf


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["m", "--clients", "1,x"], 'cannot read the numbers of clients "1,x"'),
        (["m", "--clients", "0"], "use comma-separated numbers from 1 to"),
        (["m", "--prompts", "huge"], 'unknown kind of prompts: "huge"'),
        (["m", "--against", "ftp://x"], 'cannot use the address "ftp://x"'),
        (["m", "--against", "Ollama=:99999"], 'cannot use the address ":99999"'),
        (["m", "--against", "a=x", "--against", "a=y"], 'cannot use the name "a" for two servers'),
        (["m", "--against", "vllama=127.0.0.1:1"], 'cannot use the name "vllama" for two servers'),
        (["m", "--picture", "/nowhere/x.svg"], "cannot write the picture '/nowhere/x.svg'"),
        (["m", "--rounds", "0"], "rounds"),
        ([], "no model specified, and no model is loaded"),
    ],
)
def test_refusals(arguments, words, vllama: Vllama, stub: StubServer) -> None:
    stub.on("GET /api/ps", {"models": []})
    done = vllama("bench", *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr and done.stdout == ""


def test_a_server_that_is_not_there(vllama: Vllama, stub: StubServer) -> None:
    stub.on("POST /api/chat", *answer("a", chat=True))
    done = vllama("bench", "m", "--against", "Ollama=127.0.0.1:9")
    assert done.returncode == 1
    assert "cannot measure Ollama: could not connect to" in done.stderr


def test_a_model_that_is_not_there(vllama: Vllama, stub: StubServer) -> None:
    stub.fail("POST /api/chat", 404, "model 'm' not found")
    done = vllama("bench", "m")
    assert done.returncode == 1
    assert "cannot measure vllama: loading m: model 'm' not found" in done.stderr
    assert "with the same name" in done.stderr


def test_a_request_that_fails(vllama: Vllama, stub: StubServer) -> None:
    stub.fail("POST /api/chat", 500, "no room")
    done = vllama("bench", "m")
    assert done.returncode == 1
    assert "cannot measure vllama: loading m: no room" in done.stderr


def test_an_answer_without_words(vllama: Vllama, stub: StubServer) -> None:
    stub.on("POST /api/chat", *answer(chat=True))
    done = vllama("bench", "m")
    assert done.returncode == 1
    assert "the model's response is empty" in done.stderr


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Two servers with the same models; the second keeps only one of them loaded."""
    home = tmp_path_factory.mktemp("bench")
    one = Server(home / "one", "--context-length", "8192")
    other = Server(home / "other", "--context-length", "8192", "--max-loaded-models", "1")
    for server in (one, other):
        for name in ("tiny", "small"):
            write_tiny_gguf(server.models / f"{name}.gguf", n_ctx=8192)
            server.model(name)
    with one, other:
        yield one, other


def bench(servers, *arguments: str):
    one, other = servers
    return subprocess.run(
        [sys.executable, "-m", "vllama", "bench", *arguments, "--against", f"Other={other.url}"],
        env=one.env | {"OLLAMA_HOST": one.url, "HOME": str(one.home)},
        text=True,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.slow
def test_two_servers(servers, tmp_path):
    picture = tmp_path / "x.svg"
    arguments = ("tiny", "--clients", "1,3", "--rounds", "2", "--tokens", "5", "--swap", "small")
    done = bench(servers, *arguments, "--json", "--picture", str(picture))
    assert done.returncode == 0, done.stderr
    assert "vllama: loading small" in done.stderr  # what is said first
    told = json.loads(done.stdout)
    assert [one["name"] for one in told["servers"]] == ["vllama", "Other"]
    asked = [row for row in told["rows"] if row["step"] == "answers"]
    assert len(asked) == 2 * 2 * 2 * 2  # servers, rounds, numbers of clients, prompts
    assert all(row["tokens"] == row["pieces"] == 5 for row in asked)
    long, short = (
        next(row["prompt_tokens"] for row in asked if row["prompt"] == kind)
        for kind in ("long", "short")
    )
    assert long > 10 * short
    found = {(one["metric"], one["prompt"], one["clients"]): one for one in told["findings"]}
    for metric in ("tokens/s", "first token"):
        ratio = found[metric, "long", 3]["ratios"]["Other"]
        assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]
    assert set(found["cold load", None, None]["medians"]) == {"vllama", "Other"}
    # only a server that has to unload one model for the other swaps them
    assert found["swap of models", None, None]["medians"]["vllama"] is None
    assert found["swap of models", None, None]["medians"]["Other"] > 0
    assert [remark for remark in told["remarks"] if "no swap at vllama" in remark]
    if sys.platform.startswith("linux") and os.geteuid() == 0:  # nobody else may look
        assert found["memory, loaded", None, None]["medians"]["Other"] > 1_000_000
    ElementTree.fromstring(picture.read_text())


@pytest.mark.slow
def test_the_table_for_people_and_prompts_that_differ(servers):
    done = bench(servers, "tiny", "--clients", "2", "--rounds", "2", "--prompts", "short")
    assert done.returncode == 0, done.stderr
    assert "first token, short prompts, 2 clients" in done.stdout
    assert "RATIO" in done.stdout and "Medians of 2 rounds" in done.stdout
    one, other = (
        [
            body.get("prompt") or json.dumps(body["messages"])
            for body in server.stats("tiny")["bodies"]
            if "stream" in body
        ]
        for server in servers
    )
    assert len(one) >= 5 and len(set(one)) == len(one)
    assert sorted(one) == sorted(other)
