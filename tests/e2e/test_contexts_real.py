"""Contexts of requests with real engines: what is cut, and where answers end, in tokens."""

import json

import pytest

from tests.e2e.conftest import LLAMA_CPP_PYTHON, MODEL, find_engine, weights
from tests.server_process import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CONTEXT = 512
PROMPT = "1 1 1 1 1 1 1 1"
NO_END = {"0": -100, "2": -100}  # the tokens that would end the answer


@pytest.fixture(scope="module", params=[LLAMA_CPP_PYTHON, "llama-server"])
def server(request, tmp_path_factory):
    weights()
    native = request.param == "llama-server"
    env = find_engine(request.param)
    arguments = ("--engine", request.param, "--context-length", str(CONTEXT), "--model", MODEL)
    with Server(tmp_path_factory.mktemp("contexts"), *arguments, fake=False, env=env) as running:
        running.wait_for("ready: http")
        running.shifts = native
        yield running


def complete(server, **more):
    """Return the usage of a completion that its model does not end, and why it ended."""
    body = {"model": MODEL, "prompt": PROMPT, "raw": True, "temperature": 0, "logit_bias": NO_END}
    status, reply = server.post("/v1/completions", body | more)
    assert status == 200, reply
    usage = reply["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"], reply["choices"][0]["finish_reason"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_prompt_is_cut_to_what_ollama_leaves_of_it(server, path, stream):
    text = "word " * 600
    body = {"model": MODEL, "stream": stream, "prompt": text}
    body["messages"] = [{"role": "user", "content": text}]
    for num_ctx, num_keep, left in ((128, 4, 66), (128, 20, 74), (64, 0, 32), (64, -1, 63)):
        options = {"num_ctx": num_ctx, "num_keep": num_keep, "num_predict": 2}
        status, _, data = server.request("POST", path, body | {"options": options})
        last = json.loads(data.strip().split(b"\n")[-1])
        assert (status, last["prompt_eval_count"]) == (200, left)
        for word in ("truncate", "shift"):
            status, reply = server.post(path, body | {"options": options, word: False})
            assert (status, "context length" in reply["error"]) == (400, True)


def test_an_answer_ends_with_its_context_or_ten_of_them(server):
    count, _, _ = complete(server, max_tokens=1)
    assert complete(server, num_ctx=64, shift=False) == (count, 64 - count, "length")
    assert complete(server, num_ctx=64, shift=False, max_tokens=5) == (count, 5, "length")
    assert complete(server, num_ctx=32) == (count, 320, "length")
    assert complete(server, num_ctx=32, max_tokens=1000) == (count, 320, "length")
    assert complete(server, num_ctx=32, max_tokens=100) == (count, 100, "length")


def test_an_answer_goes_on_over_its_context_where_the_engine_can(server):
    count, _, _ = complete(server, max_tokens=1)
    assert complete(server, shift=False) == (count, CONTEXT - count, "length")
    made = CONTEXT + 100 if server.shifts else CONTEXT - count
    assert complete(server, max_tokens=CONTEXT + 100) == (count, made, "length")


def test_vectors_of_the_older_route_are_never_cut(server):
    status, reply = server.post("/api/embeddings", {"model": MODEL, "prompt": "word " * 9000})
    assert (status, reply) == (500, {"error": "the input length exceeds the context length"})
