"""What a page or a script asks of the server: plans, engines, logs and settings."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.hub.large import make_gguf
from tests.server_process import Server
from vllama.accounts.keys.key import Scope
from vllama.base.errors import Forbidden
from vllama.routes.app import check_open
from vllama.routes.route_table import ROUTES

pytestmark = pytest.mark.slow  # servers as processes of their own

KEY = "sk-0123456789abcd"
SHOWS_KEY = {"authorization": f"Bearer {KEY}"}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": False}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("observing")
    env = {
        "VLLAMA_HF_TOKEN": "hf_secret-of-the-hub",
        "HF_ENDPOINT": "http://me:word-of-honor@127.0.0.1:1",
        "VLLAMA_ENGINE_ARGS": "--api-key=sk-of-the-engine",
        "HF_HUB_OFFLINE": "1",
    }
    with Server(home, "--api-key", KEY, "--max-queue", "77", env=env) as running:
        running.model("plain", "--print", "the first line")
        yield running


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that needs no key, and listens at all addresses."""
    options = ("--host", "0.0.0.0", "--allow-registry", "registry.example")
    with Server(tmp_path_factory.mktemp("open"), *options) as running:
        running.model("plain")
        yield running


def ask(server: Server, method: str, path: str, body: object = None) -> tuple[int, Any]:
    status, headers, data = server.request(method, path, body, SHOWS_KEY)
    is_json = headers["content-type"].startswith("application/json")
    return status, json.loads(data) if is_json else data.decode()


def load(server: Server, model: str = "plain") -> None:
    assert ask(server, "POST", "/api/chat", {"model": model, **CHAT})[0] == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/logs"),
        ("GET", "/api/logs/vllama"),
        ("GET", "/api/config"),
        ("GET", "/api/engines"),
        ("POST", "/api/plan"),
        ("GET", "/api/plan?model=plain"),
        ("GET", "/api/fits"),
        ("GET", "/instance/previews?model=plain"),
    ],
)
def test_all_need_a_key(server: Server, method: str, path: str) -> None:
    assert server.request(method, path, {} if method == "POST" else None)[0] == 401


def test_the_files_of_the_page_need_none(server: Server) -> None:
    assert server.request("GET", "/ui/")[0] == 200
    assert server.request("GET", "/ui/main.js")[0] == 200
    assert server.request("GET", "/api/tags")[0] == 401


# -- settings -----------------------------------------------------------------------------------


def test_settings_and_where_they_come_from(server: Server) -> None:
    status, told = ask(server, "GET", "/api/config")
    assert status == 200
    rows = {row["key"]: row for row in told["settings"]}
    assert (rows["max_queue"]["text"], rows["max_queue"]["source"]) == ("77", "--max-queue")
    assert rows["strict"]["source"] == "default" and rows["strict"]["help"]
    assert rows["hf_token"]["source"] == "VLLAMA_HF_TOKEN"
    text = json.dumps(told)
    for secret in (KEY, "secret-of-the-hub", "word-of-honor", "sk-of-the-engine"):
        assert secret not in text


# -- engines ------------------------------------------------------------------------------------


def test_engines(server: Server) -> None:
    status, told = ask(server, "GET", "/api/engines")
    assert status == 200 and told["chosen"] == "fake" and told["platform"]
    first = told["engines"][0]
    assert first["name"] == "fake" and first["installed"] and first["chosen"]
    assert first["version"] == "1.0"


# -- plans --------------------------------------------------------------------------------------


def test_a_plan_for_a_model_that_is_here(server: Server) -> None:
    status, told = ask(server, "POST", "/api/plan", {"model": "plain"})
    assert status == 200
    assert told["model"] == "plain:latest" and told["engine"] == "fake"
    assert told["memory"]["total_bytes"] > 0 and told["reasons"] and not told["download_bytes"]
    status, smaller = ask(server, "POST", "/api/plan", {"model": "plain", "context_length": 1024})
    assert status == 200 and smaller["context_length"] == 1024 < told["context_length"]


def test_every_way_to_ask_for_a_plan_says_the_same_of_now(server: Server) -> None:
    ask(server, "POST", "/api/chat", {"model": "plain", "keep_alive": 0})
    while ask(server, "GET", "/api/ps")[1]["models"]:
        time.sleep(0.01)
    _, told = ask(server, "POST", "/api/plan", {"model": "plain", "context_length": 1024})
    query = "/api/plan?model=plain&context_length=1024"
    status, same = ask(server, "GET", query)
    assert status == 200 and same["context_length"] == 1024
    assert {**same["now"], "summary": ""} == {**told["now"], "summary": ""}
    assert told["now"]["fits"] and not told["now"]["hint"]
    (device,) = told["devices"]
    assert device["pool"] == "ram" and device["free_bytes"] < device["usable_bytes"]
    previews = ask(server, "GET", "/instance/previews?model=plain")[1]["previews"]
    assert previews[0]["plan"]["now"]["fits"]
    assert ask(server, "GET", "/api/plan?model=plain&strict=7")[0] == 400
    assert ask(server, "GET", "/api/plan")[0] == 400


def test_a_loaded_model_is_told_as_it_runs(server: Server) -> None:
    body = {"model": "plain", **CHAT, "options": {"num_ctx": 2048}}
    assert ask(server, "POST", "/api/chat", body)[0] == 200
    _, told = ask(server, "POST", "/api/plan", {"model": "plain"})
    assert told["loaded"]
    assert told["now"] is None
    running = ask(server, "GET", "/api/ps")[1]["models"]
    assert told["context_length"] == running[0]["context_length"]


def test_why_a_model_does_not_fit_is_a_field(server: Server) -> None:
    huge = {"model": "plain", "engine": "vllm"}
    status, told = ask(server, "POST", "/api/plan", huge)
    assert status == 200 and told["error"] and "memory" not in told


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, "model is required"),
        ({"model": "nobody"}, 404, "no known repository on the hub"),
        ({"model": "/etc/passwd"}, 400, "invalid model name"),
        ({"model": "plain", "engine": "steam"}, 404, "engine 'steam' not found"),
        ({"model": "plain", "context_length": -3}, 400, "cannot plan with context_length -3"),
        ({"model": "plain", "gpu_layers": -3}, 400, "cannot plan with gpu_layers -3"),
    ],
)
def test_a_plan_that_cannot_be_made(
    server: Server, body: dict[str, Any], status: int, words: str
) -> None:
    code, told = ask(server, "POST", "/api/plan", body)
    assert (code, words in told["error"]) == (status, True), told


def test_a_name_that_means_nothing_keeps_its_hint(server: Server) -> None:
    for method, path, body in (
        ("POST", "/api/plan", {"model": "plainn"}),
        ("POST", "/api/plan", {"model": "a b"}),
        ("GET", "/instance/previews?model=plainn", None),
    ):
        code, told = ask(server, method, path, body)
        assert 400 <= code < 500 and told["hint"] and told["error"].endswith(told["hint"])


def test_a_plan_asks_no_registry_that_is_not_allowed(open_server: Server) -> None:
    status, told = open_server.post("/api/plan", {"model": "hf.co/org/repo"})
    assert status == 403 and "models may be pulled from registry.example only" in told["error"]


def test_fits_are_those_of_the_plans(tmp_path: Path, server: Server) -> None:
    with Server(tmp_path) as fresh:
        fresh.model("small")
        huge = make_gguf("huge.gguf", "Q8_0", 400.0)
        with (fresh.models / huge.name).open("wb") as file:
            file.write(huge.content)
            file.truncate(huge.size)  # a hole
        told = fresh.get("/api/fits")
        rows = {row["model"]: row for row in told["models"]}
        assert rows["small:latest"]["fit"] == "fits"
        assert rows["huge:latest"]["fit"] == "too large"
        plan = fresh.get("/api/plan?model=huge")
        assert rows["huge:latest"]["summary"] == plan["error"]
        assert rows["small:latest"]["summary"].startswith("Fits now: needs")
        assert {row["fit"] for row in told["recommended"]} & {"fits", "slow"}
    assert server.request("GET", "/api/fits")[0] == 401
    status, told = ask(server, "GET", "/api/fits")
    assert status == 200 and "plain:latest" in [row["model"] for row in told["models"]]


def test_previews(server: Server) -> None:
    for name in ("model", "model_id"):
        status, told = ask(server, "GET", f"/instance/previews?{name}=plain%3Alatest")
        assert status == 200
        first, *others = told["previews"]
        assert first["chosen"] and first["engine"] == "fake" and first["error"] is None
        assert first["memory_bytes"] == first["plan"]["memory"]["total_bytes"]
        assert not any(one["chosen"] for one in others)
    assert ask(server, "GET", "/instance/previews")[0] == 400


# -- logs ---------------------------------------------------------------------------------------


def test_logs_are_listed_and_shown(server: Server) -> None:
    load(server)
    _, told = ask(server, "GET", "/api/logs")
    rows = {row["name"]: row for row in told["logs"]}
    assert rows["vllama"]["size"] > 0
    newest = rows["plain:latest"]["attempts"][-1]
    assert newest["size"] > 0 and newest["written_at"]
    status, text = ask(server, "GET", "/api/logs/plain:latest")
    assert status == 200 and "the first line" in text.splitlines()
    number = newest["attempt"]
    assert ask(server, "GET", f"/api/logs/plain%3Alatest?attempt={number}")[1] == text
    assert ask(server, "GET", "/api/logs/plain:latest?lines=1")[1] == text.splitlines()[-1] + "\n"
    # vllama's own as people read it, not as it is stored
    own = ask(server, "GET", "/api/logs/vllama")[1].splitlines()
    assert any(" INFO    " in line and "plain" in line for line in own)
    assert not any(line.startswith("{") for line in own)


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("nobody", 404, "no log of 'nobody'"),
        ("plain:latest?attempt=99999", 404, "of attempt 99999"),
        ("vllama?lines=all", 400, "lines is 'all'"),
    ],
)
def test_a_log_that_cannot_be_shown(server: Server, path: str, status: int, words: str) -> None:
    load(server)
    code, told = ask(server, "GET", f"/api/logs/{path}")
    assert (code, words in told["error"]) == (status, True), told


def test_a_log_is_followed_into_the_next_attempt(server: Server) -> None:
    load(server)
    connection = server.connect()
    connection.request("GET", "/api/logs/plain:latest?follow=1", headers=SHOWS_KEY)
    answer = connection.getresponse()
    assert answer.status == 200

    def read_to(words: str) -> str:
        while words not in (line := answer.readline().decode()):
            assert line, "the log has ended"
        return line

    read_to("the first line")
    (row,) = ask(server, "GET", "/api/ps")[1]["models"]
    psutil.Process(row["pid"]).kill()
    assert read_to("-- plain:latest, attempt ")
    read_to("the first line")
    answer.close()
    connection.close()


OBSERVING = ("/api/config", "/api/requests", "/api/usage", "/api/engines")
PREVIEWS = "/instance/previews?model=plain"
STRANGER, LOCAL = "evil.example", "192.168.1.5:11434"


def test_what_a_server_that_is_open_to_all_tells_to_whom(
    open_server: Server, tmp_path: Path
) -> None:
    """A page whose name was made to lead here (DNS rebinding) sends its name and no Origin."""

    def get(path: str, asked: Server = open_server, **headers: str) -> int:
        connection = asked.connect()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", path, headers=names)
        status = connection.getresponse().status
        connection.close()
        return status

    every = (*OBSERVING[1:], PREVIEWS, "/api/events")
    closed = ("/api/config", "/api/logs", "/api/logs/vllama", "/api/captures", "/api/captures/x")
    for path in (*closed, "/v1/files", "/v1/batches"):
        assert {get(path, host=host) for host in (STRANGER, LOCAL)} == {403}, path
    for path in every:
        assert get(path, host=STRANGER) == 403, path
        assert get(path, host=STRANGER, sec_fetch_site="cross-site") == 403, path
        assert get(path, host=LOCAL) == 200, path
        assert get(path, host="box.lan") == 200, path
        # only browsers send it, by https, which a stranger has no certificate for
        assert get(path, host=STRANGER, sec_fetch_site="same-origin") == 200, path
    assert get("/api/tags", host=STRANGER) == get("/metrics", host=STRANGER) == 200
    env = {"OLLAMA_ORIGINS": f"http://{STRANGER}"}
    with Server(tmp_path / "named", "--host", "0.0.0.0", env=env) as named:
        assert get("/api/events", named, host=STRANGER) == 200
    with Server(tmp_path / "keyed", "--host", "0.0.0.0", "--api-key", KEY) as keyed:
        for path in (*OBSERVING, "/api/logs", "/api/events"):
            assert get(path, keyed, host=STRANGER, **SHOWS_KEY) == 200, path


def test_no_route_that_observes_was_forgotten() -> None:
    """What needs the scope `read` or `admin` and changes nothing is told to no stranger's page."""
    told = {"metrics.get_metrics", "create.head_blob"}  # numbers; whether a checksum is known
    for route in ROUTES:
        name = f"{route.handler.__module__.rpartition('.')[2]}.{route.handler.__name__}"
        observes = route.scopes in ((Scope.READ,), (Scope.ADMIN,))
        if {"GET", "HEAD"} & {*route.methods} and observes and name not in told:
            with pytest.raises(Forbidden):
                check_open(route, is_stranger=True)
