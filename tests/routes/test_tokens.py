"""tokenize, detokenize; rerank without a model for it."""

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("field", ["text", "content", "prompt"])
def test_there_and_back(server, field):
    status, reply = server.post("/api/tokenize", {"model": "Plain", field: "hé llo"})
    assert status == 200
    assert reply["model"] == "Plain"
    assert reply["count"] == len(reply["tokens"]) > 0
    status, back = server.post("/api/detokenize", {"model": "plain", "tokens": reply["tokens"]})
    assert (status, back) == (200, {"model": "plain", "text": "hé llo"})
    with_points = [float(token) for token in reply["tokens"]]
    assert server.post("/api/detokenize", {"model": "plain", "tokens": with_points})[1] == back


def test_nothing(server):
    status, reply = server.post("/api/tokenize", {"model": "plain", "text": ""})
    assert (status, reply["count"]) == (200, len(reply["tokens"]))
    assert server.post("/api/detokenize", {"model": "plain", "tokens": []}) == (
        200,
        {"model": "plain", "text": ""},
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/api/tokenize", b"", 400, "missing request body"),
        ("/api/tokenize", {"text": "x"}, 400, "model is required"),
        ("/api/tokenize", {"model": "nope", "text": "x"}, 404, "model 'nope' not found"),
        ("/api/tokenize", {"model": "plain"}, 400, "text is required"),
        ("/api/tokenize", {"model": "plain", "text": 3}, 400, "'text': expected a string"),
        ("/api/tokenize", {"model": "plain", "text": "x", "keep_alive": "5"}, 400, "time: missing"),
        ("/api/detokenize", {"model": "plain"}, 400, "tokens are required"),
        ("/api/detokenize", {"model": "plain", "tokens": "x"}, 400, "'tokens': expected an array"),
        ("/api/detokenize", {"model": "plain", "tokens": [1.5]}, 400, "'tokens[0]': expected"),
        ("/api/detokenize", {"model": "plain", "tokens": [-1]}, 400, "cannot detokenize: 'plain'"),
        ("/api/detokenize", {"model": "plain", "tokens": [10**12]}, 400, "cannot detokenize"),
    ],
)  # fmt: skip
def test_bad_requests(server, path, body, status, text):
    got, reply = server.post(path, body)
    assert got == status
    assert text in reply["error"]


def test_rerank_says_that_it_cannot(server):
    body = {"model": "plain", "query": "a", "documents": ["b"]}
    status, reply = server.post("/v1/rerank", body)
    assert status == 501
    assert reply["error"]["message"].startswith(
        "cannot rerank with 'plain': no installed engine supports it"
    )
    assert server.post("/v1/rerank", {**body, "model": "nope"})[0] == 404
    assert server.post("/v1/rerank", {"query": "a"})[0] == 400
    status, reply = server.post("/v1/score", {"model": "plain", "text_1": "a", "text_2": "b"})
    assert status == 501
    assert reply["error"]["message"].startswith(
        "cannot score with 'plain': no installed engine supports it"
    )
