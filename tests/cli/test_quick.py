"""`list`, `show` and `ps` with a stub in place of the running server of the data folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Vllama
from tests.cli.stub import Body, Reply, StubServer
from vllama.base.servers import COMMANDS, RunningServer, announce

ROW = {"name": "there:latest", "asked_as": ["there"], "size": 1, "details": {"format": "gguf"}}
TOLD = {
    "list": {"models": [ROW], "skipped": []},
    "ps": {"models": [ROW]},
    "show": {"details": {"family": "there"}, "parameters": "top_k 1"},
}


@pytest.fixture
def server(stub: StubServer, env: dict[str, str], tmp_path: Path) -> Iterator[StubServer]:
    env["VLLAMA_DATA_DIR"] = str(tmp_path / "data")

    def tell(body: Body, reply: Reply) -> None:
        reply.send(json.dumps(TOLD[body["command"]]).encode())

    stub.routes[f"POST {COMMANDS}"] = tell
    stub.on("GET /api/ps", {"models": []})
    with announce(tmp_path / "data", RunningServer(f"http://{stub.address}", "secret")):
        yield stub


def list_asked(server: StubServer) -> list[Body]:
    return [body for route, body in server.requests if route.endswith(COMMANDS)]


@pytest.mark.parametrize(
    "args", ["list", "ls the", "list --json", "ps", "ps --json", "show there", "show --json org/x"]
)
def test_the_server_responds(server: StubServer, vllama: Vllama, args: str) -> None:
    for _ in range(100):  # it may take more than 100 ms
        done = vllama(*args.split())
        if "there" in done.stdout:
            break
    assert "there" in done.stdout and not done.stderr and done.returncode == 0
    asked = list_asked(server)[-1]
    assert asked["model"] in ("", *args.split())
    assert asked["environ"]["HOME"] and "PATH" not in asked["environ"]


@pytest.mark.parametrize(
    "args", ["list --nodes", "ps --requests", "show there -v", "show ./there", "list a b", "show"]
)
def test_what_is_unusual_is_not_asked(server: StubServer, vllama: Vllama, args: str) -> None:
    vllama(*args.split())
    assert not list_asked(server)


def refuse(body: Body, reply: Reply) -> None:
    reply.begin(204)


def say_nothing(body: Body, reply: Reply) -> None:
    reply.wait_for_leaving()


def cut(body: Body, reply: Reply) -> None:
    reply.send(b'{"models": [')


@pytest.mark.parametrize("answer", [refuse, say_nothing, cut])
def test_without_a_response_the_command_looks_itself(
    server: StubServer, vllama: Vllama, answer: Any
) -> None:
    server.routes[f"POST {COMMANDS}"] = answer
    for args in (("list", "there"), ("ps",)):
        done = vllama(*args)
        assert (
            done.returncode == 0 and done.stdout.startswith("NAME") and "there" not in done.stdout
        )
    assert "not found" in vllama("show", "there").stderr
    assert len(list_asked(server)) == 3


def test_a_path_that_depends_on_the_working_folder(
    server: StubServer, vllama: Vllama, env: dict[str, str]
) -> None:
    env["VLLAMA_FOLDERS"] = "models/own"
    vllama("list")
    assert not list_asked(server)
