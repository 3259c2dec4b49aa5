"""The description of the API: it is valid, complete, and true of Ollama's own answers."""

import json
import re
from pathlib import Path
from urllib.parse import urljoin

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.e2e.test_recorded import read_exchanges
from tests.routes.openapi.validation import (
    DOCUMENT,
    find_errors,
    find_operation,
    make_open_validator,
)
from vllama import __version__
from vllama.models.names.ref import ModelRef
from vllama.routes.describe.document import encode_document
from vllama.routes.describe.examples import EXAMPLES
from vllama.routes.describe.schemas import MODEL_NAMES
from vllama.routes.route_table import ROUTES

ROOT = Path(__file__).parents[3]
WITHOUT_CONTENT = {
    *("DELETE /api/requests/{id}", "DELETE /api/pull", "DELETE /api/delete", "POST /api/copy"),
    *("HEAD /api/blobs/{digest}", "POST /api/blobs/{digest}", "POST /api/me", "POST /api/signout"),
    "DELETE /api/user/keys/{key}",
    "POST /api/web_search /api/experimental/web_search",
    "POST /api/web_fetch /api/experimental/web_fetch",
}
"""Routes that answer nothing but a status, or an error."""


def test_every_route_is_described_and_nothing_else():
    for route in ROUTES:
        summary, _ = route.read_docstring()
        says = route.answer or route.stream or route.media or route.spelling in WITHOUT_CONTENT
        assert not route.described or (summary and says), f"describe the answer of {route.spelling}"
    assert DOCUMENT["paths"].keys() == {
        path for route in ROUTES if route.described for path in route.paths
    }


def test_the_document_is_valid():
    document = json.loads(encode_document(ROUTES, needs_key=True))
    assert not [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()]
    assert document["info"]["version"] == __version__


def test_without_a_key_it_is_the_same_but_for_what_a_key_brings():
    keyed = json.loads(encode_document(ROUTES, needs_key=True))
    keyless = json.loads(encode_document(ROUTES, needs_key=False))
    assert keyless["security"] == [{}, *keyed["security"]]
    keyed["security"] = keyless["security"]
    for path, methods in keyed["paths"].items():
        for method, operation in methods.items():
            responses = keyless["paths"][path][method]["responses"]
            for status in operation["responses"].keys() - responses.keys():
                assert status in ("401", "429")
                del operation["responses"][status]
    assert keyed == keyless


def test_identifiers_are_unique():
    names = [
        operation["operationId"]
        for methods in DOCUMENT["paths"].values()
        for operation in methods.values()
    ]
    assert len(names) == len(set(names))


def test_all_schemas_are_used():
    text = json.dumps(DOCUMENT)
    unused = [name for name in DOCUMENT["components"]["schemas"] if f'schemas/{name}"' not in text]
    assert not unused


def test_keys_are_asked_for_as_the_guards_ask():
    keyless = {
        path
        for path, methods in DOCUMENT["paths"].items()
        for operation in methods.values()
        if operation.get("security") == []
    }
    assert keyless == {"/", "/health", "/livez", "/readyz", "/openapi.json"}
    assert {} not in DOCUMENT["security"]
    assert {} in json.loads(encode_document(ROUTES, needs_key=False))["security"]


def test_examples_fit_their_schemas():
    assert EXAMPLES.keys() <= DOCUMENT["components"]["schemas"].keys()
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                for title, example in media.get("examples", {}).items():
                    found = make_open_validator(media["schema"]).iter_errors(example["value"])
                    assert not [error.message for error in found], (path, title)


def list_answers():
    """Yield what Ollama answered at its own routes."""
    for exchange in read_exchanges():
        if (
            exchange.answer.status in (301, 307, 405)
            or find_operation(exchange.method, exchange.path) is None
        ):
            continue  # what the router answers is no operation
        if exchange.path == "/v1/messages/count_tokens":
            continue  # Ollama has no such route
        if re.search('"output":null|"status":"failed"', exchange.answer.body):
            continue  # Ollama's events are incomplete there
        yield exchange


def test_ollamas_own_answers_fit():
    wrong = []
    for exchange in list_answers():
        answer = exchange.answer
        errors = find_errors(
            exchange.method, exchange.path, answer.status, answer.type, answer.body
        )
        wrong += [f"{exchange.method} {exchange.path} {answer.status}: {one}" for one in errors]
    assert not wrong, "\n".join(dict.fromkeys(wrong))


def test_ollamas_accepted_requests_fit():
    """What Ollama answers with 200 is a request that the description allows."""
    wrong = []
    for exchange in list_answers():
        described = find_operation(exchange.method, exchange.path)
        content = described.get("requestBody", {}).get("content", {}).get("application/json")
        if exchange.answer.status != 200 or content is None or not isinstance(exchange.body, dict):
            continue
        body = dict(exchange.body)
        if "name" in body:  # what `model` was called
            body.setdefault("model", body["name"])
        found = make_open_validator(content["schema"]).iter_errors(body)
        wrong += [
            f"{exchange.path} {exchange.body!s:.200}: {one.message[:200]}"
            for one in found
            if "format" not in one.path  # which is only looked at if there is something to generate
        ]
    assert not wrong, "\n".join(wrong)


QUESTION = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
LINKED = [{"type": "image_url", "image_url": {"url": "https://example.com/x.png"}}]
NOUL = {"type": "noul", "instructions": "Is it?", "criteria": {"perhaps": "maybe"}}
ASKED = [{"type": "predicate", "instructions": "Is it?"}]
LINKED_INPUT = [{"type": "input_image", "image_url": "x.png"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": LINKED}]}),
        ("/v1/responses", {"model": "m", "input": [{"role": "user", "content": LINKED_INPUT}]}),
        ("/v1/messages/count_tokens", QUESTION | {"tool_choice": {}}),
        ("/v1/embeddings", {"model": "m", "input": [1, -1]}),
        ("/v1/systemone", {"model": "m", "state": "", "questions": {"a": NOUL}}),
        ("/v1/decisions", {"model": "m", "input": [{"type": "reasoning"}], "questions": ASKED}),
        ("/api/chat", QUESTION | {"keep_alive": "999999h999999h999999h"}),
    ],
)
def test_what_is_refused_for_any_model_does_not_fit(path, body):
    operation = find_operation("POST", path)
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert list(make_open_validator(schema).iter_errors(body))


def test_an_undescribed_field_is_found():
    body = json.dumps({"version": "1", "vllama": "1", "more": 1})
    assert find_errors("GET", "/api/version", 200, "application/json", body)
    assert find_errors("GET", "/api/version", 200, "application/json", '{"version": 5}')
    assert find_errors("GET", "/api/version", 200, "text/plain", "1")
    assert find_errors("GET", "/api/version", 418, "application/json", "{}")


def test_the_server_is_found_behind_a_proxy_that_adds_a_path():
    (server,) = DOCUMENT["servers"]
    assert (
        urljoin("https://example.com/llm/openapi.json", server["url"]) == "https://example.com/llm/"
    )


SPEAKS_FOR_ITSELF = {
    "$defs", "allowed_tools", "anyOf", "arguments", "call_id", "choices", "client",
    "collect", "content", "context_length", "created_at", "criteria", "data", "description",
    "details", "digest", "disable_parallel_tool_use", "download_bytes", "encoding_format",
    "encrypted_content", "engine", "enum", "finish_reason", "format",
    "frequency_penalty", "function", "generated_tokens", "hint", "id", "image_url", "index",
    "input", "input_audio", "input_tokens", "instructions", "items", "json_schema", "label",
    "levels", "logprob", "logprobs", "max_output_tokens", "max_tokens", "metadata",
    "method", "model", "name", "object", "output", "output_config", "output_tokens",
    "parallel_tool_calls", "parameters", "path", "presence_penalty", "previous_response_id",
    "prompt", "prompt_tokens", "properties", "query", "questions", "reasoning",
    "reasoning_effort", "required", "response_format", "role", "schema", "seed", "size_bytes",
    "source", "started_at", "steer", "stop_reason", "stop_sequence", "stream", "stream_options",
    "strict", "system", "temperature", "template", "text", "thinking", "token", "tokens",
    "tokens_per_s", "tool_calls", "tool_choice", "tools", "top_k", "top_p", "total_tokens",
    "truncation", "type", "url", "usage", "value", "voice",
}  # fmt: skip
"""Fields whose names say what they are, in requests and in answers."""


def list_fields(place, schema):
    """Yield the fields of a schema, at any depth, with their places."""
    for field, one in schema.get("properties", {}).items():
        yield f"{place}.{field}", one
        yield from list_fields(f"{place}.{field}", one)
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            yield from list_fields(place, schema[part])
    for one in schema.get("anyOf", ()):
        yield from list_fields(place, one)


def is_sentence(text):
    return re.fullmatch(r"[A-Z`0-9-].*[.]", text, re.DOTALL)


@pytest.mark.parametrize(
    "name",
    [
        "m", "m:latest", "ns/m:t", "org/repo@main", "org/repo@v1.0:Q4_K_M", "hf.co/org/repo@a/b",
        f"org/repo:{'x' * 200}", "hf://org/repo/file.gguf", "https://huggingface.co/org/repo",
        "ollama://m:8b", "localhost:5000/library/m", "/models/my model.gguf", "~/m.gguf",
    ],
)  # fmt: skip
def test_a_name_that_is_taken_is_not_forbidden(name):
    ModelRef.parse(name)
    assert re.search(MODEL_NAMES["model"]["pattern"], name)


def test_every_header_of_answers_is_described():
    sources = "".join(path.read_text() for path in (ROOT / "vllama").rglob("*.py"))
    asked = {"x-vllama-detach", "x-vllama-key", "x-vllama-forwarded", "x-vllama-truncate"}
    between = {"seed", "replays", "usage", "failure"}  # the servers of a cluster
    asked |= {f"x-vllama-{name}" for name in between}
    answered = set(re.findall(r'"(x-vllama-[a-z-]+)"', sources)) - asked
    assert answered <= set(DOCUMENT["components"]["headers"])
    guide = (ROOT / "docs/reference/api.md").read_text()
    assert not [name for name in answered if f"| `{name}` |" not in guide]


def test_every_schema_has_a_sentence_and_every_field_that_needs_one():
    schemas = DOCUMENT["components"]["schemas"]
    assert not [name for name, one in schemas.items() if not is_sentence(one["description"])]
    fields = [field for name, one in schemas.items() for field in list_fields(name, one)]
    texts = {place: one.get("description") for place, one in fields}
    assert not [place for place, text in texts.items() if text and not is_sentence(text)]
    silent = {place.rpartition(".")[2] for place, text in texts.items() if not text}
    assert silent == SPEAKS_FOR_ITSELF


def test_types_of_one_api_have_different_names():
    """Else msgspec names them by their modules."""
    assert not [name for name in DOCUMENT["components"]["schemas"] if "vllama" in name]


READABLE = {
    *("application/json", "application/x-ndjson", "application/octet-stream", "audio/mpeg"),
    *("application/openmetrics-text", "multipart/form-data", "text/event-stream"),
    *("text/plain", "text/html"),
}
"""Content types that generators of clients read, or are told of by `make test-clients`."""


def list_parts(part):
    """Yield every object inside a document."""
    if isinstance(part, dict):
        yield part
    for one in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from list_parts(one)


def test_generators_of_clients_can_read_it():
    for part in list_parts(DOCUMENT):
        assert not isinstance(part.get("items"), bool), f"a tuple, where a list will do: {part}"
    for methods in DOCUMENT["paths"].values():
        for one in methods.values():
            for part in (one.get("requestBody", {}), *one["responses"].values()):
                assert not part.get("content") or READABLE & part["content"].keys()
