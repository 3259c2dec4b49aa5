"""A model whose chat template would never end: a 400, and nobody else waits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.routes.test_ollama_chat import WORDS, until, user

pytestmark = pytest.mark.slow

STUCK = "{% set x = 'a' * 99999 %}{% for a in x %}{% for b in x %}{% endfor %}{% endfor %}"
WHY = "cannot render the model's chat template: it took more than"


def test_a_go_template_of_a_request_that_is_costly_in_each_turn(server):
    turns = [{"role": ("user", "assistant")[n % 2], "content": "hi"} for n in range(9999)]
    body = {"model": "plain", "messages": turns, "template": "{{ .Prompt }}" * 5000}
    made = {"model": "turns", "from": "plain", "template": body.pop("template"), "stream": False}
    assert server.post("/api/create", made) == (200, {"status": "success"})
    status, reply = server.post("/api/chat", body | {"model": "turns"})
    assert (status, reply["error"][: len(WHY)]) == (400, WHY)
    server.request("DELETE", "/api/delete", {"model": "turns"})


def test_a_template_without_end_harms_its_own_model_only(server):
    server.model("endless", template=STUCK)
    hello = {**user(), "stream": False}
    server.post("/api/chat", {"model": "plain"})
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(server.post, "/api/chat", {"model": "endless", **hello})
        until(lambda: "endless" in str(server.get("/api/ps")))
        assert (
            server.post("/api/chat", {"model": "plain", **hello})[1]["message"]["content"] == WORDS
        )
        assert not asked.done()
        status, reply = asked.result()
    assert (status, reply["error"][: len(WHY)]) == (400, WHY)
    # the engine, which would try the same, has not been asked
    assert server.stats("endless")["bodies"] == []
    status, reply = server.post("/v1/chat/completions", {"model": "endless", **hello})
    assert (status, reply["error"]["message"][: len(WHY)]) == (400, WHY)
    server.post("/api/generate", {"model": "endless", "keep_alive": 0})
