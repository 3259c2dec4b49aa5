"""`/api/pull`, `/api/delete` and `serve --model` of a hub name, against the stand-in hub."""

import json
import re

import pytest

from tests.hub import Fault, StandInHub
from tests.routes.events.stream import Stream
from tests.routes.test_ollama_chat import open_stream, until, user
from tests.server_process import Server
from tests.tiny import write_tiny_gguf

# real processes, one after another: not for every save
pytestmark = pytest.mark.slow

NAME = "hf.co/test/Tiny-GGUF:Q8_0"


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repo")
    write_tiny_gguf(folder / "Tiny-Q8_0.gguf", n_ctx=4096)
    with StandInHub() as running:
        running.add_repo("test/Tiny-GGUF", folder)
        write_tiny_gguf(folder / "Tiny-Q4_0.gguf", n_ctx=4096, seed=1)
        running.add_repo("test/Slow-GGUF", folder)
        running.add_repo("test/Shared-GGUF", folder)
        running.add_repo("test/Gated-GGUF", folder, gated="manual")
        yield running


@pytest.fixture(scope="module")
def server(hub, tmp_path_factory):
    with Server(tmp_path_factory.mktemp("home"), env={"HF_ENDPOINT": hub.url}) as running:
        yield running


def test_pull_then_use_then_delete(server):
    assert server.post("/api/show", {"model": "test/Tiny-GGUF"})[0] == 404
    lines = server.lines("/api/pull", {"model": "hf.co/test/tiny-gguf"})
    assert lines[0] == {"status": "pulling manifest"}
    assert lines[-1] == {"status": "success"}
    moving = [line for line in lines if "digest" in line]
    assert moving[-1]["completed"] == moving[-1]["total"]
    digest = moving[-1]["digest"].removeprefix("sha256:")
    assert len(digest) == 64
    metrics = server.request("GET", "/metrics")[2].decode()
    assert f"vllama_download_bytes_total {float(moving[-1]['total'])}" in metrics
    assert 'vllama_downloads_total{outcome="ok"} 1.0' in metrics
    assert moving[-1]["status"] == f"pulling {digest[:12]}"
    for name in ("hf.co/test/Tiny-GGUF", "test/tiny-gguf:q8_0", NAME):
        status, reply = server.post("/api/chat", {"model": name, **user(), "stream": False})
        assert (status, reply["model"]) == (200, name)
    assert NAME in [row["name"] for row in server.get("/api/tags")["models"]]
    assert server.post("/api/pull", {"name": NAME, "stream": False}) == (200, {"status": "success"})
    assert server.request("DELETE", "/api/delete", {"name": NAME})[0] == 200
    assert NAME not in [row["name"] for row in server.get("/api/tags")["models"]]
    until(lambda: not server.get("/api/ps")["models"])


def test_what_cannot_be_pulled_is_told_in_the_stream(server):
    for name, words in (
        ("hf.co/test/nope", "no such repository"),
        ("hf.co/test/Gated-GGUF", "HF_TOKEN"),
        ("hf.co/test/Tiny-GGUF:Q2_K", "Q8_0"),
        ("nothing", "hub"),
    ):
        lines = server.lines("/api/pull", {"model": name})
        assert words in lines[-1]["error"], lines[-1]
        status, reply = server.post("/api/pull", {"model": name, "stream": False})
        assert status == 500
        assert words in reply["error"]
        for said in (r"200 \S+s from \S+, then an error", r"500 \S+s from \S+"):
            text = server.wait_for(rf"POST /api/pull {said}: {re.escape(reply['error'][:30])}")
    text = server.request("GET", "/metrics")[2].decode()
    for status in (200, 500):
        pattern = rf'vllama_request_errors_total{{.*model_not_found.*status="{status}"}}'
        assert re.search(pattern, text), text


def test_a_client_that_leaves_stops_the_download(server, hub):
    hub.fault = lambda method, path, headers, origin: (
        Fault(bytes_per_s=20_000) if origin == "cdn" else None
    )
    slow = "hf.co/test/Slow-GGUF:Q4_0"
    client = open_stream(server, "/api/pull", {"model": slow})
    data = b""
    while b"digest" not in data:
        data += client.recv(65536)
    client.close()
    hub.fault = None
    lines = server.lines("/api/pull", {"model": slow})
    assert lines[-1] == {"status": "success"}
    assert "never retrieved" not in server.output  # that the first one was canceled


def test_a_download_in_the_background_is_told_shared_and_stopped(server, hub):
    hub.fault = lambda method, path, headers, origin: (
        Fault(bytes_per_s=20_000) if origin == "cdn" else None
    )
    name = "hf.co/test/Shared-GGUF:Q4_0"
    with Stream(server, "?events=pulls") as stream:
        answer = server.post("/api/pull", {"model": name, "background": True})
        assert answer == (202, {"status": "pulling manifest"})
        stream.until(lambda: stream.pulls.get(name, {}).get("completed"))
        row = stream.pulls[name]
        assert row["completed"] < row["total"] and row["ended_at"] is None
        client = open_stream(server, "/api/pull", {"model": name})
        data = b""
        while b"digest" not in data:
            data += client.recv(65536)
        client.close()  # which does not stop it
        before = stream.pulls[name]["completed"]
        stream.until(lambda: stream.pulls[name]["completed"] > before)
        assert server.request("DELETE", "/api/pull", {"model": name})[0] == 200
        stream.until(lambda: stream.pulls[name]["status"] == "cancelled")
        assert stream.pulls[name]["ended_at"]
        assert server.request("DELETE", "/api/pull", {"model": name})[0] == 404
        hub.fault = None
        assert server.lines("/api/pull", {"model": name})[-1] == {"status": "success"}
        stream.until(lambda: stream.pulls[name]["status"] == "success")


def test_serve_downloads_the_model_it_is_given(hub, tmp_path):
    home = tmp_path / "home"
    env = {"HF_ENDPOINT": hub.url}
    with Server(home, "--model", "test/Tiny-GGUF", env=env) as server:
        server.wait_for("ready: http")
        assert server.get("/api/ps")["models"][0]["name"] == NAME
        assert "success" in server.output
        # the plan's short form: the file, then why
        assert f"{NAME}: Tiny-Q8_0.gguf, gguf Q8_0, " in server.output
        assert re.search(r"^context length \d+: needs .* reserved\)$", server.output, re.MULTILINE)


def test_a_registry_that_cannot_be_reached_is_a_bad_gateway(tmp_path):
    nowhere = "http://127.0.0.1:1"
    env = {"HF_ENDPOINT": nowhere, "VLLAMA_OLLAMA_REGISTRY": nowhere}
    with Server(tmp_path / "home", env=env) as server:
        for path, body in (
            ("/api/pull", {"model": "tiny"}),
            ("/api/pull", {"model": "hf.co/test/Tiny-GGUF"}),
            ("/api/create", {"model": "mine", "from": "tiny"}),
        ):
            status, reply = server.post(path, body | {"stream": False})
            assert (status, "cannot reach" in reply["error"]) == (502, True), reply


def test_too_little_memory_is_told_before_anything_moves(hub, tmp_path):
    env = {"HF_ENDPOINT": hub.url, "OLLAMA_GPU_OVERHEAD": str(2**60)}
    with Server(tmp_path / "home", env=env) as server:
        line = server.lines("/api/pull", {"model": "test/Tiny-GGUF"})[-1]
        status, whole = server.post("/api/pull", {"model": "test/Tiny-GGUF", "stream": False})
        assert status == 500 and whole == line
        assert "requires more memory (Q8_0 needs " in line["error"]
        assert f"vllama pull {NAME}" in line["error"]
        lines = server.lines("/api/pull", {"model": NAME})
        assert any(line["status"].startswith("warning: ") for line in lines)
        assert lines[-1] == {"status": "success"}


def test_a_cached_model_is_used_in_place_and_offline(hub, tmp_path):
    home = tmp_path / "home"
    with Server(home, env={"HF_ENDPOINT": hub.url}) as server:
        server.lines("/api/pull", {"model": NAME})
        requests = len(hub.log)
    env = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "1"}
    with Server(home, "--model", "test/Tiny-GGUF", env=env) as server:
        server.wait_for("ready: http")
    assert len(hub.log) == requests
    listed = [path.name for path in (home / "hf" / "hub").iterdir()]
    assert "models--test--Tiny-GGUF" in listed


def test_errors_are_json(server):
    status, _, data = server.request("POST", "/api/pull", {"model": "a b"})
    assert status == 400
    assert json.loads(data)["error"].startswith("invalid model name")
