"""Commands that change models ask the running servers of their data folder, and report to them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.registry import OllamaModel, StandInRegistry
from tests.server.test_one_truth import KEY, OLD, Place
from tests.server.test_start import ROOT, STARTING
from tests.server.test_tls import Pair, TlsServer
from tests.server_process import Server
from tests.tiny import write_tiny_gguf

pytestmark = pytest.mark.slow

CHANGES = "/api/changes"
LOOKS: dict[str, Callable[[Place, str], bool]] = {
    "chat": lambda place, name: place.chat(name) != 404,
    "show": lambda place, name: place.context(name) != 404,
    "tags": lambda place, name: (
        f"{name}:latest" in [row["name"] for row in place.ask("GET", "/api/tags")[1]["models"]]
    ),
    "models": lambda place, name: (
        f"{name}:latest" in [row["id"] for row in place.ask("GET", "/v1/models")[1]["data"]]
    ),
    "model": lambda place, name: place.ask("GET", f"/v1/models/{name}")[0] == 200,
}
COMMANDS: dict[str, Callable[[str], tuple[str, ...]]] = {
    "create": lambda name: ("create", name, "-f", "-"),
    "cp": lambda name: ("cp", "base", name),
    "pull": lambda name: ("pull", name),
    "rm": lambda name: ("rm", name),
}


def run(server: Server, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the data folder of a server, without its address and keys."""
    return subprocess.run(
        [server.python, "-m", "vllama", *args],
        env=server.env | {"OLLAMA_HOST": f"127.0.0.1:{free_port()}"} | env,
        input=f"FROM base\nSYSTEM {OLD}\n",
        capture_output=True,
        text=True,
    )


def list_models(server: Server) -> list[Path]:
    stores = ("data/models", "data/blobs", ".ollama", "hf", "models")
    return sorted(path for store in stores for path in (server.home / store).rglob("*"))


@pytest.fixture(params=["", KEY], ids=["open", "keys"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    keys = ("--api-key", request.param) if request.param else ()
    with StandInRegistry() as registry:
        weights = write_tiny_gguf(tmp_path / "own.gguf", n_ctx=2048)
        for look in LOOKS:
            registry.add(f"library/pull-{look}:latest", OllamaModel([("model", weights)]))
        env = {"VLLAMA_OLLAMA_REGISTRY": registry.url}
        with Server(tmp_path / "home", *keys, env=env) as server:
            yield Place(server, request.param)


def test_the_first_request_after_a_command_sees_it(place: Place) -> None:
    place.begin()
    seen, expected = {}, {}
    for command, make in COMMANDS.items():
        for title, look in LOOKS.items():
            name = f"{command}-{title}"
            if command == "rm":
                place.create(name, "base", OLD)
                assert place.chat(name) == OLD and f"{name}:latest" in place.list_loaded()
            else:
                assert place.chat(name) == 404 and not look(place, name)
            done = run(place.server, *make(name))
            assert done.returncode == 0 and "does not respond" not in done.stderr, done.stderr
            seen[name], expected[name] = look(place, name), command != "rm"
            assert (f"{name}:latest" in place.list_loaded()) <= expected[name]
    assert seen == expected


@pytest.mark.parametrize("place", [KEY], indirect=True)
def test_ps_is_the_first_request_after_a_removal(place: Place) -> None:
    place.begin()
    names = [f"m{number}" for number in range(4)]
    for name in names:
        place.file(name)  # files of their own: an engine each
    for name in names:
        assert place.chat(name) == ""
        place.create(f"{name}-made", name, OLD)
        assert place.chat(f"{name}-made") == OLD
        (place.server.models / f"{name}.gguf").unlink()
        assert run(place.server, "rm", f"{name}-made").returncode == 0
        assert not {f"{name}:latest", f"{name}-made:latest"} & place.list_loaded().keys()


@pytest.mark.parametrize("place", [KEY], indirect=True)
def test_a_model_that_is_removed_while_it_answers_has_no_name(place: Place) -> None:
    place.server.model("slow", "--token-interval", "0.02")
    body = {"model": "slow", "messages": [{"role": "user", "content": "@tokens=200"}]}
    key = {"authorization": f"Bearer {place.key}"}
    connection = place.server.connect()
    connection.request("POST", "/api/chat", json.dumps(body), key)
    with connection.getresponse() as answer:
        assert answer.status == 200 and answer.readline()
        place.create("other", "slow", OLD)
        assert "slow:latest" in place.list_loaded()
        (place.server.models / "slow.gguf").unlink()
        assert run(place.server, "rm", "other").returncode == 0
        assert place.list_loaded() == {}
        last = json.loads(answer.read().splitlines()[-1])
    connection.close()
    assert last["done"] and last["eval_count"] == 200


@pytest.mark.parametrize("flags", [(), ("--api-key", KEY)], ids=["open", "keys"])
def test_a_read_only_server_refuses_the_owners_commands(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    with Server(tmp_path / "home", "--read-only", *flags) as server:
        server.model("base")
        server.model("old")
        before = list_models(server)
        more = {"convert": lambda name: ("convert", "base", "-o", name, "-q", "Q8_0", "--yes")}
        for command, make in (COMMANDS | more).items():
            done = run(server, *make("old"))
            refused = f"cannot change models: the server at 127.0.0.1:{server.port} is read-only"
            assert done.returncode == 1 and done.stdout == "", (command, done)
            assert done.stderr == f"Error: {refused}\nHint: restart it without --read-only\n", (
                command
            )
        assert list_models(server) == before
        for reading in (("list",), ("show", "base")):
            assert run(server, *reading).returncode == 0
    assert run(server, "cp", "base", "new").returncode == 0  # nobody is there to refuse it


def test_a_server_by_tls(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "tls", "gpu.example")  # by no name of the loopback
    server = TlsServer(tmp_path / "home", pair.authority, "--read-only", *pair.flags)
    server.model("base")
    with server:
        assert "read-only" in run(server, "cp", "base", "new").stderr
        pair.issue("other.example")  # which the server does not have yet
        done = run(server, "cp", "base", "new")
        assert done.returncode == 0 and "does not respond" in done.stderr


def test_one_of_two_servers_has_to_allow_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    reader, writer = Server(home, "--read-only"), Server(home)
    reader.log = home / "reader.log"
    with reader, writer:
        reader.model("base")
        for server in (reader, writer):
            assert Place(server, "").context("new") == 404
        done = run(writer, "cp", "base", "new")
        assert (done.returncode, done.stderr.strip()) == (0, "")
        for server in (writer, reader):
            assert server.get("/v1/models/new")["id"] == "new"
            body = {"model": "new", "messages": [{"role": "user", "content": "hi"}]}
            assert server.post("/v1/chat/completions", body)[0] == 200
        assert run(writer, "rm", "new").returncode == 0
        for server in (writer, reader):
            assert [row["name"] for row in server.get("/api/ps")["models"]] == []


def test_without_a_server_that_responds_the_disk_is_changed(tmp_path: Path) -> None:
    with Server(tmp_path / "home", "--read-only") as server:
        server.model("base")
        assert server.process
        server.process.send_signal(signal.SIGSTOP)
        try:
            done = run(server, "cp", "base", "new")
        finally:
            server.process.send_signal(signal.SIGCONT)
        line = f"the server at {server.url} does not respond: continuing without it\n"
        assert (done.returncode, done.stderr) == (0, line)
        assert server.get("/v1/models/new")["id"] == "new"
        server.process.kill()
        server.process.wait()
        done = run(server, "rm", "new")
        assert done.returncode == 0 and "respond" not in done.stderr


def test_a_server_of_another_folder_has_no_say(tmp_path: Path) -> None:
    with Server(tmp_path / "other", "--read-only") as other:
        server = Server(tmp_path / "home")
        server.model("base")
        folder = server.home / "data/servers"
        folder.mkdir(parents=True)
        with (folder / "held.json").open("w") as file:
            json.dump({"url": other.url, "secret": "sk-none"}, file)
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX)
            done = run(server, "cp", "base", "new")
        assert done.returncode == 0 and f"{other.url} does not respond" in done.stderr
        for key in ("", "Bearer ", "Bearer sk-none", "Bearer \u00e9"):
            headers = {"authorization": key.encode("latin-1")} if key else {}
            assert other.request("POST", CHANGES, {}, headers)[0] == 404


def test_a_server_that_starts_may_refuse(tmp_path: Path) -> None:
    server = Server(tmp_path / "home")
    server.model("base")
    command = [sys.executable, "-c", STARTING, "serve", "--read-only", "--port", str(free_port())]
    env = server.env | {"PYTHONPATH": f"{ROOT}{os.pathsep}{server.env['PYTHONPATH']}"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == b"composing\n"
        assert "is read-only" in run(server, "cp", "base", "new").stderr
        process.communicate(b"\n")


@pytest.mark.parametrize("place", [""], indirect=True)
def test_many_commands_at_once(place: Place) -> None:
    place.begin()
    names = [f"n{number}" for number in range(6)]
    for words in (lambda name: ("cp", "old", name), lambda name: ("rm", name)):
        with ThreadPoolExecutor() as pool:
            ended = list(pool.map(lambda name: run(place.server, *words(name)), names))  # noqa: B023
        assert not any(done.returncode for done in ended), ended
        found = {name: place.chat(name) for name in names}
        assert found == dict.fromkeys(names, OLD if words("")[0] == "cp" else 404)
