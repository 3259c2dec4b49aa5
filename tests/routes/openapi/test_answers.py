"""What a server answers fits its description, with no field that is not described."""

import json

import pytest

from tests.routes.openapi.validation import find_errors
from vllama.routes.describe.document import encode_document
from vllama.routes.route_table import ROUTES

CHAT = {"model": "plain", "messages": [{"role": "user", "content": "Hi"}]}
PROMPT = {"model": "plain", "prompt": "Hi"}
INPUT = {"model": "plain", "input": "Hi"}
TEXTS = {"model": "vectors", "input": ["a", "b"]}
ANSWERED = [
    *(("POST", "/api/chat", CHAT), ("POST", "/api/chat", CHAT | {"stream": False})),
    *(("POST", "/api/generate", PROMPT), ("POST", "/api/generate", PROMPT | {"stream": False})),
    *(("POST", "/api/chat", {"model": "plain"}), ("POST", "/api/show", CHAT)),
    *(("POST", "/api/embed", TEXTS), ("POST", "/api/embeddings", PROMPT | {"model": "vectors"})),
    *(("GET", "/api/ps", None), ("GET", "/api/tags", None)),
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/chat/completions", CHAT | {"stream": True, "stream_options": {}}),
    ("POST", "/v1/chat/completions", CHAT | {"n": 2, "stream": True}),
    *(("POST", "/v1/completions", PROMPT), ("POST", "/v1/completions", PROMPT | {"stream": True})),
    *(("POST", "/v1/embeddings", TEXTS), ("GET", "/v1/models", None)),
    ("GET", "/v1/models/plain", None),
    *(("POST", "/v1/responses", INPUT), ("POST", "/v1/responses", INPUT | {"stream": True})),
    ("POST", "/v1/messages", CHAT | {"max_tokens": 9}),
    ("POST", "/v1/messages", CHAT | {"max_tokens": 9, "stream": True}),
    ("POST", "/v1/messages/count_tokens", CHAT),
    *(("GET", "/", None), ("GET", "/health", None), ("GET", "/livez", None)),
    *(("GET", "/readyz", None), ("GET", "/metrics", None), ("GET", "/api/version", None)),
    *(("GET", "/api/requests", None), ("GET", "/api/captures", None), ("GET", "/api/status", None)),
    *(("GET", "/api/engines", None), ("GET", "/api/config", None), ("GET", "/api/logs", None)),
    *(("GET", "/api/usage", None), ("GET", "/api/search?q=llama3", None)),
    *(("GET", "/api/fits", None), ("GET", "/api/samples", None)),
    *(("GET", "/api/nodes", None), ("GET", "/v1/files", None), ("GET", "/v1/batches", None)),
    ("POST", "/api/tokenize", {"model": "plain", "text": "Hi"}),
]
PLANNED = [("GET", "/api/plan?model=plain", None), ("GET", "/instance/previews?model=plain", None)]
"""Answers with objects in them whose fields are not described."""
REFUSED = [
    *(("POST", "/api/generate", {"model": "nope"}), ("GET", "/v1/models/nope", None)),
    *(("POST", "/api/chat", {"model": 5}), ("POST", "/api/pull", {"model": "a b"})),
    *(("POST", "/v1/messages", CHAT), ("GET", "/v1/responses/x", None)),
    *(("GET", "/v1/files/x", None), ("POST", "/v1/batches", {}), ("GET", "/v1/batches/x", None)),
    *(("POST", "/v1/rerank", {}), ("POST", "/v1/systemone", {})),
    *(("POST", "/api/me", {}), ("POST", "/api/web_search", {"query": "x"})),
]


@pytest.mark.parametrize(("method", "path", "body"), [*ANSWERED, *PLANNED, *REFUSED])
def test_an_answer_fits_its_description(server, method, path, body):
    status, headers, data = server.request(method, path, body)
    assert (status >= 400) is ((method, path, body) in REFUSED), data
    assert not find_errors(method, path, status, headers["content-type"], data.decode())


OPEN = {"model_info", "metadata", "text", "schema"}
"""Objects with names of their own, or as the client sent them, and JSON Schemas."""


def add_fields(value):
    """Yield copies of a value that have one more field: in itself, or in an object within."""
    if isinstance(value, dict):
        yield value | {"invented": 1}
    for place, part in value.items() if isinstance(value, dict) else ():
        for changed in add_fields(part) if place not in OPEN else ():
            yield value | {place: changed}
    for place, part in enumerate(value[:1] if isinstance(value, list) else ()):
        for changed in add_fields(part):
            yield [*value[:place], changed, *value[place + 1 :]]


@pytest.mark.parametrize(("method", "path", "body"), [*ANSWERED, *REFUSED])
def test_an_invented_field_does_not(server, method, path, body):
    status, headers, data = server.request(method, path, body)
    if "json" not in headers["content-type"]:
        return
    first, *rest = data.decode().splitlines()
    for changed in add_fields(json.loads(first)):
        text = "\n".join([json.dumps(changed), *rest])
        assert find_errors(method, path, status, headers["content-type"], text), text


def test_the_document_is_served(server):
    status, headers, data = server.request("GET", "/openapi.json")
    assert status == 200 and headers["content-type"].startswith("application/json")
    assert data == encode_document(ROUTES, needs_key=False)
