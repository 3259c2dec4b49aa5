"""What only ollama.com has: answered as an Ollama that is signed out, its cloud switched off."""

import json

import ollama
import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reply"),
    [
        ("GET", "/api/status", None, 200, {"cloud": {"disabled": True, "source": "config"}}),
        ("POST", "/api/me", None, 401,
         {"error": "unauthorized", "signin_url": "https://ollama.com/connect"}),
        ("POST", "/api/signout", None, 401, {"error": "you are not currently signed in"}),
        ("DELETE", "/api/user/keys/abc", None, 401, {"error": "you are not currently signed in"}),
        ("POST", "/api/experimental/web_search", {"query": "x"}, 403,
         {"error": "ollama cloud is disabled: web search is unavailable"}),
        ("POST", "/api/experimental/web_fetch", {"url": "x"}, 403,
         {"error": "ollama cloud is disabled: web fetch is unavailable"}),
        ("POST", "/api/web_search", {"query": "x"}, 403,
         {"error": "ollama cloud is disabled: web search is unavailable"}),
        ("POST", "/api/web_fetch", {"url": "x"}, 403,
         {"error": "ollama cloud is disabled: web fetch is unavailable"}),
        ("POST", "/api/chat", {"model": "gpt-oss:120b-cloud"}, 403,
         {"error": "ollama cloud is disabled: remote model is unavailable"}),
        ("POST", "/api/generate", {"model": "m:cloud"}, 403,
         {"error": "ollama cloud is disabled: remote model is unavailable"}),
        ("POST", "/api/show", {"model": "m:cloud"}, 403,
         {"error": "ollama cloud is disabled: remote model details are unavailable"}),
        ("POST", "/api/push", {}, 400, {"error": "model is required"}),
    ],
)  # fmt: skip
def test_the_answers(server, method, path, body, status, reply):
    got, _, data = server.request(method, path, body)
    assert (got, json.loads(data)) == (status, reply)


def test_models_are_recommended_by_their_plans(server):
    answer = server.get("/api/experimental/model-recommendations")
    for row in answer["recommendations"]:
        assert row.keys() == {
            "model", "description", "context_length", "max_output_tokens", "vram_bytes"
        }  # fmt: skip


def test_cloud_models_on_v1(server):
    status, reply = server.post(
        "/v1/chat/completions", {"model": "m:cloud", "messages": [{"role": "user", "content": "x"}]}
    )
    assert status == 403
    assert reply["error"]["message"] == "ollama cloud is disabled: remote model is unavailable"


def test_local_and_cloud(server):
    assert server.post("/api/show", {"model": "plain:local"})[0] == 200
    status, reply = server.post("/api/show", {"model": "plain:local:cloud"})
    assert status == 400
    assert reply["error"] == "use either :local or :cloud, not both"


def test_push(server):
    lines = server.lines("/api/push", {"name": "plain"})
    assert lines[0] == {"status": "retrieving manifest"}
    assert lines[1]["error"].startswith("cannot push 'plain': you are not signed in")
    assert server.post("/api/push", {"model": "plain", "stream": False})[0] == 401
    assert server.post("/api/push", {"model": "nope"})[0] == 404
    client = ollama.Client(host=server.url)
    with pytest.raises(ollama.ResponseError, match="not signed in"):
        list(client.push("plain", stream=True))
    client._client.close()
