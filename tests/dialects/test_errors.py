# ruff: noqa: E501 (recorded texts)
from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.base.errors import (
    BadRequest,
    CapabilityMissing,
    ContextOverflow,
    EngineStartFailed,
    ModelNotFound,
    QueueFull,
    UpstreamError,
    VllamaError,
)
from vllama.chat.engine.refusals import clean_engine_error
from vllama.dialects.errors import (
    make_anthropic_error,
    make_ollama_error,
    make_openai_error,
)

LCP_TYPE = rb"""{"error":{"message":"1 validation error:\n  {'type': 'float_parsing', 'loc': ('body', 'temperature'), 'msg': 'Input should be a valid number, unable to parse string as a number', 'input': 'x'}\n\n  File \"/opt/engine/lib/python3.11/site-packages/llama_cpp/server/app.py\", line 376, in create_chat_completion\n    POST /v1/chat/completions","type":"internal_server_error","param":null,"code":null}}"""
LCP_OVER = b"""{"error":{"message":"This model's maximum context length is 512 tokens, however you requested 717 tokens (701 in your prompt; 16 for the completion). Please reduce your prompt; or completion length.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"""
NATIVE_OVER = b'{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_prompt_tokens":831,"n_ctx":256}}'

REFUSED = "the upstream refused the key of this server (HTTP 401)"
THROWN = b"""{"error":{"code":400,"message":"Field 'min_keep': [json.exception.type_error.302] type must be number, but is string","type":"invalid_request_error"}}"""
UNREAD = b'{"error":{"code":500,"message":"[json.exception.parse_error.101] parse error at line 1, column 2: last read: x","type":"server_error"}}'
ENGINE = [
    (400, THROWN, BadRequest, 400, "cannot read 'min_keep': type must be number, but is string"),
    (500, UNREAD, UpstreamError, 502, "cannot read the request: parse error at line 1, column 2: last read: x"),
    (500, LCP_TYPE, BadRequest, 400, "temperature: Input should be a valid number, unable to parse string as a number"),
    (400, LCP_OVER, ContextOverflow, 400, "This model's maximum context length is 512 tokens, however you requested 717 tokens (701 in your prompt; 16 for the completion). Please reduce your prompt; or completion length."),
    (400, NATIVE_OVER, ContextOverflow, 400, "the request exceeds the available context size, try increasing it (prompt: 831 tokens, context: 256)"),
    (400, b'{"object":"error","message":"The prompt is longer than the maximum model length of 64","type":"BadRequestError","code":400}', ContextOverflow, 400, "The prompt is longer than the maximum model length of 64"),
    (400, b'{"error":{"message":"bad schema in /opt/vllm/x/y.py","type":"BadRequestError","param":null,"code":400}}', BadRequest, 400, "bad schema in y.py"),
    (404, b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError"}}', BadRequest, 400, "The model `x` does not exist."),
    (404, b'{"detail":"Not Found"}', BadRequest, 400, "Not Found"),
    (422, b'{"detail":[{"type":"missing","loc":["body","messages"],"msg":"Field required"},{"loc":[],"msg":"x"}]}', BadRequest, 400, "messages: Field required; x"),
    (400, b'{"error":"plain text"}', BadRequest, 400, "plain text"),
    (400, b"", BadRequest, 400, "the engine refused the request with status 400"),
    (500, b"Internal Server Error", UpstreamError, 502, "the engine failed with status 500 and gave no reason"),
    (500, b"<html>\n</html>", UpstreamError, 502, "the engine failed with status 500 and gave no reason"),
    (503, b"<html><style>a { b: c }</style><h1>503</h1>No <b>healthy</b> upstream\n</html>", UpstreamError, 503, "503 No healthy upstream"),
    (500, b'{"error":{"message":"could not broadcast input array","type":"internal_server_error"}}', UpstreamError, 502, "could not broadcast input array"),
    (501, b'{"error":{"code":501,"message":"This server does not support embeddings","type":"not_supported_error"}}', CapabilityMissing, 400, "This server does not support embeddings"),
    (503, b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}', UpstreamError, 503, "Loading model"),
    (429, b"slow down", UpstreamError, 429, "slow down"),
    (401, b'{"detail":"Invalid API key"}', UpstreamError, 502, REFUSED),
    (401, b'{"error":"Unauthorized"}', UpstreamError, 502, REFUSED),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "kind", "ours", "text"), ENGINE, ids=range(len(ENGINE)))
def test_engine_errors(
    status: int, body: bytes, kind: type[VllamaError], ours: int, text: str
) -> None:
    error = clean_engine_error(status, body)
    assert type(error) is kind
    assert (error.status, error.message) == (ours, text)


@given(st.integers(400, 599), st.binary(max_size=60))
def test_any_body(status: int, body: bytes) -> None:
    error = clean_engine_error(status, body)
    assert error.message and "\n" not in error.message


def test_long_reports_are_cut() -> None:
    body = json.dumps({"error": {"message": "x y" * 100_000}}).encode()
    assert len(clean_engine_error(500, body).message) <= 2000


OURS = [
    (ModelNotFound("x"), 404, "model 'x' not found"),
    (ModelNotFound("x", hint="Run vllama pull x"), 404, "model 'x' not found"),
    (ModelNotFound("", message='model "x" not found, try pulling it first'), 404, 'model "x" not found, try pulling it first'),
    (BadRequest("model is required"), 400, "model is required"),
    (CapabilityMissing('"m" does not support thinking', hint="Leave it out"), 400, '"m" does not support thinking'),
    (EngineStartFailed("cannot start: no memory", hint="Use a smaller model"), 500, "cannot start: no memory; Use a smaller model"),
    (QueueFull("server busy, please try again.  maximum pending requests exceeded"), 503, "server busy, please try again.  maximum pending requests exceeded"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "status", "text"), OURS)
def test_ollama(error: VllamaError, status: int, text: str) -> None:
    body = msgspec.json.encode(make_ollama_error(error))
    assert error.status == status and json.loads(body)["error"] == text
    # the hint is told apart only where the text has it
    assert json.loads(body).get("hint") == (error.hint if text.endswith(str(error.hint)) else None)


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (BadRequest("x"), 400, "invalid_request_error", None),
        (ContextOverflow("x"), 400, "invalid_request_error", "context_length_exceeded"),
        (ModelNotFound("m", message="x"), 404, "not_found_error", None),
        (QueueFull("x"), 503, "api_error", None),
        (UpstreamError("x"), 502, "api_error", None),
    ],
)
def test_openai(error: VllamaError, status: int, kind: str, code: str | None) -> None:
    assert error.status == status
    assert json.loads(msgspec.json.encode(make_openai_error(error))) == {
        "error": {"message": "x", "type": kind, "param": None, "code": code}
    }


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("x"), "invalid_request_error"),
        (ModelNotFound("m"), "not_found_error"),
        (QueueFull("x"), "overloaded_error"),
        (UpstreamError("x"), "api_error"),
    ],
)
def test_anthropic(error: VllamaError, kind: str) -> None:
    answer = json.loads(msgspec.json.encode(make_anthropic_error(error)))
    assert answer["type"] == "error"
    assert answer["error"] == {"type": kind, "message": error.message}
    assert answer["request_id"].startswith("req_") and len(answer["request_id"]) == 28
    assert make_anthropic_error(error, "req_1").request_id == "req_1"


@pytest.mark.parametrize(
    ("name", "value", "is_passed"),
    [
        ("retry-after", "17", True), ("retry-after", "Fri, 31 Dec 2027 23:59:59 GMT", True),
        ("retry-after-ms", "0.5", True), ("x-ratelimit-reset-tokens", "6m0s", True),
        *((name, value, False) for name in ("retry-after", "retry-after-ms") for value in
          ("-1", "", "nan", "9" * 400, "soon", "1e400", "\xff", "1, 2")),
        ("x-should-retry", "a" * 5000, False), ("set-cookie", "17", False),
    ],
)  # fmt: skip
def test_headers_that_clients_obey_are_passed_on_if_they_can_be_read(
    name: str, value: str, is_passed: bool
) -> None:
    error = clean_engine_error(429, b"{}", {name: value})
    assert isinstance(error, UpstreamError)
    assert dict(error.headers) == ({name: value} if is_passed else {})


@pytest.mark.parametrize(
    ("status", "told"), [(429, 429), (503, 503), (529, 503), (500, 502), (502, 502), (504, 502)]
)
def test_when_to_come_again_is_passed_on_whatever_the_failure(status: int, told: int) -> None:
    error = clean_engine_error(status, b"{}", {"retry-after": "17"})
    assert isinstance(error, UpstreamError)
    assert (error.status, dict(error.headers)) == (told, {"retry-after": "17"})
