"""`/livez`, `/readyz`, `/health`: whether the server can serve, and if not, why."""

import json
import socket

import pytest

from tests.ports import free_port
from tests.routes.test_access import ask, command
from tests.routes.test_external import Elsewhere, chat
from tests.routes.test_ollama_chat import until, user
from tests.server_process import Server

# real processes, one after another: not for every save
pytestmark = pytest.mark.slow


def asked(server, path, headers=None):
    status, _, data = server.request("GET", path, None, headers)
    return status, json.loads(data)


def is_ready(server):
    return asked(server, "/readyz") == (200, {"status": "ready"})


def test_without_a_model_to_load_it_is_ready_as_soon_as_it_is_there(server):
    until(lambda: is_ready(server))
    assert asked(server, "/health") == asked(server, "/livez") == (200, {"status": "ok"})
    for path in ("/readyz", "/health", "/livez"):
        assert server.request("HEAD", path)[0] == 200


def test_a_model_to_load_is_waited_for_and_may_be_unloaded_later(tmp_path):
    home = Server(tmp_path, "--model", "first")
    home.model("first")
    home.model("second")
    gate = home.models / "first.args"
    with home as server:
        until(lambda: is_ready(server))
        assert server.post("/api/generate", {"model": "first", "keep_alive": 0})[0] == 200
        until(lambda: not server.get("/api/ps")["models"])
        assert is_ready(server)  # whoever asks for it gets it
        # the next load fails, and that is known for a while
        gate.write_text("--exit-before-ready")
        assert server.post("/api/chat", {"model": "first", **user()})[0] == 500
        assert is_ready(server)  # for its other models
        assert server.post("/api/chat", {"model": "second", **user(), "stream": False})[0] == 200
        status, reply = asked(server, "/health")
        assert (status, reply["status"]) == (503, "error")
        (reason,) = reply["reasons"]
        assert reason["what"] == "model first"
        assert "cannot start first:latest: it exited with code 0" in reason["why"]
        gate.write_text("")
        assert server.post("/api/chat", {"model": "first", **user(), "stream": False})[0] == 200
        assert asked(server, "/health") == (200, {"status": "ok"})
        server.post("/api/generate", {"model": "first", "keep_alive": 0})
        until(lambda: "first" not in str(server.get("/api/ps")["models"]))
        (tmp_path / "models" / "first.gguf").unlink()
        assert is_ready(server)
        assert asked(server, "/livez")[0] == 200


def test_a_load_that_takes_long_is_no_trouble_but_not_ready(tmp_path):
    home = Server(tmp_path, "--model", "slow")
    home.model("slow", "--ready-after", "600")
    with home as server:
        until(lambda: "model slow" in str(asked(server, "/readyz")))
        status, reply = asked(server, "/readyz")
        assert status == 503
        assert reply["reasons"] == [{"what": "model slow", "why": "not loaded yet"}]
        assert asked(server, "/health") == (200, {"status": "ok"})


def test_reasons_are_for_keys_that_may_read(tmp_path):
    home = Server(tmp_path, "--model", "slow")
    home.model("slow", "--ready-after", "600")
    with home as server:
        scopes = ("infer", "read", "admin")
        keys = [command(server, "keys", "add", one, "--scope", one) for one in scopes]
        until(lambda: asked(server, "/readyz")[0] == 503)
        for key, is_told in zip(("", *keys), (False, False, True, True), strict=True):
            status, reply = ask(server, key, "/readyz")
            assert status == 503 and ("reasons" in reply) is is_told


def test_a_dead_upstream_is_told_and_nothing_is_said_of_it_that_is_not_so(tmp_path):
    url = f"http://127.0.0.1:{free_port()}"
    with Server(tmp_path, "--upstream", url, fake=False) as server:
        server.wait_for(f"upstream {url} is not available: .*refused")
        assert "already runs" not in server.output and "it answers" not in server.output
        for path in ("/health", "/readyz"):
            status, reply = asked(server, path)
            assert status == 503
            (reason,) = reply["reasons"]
            assert reason["what"] == f"upstream {url}"
            assert "refused" in reason["why"]
        assert asked(server, "/livez")[0] == 200


def test_an_upstream_that_never_answers_is_told_too(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Server(tmp_path, "--upstream", url, fake=False) as server:
            server.wait_for(f"upstream {url} is not available: no response within 3 s")
            status, reply = asked(server, "/readyz")
            assert status == 503
            reason = {"what": f"upstream {url}", "why": "no response within 3 s"}
            assert reply["reasons"] == [reason]


def test_one_upstream_that_lives_is_enough(tmp_path):
    elsewhere = Elsewhere()
    dead = f"http://127.0.0.1:{free_port()}"
    try:
        options = ("--upstream", elsewhere.url, "--upstream", dead)
        with Server(tmp_path, *options, fake=False) as server:
            until(lambda: is_ready(server))
            assert asked(server, "/health")[0] == 200
            assert chat(server)[0] == 200
            elsewhere.stop()
            until(lambda: asked(server, "/health")[0] == 503)
            assert {reason["what"] for reason in asked(server, "/readyz")[1]["reasons"]} == {
                f"upstream {elsewhere.url}",
                f"upstream {dead}",
            }
            assert chat(server)[0] == 503
            (row,) = server.get("/api/ps")["models"]
            assert row["state"] == "backoff"
            assert row["cause"] == "no response from the upstream"
            assert row["context_length"] == 0, "that server does not tell"
            elsewhere.start()
            until(lambda: is_ready(server))
    finally:
        elsewhere.stop()


def test_the_reasons_are_for_those_with_a_key(tmp_path):
    url = f"http://127.0.0.1:{free_port()}"
    options = ("--upstream", url, "--api-key", "sesame")
    with Server(tmp_path, *options, fake=False) as server:
        server.wait_for("waiting for an upstream")
        assert asked(server, "/readyz") == (503, {"status": "not ready"})
        status, reply = asked(server, "/readyz", {"authorization": "Bearer sesame"})
        assert status == 503 and url in str(reply)


def test_a_named_upstream_that_is_down_leaves_it_ready_and_is_not_asked_in_a_loop(tmp_path):
    elsewhere = Elsewhere()
    config = tmp_path / "config.toml"
    config.write_text(f'[upstreams.bee]\nurl = "{elsewhere.url}"\n')
    home = Server(tmp_path, env={"VLLAMA_CONFIG": str(config)})
    home.model("first")
    body = {"model": "bee:org/big", **user(), "stream": False}
    try:
        with home as server:
            until(lambda: is_ready(server))
            elsewhere.stop()
            status, reply = server.post("/api/chat", body)
            assert status == 503 and "cannot reach the upstream 'bee'" in str(reply)
            assert elsewhere.url not in str(reply)
            server.wait_for(f"upstream {elsewhere.url} is not available")
            assert is_ready(server), "there is a model on this disk"
            assert server.output.count("ERROR") == 1
            elsewhere.start()
            until(lambda: server.post("/api/chat", body)[0] == 200)
            headers = server.request("POST", "/api/chat", body)[1]
            assert headers["x-vllama-served-by"] == "bee:org/big"
    finally:
        elsewhere.stop()
