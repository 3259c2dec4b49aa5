"""What is counted and kept never ends a server, and never keeps one from starting."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.routes.test_access import ask, command
from tests.routes.test_ollama_chat import until
from tests.server_process import Server

pytestmark = pytest.mark.slow

IMPOSSIBLE = ("99999999999999999999", "-5", "1e999", '"many"', "[[1]]", "1.5", "true", "9" * 400)
ANSWER = (
    'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
    'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    'data: {"choices":[],"usage":{"prompt_tokens":%s,"completion_tokens":%s,"total_tokens":%s}}\n\n'
    "data: [DONE]\n\n"
)


class Liar(BaseHTTPRequestHandler):
    """A server with one model, which tells the number of tokens that its prompt names."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send(b'{"object":"list","data":[{"id":"liar","owned_by":"nobody"}]}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path.endswith("/chat/completions"):
            number = json.loads(body)["messages"][-1]["content"]
            self.send((ANSWER % (number, number, number)).encode(), "text/event-stream")
        else:
            usage = b'"usage":{"prompt_tokens":99999999999999999999,"total_tokens":-1}'
            self.send(b'{"data":[{"index":0,"embedding":[1.0,0.5]}],%b}' % usage)

    def send(self, content: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def liar():
    there = ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    threading.Thread(target=there.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{there.server_port}"
    there.shutdown()
    there.server_close()


def test_impossible_numbers_of_an_engine_end_no_server(tmp_path: Path, liar: str) -> None:
    server = Server(tmp_path, "--upstream", liar, fake=False)
    with server:
        for number in IMPOSSIBLE:
            body = {"model": "liar", "messages": [{"role": "user", "content": number}]}
            for path in ("/api/chat", "/v1/chat/completions", "/v1/messages"):
                status, told = server.post(path, body | {"stream": False, "max_tokens": 9})
                assert status == 200, (path, told)
        assert server.post("/v1/embeddings", {"model": "liar", "input": "x"})[0] == 200
        [row] = server.get("/api/usage?by=model")["usage"]
        count = 3 * len(IMPOSSIBLE) + 1
        assert row["requests"] == count and 0 <= row["prompt_tokens"] < 1000
        assert server.output.count("ignoring unreadable data") <= 3, "once for each kind"
        assert server.process is not None
        server.process.kill()
        server.process.wait()
        line = b'["served","2026-11-23","","m",{"prompt_tokens":99999999999999999999}]'
        (tmp_path / "data" / "usage" / "1-1.journal").write_bytes(line + b"\n\xff\x00")
        server.start()
        [row] = server.get("/api/usage?by=model")["usage"]
        assert row["requests"] == count
        server.wait_for("cannot read 2 lines")


def test_usage_that_cannot_be_written_is_told_and_written_later(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "usage"
    folder.parent.mkdir()
    folder.write_text("in the way")
    with Server(tmp_path) as server:
        model = server.model("counts")
        root = command(server, "keys", "add", "root", "--scope", "admin")
        reader = command(server, "keys", "add", "reader", "--scope", "read", key=root)
        other = command(server, "keys", "add", "other", key=root)
        chat = {"model": model, "messages": [{"role": "user", "content": "x"}], "stream": False}
        assert ask(server, other, "/api/chat", chat)[0] == 200
        told = {name: ask(server, key, "/health")[1] for name, key in
                (("reader", reader), ("other", other), ("nobody", ""))}  # fmt: skip
        assert [one["status"] for one in told.values()] == ["ok"] * 3
        assert told["reader"]["warnings"][0]["what"] == "usage"
        assert "warnings" not in told["other"] and "warnings" not in told["nobody"]
        assert is_recording(server, reader) == 0.0
        status, told = ask(server, reader, "/api/usage")
        assert status == 503 and told["error"].startswith("cannot list usage: ")
        findings = json.loads(run_doctor(server))["findings"]
        assert any("usage cannot be recorded" in row["text"] for row in findings)
        folder.unlink()
        until(lambda: ask(server, reader, "/api/usage?by=key")[0] == 200)
        rows = ask(server, reader, "/api/usage?by=key")[1]["usage"]
        assert [(row["key"], row["requests"]) for row in rows] == [("other", 1)]
        assert is_recording(server, reader) == 1.0
        assert "warnings" not in ask(server, reader, "/health")[1]


def is_recording(server: Server, key: str) -> float:
    text = ask(server, key, "/metrics")[1]["text"].decode()
    name = "vllama_usage_recording "
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name))


def run_doctor(server: Server) -> str:
    run = [sys.executable, "-m", "vllama", "doctor", "--json"]
    return subprocess.run(run, env=server.env, check=False, capture_output=True, text=True).stdout
