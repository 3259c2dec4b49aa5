"""A vllama behind a vllama: the engine gets the same request, so a seed gives the same text."""

from __future__ import annotations

import json

import pytest

from tests.server_process import Server

pytestmark = pytest.mark.slow

TALK = {"messages": [{"role": "user", "content": "hi"}]}
OPTIONS = {"seed": 7, "temperature": 0.9}
CASES = [
    ("/api/chat", TALK | {"options": {"seed": 7}}),
    ("/api/chat", TALK | {"options": OPTIONS | {"top_k": 5, "min_p": 0.1, "top_p": 0.4}}),
    ("/api/chat", TALK | {"options": OPTIONS, "stream": False, "format": "json"}),
    ("/api/generate", {"prompt": "hi", "options": OPTIONS}),
    ("/api/generate", {"prompt": "hi", "raw": True, "options": {"seed": 7}}),
    ("/v1/chat/completions", TALK | {"seed": 7}),
    ("/v1/completions", {"prompt": "hi", "seed": 7}),
    ("/v1/messages", TALK | {"max_tokens": 50}),
    ("/v1/responses", {"input": "hi"}),
]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("behind")
    with Server(folder / "behind") as behind:
        behind.model("plain")
        own = {"model": "own", "from": "plain", "parameters": {"temperature": 0.3, "top_p": 0.7}}
        assert behind.request("POST", "/api/create", own)[0] == 200
        with Server(folder / "front", "--upstream", behind.url, fake=False) as front:
            yield behind, front


@pytest.mark.parametrize("model", ["plain", "own"])
@pytest.mark.parametrize(("path", "body"), CASES)
def test_the_engine_is_asked_the_same(both, path, body, model):
    behind, _ = both
    seen = []
    for server in both:
        status, _, data = server.request("POST", path, body | {"model": model})
        assert status == 200, data
        seen.append({k: x for k, x in behind.sent(model).items() if k != "model"})
    if "seed" not in json.dumps(body):
        for each in seen:
            each.pop("seed", None)
    assert seen[0] == seen[1]
