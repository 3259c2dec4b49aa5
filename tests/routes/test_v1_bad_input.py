"""Bad requests of every kind to the `/v1` routes of a whole server: 4xx in the dialect's shape."""

from __future__ import annotations

import json

import psutil
import pytest

from tests.dialects.test_bad_input import ROUTES
from tests.routes.test_ollama_chat import user
from tests.server_process import Server

# real processes, one after another: not for every save
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "decisions": "/v1/decisions",
}
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A server whose log nobody else writes to."""
    with Server(tmp_path_factory.mktemp("bad")) as running:
        running.model("plain")
        running.model("vectors", "--embed-per-token")
        yield running
        assert "Traceback" not in running.output
        assert "unexpected error" not in running.output


def base(name):
    return ROUTES[name][1] | {"model": "vectors" if name == "embeddings" else "plain"}


def check(name, status, headers, data, sent):
    """Assert that an answer is a good one, or an error as its clients read it."""
    assert 200 <= status < 500 or status == 501, (sent, status, data)
    if status == 200:
        return
    value = json.loads(data)
    assert headers["content-type"].startswith("application/json")
    if name == "messages":
        assert value["type"] == "error" and value["request_id"].startswith("req_")
    else:
        assert set(value["error"]) == {"message", "type", "param", "code"}
    if status == 403:  # a tool of a type that nobody knows might be run by the engine
        assert value["error"]["type"] == "permission_error"
    else:
        kinds = ("invalid_request_error", "not_found_error", "api_error")
        assert value["error"]["type"] in kinds
    assert value["error"]["message"]


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"{", b"\xff", b"\x00", b'{"model": "\xff"}', b"[" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000, b"[" * 900 + b'"\\ud800"' + b"]" * 900,
        b'{"model": "\\u0000"}', b'{"model": "plain\\u0000"}', b'{"model": "../../etc/passwd"}',
        b'{"model": "' + b"x" * 100_000 + b'"}', '{"model": "größe:😀"}'.encode(),
        b'{"model": ["plain"]}', b'{"model": "a/b/c/d/e"}', b"1" * 5000, b"model=plain&prompt=x",
    ],
)  # fmt: skip
def test_bodies(own, name, body):
    status, headers, data = own.request("POST", PATHS[name], body)
    assert status in (400, 404)
    check(name, status, headers, data, body)


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "\xff"]
)
def test_the_content_type_is_ignored(own, name, kind):
    fields = {key: value for key, value in base(name).items() if key != "tools"}
    body = json.dumps(fields).encode()
    status, _, data = own.request("POST", PATHS[name], body, {"content-type": kind})
    # this engine tells no probabilities, which is found out when it has answered
    assert status == (501 if name == "decisions" else 200), data


def test_a_key_said_twice_counts_once_and_case_does_not_matter(own):
    body = b'{"model": "nobody", "MODEL": "plain", "Messages": [{"role": "user", "content": "x"}]}'
    status, _, _ = own.request("POST", PATHS["chat"], body)
    assert status == 200
    assert own.sent("plain")["messages"] == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("name", ["chat", "messages"])
def test_large_bodies(own, name):
    """Forty megabytes are read, unless they are too many values for the memory."""
    memory = psutil.Process(own.process.pid).memory_info
    before = memory().rss
    text = b"x" * (40 * MIB)
    for body, status in (
        (b'{"model": "plain", "junk": "' + text + b'"}', 400),  # without messages
        (b'{"model": "plain", "junk": [' + b"{}," * (12 * MIB) + b"{}]}", 400),
        (text, 400),
        (b'"' + text + b"x" * (10 * MIB) + b'"', 413),
    ):
        got, headers, data = own.request("POST", PATHS[name], body)
        assert got == status
        if status != 413 or name != "messages":
            check(name, got, headers, data, body[:50])
        assert memory().rss - before < 400 * MIB
    status, _ = own.post(PATHS["chat"], {"model": "plain", **user()})
    assert status == 200
