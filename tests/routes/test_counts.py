"""Token counts over a real socket, of an engine that tells them nowhere but in its log.

Each piece of its text stands for five tokens, as an emoji may, so that pieces are not tokens.
"""

import json
import re

import pytest

from tests.routes.test_external import Elsewhere
from tests.routes.test_ollama_chat import open_stream, until, user
from tests.server_process import Server

pytestmark = pytest.mark.slow

PIECES = 8
TOKENS = PIECES * 5 + 1
"""The answer's, with the one that ends it."""

HEADER = "x-vllama-token-count"
LOGS = ("--log-timings", "--per-piece", "5")


@pytest.fixture(scope="module")
def logs(server):
    """Return the server with an engine that logs its counts, and one that should but does not."""
    server.model("logs", *LOGS)
    server.model("logs-slow", *LOGS, "--token-interval", "0.02")
    server.model("logs-nothing")
    return server


def sse(data: bytes) -> list[dict]:
    """Return the events of a stream."""
    return [json.loads(part) for part in re.findall(rb"^data: (\{.*)$", data, re.MULTILINE)]


def tokens(server, name: str, kind: str = "generation_tokens_total") -> int:
    """Return a number of /metrics."""
    text = server.request("GET", "/metrics")[2].decode()
    found = re.search(rf'^vllama_{kind}{{model="{name}:latest"}} (\S+)', text, re.MULTILINE)
    return int(float(found[1])) if found else 0


def estimated(server, name: str) -> int:
    return tokens(server, name, "generation_tokens_estimated_total")


def asked(server, path: str, body: dict):
    """Return headers and body of an answer."""
    status, headers, data = server.request("POST", path, {"model": "logs", **body})
    assert status == 200, data
    return headers, data


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/api/chat", user(), lambda last: last["eval_count"]),
        ("/api/generate", {"prompt": "hello"}, lambda last: last["eval_count"]),
        ("/api/generate", {"prompt": "x", "raw": True}, lambda last: last["eval_count"]),
        (
            "/v1/chat/completions",
            user(stream_options={"include_usage": True}),
            lambda last: last["usage"]["completion_tokens"],
        ),
        (
            "/v1/completions",
            {"prompt": "hello", "stream_options": {"include_usage": True}},
            lambda last: last["usage"]["completion_tokens"],
        ),
        ("/v1/messages", user(max_tokens=99), lambda last: last["usage"]["output_tokens"]),
        (
            "/v1/responses",
            {"input": "hello"},
            lambda last: last.get("response", last)["usage"]["output_tokens"],
        ),
    ],
)
def test_what_the_engine_generated_is_counted(logs, path, body, said, stream):
    before, guessed = tokens(logs, "logs"), estimated(logs, "logs")
    headers, data = asked(logs, path, {**body, "stream": stream})
    if not stream:
        last = json.loads(data)
    elif path.startswith("/api/"):
        last = json.loads(data.splitlines()[-1])
    else:
        events = [event for event in sse(data) if event.get("type") != "message_stop"]
        last = events[-1]
    assert said(last) == TOKENS
    assert HEADER not in headers
    assert tokens(logs, "logs") - before == TOKENS
    assert estimated(logs, "logs") == guessed


def test_the_prompt_too_is_what_the_engine_says(logs):
    _, data = asked(logs, "/api/chat", {**user("one two three"), "stream": False})
    assert json.loads(data)["prompt_eval_count"] == 3  # to the tokenizer it is one a character


def test_several_choices_are_added_up(logs):
    for stream in (False, True):
        more = {"n": 3, "stream": stream, "stream_options": {"include_usage": True}}
        _, data = asked(logs, "/v1/chat/completions", user("a b") | more)
        last = sse(data)[-1] if stream else json.loads(data)
        assert last["usage"]["completion_tokens"] == 3 * TOKENS
        assert last["usage"]["prompt_tokens"] == 2


def test_answers_in_a_row_have_each_their_own(logs):
    for size in (2, 7, 3, 1):
        body = {**user(f"@tokens={size}"), "stream": False}
        assert json.loads(asked(logs, "/api/chat", body)[1])["eval_count"] == 5 * size + 1


@pytest.mark.parametrize("name", ["logs", "logs-singles"])
def test_a_limit_is_never_exceeded(logs, name):
    """Neither by a token that ends the answer, nor by the rest of an unfinished character."""
    logs.model("logs-singles", "--log-timings")
    body = {**user(), "model": name, "stream": False, "options": {"num_predict": 3}}
    reply = json.loads(asked(logs, "/api/chat", body)[1])
    assert (reply["done_reason"], reply["eval_count"]) == ("length", 3)


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


def test_a_log_without_counts_is_found_out(logs):
    body = {"model": "logs-nothing", **user(), "stream": False}
    assert logs.request("POST", "/api/chat", body)[1][HEADER] == "estimate"
    # a stream's head is sent before its end is known: by what the engine did before
    assert logs.request("POST", "/api/chat", body | {"stream": True})[1][HEADER] == "estimate"


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


def test_an_answer_that_may_be_cut_at_a_stop_sequence_is_called_an_estimate(logs):
    """The engine is not given it, for it does not say which one it met."""
    body = user("hello", max_tokens=99, stop_sequences=["tok3"])
    for stream in (True, False):
        headers, data = asked(logs, "/v1/messages", body | {"stream": stream})
        assert b"stop_sequence" in data
        assert headers[HEADER] == "estimate"
    unmet = body | {"stop_sequences": ["no such word"], "stream": False}
    headers, data = asked(logs, "/v1/messages", unmet)
    assert json.loads(data)["usage"]["output_tokens"] == TOKENS
    assert HEADER not in headers


def test_a_client_that_leaves_is_counted_as_an_estimate(logs):
    client = open_stream(logs, "/api/chat", {"model": "logs-slow", **user("@tokens=3000")})
    assert client.recv(1000)
    until(lambda: b"tok3" in client.recv(1000))
    client.close()
    until(lambda: estimated(logs, "logs-slow"))
    assert estimated(logs, "logs-slow") == tokens(logs, "logs-slow")
    # and the next answer is counted for itself
    _, reply = logs.post("/api/chat", {"model": "logs-slow", **user(), "stream": False})
    assert reply["eval_count"] == TOKENS
