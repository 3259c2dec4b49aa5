"""Forms of answers that cannot be kept to, on every route and with every engine."""

import json

import pytest

NONSENSE = {"type": "nonsense"}


def bodies(schema):
    """Yield each route with a body that asks for an answer of that form."""
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    messages = [{"role": "user", "content": "hi"}]
    yield "/api/chat", {"messages": messages, "format": schema, "stream": False}
    yield "/api/generate", {"prompt": "hi", "format": schema, "stream": False}
    yield "/api/generate", {"prompt": "hi", "format": schema, "raw": True, "stream": False}
    yield "/v1/chat/completions", {"messages": messages, "response_format": wanted}
    yield "/v1/completions", {"prompt": "hi", "response_format": wanted}
    yield "/v1/completions", {"prompt": "hi", "response_format": wanted, "raw": True}
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    yield "/v1/responses", {"input": "hi", "text": text}


@pytest.mark.parametrize("model", ["plain", "bare", "counts"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "schema", [NONSENSE, {"$ref": "#/nowhere"}, {"minLength": 2, "maxLength": 1}]
)
def test_a_schema_that_cannot_be_used_is_refused(server, model, stream, schema):
    server.model(model)
    for path, body in bodies(schema):
        status, reply = server.post(path, {"model": model, **body, "stream": stream})
        error = reply["error"]
        text = error if isinstance(error, str) else error["message"]
        assert (status, text[:29]) == (400, "cannot use the JSON schema: #"), (path, reply)


@pytest.mark.parametrize("model", ["plain", "bare", "counts"])
def test_one_that_can_be_used_is_not(server, model):
    server.model(model)
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}, "n": {"const": None}}}
    for path, body in bodies(schema):
        status, _, data = server.request("POST", path, {"model": model, **body})
        assert status == 200, (path, json.loads(data))


def test_an_engine_that_formats_chats_only_is_named_another(server):
    server.model("chats-only")
    for path, body in bodies({"type": "object"}):
        status, reply = server.post(path, {"model": "chats-only", **body})
        if body.get("raw"):
            error = reply["error"]
            text = error if isinstance(error, str) else error["message"]
            assert status == 400 and "llama-server" in text, (path, reply)
        else:
            assert status == 200, (path, reply)


def test_a_load_looks_at_no_schema(server):
    for path in ("/api/chat", "/api/generate"):
        status, reply = server.post(path, {"model": "plain", "format": NONSENSE})
        assert (status, reply["done_reason"]) == (200, "load")
