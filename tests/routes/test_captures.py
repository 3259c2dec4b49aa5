"""Requests that are recorded with their answers (`--capture`)."""

import json
import time

import pytest

from tests.server_process import LIMIT_S, Server

pytestmark = pytest.mark.slow

KEY = {"x-api-key": "the-key-of-this-server"}
CHAT = {"model": "counts", "messages": [{"role": "user", "content": "hi @tokens=40"}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return a server that records."""
    home = tmp_path_factory.mktemp("captures")
    with Server(home, "--capture", "50", "--api-key", "the-key-of-this-server") as running:
        running.model("counts")
        running.model("slow", "--token-interval", "0.02")
        yield running


def ask(server, path, body, headers=None):
    """Send a request as a client with a key, and return its answer."""
    return server.request(
        "POST", path, body, {"x-api-key": "the-key-of-this-server"} | (headers or {})
    )


def fetch(server, path):
    status, _, content = server.request("GET", path, None, KEY)
    return status, json.loads(content)


def wait_for(server, id_):
    """Return a capture as soon as it is written, which happens after the answer."""
    deadline = time.monotonic() + LIMIT_S
    while (found := fetch(server, f"/api/captures/{id_}"))[0] != 200:
        assert time.monotonic() < deadline, server.output
        time.sleep(0.01)
    return found[1]


@pytest.mark.parametrize(
    "path", ["/api/chat", "/v1/chat/completions", "/v1/messages", "/v1/responses"]
)
def test_a_stream_is_kept_byte_for_byte(server, path):
    body = CHAT | {"stream": True, "max_tokens": 40}
    if path == "/v1/responses":
        body = {"model": "counts", "stream": True, "input": "hi @tokens=40"}
    status, headers, content = ask(server, path, body)
    assert status == 200
    kept = wait_for(server, headers["x-request-id"])
    assert "".join(part for _, part in kept["answer"]["parts"]).encode() == content
    assert kept["answer"]["size_bytes"] == len(content) and not kept["answer"]["cut"]
    times = [at_s for at_s, _ in kept["answer"]["parts"]]
    assert times == sorted(times) and 0 <= times[0] <= times[-1] <= kept["times"]["total_s"]
    assert json.loads(kept["request"]["body"]["data"]) == body
    assert kept["request"]["path"] == path and kept["outcome"] == "ok"
    assert kept["model"]["name"] == "counts:latest" and len(kept["model"]["digest"]) == 64
    assert kept["engine"]["name"] == "fake" and kept["engine"]["version"] == "1.0"
    assert kept["tokens"]["generated"] == 40
    assert 0 < kept["times"]["first_token_s"] <= kept["times"]["total_s"]


def test_a_whole_answer_and_the_sampling(server):
    body = CHAT | {"stream": False, "options": {"temperature": 0.5, "seed": 7}}
    _, headers, content = ask(server, "/api/chat", body)
    kept = wait_for(server, headers["x-request-id"])
    assert [part for _, part in kept["answer"]["parts"]] == [content.decode()]
    sampling = kept["engine"]["sampling"]
    assert sampling["temperature"] == 0.5 and sampling["seed"] == 7 and "messages" not in sampling


def test_secrets_are_not_kept(server):
    names = ("cookie", "proxy-authorization", "x-goog-api-key", "api-key", "x-some-token", "x-a")
    secrets = {name: f"secret-{number}" for number, name in enumerate(names)}
    _, headers, _ = ask(server, "/api/chat?key=secret-9", CHAT, secrets | {"user-agent": "me/1"})
    kept = wait_for(server, headers["x-request-id"])
    text = json.dumps(kept)
    assert "secret-" not in text and "the-key-of-this-server" not in text
    assert kept["request"]["headers"]["user-agent"] == "me/1"
    assert kept["request"]["headers"]["cookie"] is None and kept["key"] == "…rver"


def test_failures_are_kept_with_their_reason(server):
    _, headers, content = ask(server, "/api/chat", CHAT | {"model": "missing"})
    kept = wait_for(server, headers["x-request-id"])
    assert kept["outcome"] == "error" and kept["answer"]["status"] == 404
    assert "missing" in kept["error"]["message"] and kept["model"] is kept["engine"] is None
    assert kept["request"]["model"] == "missing"
    assert [part for _, part in kept["answer"]["parts"]] == [content.decode()]


def test_a_client_that_leaves(server):
    connection = server.connect()
    body = json.dumps(
        CHAT | {"model": "slow", "messages": [{"role": "user", "content": "@tokens=900"}]}
    )
    keyed = {"x-api-key": "the-key-of-this-server", "x-request-id": "leaver"}
    connection.request("POST", "/api/chat", body, keyed)
    connection.getresponse().read(10)
    connection.close()
    kept = wait_for(server, "leaver")
    assert kept["outcome"] == "aborted" and kept["request_id"] == "leaver"
    assert 0 < kept["tokens"]["generated"] < 900


def test_a_list_has_no_bodies_and_only_requests_to_models(server):
    _, headers, _ = ask(server, "/api/chat", CHAT)
    ask(server, "/api/show", {"model": "counts"})
    wait_for(server, headers["x-request-id"])
    status, listed = fetch(server, "/api/captures")
    assert status == 200 and listed["enabled"]
    first = listed["captures"][0]
    assert first["id"] == headers["x-request-id"]
    assert "body" not in first["request"] and "parts" not in first["answer"]
    assert fetch(server, "/api/captures/1-1")[0] == 404


def test_captures_want_a_key(server):
    for path in ("/api/captures", "/api/captures/1-1"):
        assert server.request("GET", path)[0] == 401


def test_a_server_for_everybody_shows_no_captures(tmp_path):
    with Server(tmp_path, "--capture", "5", "--host", "0.0.0.0") as server:
        for path in ("/api/captures", "/api/captures/1-1"):
            status, _, content = server.request("GET", path)
            assert status == 403 and b"vllama keys add" in content


def test_nothing_is_recorded_otherwise(tmp_path):
    with Server(tmp_path) as server:
        server.model("counts")
        assert server.lines("/api/chat", CHAT)[-1]["done"]
        assert server.get("/api/captures") == {"enabled": False, "captures": []}
        status, _, content = server.request("GET", "/api/captures/1-1")
        assert status == 404 and b"--capture" in content
    assert not (tmp_path / "data" / "captures").exists()


def test_a_disk_that_takes_nothing_harms_no_request(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with Server(tmp_path, "--capture", str(blocked / "captures")) as server:
        server.model("counts")
        for _ in range(3):
            assert server.lines("/api/chat", CHAT)[-1]["done"]
        server.wait_for("cannot write captures")
        assert server.lines("/api/chat", CHAT)[-1]["done"]
    assert server.output.count("cannot write captures") == 1


def test_all_is_written_before_the_server_ends(tmp_path):
    folder = tmp_path / "kept"
    with Server(tmp_path, "--capture", str(folder)) as server:
        server.model("counts")
        for _ in range(5):
            assert server.lines("/api/chat", CHAT)[-1]["done"]
    assert len(list(folder.iterdir())) == 5
