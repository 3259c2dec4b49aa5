"""A model whose chat template would never end: a 400, and nobody else waits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.routes.test_ollama_chat import WORDS, user

pytestmark = pytest.mark.slow

STUCK = "{% set x = 'a' * 99999 %}{% for a in x %}{% for b in x %}{% endfor %}{% endfor %}"
WHY = "cannot render the model's chat template: it used more than"


def test_a_go_template_of_a_request_that_is_costly_in_each_turn(server):
    turns = [{"role": ("user", "assistant")[n % 2], "content": "hi"} for n in range(9999)]
    body = {"model": "plain", "messages": turns, "template": "{{ .Prompt }}" * 5000}
    made = {"model": "turns", "from": "plain", "template": body.pop("template"), "stream": False}
    assert server.post("/api/create", made) == (200, {"status": "success"})
    status, reply = server.post("/api/chat", body | {"model": "turns"})
    assert (status, reply["error"][: len(WHY)]) == (400, WHY)
    server.request("DELETE", "/api/delete", {"model": "turns"})


def test_a_template_without_end_starts_no_engine(server):
    server.model("endless", template=STUCK)
    for path in ("/api/chat", "/api/generate", "/v1/chat/completions"):
        status, reply = server.post(path, {"model": "endless", **user(), "prompt": "hi"})
        error = reply["error"]
        text = error if isinstance(error, str) else error["message"]
        assert (status, text[: len(WHY)]) == (400, WHY)
    assert not list((server.home / "data").rglob("*endless*"))  # no log, so no start


def test_a_template_that_waits_for_its_word_harms_its_own_model_only(server):
    server.model("sly", template="{% if messages[-1].content == 'go' %}" + STUCK + "{% endif %}ok")
    hello, go = {**user(), "stream": False}, {**user("go"), "stream": False}
    for name in ("plain", "sly"):
        assert server.post("/api/chat", {"model": name, **hello})[0] == 200
    known = len(server.stats("sly")["bodies"])
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(server.post, "/api/chat", {"model": "sly", **go}) for _ in range(4)]
        said = server.post("/api/chat", {"model": "plain", **hello})[1]["message"]["content"]
        assert said == WORDS
    for status, reply in [each.result() for each in asked]:
        assert (status, reply["error"][: len(WHY)]) == (400, WHY)
    # the engine, which would try the same, has not been asked
    assert len(server.stats("sly")["bodies"]) == known
    server.post("/api/generate", {"model": "sly", "keep_alive": 0})
