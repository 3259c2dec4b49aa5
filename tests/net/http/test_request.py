"""The front as an HTTP server: what old and odd clients send."""

from __future__ import annotations

import json
import socket

import pytest

from tests.server_process import Server

pytestmark = pytest.mark.slow


def spoken(server: Server, request: bytes, *, half: bool = False) -> tuple[bytes, bytes]:
    """Send bytes, read until the server closes; return head and body. `half`: shut our side."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=240) as connection:
        connection.sendall(request)
        if half:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


def post(path: str, value: object, version: str) -> bytes:
    """Write a request."""
    body = json.dumps(value).encode()
    return b"POST %b HTTP/%b\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (
        path.encode(), version.encode(), len(body), body,
    )  # fmt: skip


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_a_stream_to_http_1_0_ends_with_the_connection(server, path):
    asked = {"model": "plain", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    head, body = spoken(server, post(path, asked, "1.0"))
    assert b" 200 " in head.splitlines()[0]
    assert b"transfer-encoding" not in head.lower() and b"content-length" not in head.lower()
    assert b"connection: close" in head.lower()
    lines = [line.removeprefix(b"data: ") for line in body.splitlines() if line]
    assert len(lines) > 3
    assert all(line == b"[DONE]" or json.loads(line) for line in lines)


def test_a_whole_answer_to_http_1_0_has_a_length(server):
    head, body = spoken(server, b"GET /api/version HTTP/1.0\r\nhost: localhost\r\n\r\n")
    assert b"content-length: %d" % len(body) in head.lower()
    assert json.loads(body)


GET = b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n"


def test_who_has_shut_its_sending_side_is_answered(server):
    head, body = spoken(server, GET % b"/api/version", half=True)
    assert b" 200 " in head.splitlines()[0] and json.loads(body)["version"]
    # several at once, in their order
    _, rest = spoken(server, GET % b"/api/version" + GET % b"/api/tags", half=True)
    first, _, second = rest.partition(b"HTTP/1.1 200 OK")
    assert json.loads(first)["version"]
    assert "models" in json.loads(second.partition(b"\r\n\r\n")[2])
    # a request that is not whole, and none at all
    assert spoken(server, b"GET /api/tags HTTP/1.1\r\nhost", half=True) == (b"", b"")
    assert spoken(server, b"", half=True) == (b"", b"")


@pytest.mark.parametrize("name", ["/etc/passwd", "../../etc/passwd", "./m.gguf", "/etc", "/no/dir"])
def test_a_path_that_is_no_model_is_no_name(server, name):
    for route, more in (("/api/show", {}), ("/api/generate", {"prompt": "x"})):
        status, _, data = server.request("POST", route, {"model": name, **more})
        assert (status, json.loads(data)["error"]) == (400, "invalid model name")
