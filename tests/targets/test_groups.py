"""One model over several machines: real servers and processes, the fake engine."""

from __future__ import annotations

import json
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.fake_engine.vllama_fake import PROGRAM
from tests.server_process import LIMIT_S, Server

pytestmark = pytest.mark.slow

NAME = "shared"
END_S = 5.0
"""All processes of a group have ended so long after the first."""
EMPTY = b'{"models":[]}'
KEY = "sk-between-the-servers"


class Pair:
    """A server that answers, and one that serves a part of the model; both with the node key."""

    def __init__(self, home: Path) -> None:
        key = home / "node.key"
        key.write_text(f"{KEY}\n")
        key.chmod(0o600)
        own = ("--node-key-file", str(key))
        self.box = Server(home / "box", *own)
        self.box.start()
        self.head = Server(home / "head", *own)
        file = Path(self.head.env["HOME"]) / ".config" / "vllama" / "config.toml"
        file.parent.mkdir(parents=True)
        file.write_text(f'[models."*"]\nmachines = ["{self.box.url}"]\n')
        self.head.start()
        self.head.model(NAME)

    def ask(self):
        """Return status and body of a request to rank 0."""
        body = {"model": NAME, "prompt": "hi", "stream": False}
        headers = {"authorization": f"Bearer {KEY}"}
        return self.head.request("POST", "/api/generate", body, headers)

    def ranks(self) -> list[psutil.Process]:
        """Return the processes of the other machine: rank 1."""
        return find(self.box, 2, "import time; time.sleep(600)")

    def engines(self) -> list[psutil.Process]:
        """Return the processes of rank 0."""
        return find(self.head, 1, str(PROGRAM))

    def find_both(self) -> tuple[psutil.Process, psutil.Process]:
        """Return rank 1 and rank 0, which does not wait for the other as a real engine does."""
        deadline_s = time.monotonic() + LIMIT_S
        while not (self.ranks() and self.engines()):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        return self.ranks()[0], self.engines()[0]


def find(server: Server, place: int, word: str) -> list[psutil.Process]:
    """Return the processes of a server that have a word at a place of their command."""
    found = []
    for process in server.tree():
        with suppress(psutil.NoSuchProcess):
            if process.cmdline()[place : place + 1] == [word]:
                found.append(process)
    return found


@pytest.fixture
def pair(tmp_path):
    with ExitStack() as stack:
        pair = Pair(tmp_path)
        stack.push(pair.box.__exit__)
        stack.push(pair.head.__exit__)
        pair.box.model(NAME)
        yield pair


def gone(processes, limit_s: float = END_S) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=limit_s)
    return not alive


def test_a_model_is_served_by_two_machines_and_ends_on_both(pair) -> None:
    status, _, body = pair.ask()
    assert status == 200, body
    rank, engine = pair.find_both()
    words = engine.cmdline()
    address, port = words[words.index("--owner") + 1], words[words.index("--owner") + 3]
    assert rank.cmdline()[-3:] == ["1 of 2", address, port] and address == "127.0.0.1"
    for each in (pair.box, pair.head):
        secrets = [word for process in each.tree() for word in process.cmdline() if KEY in word]
        assert not secrets
    headers = {"authorization": f"Bearer {KEY}"}
    unload = {"model": NAME, "keep_alive": 0}
    assert pair.head.request("POST", "/api/generate", unload, headers)[0] == 200
    assert gone([rank, engine])


@pytest.mark.parametrize("which", ["rank", "engine", "box", "head"])
def test_all_end_when_one_does(pair, which) -> None:
    assert pair.ask()[0] == 200
    rank, engine = pair.find_both()
    pair.box.wait_for("is loaded")  # before that it would have refused, and not be lost
    killed = {"rank": rank, "engine": engine}.get(which)
    if killed is None:
        server = pair.box if which == "box" else pair.head
        tree = server.tree()
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        assert gone([rank, engine])
        assert gone(tree)
        server.process = None
        if which == "box":
            pair.head.wait_for("it has lost the machine 127.0.0.1")
            pair.box.start()
        return
    killed.send_signal(signal.SIGKILL)
    assert gone([rank, engine])
    pair.find_both()  # they are started again
    if which == "rank":
        pair.head.wait_for("it has lost the machine 127.0.0.1: ")
    assert pair.ask()[0] == 200


def test_what_the_other_machine_refuses_is_told(pair) -> None:
    (pair.box.models / f"{NAME}.gguf").unlink()
    status, _, body = pair.ask()
    assert status == 500 and b"another machine does not take part: 127.0.0.1: " in body
    assert b"not found" in body


def test_the_route_is_for_nodes_only(pair) -> None:
    body = {"model": NAME, "num_ctx": 10, "size": 2, "rank": 1, "address": "x", "port": 1}
    assert pair.box.request("POST", "/api/group", body)[0] == 401
    headers = {"authorization": f"Bearer {KEY}"}
    for changes in ({"rank": 0}, {"size": "2"}, {"model": "nobody"}):
        status = pair.box.request("POST", "/api/group", body | changes, headers)[0]
        assert status == (404 if "model" in changes else 400)


def test_nothing_is_left_of_a_rank_whose_asker_leaves_while_it_loads(pair) -> None:
    asked = {"model": NAME, "num_ctx": 10, "size": 2, "rank": 1, "address": "127.0.0.1", "port": 1}
    headers = {"authorization": f"Bearer {KEY}"}
    for pause_s in (0.0, 0.05, 0.1, 0.15, 0.2):
        connection = pair.box.connect()
        connection.request("POST", "/api/group", json.dumps(asked), headers)
        connection.getresponse()
        time.sleep(pause_s)
        connection.close()
        deadline_s = time.monotonic() + END_S
        while pair.ranks() or pair.box.request("GET", "/api/ps", None, headers)[2] != EMPTY:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
