"""Token counts over a real socket, of engines that tell them in their streams or not at all."""

import json
import re

import pytest

from tests.routes.test_external import Elsewhere
from tests.routes.test_ollama_chat import open_stream, until, user
from tests.server_process import Server

pytestmark = pytest.mark.slow

PIECES = 8
HEADER = "x-vllama-token-count"


def tokens(server, name: str, kind: str = "generation_tokens_total") -> int:
    """Return a number of /metrics."""
    text = server.request("GET", "/metrics")[2].decode()
    found = re.search(rf'^vllama_{kind}{{model="{name}:latest"}} (\S+)', text, re.MULTILINE)
    return int(float(found[1])) if found else 0


def estimated(server, name: str) -> int:
    return tokens(server, name, "generation_tokens_estimated_total")


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_tells_nowhere_gives_an_estimate_that_is_called_so(server, stream):
    before = estimated(server, "plain")
    body = {"model": "plain", **user(), "stream": stream}
    for path in ("/api/chat", "/v1/chat/completions"):
        assert server.request("POST", path, body)[1][HEADER] == "estimate"
    assert estimated(server, "plain") - before == 2 * PIECES


def test_a_limit_that_was_reached_is_no_estimate(server):
    body = {"model": "plain", **user(), "stream": False, "options": {"num_predict": 3}}
    status, headers, data = server.request("POST", "/api/chat", body)
    assert (status, json.loads(data)["eval_count"]) == (200, 3)
    assert HEADER not in headers


def test_an_engine_that_says_it_in_its_stream_is_believed(server):
    before = estimated(server, "counts")
    for stream in (True, False):
        body = {"model": "counts", **user(), "stream": stream}
        assert HEADER not in server.request("POST", "/api/chat", body)[1]
    assert estimated(server, "counts") == before


def test_another_server_that_tells_nothing_is_found_out(tmp_path):
    elsewhere = Elsewhere("--no-usage")
    try:
        with Server(tmp_path, "--upstream", elsewhere.url) as front:
            for stream in (False, True):
                body = {"model": "org/big", **user(), "stream": stream}
                assert front.request("POST", "/api/chat", body)[1][HEADER] == "estimate"
            assert estimated(front, "org/big") == 2 * PIECES
    finally:
        elsewhere.stop()


def test_an_answer_that_may_be_cut_at_a_stop_sequence_is_called_an_estimate(server):
    """The engine is not given it, for it does not say which one it met."""
    server.model("counts-cut", "--token-interval", "0.02")
    body = {"model": "counts-cut", **user("hello", max_tokens=99, stop_sequences=["tok3"])}
    for stream in (True, False):
        _, headers, data = server.request("POST", "/v1/messages", body | {"stream": stream})
        assert b"stop_sequence" in data
        assert headers[HEADER] == "estimate"
    unmet = body | {"stop_sequences": ["no such word"], "stream": False}
    _, headers, data = server.request("POST", "/v1/messages", unmet)
    assert json.loads(data)["usage"]["output_tokens"] == PIECES
    assert HEADER not in headers


def test_a_client_that_leaves_is_counted_as_an_estimate(server):
    server.model("counts-slow", "--token-interval", "0.02")
    client = open_stream(server, "/api/chat", {"model": "counts-slow", **user("@tokens=3000")})
    assert client.recv(1000)
    until(lambda: b"tok3" in client.recv(1000))
    client.close()
    until(lambda: estimated(server, "counts-slow"))
    assert estimated(server, "counts-slow") == tokens(server, "counts-slow")
