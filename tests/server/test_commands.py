"""What a server tells the commands of its data folder is what they would read themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.server_process import Server
from tests.tiny import write_tiny_gguf
from vllama import __version__
from vllama.base.servers import COMMANDS, find_servers

pytestmark = pytest.mark.slow

KEY = "k" * 20


@pytest.fixture(scope="module", params=["", KEY], ids=["open", "keys"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    keys = ("--api-key", request.param) if request.param else ()
    with Server(home, *keys) as server:
        write_tiny_gguf(server.models / "mine.gguf")
        (server.models / "half-00001-of-00002.gguf").write_bytes(b"GGUF")
        yield server


def ask(server: Server, command: str, secret: str | None = None, **changed: Any) -> tuple[int, Any]:
    """Send what a command sends, with some of it changed."""
    (running,) = find_servers(server.home / "data")
    body = {"command": command, "model": "mine" if command == "show" else "", "prefix": sys.prefix}
    environ = {"OLLAMA_HOST": f"127.0.0.1:{server.port}"} | changed.pop("environ", {})
    body |= {"version": __version__, "environ": server.env | environ} | changed
    headers = {"authorization": f"Bearer {secret or running.secret}"}
    status, _, content = server.request("POST", COMMANDS, body, headers)
    return status, json.loads(content) if content else None


@pytest.mark.parametrize("args", [("list",), ("show", "mine")])
def test_it_tells_what_the_disk_has(server: Server, args: tuple[str, ...]) -> None:
    env = server.env | {"VLLAMA_NO_SETTING": "1"}  # by which it is not asked for the models
    command = [server.python, "-m", "vllama", *args, "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert ask(server, args[0]) == (200, json.loads(done.stdout))


def test_it_tells_the_loaded_models_where_there_are_no_keys(server: Server) -> None:
    has_keys = "--api-key" in server.arguments
    assert ask(server, "ps") == ((204, None) if has_keys else (200, {"models": []}))
    other = {"OLLAMA_HOST": f"127.0.0.1:{free_port()}"}
    assert ask(server, "ps", environ=other)[0] == 204
    assert ask(server, "list", environ=other)[0] == 200


CHANGES: dict[str, dict[str, Any]] = {
    "version": {"version": "0.0.1"},
    "python": {"prefix": "/other"},
    "time zone": {"environ": {"TZ": "Asia/Tokyo"}},
    "folders": {"environ": {"VLLAMA_FOLDERS": "/tmp"}},
    "home": {"environ": {"HOME": "/tmp"}},
    "warning": {"environ": {"VLLAMA_NO_SETTING": "1"}},
    "wrong value": {"environ": {"VLLAMA_PORT": "x"}},
    "other machine": {"environ": {"OLLAMA_HOST": "10.0.0.1"}},
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES)
def test_a_command_that_may_see_something_else_gets_nothing(
    server: Server, changed: dict[str, Any]
) -> None:
    assert ask(server, "list", **changed) == (204, None)


def test_others_get_nothing(server: Server) -> None:
    assert ask(server, "list", secret="wrong")[0] == 404
    assert ask(server, "show", model="none") == (204, None)


def test_a_file_that_was_added_is_told_at_once(server: Server) -> None:
    path = write_tiny_gguf(Path(server.models, "new.gguf"))
    assert "new:latest" in [row["name"] for row in ask(server, "list")[1]["models"]]
    path.unlink()
    assert "new:latest" not in [row["name"] for row in ask(server, "list")[1]["models"]]
