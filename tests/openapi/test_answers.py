"""What a server answers fits its description, with no field that is not described."""

import json

import pytest

from tests.front import server as server
from tests.openapi.validation import find_errors
from vllama.openapi.document import encode_document

CHAT = {"model": "plain", "messages": [{"role": "user", "content": "Hi"}]}
PROMPT = {"model": "plain", "prompt": "Hi"}
INPUT = {"model": "plain", "input": "Hi"}
TEXTS = {"model": "vectors", "input": ["a", "b"]}
REQUESTS = [
    *(("POST", "/api/chat", CHAT), ("POST", "/api/chat", CHAT | {"stream": False})),
    *(("POST", "/api/generate", PROMPT), ("POST", "/api/generate", PROMPT | {"stream": False})),
    *(("POST", "/api/chat", {"model": "plain"}), ("POST", "/api/generate", {"model": "nope"})),
    *(("POST", "/api/embed", TEXTS), ("POST", "/api/embeddings", PROMPT | {"model": "vectors"})),
    *(("GET", "/api/ps", None), ("GET", "/api/tags", None), ("POST", "/api/show", CHAT)),
    *(("POST", "/api/chat", {"model": 5}), ("POST", "/api/pull", {"model": "a b"})),
    *(("POST", "/v1/chat/completions", CHAT), ("POST", "/v1/messages", CHAT)),
    ("POST", "/v1/chat/completions", CHAT | {"stream": True, "stream_options": {}}),
    ("POST", "/v1/chat/completions", CHAT | {"n": 2, "stream": True}),
    *(("POST", "/v1/completions", PROMPT), ("POST", "/v1/completions", PROMPT | {"stream": True})),
    *(("POST", "/v1/embeddings", TEXTS), ("GET", "/v1/models", None)),
    *(("GET", "/v1/models/plain", None), ("GET", "/v1/models/nope", None)),
    *(("POST", "/v1/responses", INPUT), ("POST", "/v1/responses", INPUT | {"stream": True})),
    ("POST", "/v1/messages", CHAT | {"max_tokens": 9}),
    ("POST", "/v1/messages", CHAT | {"max_tokens": 9, "stream": True}),
    ("POST", "/v1/messages/count_tokens", CHAT),
    *(("POST", "/v1/rerank", {}), ("POST", "/v1/systemone", {}), ("GET", "/v1/responses/x", None)),
    *(("GET", "/", None), ("GET", "/health", None), ("GET", "/livez", None)),
    *(("GET", "/readyz", None), ("GET", "/metrics", None), ("GET", "/api/version", None)),
    *(("GET", "/api/requests", None), ("GET", "/api/captures", None), ("GET", "/api/status", None)),
    *(("POST", "/api/me", {}), ("POST", "/api/web_search", {"query": "x"})),
]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_an_answer_fits_its_description(server, method, path, body):
    sent = None if body is None else json.dumps(body)
    status, headers, data = server.request(method, path, sent)
    assert not find_errors(method, path, status, headers["content-type"], data.decode())


def test_the_document_is_served(server):
    status, headers, data = server.request("GET", "/openapi.json")
    assert status == 200 and headers["content-type"].startswith("application/json")
    assert data == encode_document(needs_key=False)
