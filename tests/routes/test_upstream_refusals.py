"""What a server elsewhere says of a failure: what helps clients is passed on, keys never are."""

import json

import pytest

from tests.routes.test_ollama_chat import user
from tests.scripted import Scripted, list_models
from tests.server_process import Server

pytestmark = pytest.mark.slow  # a server as a process of its own

KEY = "Sesame/open=yourself"
ROUTES = {
    "/api/chat": {**user(), "stream": False},
    "/api/generate": {"prompt": "hi", "stream": True},
    "/api/embed": {"input": "hi"},
    "/v1/chat/completions": {**user(), "stream": True},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/messages": {**user(), "max_tokens": 5},
    "/v1/responses": {"input": "hi"},
    "/v1/audio/speech": {"input": "hi", "voice": "a"},
}
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/audio/speech")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Return a server elsewhere, and vllama before it."""
    folder = tmp_path_factory.mktemp("refusals")
    with Scripted({"/v1/models": list_models("m", "some-embed-model")}) as there:
        (folder / "config.toml").write_text(
            f'[upstreams.bee]\nurl = "{there.url}"\nkey = "{KEY}"\n'
            'models = { m = "m", some-embed-model = "some-embed-model", safe = "m" }\n'
            '[models.safe]\nfallback = ["bee:other"]\n'
        )
        with Server(folder, "--config", str(folder / "config.toml"), fake=False) as server:
            yield there, server


def ask(server, path, model=None):
    model = model or ("some-embed-model" if "embed" in path else "m")
    status, headers, data = server.request("POST", path, {"model": model, **ROUTES[path]})
    return status, headers, data.decode()


@pytest.mark.parametrize("status", [429, 503])
def test_when_to_come_again_is_passed_on(both, status):
    there, server = both
    wanted = {"Retry-After": "17", "X-RateLimit-Remaining-Tokens": "0", "Set-Cookie": "a=b"}
    error = {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}
    there.routes |= dict.fromkeys(PATHS, (status, wanted, {"error": error}))
    for path in ROUTES:
        got, headers, text = ask(server, path)
        assert got == status, (path, text)
        assert headers["retry-after"] == "17", path
        assert headers["x-ratelimit-remaining-tokens"] == "0", path
        assert headers["set-cookie"] is None, path
        assert "slow down" in text, path
        if path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
            assert json.loads(text)["error"]["code"] == "rate_limit_exceeded"
    # a chain of which none can answer says it too
    got, headers, text = ask(server, "/api/chat", "safe")
    assert (got, headers["retry-after"]) == (503, "17"), text


@pytest.mark.parametrize("status", [401, 403])
def test_that_it_refuses_our_key_is_said_in_our_words(both, status):
    there, server = both
    words = f"Incorrect API key provided: sk-abcd****wxyz, {KEY}. Account 7."
    error = {"message": words, "code": "invalid_api_key"}
    there.routes |= dict.fromkeys(PATHS, (status, {}, {"error": error}))
    for path in ROUTES:
        got, _, text = ask(server, path)
        assert got == 502, (path, text)
        assert "the upstream rejected this server's key" in text, path
        assert "operator" in text and "Account" not in text, path
    server.wait_for("Account 7")
    assert "sk-abcd" not in server.output and KEY not in server.output


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
def test_no_error_quotes_a_key(both, status):
    there, server = both
    words = f"cannot: Bearer {KEY}, or {KEY}, or sk-proj-abcdefgh, or hf_abcdefghij"
    there.routes |= dict.fromkeys(PATHS, (status, {}, {"error": {"message": words}}))
    for path in ROUTES:
        got, _, text = ask(server, path)
        assert got >= 400, path
        assert path == "/v1/audio/speech" or "***, or ***" in text, text
        assert not any(each in text for each in (KEY, "abcdefgh")), (path, text)
    assert KEY not in server.output and "abcdefgh" not in server.output


def test_nor_does_an_error_within_a_stream(both):
    there, server = both
    event = json.dumps({"error": {"message": f"bad key {KEY} sk-proj-abcdefgh"}}).encode()
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"text":"a"}]}\n\n'
    stream = (200, {"Content-Type": "text/event-stream"}, [chunk, b"data: %b\n\n" % event])
    there.routes |= dict.fromkeys(PATHS, stream)
    for path in ("/api/chat", "/api/generate", "/v1/chat/completions", "/v1/messages"):
        for streamed in (True, False):
            body = {"model": "m", **ROUTES[path], "stream": streamed}
            _, _, data = server.request("POST", path, body)
            assert "bad key *** ***" in data.decode(), data
            assert KEY not in data.decode()


@pytest.mark.parametrize("answer", [None, (200, {}, b""), (200, {}, b'{"data": []}')])
def test_an_answer_that_is_none_is_a_gateways_failure(both, answer):
    there, server = both
    there.routes |= dict.fromkeys(PATHS, answer)
    for path in ("/api/chat", "/api/generate", "/v1/chat/completions", "/v1/messages"):
        got, _, text = ask(server, path)
        assert got == 502, (path, text)
