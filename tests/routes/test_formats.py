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
    unnamed = wanted | {"json_schema": {"schema": schema}}
    yield "/v1/chat/completions", {"messages": messages, "response_format": unnamed}
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


UNHELD = {
    "type": "object",
    "properties": {"u": {"type": "string", "format": "uri"}, "a": {"uniqueItems": True}},
}
SAID = {
    "compiles-good": ('{"u": "http://a.b/c", "a": [1, 2]}', []),
    "compiles-bad": ('{"u": "abc", "a": [1, 1]}', ["a.uniqueItems", "u.format"]),
    "compiles-prose": ("Well, here it is", None),
}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", SAID)
def test_what_the_engine_cannot_hold_is_checked(server, model, stream):
    said, broken = SAID[model]
    server.model(model, "--say", json.dumps(said))
    names = ["schema"] if broken is None else [f"schema.properties.{name}" for name in broken]
    form = {"type": "json_schema", "schema": UNHELD}
    told = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99}
    for path, body in [*bodies(UNHELD), ("/v1/messages", told | {"output_format": form})]:
        status, headers, data = server.request(
            "POST", path, {"model": model, **body, "stream": stream}
        )
        assert (status, "uniqueItems" in headers["x-vllama-ignored"]) == (200, True), path
        if stream:
            assert "x-vllama-violates" not in headers
            lines = [line.removeprefix("data: ") for line in data.decode().splitlines()]
            events = [json.loads(line) for line in lines if line.startswith("{")]
            found = [event["violates"] for event in events if "violates" in event]
            assert [*map(sorted, found)] == [sorted(names)] * bool(names), path
        else:
            told = headers.get("x-vllama-violates")
            assert sorted(told.split(", ") if told else []) == sorted(names), path


@pytest.mark.slow
def test_a_response_that_is_cut_is_not_checked(server):
    server.model("compiles-bad", "--say", json.dumps(SAID["compiles-bad"][0]))
    for path, body in bodies(UNHELD):
        limit = {"options": {"num_predict": 2}} if "api" in path else {"max_tokens": 2}
        limit = {"max_output_tokens": 2} if path == "/v1/responses" else limit
        status, headers, _ = server.request(
            "POST", path, {"model": "compiles-bad", **body, **limit}
        )
        assert (status, headers.get("x-vllama-violates")) == (200, None), path


FORCED = {"compiles-good": [], "compiles-bad": ["a.uniqueItems", "u.format"]}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("model", FORCED)
def test_arguments_of_a_forced_call_are_checked(server, model, stream):
    """The places are those of the request, also where only one of its tools may be called."""
    name = f"{model}-bare"  # its calls are forced by a schema
    call = {"name": "f", "arguments": json.loads(SAID[model][0])}
    server.model(name, "--say", json.dumps(json.dumps(call)))
    names = sorted(f"tools[1].parameters.properties.{one}" for one in FORCED[model])
    plain = [{"name": "other", "parameters": {}}, {"name": "f", "parameters": UNHELD}]
    tools = [{"type": "function", "function": one} for one in plain]
    hi = [{"role": "user", "content": "hi"}]
    choice = {"type": "function", "function": {"name": "f"}}
    for path, body in (
        ("/v1/chat/completions", {"messages": hi, "tools": tools, "tool_choice": choice}),
        ("/v1/responses", {"input": "hi", "tools": [{"type": "function", **x} for x in plain],
         "tool_choice": {"type": "function", "name": "f"}}),
        ("/v1/messages", {"messages": hi, "max_tokens": 99, "tool_choice": {
         "type": "tool", "name": "f"},
         "tools": [{"name": x["name"], "input_schema": x["parameters"]} for x in plain]}),
    ):  # fmt: skip
        status, headers, data = server.request(
            "POST", path, {"model": name, **body, "stream": stream}
        )
        assert status == 200 and b'"f"' in data, (path, data)
        assert "tools[1].parameters.properties.a.uniqueItems" in headers["x-vllama-ignored"]
        found = [headers["x-vllama-violates"]] if "x-vllama-violates" in headers else []
        if stream:
            lines = [line.removeprefix("data: ") for line in data.decode().splitlines()]
            events = [json.loads(line) for line in lines if line.startswith("{")]
            found = [", ".join(event["violates"]) for event in events if "violates" in event]
        assert [sorted(one.split(", ")) for one in found] == [names] * bool(names), path
