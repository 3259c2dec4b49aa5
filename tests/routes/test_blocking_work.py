"""What blocks waits in threads of its own: slow downloads, silent searches and a hung disk."""

import http.client
import json
import os
import re
import signal
import socket
from contextlib import ExitStack, contextmanager

import pytest

from tests.routes.test_ollama_chat import until, user
from tests.routes.test_ready import asked, is_ready
from tests.server_process import Server

pytestmark = pytest.mark.slow

MANY = 40
LIMIT_S = 60.0
"""For one answer while others wait; with common threads it takes longer than this, or for ever."""


@pytest.fixture
def silent():
    """Return the address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def asking(server, path, body, limit_s=LIMIT_S):
    """Send a request and yield the connection, whether or not there is an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=limit_s)
    try:
        connection.request("POST" if body is not None else "GET", path, json.dumps(body))
        yield connection
    finally:
        connection.close()


def answered(server, path, body=None):
    with asking(server, path, body) as connection:
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read().decode()


def jobs(server, executor, state):
    text = answered(server, "/metrics")
    found = re.search(rf'vllama_executor_jobs_{state}{{executor="{executor}"}} (\S+)', text)
    return float(found[1])


def assert_serves(server):
    assert "first:latest" in answered(server, "/api/tags")
    assert "model_info" in answered(server, "/api/show", {"model": "first"})
    assert "models" in answered(server, "/api/ps")
    assert '"done":true' in answered(server, "/api/chat", {"model": "first", **user()})
    assert answered(server, "/readyz")


def test_more_silent_downloads_than_threads(tmp_path, silent):
    home = Server(tmp_path, env={"OLLAMA_MODELS": str(tmp_path / "ollama")})
    home.model("first")
    with home as server, ExitStack() as stack:
        answers = []
        for number in range(MANY):
            body = {"model": f"{silent}/library/m{number}", "insecure": True}
            pull = stack.enter_context(asking(server, "/api/pull", body))
            answers.append((pull, pull.getresponse()))
        told = [json.loads(answer.readline())["status"] for _, answer in answers]
        assert set(told) == {"pulling manifest", "waiting for other downloads"}
        assert_serves(server)
        waiting = jobs(server, "downloads", "waiting")
        assert waiting == told.count("waiting for other downloads")
        assert jobs(server, "downloads", "running") + waiting == MANY
        # the pulls of another registry do not wait behind them
        lines = server.lines("/api/pull", {"model": "127.0.0.1:1/library/m", "insecure": True})
        assert lines[0]["status"] == "pulling manifest" and "error" in lines[-1]
        # a client that leaves takes its pull out of the queue
        answers[-1][1].close()
        answers[-1][0].close()
        until(lambda: jobs(server, "downloads", "waiting") < waiting)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(timeout=30)
        assert "Traceback" not in server.output


def test_more_silent_searches_than_threads(tmp_path, silent):
    home = Server(tmp_path, env={"HF_ENDPOINT": silent})
    home.model("first")
    with home as server, ExitStack() as stack:
        for number in range(MANY):
            stack.enter_context(asking(server, f"/api/search?q=whales{number}", None))
        until(lambda: jobs(server, "web", "waiting") > 0)
        assert_serves(server)


def test_a_disk_that_does_not_answer_is_told(tmp_path):
    home = Server(tmp_path)
    home.model("first")
    with home as server, ExitStack() as stack:
        until(lambda: is_ready(server))
        # reading it blocks, as everything does on a file system that has gone
        reference = tmp_path / "hf" / "hub" / "models--org--gone" / "refs" / "main"
        reference.parent.mkdir(parents=True)
        os.mkfifo(reference)
        for _ in range(MANY):
            stack.enter_context(asking(server, "/api/tags", None))
        until(lambda: jobs(server, "disk", "waiting") > 0)
        for path in ("/readyz", "/health"):
            status, reply = asked(server, path)
            assert (status, [one["what"] for one in reply["reasons"]]) == (503, ["disk"])
        assert asked(server, "/livez")[0] == 200
        reference.rename(tmp_path / "main")
        (tmp_path / "main").write_bytes(b"")  # lets those who read it go on
        until(lambda: is_ready(server))
