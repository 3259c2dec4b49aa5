"""A real server whose engine does not start: the next plan serves, and everybody is told."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.hub import StandInHub
from tests.routes.test_ollama_chat import until, user
from tests.server_process import Server
from tests.tiny import write_tiny_gguf

pytestmark = pytest.mark.slow
another = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="no other engine is here; run: make test"
)


def ask(server, model, **options):
    body = {"model": model, **user(), "stream": False}
    return server.post("/api/chat", body | ({"options": options} if options else {}))


def row(server, model, kind="models"):
    rows = server.get("/api/ps").get(kind, [])
    return next((one for one in rows if one["name"].startswith(model)), None)


def test_a_shorter_context_is_announced_and_serves(server):
    name = server.model("tight", "--fits", "2048")
    status, reply = ask(server, name)
    assert status == 200 and reply["message"]["content"]
    found = row(server, name)
    assert (found["context_length"], found["state"]) == (2048, "ready")
    said = "second plan: a context of 2048 tokens instead of 4096, because the first failed: no mem"
    assert said in found["cause"]
    server.wait_for(said)
    shown = server.post("/api/show", {"model": name, "plan": True})[1]["vllama"]
    assert shown["loaded"] and said in shown["reasons"][0]
    done = subprocess.run(
        [sys.executable, "-m", "vllama", "ps"],
        env=server.env | {"OLLAMA_HOST": server.url},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "(ready): second plan" in done.stderr + done.stdout


@another
def test_another_engine_takes_what_the_first_does_not_know(server):
    name = server.model("odd", "--print", "no such shape", "--exit-before-ready")
    for times in (1, 1):  # later loads begin with what works
        assert ask(server, name)[0] == 200
        found = row(server, name)
        assert found["engine"] != "fake"
        assert "instead of fake engine, because the first failed: the shape is un" in found["cause"]
        output = server.wait_for("because the first failed: the shape")
        assert output.count("because the first failed: the shape") == times
        stop = {"model": name, "keep_alive": 0}
        assert server.post("/api/generate", stop)[0] == 200
        until(lambda: not row(server, name))


@another
def test_a_request_may_choose_the_engine(server):
    name = server.model("chosen")
    for options, engine in (
        ({}, "fake"),
        ({"engine": "llama-cpp-python"}, "llama-cpp-python"),
        ({"num_ctx": 1024}, "llama-cpp-python"),  # which others keep
        ({"engine": "fake"}, "fake"),
    ):
        assert ask(server, name, **options)[0] == 200
        assert row(server, name)["engine"] == engine


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return a server that has no other engine to go to."""
    with Server(tmp_path_factory.mktemp("small"), "--engine", "fake") as server:
        yield server


@another
def test_an_engine_that_was_named_is_kept(small):
    name = small.model("odd", "--print", "no such shape", "--exit-before-ready")
    status, reply = ask(small, name)
    assert status == 500
    assert "the shape is unknown; not changed, as requested: the engine" in reply["error"]


@another
def test_a_context_that_a_request_asks_for_is_kept(small):
    name = small.model("asked", "--fits", "2048")
    status, reply = ask(small, name, num_ctx=4096)
    assert status == 500
    kept = "no memory; not changed, as requested: the context of 4096 tokens, the engine"
    assert kept in reply["error"]
    failed = "asked:latest: cannot start asked:latest: no memory"
    assert small.wait_for(failed).count(failed) == 1
    assert kept in row(small, name, "failed")["cause"]
    assert ask(small, name)[0] == 200  # who asks for no context is served with less
    assert row(small, name)["context_length"] == 2048


def test_it_ends_with_the_first_cause_and_what_was_tried(small):
    name = small.model("never", "--fits", "0")
    status, reply = ask(small, name)
    assert status == 500
    assert (
        "no memory; tried next: a context of 2048 tokens instead of 4096 (the same)"
        in (reply["error"])
    )
    assert "buy some" in reply["error"] or "buy some" in row(small, name, "failed")["hint"]
    second = "scheduler: never:latest: second plan: "
    assert small.wait_for(second).count(second) == 1


def test_strict_tries_nothing_else(tmp_path):
    with Server(tmp_path, "--strict") as server:
        name = server.model("tight", "--fits", "2048")
        status, reply = ask(server, name)
        assert status == 500
        assert "no memory; no other plan is tried with --strict" in reply["error"]
        assert "because the first failed" not in server.output


def test_plan_shows_the_ladder(server):
    name = server.model("plain")

    def plan(*flags):
        done = subprocess.run(
            [sys.executable, "-m", "vllama", "plan", name, *flags],
            env={**os.environ, **server.env},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    told = json.loads(plan("--json"))["if_it_fails"]["memory"]["then"]
    assert told[0] == "a context of 2048 tokens instead of 4096"
    assert told[0] in plan()
    assert "no other plan is tried (--strict)" in plan("--strict")


def test_a_smaller_quantization_that_is_here(tmp_path):
    folder = tmp_path / "repo"
    folder.mkdir()
    write_tiny_gguf(folder / "Tiny-Q8_0.gguf", n_ctx=2048)
    write_tiny_gguf(folder / "Tiny-Q4_0.gguf", n_ctx=2048, n_layer=1)
    with StandInHub() as hub:
        hub.add_repo("test/Tiny-GGUF", folder)
        env = {"HF_ENDPOINT": hub.url, "VLLAMA_ALIASES": "mine=hf.co/test/Tiny-GGUF"}
        with Server(tmp_path / "home", "--engine", "fake", env=env) as server:
            large, small = "hf.co/test/Tiny-GGUF:Q8_0", "hf.co/test/Tiny-GGUF:Q4_0"
            for name in ("mine", small):
                assert server.lines("/api/pull", {"model": name})[-1] == {"status": "success"}
            (snapshot,) = (tmp_path / "home").rglob("Tiny-Q8_0.gguf")
            snapshot.with_suffix(".args").write_text("--fits\n0")
            status, reply = ask(server, "mine")
            assert (status, reply.get("model")) == (200, "mine"), reply
            found = row(server, "mine")
            digests = {one["name"]: one["digest"] for one in server.get("/api/tags")["models"]}
            assert found["digest"] == digests[small]
            assert "second plan: the installed Q4_0 variant, because" in found["cause"]
            # one that was named is kept, and the other offered
            status, reply = ask(server, large)
            assert status == 500
            assert f"use {small}, which is installed and smaller" in reply["error"]
