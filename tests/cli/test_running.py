"""Commands about running models: ps and stop, and what the client makes of failures."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.conftest import Vllama
from tests.cli.stub import Body, Reply, StubServer
from vllama.base.errors import BadRequest, Busy, ModelNotFound, ServerUnreachable, VllamaError
from vllama.base.units import rfc3339_local
from vllama.cli.client import Client, _unreachable
from vllama.cli.model_output import describe_expiry, describe_processor


def loaded(name: str, **more: object) -> Body:
    model = {
        "name": name,
        "model": name,
        "digest": "0123456789abcdef" * 4,
        "size": 2_019_393_189,
        "size_vram": 0,
        "context_length": 4096,
        "expires_at": rfc3339_local(time.time() + 299),
    }
    return model | more


def test_ps(stub: StubServer, vllama: Vllama) -> None:
    stub.on(
        "GET /api/ps",
        {
            "models": [
                loaded("smollm2:135m"),
                loaded("big:latest", size_vram=2_019_393_189, state="ready"),
                loaded("late:latest", state="starting"),
            ]
        },
    )
    done = vllama("ps")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "NAME            ID              SIZE      PROCESSOR    CONTEXT    UNTIL",
        "smollm2:135m    0123456789ab    2.0 GB    100% CPU     4096       4 minutes from now",
        "big:latest      0123456789ab    2.0 GB    100% GPU     4096       4 minutes from now",
        "late:latest     0123456789ab    2.0 GB    100% CPU     4096       Loading...",
    ]
    assert vllama("ps", "BIG").stdout.count("\n") == 2
    assert [m["name"] for m in json.loads(vllama("ps", "--json", "sm").stdout)["models"]] == [
        "smollm2:135m"
    ]


def test_ps_does_not_guess_where_a_server_elsewhere_runs_its_model(
    stub: StubServer, vllama: Vllama
) -> None:
    there = {"details": {"format": "remote"}, "size": 0, "context_length": 0, "state": "ready"}
    stub.on("GET /api/ps", {"models": [loaded("org/big:latest", **there)]})
    row = vllama("ps").stdout.splitlines()[1]
    assert row.split() == [
        "org/big:latest",
        "0123456789ab",
        "0",
        "B",
        "elsewhere",
        *row.split()[5:],
    ]
    assert "CPU" not in row and "from now" in row
    # its limit is its own affair
    stub.on("GET /api/ps", {"models": [loaded("b:1", **there, requests=3, slots=4096)]})
    assert vllama("ps").stdout.splitlines()[1].split()[-2:] == ["ready", "3"]


def test_ps_of_our_own_server(stub: StubServer, vllama: Vllama) -> None:
    busy = {"state": "ready", "requests": 4, "slots": 4, "queued": 2, "other_names": ["copy:1"]}
    late = {"state": "loading", "requests": 0, "slots": 1, "queued": 1, "cause": "no free slot"}
    failed = {"name": "bad:latest", "state": "failed", "cause": "it is damaged", "hint": "mend it"}
    stub.on(
        "GET /api/ps",
        {"models": [loaded("busy:latest", **busy), loaded("late:latest", **late)],
         "failed": [failed]},
    )  # fmt: skip
    done = vllama("ps")
    columns = [line.split("    ") for line in done.stdout.splitlines()]
    ends = [[cell.strip() for cell in row if cell.strip()][5:] for row in columns]
    assert ends == [
        ["UNTIL", "STATE", "REQUESTS"],
        ["4 minutes from now", "ready", "4/4, 2 waiting"],
        ["Loading...", "loading", "0/1, 1 waiting"],
    ]
    assert done.stderr.splitlines() == [
        "busy:latest shares its engine with copy:1",
        "late:latest (loading): no free slot",
        "bad:latest (failed): it is damaged; mend it",
    ]
    assert json.loads(vllama("ps", "--json").stdout)["failed"] == [failed]
    assert [row["name"] for row in json.loads(vllama("ps", "--json", "cop").stdout)["models"]] == [
        "busy:latest"
    ]


def test_ps_of_nothing(stub: StubServer, vllama: Vllama) -> None:
    stub.on("GET /api/ps", {"models": []})
    assert vllama("ps").stdout.split() == ["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL"]
    assert json.loads(vllama("ps", "--json").stdout) == {"models": []}


@pytest.mark.parametrize(
    ("size", "vram", "text"),
    [
        (100, 0, "100% CPU"),
        (100, 100, "100% GPU"),
        (100, 52, "48%/52% CPU/GPU"),
        (1000, 995, "1%/99% CPU/GPU"),
        (100, 200, "Unknown"),
        (0, 0, "100% CPU"),
    ],
)
def test_processor(size: int, vram: int, text: str) -> None:
    assert describe_processor({"size": size, "size_vram": vram}) == text


FAR = {"total": 100, "started_at": "2318-01-01T00:00:00Z"}  # no time has passed since then


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"expires_at": "1970-01-01T00:10:00Z"}, "10 minutes from now"),
        ({"expires_at": "1969-12-31T23:59:00Z"}, "Stopping..."),
        ({"expires_at": "2318-01-01T00:00:00.5+01:00"}, "Forever"),
        ({}, "Never"),
        ({"expires_at": "1970-01-01T00:10:00Z", "state": "ready"}, "10 minutes from now"),
        ({"expires_at": "1970-01-01T00:10:00Z", "state": "failed"}, "Failed"),
        ({"state": "loading", "load": FAR | {"completed": 0}}, "Loading 0.0 s"),
        ({"state": "loading", "load": FAR | {"completed": 62}}, "Loading 62% of 100 B, 0.0 s"),
        ({"state": "backoff"}, "Restarting..."),
        ({"state": "backoff", "details": {"format": "remote"}}, "Not responding"),
    ],
)
def test_until(model: Body, text: str) -> None:
    assert describe_expiry(model, 0.0) == text


def test_stop(stub: StubServer, vllama: Vllama) -> None:
    stub.on("POST /api/generate", {"done": True, "done_reason": "unload"})
    done = vllama("stop", "smollm2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert stub.bodies("POST /api/generate") == [{"model": "smollm2", "keep_alive": 0}]


ROW = {
    "id": "abc-1", "model": "m:latest", "method": "POST", "path": "/api/chat",
    "client": "10.0.0.7", "key": "…abcd", "state": "running", "started_at": "",
    "prompt_tokens": 30, "generated_tokens": 12,
}  # fmt: skip


def test_ps_of_requests(stub: StubServer, vllama: Vllama) -> None:
    since = rfc3339_local(time.time() - 120)
    waits = {"started_at": since, "model": "other:1b", "waits_for": "a free slot"}
    rows = [ROW | {"started_at": since}, ROW | waits]
    stub.on("GET /api/requests", {"requests": rows})
    done = vllama("ps", "--requests")
    header, row, _ = done.stdout.splitlines()
    assert done.stderr == "other:1b: 1 request waits for a free slot\n"
    assert header.split() == ["ID", "MODEL", "ROUTE", "CLIENT", "KEY", "SINCE", "STATE", "TOKENS"]
    assert row.split("    ") == [
        *("abc-1", "m:latest", "/api/chat", "10.0.0.7", "…abcd"),
        *("2 minutes ago", "running", "12"),
    ]
    assert json.loads(vllama("ps", "--requests", "other", "--json").stdout) == {
        "requests": [rows[1]]
    }


def test_stop_of_a_request(stub: StubServer, vllama: Vllama) -> None:
    stub.on("DELETE /api/requests/abc%2F1")
    done = vllama("stop", "--request", "abc/1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped request abc/1\n", "")
    stub.fail("DELETE /api/requests/gone", 404, "no request 'gone' is running")
    done = vllama("stop", "--request", "gone")
    assert done.returncode == 1 and "no request 'gone' is running" in done.stderr


@pytest.mark.parametrize("args", [(), ("m", "--request", "abc")])
def test_stop_wants_one_thing(vllama: Vllama, args: tuple[str, ...]) -> None:
    done = vllama("stop", *args)
    assert done.returncode == 2 and "MODEL or --request ID" in done.stderr


def test_stop_of_an_unknown_model(stub: StubServer, vllama: Vllama) -> None:
    stub.fail("POST /api/generate", 404, "model 'nope' not found")
    done = vllama("stop", "nope")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == 'Error: couldn\'t find model "nope" to stop'


@pytest.mark.parametrize("argv", [["ps"], ["stop", "m"]])
def test_no_server(argv: list[str], vllama: Vllama) -> None:
    done = vllama(*argv, OLLAMA_HOST="127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Error: could not connect to a vllama server at http://127.0.0.1:9",
        "Hint: run 'vllama serve' to start it",
    ]


def test_warnings_of_the_settings(stub: StubServer, vllama: Vllama) -> None:
    stub.on("GET /api/ps", {"models": []})
    done = vllama("ps", VLLAMA_PROT="1")
    assert done.returncode == 0
    assert done.stderr == "Warning: VLLAMA_PROT is not a setting; did you mean VLLAMA_PORT?\n"


@pytest.mark.parametrize(
    ("status", "content", "kind", "message"),
    [
        (404, b'{"error": "model \'x\' not found"}', ModelNotFound, "model 'x' not found"),
        (400, b'{"error": "bad"}', BadRequest, "bad"),
        (503, b'{"error": "server busy"}', Busy, "server busy"),
        (500, b'{"error": {"message": "deep"}}', VllamaError, "deep"),
        (500, b"<html>", VllamaError, "the server rejected the request: status 500"),
        (502, b"", VllamaError, "the server rejected the request: status 502"),
    ],
)
def test_refusals(
    status: int, content: bytes, kind: type[VllamaError], message: str, stub: StubServer
) -> None:
    stub.routes["POST /x"] = lambda body, reply: reply.send(content, status)
    with Client(f"http://{stub.address}") as client, pytest.raises(VllamaError) as caught:
        client.post("/x", {"model": "x"})
    assert type(caught.value) is kind
    assert caught.value.message == message


def test_streams(stub: StubServer) -> None:
    def handler(body: Body, reply: Reply) -> None:
        reply.begin()
        text = json.dumps({"text": "a\u2028b\x85c"}, ensure_ascii=False).encode()
        for at in range(len(text)):
            reply.raw(text[at : at + 1])
        reply.raw(b"\n\n{}\n" + b'{"n": 3}')

    stub.routes["POST /x"] = handler
    with Client(f"http://{stub.address}") as client:
        lines = list(client.stream("/x", {}))
    assert lines == [{"text": "a\u2028b\x85c"}, {}, {"n": 3}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"n": 1}\n{"error": "it broke"}\n', "it broke"),
        (b'{"n": 1}\n<html>', "does not support Ollama's API"),
        (b"[1]\n", "does not support Ollama's API"),
    ],
)
def test_failures_in_a_stream(content: bytes, message: str, stub: StubServer) -> None:
    stub.routes["POST /x"] = lambda body, reply: reply.send(content)
    with Client(f"http://{stub.address}") as client, pytest.raises(VllamaError, match=message):
        list(client.stream("/x", {}))


@pytest.mark.parametrize(
    ("url", "proxied"), [("http://far.test:11434", True), ("http://localhost:9", False)]
)
def test_a_proxy_is_for_servers_elsewhere(
    url: str, proxied: bool, stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://{stub.address}")
    monkeypatch.delenv("no_proxy", raising=False)
    stub.on(f"POST {url}/x", {"n": 1})
    with Client(url) as client:
        if proxied:
            assert client.post("/x", {"a": "ä"}) == {"n": 1}
        else:
            with pytest.raises(ServerUnreachable):
                client.post("/x", {})
    assert stub.bodies(f"POST {url}/x") == ([{"a": "ä"}] if proxied else [])


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        (
            socket.gaierror(-2, "Name or service not known"),
            ": no network, or no host with that name",
        ),
        (ConnectionRefusedError(111, "Connection refused"), ": connection refused"),
        (TimeoutError("timed out"), ": no response within 5 s"),
    ],
)
def test_the_cause_of_an_unreachable_server_elsewhere(reason: OSError, cause: str) -> None:
    error = _unreachable("https://gpu.example:443", reason)
    assert cause in error.message and "OLLAMA_HOST" in str(error.hint)
    assert "vllama serve --host" in str(error.hint)


def test_a_limit_ends_the_wait_for_an_answer(stub: StubServer) -> None:
    stub.routes["GET /x"] = lambda body, reply: reply.wait_for_leaving()
    with Client(f"http://{stub.address}", limit_s=0.1) as client, pytest.raises(VllamaError):
        client.get("/x")


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "cut",
    [
        b"Content-Length: 100\r\n\r\n{}\n",
        *(CHUNKED + chunk for chunk in (b"5\r\n{}", b"3\r\n{}\n\r\n", b"zz\r\n")),
    ],
)
def test_a_cut_answer_is_an_error(cut: bytes, stub: StubServer) -> None:
    stub.routes["GET /x"] = lambda body, reply: reply.raw(b"HTTP/1.1 200 OK\r\n" + cut)
    with Client(f"http://{stub.address}") as client, pytest.raises(VllamaError, match="early"):
        client.get("/x")


def test_an_address_that_is_none() -> None:
    with Client("http://host:port") as client, pytest.raises(VllamaError, match="the address"):
        client.get("/")


PAGE = b"<!DOCTYPE html><html><body>a page of secrets</body></html>"
LISTENERS = {
    "a web page": (b"HTTP/1.0 200 OK\r\n\r\n" + PAGE, r"a web page \(status 200\)"),
    "no such page": (b"HTTP/1.0 404 Not Found\r\n\r\n" + PAGE, r"a web page \(status 404\)"),
    "a proxy": (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", "status 502"),
    "JSON": (b'HTTP/1.0 200 OK\r\n\r\n{"secrets": 1}', r"other JSON \(status 200\)"),
    "a version": (b'HTTP/1.0 200 OK\r\n\r\n{"version": "1", "secrets": 1}', "other JSON"),
    "a list": (b'HTTP/1.0 200 OK\r\n\r\n["secrets"]', r"other JSON \(status 200\)"),
    "an API": (b'HTTP/1.0 404 No\r\n\r\n{"error": "secrets"}', r"other JSON \(status 404\)"),
    "another API": (b'HTTP/1.0 401 No\r\n\r\n{"error": {"reason": "secrets"}}', "other JSON"),
    "text": (b"HTTP/1.0 200 OK\r\n\r\nsecrets", r"something else \(status 200\)"),
    "nothing": (b"HTTP/1.0 200 OK\r\n\r\n", r"something else \(status 200\)"),
    "a redirect": (b"HTTP/1.0 302 Found\r\nLocation: /secrets\r\n\r\n", "to another address"),
    "ssh": (b"SSH-2.0-OpenSSH_9.2 secrets\r\n", "it does not speak HTTP"),
    "TLS": (b"\x15\x03\x01\x00\x02\x02F", "it does not speak HTTP"),
    "endless": (b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 10_000_000, "something else"),
    "closed": (b"", "it closed the connection"),
}


@contextmanager
def listen(content: bytes | None) -> Iterator[str]:
    """Answer every connection with `content`; None: never, and without closing it."""
    ended = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            if content is None:
                ended.wait()
                return
            with contextlib.suppress(OSError):
                self.request.sendall(content)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            ended.set()
            server.shutdown()


ASKING = (
    ("ps",), ("ps", "--requests"), ("stop", "m"), ("stop", "--request", "1"), ("events",),
    ("launch", "codex", "--model", "m", "--yes"), ("bench", "m"),
)  # fmt: skip


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_another_program_on_the_port_is_named(words: tuple[str, ...], vllama: Vllama) -> None:
    with listen(LISTENERS["a web page"][0]) as address:
        done = vllama(*words, OLLAMA_HOST=address)
    assert done.returncode == 1 and "not a vllama or Ollama server; it sends a" in done.stderr
    assert "Hint: " in done.stderr and "secrets" not in done.stderr + done.stdout


@pytest.mark.parametrize("name", LISTENERS)
def test_what_another_program_answers_is_never_shown(name: str) -> None:
    content, words = LISTENERS[name]
    with (
        listen(content) as address,
        Client(f"http://{address}") as client,
        pytest.raises(ServerUnreachable, match=words) as caught,
    ):
        client.get("/api/ps")
    assert "OLLAMA_HOST" in str(caught.value.hint)
    assert "secrets" not in caught.value.sentence()


def test_a_program_that_never_answers_is_not_waited_for() -> None:
    with (
        listen(None) as address,
        Client(f"http://{address}", limit_s=0.2) as client,
        pytest.raises(ServerUnreachable, match=r": no response within 0\.2 s$"),
    ):
        client.post("/api/chat", {"model": "m"})


@pytest.mark.parametrize("status", [401, 403, 503])
def test_a_server_that_refuses_is_one(status: int, stub: StubServer) -> None:
    for key in ("GET /api/version", "GET /api/ps"):
        stub.fail(key, status, "not now")
    with Client(f"http://{stub.address}") as client, pytest.raises(VllamaError, match="not now"):
        client.get("/api/ps")
