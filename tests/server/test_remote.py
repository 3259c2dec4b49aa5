"""A model over several machines: its servers are asked, checked after the load, and may be lost."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.server_process import Server

pytestmark = pytest.mark.slow  # servers as processes of their own


@pytest.fixture
def machines() -> Iterator[list[socket.socket]]:
    """Two machines that accept connections, until their sockets are closed."""
    one, other = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    with closing(one), closing(other):
        yield [one, other]


def address(machine: socket.socket) -> str:
    return f"127.0.0.1:{machine.getsockname()[1]}"


def configure(home: Path, machines: list[socket.socket], more: str = "") -> Server:
    env = {"VLLAMA_CONFIG": str(home / "config.toml"), "VLLAMA_HANG_TIMEOUT": "3s"}
    server = Server(home, env=env)
    names = json.dumps([address(one) for one in machines])
    text = f'[models."m-replays"]\ngpus = "spread"\nrpc = {names}\n{more}'
    (home / "config.toml").write_text(text)
    return server


def started(server: Server) -> dict:
    words = server.engine("m-replays").cmdline()
    return json.loads(words[words.index("--started-with") + 1])


def generate(server: Server, prompt: str = "x") -> dict:
    status, answer = server.post(
        "/api/generate", {"model": "m-replays", "prompt": prompt, "stream": False}
    )
    return answer if status == 200 else {"status": status, **answer}


def test_a_lost_machine_is_named_and_left_out(tmp_path, machines):
    names = [address(one) for one in machines]
    with configure(tmp_path, machines) as server:
        server.model("m-replays")
        assert generate(server)["done"]
        assert started(server)["rpc"] == names
        assert started(server)["devices"] == ["RPC0", "RPC1"]
        # in the midst of a response, which the next plan's engine resumes
        body = {"model": "m-replays", "prompt": "@tokens=40 @delay=0.1"}
        with server.open("/api/generate", body) as answer:
            first = json.loads(answer.readline())
            machines[1].close()
            rows = [first, *(json.loads(line) for line in answer.read().splitlines())]
        assert rows[-1]["done"] and rows[-1]["eval_count"] == 40, rows[-1]
        assert started(server)["rpc"] == names[:1]
        assert f"RPC server {names[1]} does not respond" in server.output
        # the last one: what is left is this machine
        machines[0].close()
        assert generate(server)["done"]
        assert started(server)["rpc"] == []


def test_a_machine_that_falls_silent_is_left_out(tmp_path, machines):
    with configure(tmp_path, machines) as server:
        server.model("m-replays")
        body = {"model": "m-replays", "prompt": "@tokens=40 @delay=0.1"}
        with server.open("/api/generate", body) as answer:
            first = json.loads(answer.readline())
            links = [machines[1].accept()[0] for _ in range(2)]  # of the plan and of the engine
            machines[1].close()
            server.engine("m-replays").suspend()  # it waits for the machine
            rows = [first, *(json.loads(line) for line in answer.read().splitlines())]
        assert rows[-1]["done"] and rows[-1]["eval_count"] == 40, rows[-1]
        assert started(server)["rpc"] == [address(machines[0])]
        # not only after a start with both again, which waits for what a silent machine sends
        assert re.search("reload m-replays:latest: .* hangs: ", server.output), server.output
        for link in links:
            link.close()


def test_a_load_without_a_device_fails(tmp_path, machines):
    with configure(tmp_path, machines) as server:
        server.model("m-replays", "--hide-rpc")
        answer = generate(server)
        assert answer["status"] == 500, answer
        said = f"the engine's log does not show that it uses RPC0 ({address(machines[0])})"
        assert said in answer["error"]


def test_strict_leaves_no_machine_out(tmp_path, machines):
    machines[1].close()
    gone = "127.0.0.1:1"
    with configure(tmp_path, machines[:1], "strict = true\n") as server:
        text = (tmp_path / "config.toml").read_text().replace("rpc = [", f'rpc = ["{gone}", ')
        (tmp_path / "config.toml").write_text(text)
        server.model("m-replays")
        server.process.send_signal(1)
        server.wait_for("settings")
        assert f"RPC server {gone} does not respond" in generate(server)["error"]
