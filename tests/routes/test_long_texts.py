"""A text that no context can hold is refused by its length; the engine is not asked to count it."""

from __future__ import annotations

import json

import pytest

from vllama.chat.engine.context import TOKEN_LENGTH

pytestmark = pytest.mark.slow

CONTEXT = 4096
MOST = TOKEN_LENGTH * CONTEXT
MODEL, RANKS = "reads-in-fear", "ranks-in-fear"
DEADLY = "tok0 "
"""The engine dies of this when it is asked to count it."""


@pytest.fixture(scope="module")
def fearful(server):
    """Return the server with models whose engines die if they are asked to count `DEADLY`."""
    server.model(MODEL, "--die-reading")
    server.model(RANKS, "--die-reading", ranks=True)
    return server


def say(text):
    return {"messages": [{"role": "user", "content": text}]}


ROUTES = {
    "/api/generate": lambda text: {"prompt": text},
    "/api/generate raw": lambda text: {"prompt": text, "raw": True},
    "/api/generate system": lambda text: {"prompt": "a", "system": text},
    "/api/chat": say,
    "/api/chat before": lambda text: {"messages": say(text)["messages"] + say("a")["messages"]},
    "/api/embed": lambda text: {"input": text},
    "/api/embed list": lambda text: {"input": ["a", text]},
    "/api/embeddings": lambda text: {"prompt": text},
    "/api/tokenize": lambda text: {"text": text},
    "/v1/completions": lambda text: {"prompt": text},
    "/v1/completions list": lambda text: {"prompt": ["a", text]},
    "/v1/chat/completions": say,
    "/v1/responses": lambda text: {"input": text},
    "/v1/embeddings": lambda text: {"input": text},
    "/v1/messages": lambda text: {"max_tokens": 5, **say(text)},
    "/v1/rerank query": lambda text: {"query": text, "documents": ["a"]},
    "/v1/rerank": lambda text: {"query": "a", "documents": ["b", text]},
    "/v1/score": lambda text: {"text_1": "a", "text_2": text},
}  # fmt: skip


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("more", [1, 3_000_000])
def test_a_text_that_no_context_holds(fearful, name, more):
    path = name.split()[0]
    model = RANKS if path in ("/v1/rerank", "/v1/score") else MODEL
    text = DEADLY.ljust(MOST + more, "x")
    status, _, data = fearful.request(
        "POST", path, {"model": model, "stream": False, **ROUTES[name](text)}
    )
    told = json.loads(data)["error"]
    told = told if isinstance(told, str) else told["message"]
    # Ollama's status of its older route, for whatever goes wrong
    assert status == (500 if path == "/api/embeddings" else 400), told
    assert f"a context of {CONTEXT} tokens at most {MOST}" in told


def test_its_tokens_are_estimated(fearful):
    body = {"model": MODEL, **say(DEADLY.ljust(MOST + 1, "x"))}
    status, headers, data = fearful.request("POST", "/v1/messages/count_tokens", body)
    assert (status, headers["x-vllama-token-count"]) == (200, "estimate")
    assert json.loads(data)["input_tokens"] > CONTEXT


def test_a_text_that_is_too_long_but_may_be_cut(server):
    text = "x" * (MOST - 100)
    status, headers, _ = server.request(
        "POST", "/api/generate", {"model": "plain", "prompt": text, "raw": True, "stream": False}
    )
    assert (status, headers["x-vllama-truncated"]) == (200, "1")
