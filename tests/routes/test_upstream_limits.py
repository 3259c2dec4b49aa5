"""What a server elsewhere cannot give is cut to what it gives, and the client is told."""

import time

import pytest

from tests.routes.test_external import Elsewhere
from tests.routes.test_ollama_chat import user
from tests.server_process import Server

pytestmark = pytest.mark.slow

LARGE = {"num_ctx": 262_144}
TALK = {**user(), "stream": False, "max_tokens": 4}
ROUTES = [
    ("/api/chat", {**TALK, "options": LARGE}),
    ("/api/generate", {"prompt": "hi", "stream": False, "options": LARGE}),
    ("/api/generate", {"prompt": "hi", "raw": True, "stream": True, "options": LARGE}),
    ("/api/embed", {"input": "hi", "options": LARGE}),
    ("/v1/chat/completions", {**TALK, **LARGE}),
    ("/v1/chat/completions", {**TALK, "options": LARGE, "n": 2}),
    ("/v1/completions", {"prompt": "hi", "max_tokens": 4, **LARGE}),
    ("/v1/messages", {**TALK, **LARGE}),
    ("/v1/responses", {"input": "hi", **LARGE}),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return vllama before a server that does not say how much context its models have."""
    folder, there = tmp_path_factory.mktemp("limits"), Elsewhere()
    (folder / "config.toml").write_text(
        f'[upstreams.bee]\nurl = "{there.url}"\n'
        f'models = {{ alias = "org/big", forced = "org/big", "org/big" = "org/big" }}\n'
        '[upstreams.bee.traits]\ncontext = "8k"\n'
        "[models.forced]\nforce = { num_ctx = 262144 }\n"
    )
    vectors = Elsewhere("--model", "some-embed-model")
    options = ("--config", str(folder / "config.toml"), "--upstream", vectors.url)
    try:
        with Server(folder, *options, fake=False) as server:
            yield server
    finally:
        there.stop()
        vectors.stop()


def reloads(server):
    return server.output.count("reload ")


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_larger_context_is_cut_and_named(server, path, body):
    """Each of them had the model loaded again for ever."""
    server.get("/v1/models")  # the models are known
    model = "some-embed-model" if path == "/api/embed" else "alias"
    most = "131072" if path == "/api/embed" else "8192"
    for _ in range(2):
        begun_s = time.monotonic()
        status, headers, data = server.request("POST", path, {"model": model, **body})
        assert status == 200, data
        assert headers["x-vllama-num-ctx"] == most
        assert time.monotonic() - begun_s < 60
    assert not reloads(server)


def test_a_context_of_the_settings_is_cut_too(server):
    status, headers, data = server.request("POST", "/api/chat", {"model": "forced", **TALK})
    assert (status, headers["x-vllama-num-ctx"]) == (200, "8192"), data
    small = {"model": "alias", **TALK, "options": {"num_ctx": 8192}}
    status, headers, _ = server.request("POST", "/api/chat", small)
    assert status == 200 and headers["x-vllama-num-ctx"] is None
    assert not reloads(server)


def test_a_context_of_a_created_model_is_cut_too(server):
    made = {"model": "mine", "from": "alias", "parameters": LARGE, "stream": False}
    assert server.post("/api/create", made)[0] == 200
    for path in ("/api/chat", "/v1/chat/completions"):
        status, headers, data = server.request("POST", path, {"model": "mine", **TALK})
        assert (status, headers["x-vllama-num-ctx"]) == (200, "8192"), data
    assert not reloads(server)
