"""Requests whose engine goes beyond its limits: real servers, the fake engine."""

from __future__ import annotations

import json
import sys

import pytest

from tests.routes.test_ollama_chat import until
from tests.server_process import Server

pytestmark = pytest.mark.slow

WHOLE = "".join(f"tok{number} " for number in range(60))
TAKES = "@takes=800 @delay=9999"


def ask(model, text):
    return {"model": model, "messages": [{"role": "user", "content": text}]}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measured on Linux only")
def test_a_request_that_takes_too_much_memory_is_told_so_and_others_go_on(tmp_path) -> None:
    with Server(tmp_path, "--strict") as server:
        name = server.model("wide-replays-silent")
        with server.open("/api/chat", ask(name, "@tokens=60 @delay=0.1")) as other:
            begun = other.readline()
            status, reply = server.post("/api/chat", ask(name, TAKES) | {"stream": False})
            lines = [json.loads(line) for line in (begun + other.read()).splitlines()]
        assert status == 500
        assert "it used " in reply["error"] and "more than its limit of " in reply["error"]
        assert "".join(line["message"]["content"] for line in lines) == WHOLE
        # the log names all requests that may have been the cause
        server.wait_for(r"supervise: .*more than its limit")
        server.wait_for(r"engine crashed; response resumed after .* \[(\w+)-1\]\n")
        server.wait_for(r"engine crashed; response resumed after .* \[(\w+)-2\]\n")
        server.wait_for(r" access: .* 500 .*more than its limit of .* \[(\w+)-2\]\n")
        assert server.post("/api/chat", ask(name, "@tokens=1") | {"stream": False})[0] == 200


def test_a_request_that_blocks_its_engine_is_ended_and_others_go_on(tmp_path) -> None:
    """As one whose sampler takes minutes to be built, in the only loop of the engine."""
    with Server(tmp_path, "--strict", "--first-token-timeout", "5s") as server:
        name = server.model("wide-replays-shows")
        server.post("/api/generate", {"model": name})
        engine = server.engine(name)
        with server.open("/api/chat", ask(name, "@tokens=60 @delay=0.05")) as other:
            begun = other.readline()
            status, reply = server.post("/api/chat", ask(name, "@blocks=9999") | {"stream": False})
            lines = [json.loads(line) for line in (begun + other.read()).splitlines()]
        assert (status, "no token within 5 s" in reply["error"]) == (504, True), reply
        assert "".join(line["message"]["content"] for line in lines) == WHOLE
        assert not engine.is_running()
        server.wait_for(
            "supervise: .*no token for 5 s, and the engine does not stop; restarting now"
        )


def test_an_engine_that_stops_with_its_request_is_not_restarted(tmp_path) -> None:
    with Server(tmp_path, "--strict", "--first-token-timeout", "1s") as server:
        name = server.model("wide-replays-shows")
        server.post("/api/generate", {"model": name})
        engine = server.engine(name)
        status, reply = server.post("/api/chat", ask(name, "@delay=9999") | {"stream": False})
        assert (status, "no token within 1 s" in reply["error"]) == (504, True), reply
        assert "--first-token-timeout" in reply["error"]
        assert engine.is_running()
        assert server.engine(name).pid == engine.pid


def test_an_engine_that_works_on_for_a_client_that_has_left_is_restarted(tmp_path) -> None:
    with Server(tmp_path, "--strict", "--first-token-timeout", "8s") as server:
        name = server.model("wide-replays-shows")
        server.post("/api/generate", {"model": name})
        engine = server.engine(name)
        leaving = server.connect()
        leaving.request("POST", "/api/chat", json.dumps(ask(name, "@blocks=9999")))
        until(lambda: "its loop is blocked" in server.engine_log(name))
        leaving.close()
        server.wait_for(
            "supervise: .*the engine does not stop after its client disconnected; restarting now"
        )
        assert server.post("/api/chat", ask(name, "@tokens=1") | {"stream": False})[0] == 200
        assert not engine.is_running()
