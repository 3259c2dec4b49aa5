"""A server elsewhere that is suddenly gone: its answers end soon, and say what has happened."""

import contextlib
import json
import threading
from http.client import HTTPException

import pytest

from tests.cable import Cable
from tests.routes.test_external import Elsewhere
from tests.routes.test_ollama_chat import ENDLESS, until, user
from tests.server_process import LIMIT_S, Server

# the server is asked twice for three seconds before it counts as gone
pytestmark = pytest.mark.slow

STREAM = user(f"@tokens={ENDLESS}")
SILENT = user("@tokens=1 @delay=3600")
WORDS = "the upstream 'bee' no longer responds"
MODEL = {"model": "org/big"}
# what each of them ends with, in its dialect
RUNNING = {
    "/api/chat": ({**STREAM, "stream": True}, '{"error":"cannot continue: '),
    "/api/generate": ({"prompt": f"@tokens={ENDLESS}"}, '{"error":"cannot continue: '),
    "/v1/chat/completions": ({**STREAM, "stream": True}, '{"error":{"message":"cannot continue: '),
    "/v1/completions": (
        {"prompt": f"@tokens={ENDLESS}", "max_tokens": ENDLESS, "stream": True},
        '{"error":{"message":"cannot continue: ',
    ),
    "/v1/messages": ({**STREAM, "stream": True, "max_tokens": ENDLESS}, "event: error\n"),
    "/v1/responses": (
        {"input": f"@tokens={ENDLESS}", "stream": True},
        "event: response.failed\n",
    ),
}
WAITING = {
    "/api/chat": SILENT | {"stream": True},
    "/api/generate": {"prompt": "@tokens=1 @delay=3600", "stream": False},
    "/v1/chat/completions": SILENT | {"stream": False},
    "/v1/messages": SILENT | {"stream": False, "max_tokens": 9},
    "/v1/responses": {"input": "@tokens=1 @delay=3600", "stream": False},
}


class Asked(threading.Thread):
    """A request in a thread of its own."""

    def __init__(self, server, path, body):
        super().__init__(daemon=True)
        self.server, self.path, self.body = server, path, body
        self.begun = threading.Event()
        self.status, self.text = 0, ""
        self.start()

    def run(self):
        parts = []
        with (
            contextlib.suppress(OSError, HTTPException),
            self.server.open(self.path, self.body) as answer,
        ):
            self.status, self.headers = answer.status, answer.headers
            while data := answer.read1():
                parts.append(data)
                self.begun.set()
        self.text = b"".join(parts).decode()

    def wait_for_end(self):
        self.join(LIMIT_S)
        assert not self.is_alive(), self.path


@pytest.fixture
def bee(tmp_path):
    """Return a server elsewhere, the cable to it, and vllama, with another one to fall back.

    Only the checks of upstreams end answers: nobody looks for hangs, or waits for a first token.
    """
    far, near = Elsewhere("--token-interval", "0.02"), Elsewhere()
    with Cable(far.port) as cable:
        (tmp_path / "config.toml").write_text(
            'hang_timeout = "0"\n'
            f'[upstreams.bee]\nurl = "{cable.url}"\nhealth_interval = "60s"\n'
            'models = { "org/big" = "org/big", safe = "org/big" }\n'
            f'[upstreams.near]\nurl = "{near.url}"\nmodels = {{ near = "org/big" }}\n'
            '[models.safe]\nfallback = ["near:org/big"]\nfallback_after = "1h"\n'
        )
        options = ("--config", str(tmp_path / "config.toml"))
        try:
            env = {"VLLAMA_DRAIN_TIMEOUT": "1s"}
            with Server(tmp_path, *options, fake=False, env=env) as server:
                yield far, cable, server
        finally:
            far.stop()
            near.stop()


def test_running_and_waiting_answers_end_in_their_dialects(bee):
    far, cable, server = bee
    near = Asked(server, "/api/chat", {"model": "near", **user(f"@tokens={ENDLESS} @delay=0.02")})
    running = [Asked(server, path, MODEL | body) for path, (body, _) in RUNNING.items()]
    waiting = [Asked(server, path, MODEL | body) for path, body in WAITING.items()]
    # endless there, while the server near at hand makes it at once
    safe = Asked(server, "/v1/chat/completions", {"model": "safe", **STREAM, "stream": False})
    for each in (near, *running):
        assert each.begun.wait(LIMIT_S)
    until(lambda: far.stats()["active"] == len([*running, *waiting, safe]))
    cable.cut()
    for each in running:
        each.wait_for_end()
        assert RUNNING[each.path][1] in each.text, each.text[-500:]
        assert WORDS in each.text and "restart" not in each.text, each.text[-500:]
    for each in waiting:
        each.wait_for_end()
        assert each.status == 502, each.text
        assert WORDS in each.text and "restart" not in each.text, each.text
    # one that nobody has seen anything of is answered by the next link
    safe.wait_for_end()
    assert safe.status == 200 and safe.headers["x-vllama-served-by"] == "near:org/big", safe.text
    assert near.is_alive()
    asked = {**MODEL, **user(), "stream": False}
    status, headers, data = server.request("POST", "/api/chat", asked)
    assert status == 503 and headers["retry-after"], data
    assert "cannot reach the upstream 'bee': no response since 2" in json.loads(data)["error"]
    cable.mend()
    until(lambda: server.post("/api/chat", asked)[0] == 200)


def test_requests_that_hang_in_connect_end_too(bee):
    _, cable, server = bee
    asked = {**MODEL, **user(), "stream": False}
    assert server.post("/api/chat", asked)[0] == 200
    cable.cut(connects=False)
    several = [Asked(server, "/v1/chat/completions", asked) for _ in range(3)]
    for each in several:
        each.wait_for_end()
    told = {json.loads(each.text)["error"]["message"].partition("; ")[0] for each in several}
    # one of them has found a connection that was kept from the request before
    assert f"cannot continue: {WORDS}" in told
    assert any(
        text.startswith("cannot reach the upstream 'bee': no response since") for text in told
    )


def test_a_model_that_is_on_this_disk_too_but_without_engine_says_who_is_gone(tmp_path):
    far = Elsewhere("--model", "big")
    (tmp_path / "config.toml").write_text('[models.big]\nengine = "sglang"\n')
    options = ("--config", str(tmp_path / "config.toml"), "--upstream", far.url)
    asked = {"model": "big", **user(), "stream": False}
    home = Server(tmp_path, *options, fake=False)
    home.model("big")
    try:
        with home as server:
            assert server.post("/api/chat", asked)[0] == 200
            far.stop()
            texts = set()

            def knows_both():
                """Until the look-up of the name has been renewed, it is the upstream's alone."""
                status, headers, data = server.request("POST", "/api/chat", asked)
                text = json.loads(data)["error"]
                texts.add(text)
                assert status == 503 and headers["retry-after"], text
                assert text.startswith("cannot reach the upstream: no response since 2"), text
                return "and on this server: cannot" in text

            until(knows_both)
            far.start()
            until(lambda: server.post("/api/chat", asked)[0] == 200)
    finally:
        far.stop()
