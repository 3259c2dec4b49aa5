"""The requests that run: listed with who asked, ended by somebody else, and logged with tokens."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server_process import LIMIT_S, Server

KEY = "sk-0123456789abcd"
SHOWS_KEY = {"authorization": f"Bearer {KEY}"}
MESSAGES = [{"role": "user", "content": "hi"}]
ENDED = "the request was stopped by another client"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("running")
    with Server(home, "--api-key", KEY, "--log-format", "json", "--hang-timeout", "0") as running:
        running.model("stalls", "--stall-after", "2")
        running.model("plain")
        yield running


class Asking(threading.Thread):
    """A request on its way, in a thread of its own."""

    def __init__(self, server: Server, path: str, body: dict[str, Any], id_: str) -> None:
        super().__init__(daemon=True)
        self.server, self.path, self.body = server, path, body
        self.headers = SHOWS_KEY | {"x-request-id": id_}
        self.status, self.answer = 0, b""
        self.start()

    def run(self) -> None:
        self.status, _, self.answer = self.server.request(
            "POST", self.path, {"model": "stalls", **self.body}, self.headers
        )

    def ended(self) -> tuple[int, str]:
        self.join(LIMIT_S)
        assert not self.is_alive()
        return self.status, self.answer.decode()


def rows(server: Server) -> list[dict[str, Any]]:
    status, _, body = server.request("GET", "/api/requests", headers=SHOWS_KEY)
    assert status == 200
    found: list[dict[str, Any]] = json.loads(body)["requests"]
    return found


def wait_for_row(server: Server, id_: str, **wanted: object) -> dict[str, Any]:
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        for row in rows(server):
            if row["id"] == id_ and wanted.items() <= row.items():
                return row
        assert time.monotonic() < deadline_s, rows(server)
        time.sleep(0.01)


def end(server: Server, id_: str) -> tuple[int, bytes]:
    status, _, body = server.request("DELETE", f"/api/requests/{id_}", headers=SHOWS_KEY)
    return status, body


OLLAMA = f'{{"error":"{ENDED}"}}'
OPENAI = f'"error":{{"message":"{ENDED}","type":"permission_error"'
ANTHROPIC = '"type":"error","error":{"type":"permission_error"'


@pytest.mark.parametrize(
    ("path", "body", "status", "shown"),
    [
        ("/api/chat", {"messages": MESSAGES}, 200, OLLAMA),
        ("/api/generate", {"prompt": "x", "stream": False}, 403, OLLAMA),
        ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}, 200, OPENAI),
        ("/v1/responses", {"input": "x"}, 403, OPENAI),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}, 403, ANTHROPIC),
    ],
)
def test_a_running_request_is_ended(
    server: Server, path: str, body: dict[str, Any], status: int, shown: str
) -> None:
    asking = Asking(server, path, body, "it-runs")
    row = wait_for_row(server, "it-runs", state="running", generated_tokens=2)
    assert (row["model"], row["path"], row["client"]) == ("stalls:latest", path, "127.0.0.1")
    assert row["key"] == "…abcd" and row["method"] == "POST" and row["started_at"]
    assert end(server, "it-runs") == (200, b"")
    code, text = asking.ended()
    assert code == status and shown in text and ENDED in text
    assert rows(server) == []
    server.wait_for(rf'"path": "{path}", "status": {status}, "outcome": "stopped"')
    told = server.request("GET", "/metrics", headers=SHOWS_KEY)[2].decode()
    counts = [line for line in told.splitlines() if line.startswith("vllama_requests_total{")]
    words = (f'route="{path}"', 'model="stalls', 'outcome="stopped"', f'status="{status}"')
    assert any(all(word in line for word in words) for line in counts)


def test_a_waiting_request_is_ended(server: Server) -> None:
    first = Asking(server, "/api/chat", {"messages": MESSAGES}, "first/1")
    wait_for_row(server, "first/1", generated_tokens=2)
    second = Asking(server, "/v1/chat/completions", {"messages": MESSAGES}, "second")
    wait_for_row(server, "second", state="waiting")
    assert [row["id"] for row in rows(server)] == ["first/1", "second"]
    assert rows(server)[1]["prompt_tokens"] is None  # nobody has counted yet
    assert end(server, "second")[0] == 200
    assert second.ended()[0] == 403
    assert [row["id"] for row in rows(server)] == ["first/1"]
    assert end(server, "first%2F1")[0] == 200
    first.ended()


def test_two_requests_of_one_id_are_told_apart(server: Server) -> None:
    first = Asking(server, "/api/chat", {"messages": MESSAGES}, "same")
    wait_for_row(server, "same", generated_tokens=2)
    second = Asking(server, "/api/chat", {"messages": MESSAGES}, "same")
    while len(ids := [row["id"] for row in rows(server)]) < 2:
        time.sleep(0.01)
    assert ids[0] == "same" and ids[1].startswith("same-")
    for id_, asking in ((ids[1], second), (ids[0], first)):
        assert end(server, id_)[0] == 200
        asking.ended()


def test_a_request_that_does_not_run(server: Server) -> None:
    status, body = end(server, "nobody")
    assert status == 404 and "request 'nobody' is not running" in body.decode()
    assert server.request("GET", "/api/requests")[0] == 401


def test_the_access_line(server: Server) -> None:
    body = {"model": "plain", "messages": MESSAGES, "stream": False}
    status, _, answer = server.request(
        "POST", "/api/chat", body, SHOWS_KEY | {"x-request-id": "logged"}
    )
    assert status == 200
    counted = json.loads(answer)
    server.wait_for('"request_id": "logged"')
    lines = [json.loads(line) for line in server.output.splitlines() if line.startswith("{")]
    (line,) = (line for line in lines if line.get("request_id") == "logged")
    told = {name: line[name] for name in ("component", "method", "path", "status", "client", "key")}
    assert told == {
        "component": "access",
        "method": "POST",
        "path": "/api/chat",
        "status": 200,
        "client": "127.0.0.1",
        "key": "…abcd",
    }
    assert line["model"] == "plain:latest"
    assert line["prompt_tokens"] == counted["prompt_eval_count"]
    assert line["completion_tokens"] == counted["eval_count"]
    tokens = f"{line['prompt_tokens']}+{line['completion_tokens']} tokens"
    assert re.fullmatch(
        rf"POST /api/chat 200 [0-9.]+s plain:latest {re.escape(tokens)} "
        "(?:[0-9.]+ tokens/s )?from 127.0.0.1 key …abcd",
        line["msg"],
    )
