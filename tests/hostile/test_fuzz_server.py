# ruff: noqa: E501 (tables of pieces)
"""Fuzzers of a running server: bytes on its socket, and JSON for every route that takes some.

Whatever comes is answered in HTTP, none of it with an error of the server's own, and the next
client is answered too.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.fuzzing import changed, fuzz, varied
from tests.server_process import LIMIT_S, Server
from vllama.routes.route_table import ROUTES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # nothing is fetched: what is pulled by name leads to a port where nobody listens
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:1", "VLLAMA_OLLAMA_REGISTRY": "http://127.0.0.1:1"}
    with Server(tmp_path_factory.mktemp("fuzz"), "--inspect", env=nowhere) as running:
        running.model("sea")
        yield running
        assert running.get("/api/version")
        assert "Traceback" not in running.output


# -- bytes ---------------------------------------------------------------------------------------

BODY = b'{"model":"sea","messages":[{"role":"user","content":"x"}],"stream":false}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
REQUESTS = [
    b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"HEAD / HTTP/1.0\r\n\r\n",
    b"POST /api/show HTTP/1.1\r\nHost: localhost\r\n" + LENGTH + b"\r\n" + BODY,
    b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"%x\r\n%b\r\n0\r\nTrailer: x\r\n\r\n" % (len(BODY), BODY),
    b"OPTIONS /api/chat HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\r\n",
    b"POST /v1/responses HTTP/1.1\r\nHost: a\r\nContent-Encoding: zstd\r\nContent-Length: 4\r\n\r\nxxxx",
    b"GET /api/tags HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
]
BYTES = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"%00", b"%2e%2e/", b"?", b"#", b"*", b"\xff", b"0\r\n\r\n",
    b"Host: evil\r\n", b"Origin: null\r\n", b"Content-Length: 5\r\n", b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Expect: 100-continue\r\n",
    b"Connection: close\r\n", b"Connection: upgrade\r\n", b"HTTP/1.1", b"HTTP/2.0", b"GET ", b"PRI * HTTP/2.0\r\n\r\n",
    b"ffffffffffffffff\r\n", b"-1\r\n", b";x=\"y\"", b"http://evil/", b"X: " + b"y" * 1000 + b"\r\n", b" folded\r\n",
]  # fmt: skip


@fuzz(2500)
@given(asked=st.lists(varied(REQUESTS, BYTES), min_size=1, max_size=3), cut=st.integers(1, 400))
def test_fuzz_http(server: Server, asked: list[bytes], cut: int) -> None:
    data = b"".join(asked)
    with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S) as connection:
        answer = b""
        try:
            for at in range(0, len(data), max(cut, len(data) // 20)):
                connection.sendall(data[at : at + max(cut, len(data) // 20)])
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                answer += piece
        except OSError:  # it has been closed while we went on
            pass
    assert not answer or re.match(rb"HTTP/1\.1 [1-5]\d\d ", answer), answer
    assert b"internal error" not in answer


# -- JSON ----------------------------------------------------------------------------------------

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "a"},
    {"role": "user", "content": "x"},
]
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}},
}
OPTIONS = {"temperature": 0, "stop": ["x"], "num_predict": 2, "seed": 1}
HERE = "http://127.0.0.1:1/library/x"
INSPECT = {
    "collect": {"residual": [0, 1]},
    "steer": [
        {"vector": [1.0] * 64, "layers": [1], "strength": 0.5},
        {"vector": [0.5] * 64, "layers": [0]},
    ],
}
SEEDS: dict[str, list[dict[str, Any]]] = {
    "/api/chat": [
        {"model": "sea", "messages": TALK, "options": OPTIONS, "stream": False},
        {"model": "sea", "messages": TALK, "format": {"type": "object"}, "think": False},
        {"model": "sea", "messages": TALK, "inspect": INSPECT},
    ],
    "/api/generate": [
        {"model": "sea", "prompt": "x", "template": "{{ .Prompt }}", "options": OPTIONS},
        {"model": "sea", "prompt": "x", "context": [1, 2], "system": "a", "images": []},
    ],
    "/api/embed": [{"model": "sea", "input": ["a", "b"], "truncate": True, "dimensions": 2}],
    "/api/embeddings": [{"model": "sea", "prompt": "x"}],
    "/api/show": [{"model": "sea", "verbose": False}],
    "/api/copy": [{"source": "sea", "destination": "two"}],
    "/api/create": [
        {"model": "three", "from": "sea", "parameters": OPTIONS, "messages": TALK, "stream": False},
        {"model": "four", "files": {"m.gguf": "sha256:" + "a" * 64}, "quantize": "q4_0"},
    ],
    "/api/tokenize": [{"model": "sea", "content": "x"}],
    **{
        path: [{"model": "sea", "prompt": "x"}]
        for path in ("/tokenize", "/detokenize", "/pooling", "/classify")
    },
    "/api/detokenize": [{"model": "sea", "tokens": [1, 2]}],
    "/v1/chat/completions": [
        {"model": "sea", "messages": TALK, "tools": [TOOL], "max_tokens": 2, "stop": ["x"]},
        {
            "model": "sea",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
        },
    ],
    "/v1/completions": [
        {"model": "sea", "prompt": ["x"], "n": 1, "echo": False, "logprobs": 1},
        {"model": "sea", "prompt": "x", "inspect": {"collect": INSPECT["collect"]}},
    ],
    "/v1/batches": [
        {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"}
    ],
    "/v1/embeddings": [{"model": "sea", "input": ["x", "y"], "encoding_format": "float"}],
    "/v1/responses": [
        {"model": "sea", "input": [{"role": "user", "content": "x"}], "instructions": "a"},
        {"model": "sea", "input": "x", "tools": [{"type": "function", "name": "f"}]},
    ],
    "/v1/messages": [
        {"model": "sea", "max_tokens": 2, "messages": TALK[1:], "system": "a", "tools": []},
        {
            "model": "sea",
            "max_tokens": 2,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        },
    ],
    "/v1/messages/count_tokens": [{"model": "sea", "messages": TALK[1:]}],
    **{
        path: [{"model": "sea", "query": "x", "documents": ["a", "b"], "top_n": 1}]
        for path in ("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking")
    },
    **{
        path: [{"model": "sea", "text_1": "x", "text_2": ["a", "b"]}]
        for path in ("/score", "/v1/score")
    },
    "/v1/decisions": [{"model": "sea", "input": "x", "questions": [{"type": "boolean"}]}],
    "/v1/systemone": [
        {
            "model": "sea",
            "state": {"a": 1},
            "questions": {"q": {"type": "noul", "instructions": "x"}},
        }
    ],
    "/v1/audio/speech": [{"model": "sea", "input": "x", "voice": "a"}],
    "/v1/images/generations": [{"model": "sea", "prompt": "x", "n": 1}],
    "/api/web_search": [{"query": "x"}],
    "/api/web_fetch": [{"url": HERE}],
    "/api/push": [{"model": "sea", "stream": False}],
    "/api/me": [{"name": "x"}],
    "/api/changes": [{"removed": ["x"]}],
    "/api/commands": [{"command": "list"}],
    "/api/signout": [{"name": "x"}],
    "/api/experimental/web_search": [{"query": "x"}],
    "/api/experimental/web_fetch": [{"url": HERE}],
    "/api/delete": [{"model": "none-of-this-name"}],
    "/api/plan": [{"model": "sea", "num_ctx": 128}],
    "/api/keys": [{"name": "x", "scopes": ["infer"], "rate": "9/min", "concurrent": 1}],
    "/api/pull": [{"model": HERE, "insecure": True, "stream": False}],
}
OTHERS = {
    "/v1/audio/transcriptions",
    "/v1/files",
    "/v1/audio/translations",
    "/v1/images/edits",
}  # which take forms
KEYS = [
    "model", "messages", "stream", "options", "keep_alive", "think", "format", "tools", "tool_choice", "raw",
    "suffix", "logprobs", "top_logprobs", "n", "stop", "logit_bias", "stream_options", "response_format",
    "num_ctx", "num_predict", "seed", "role", "content", "images", "tool_calls", "name", "type", "user",
]  # fmt: skip


def test_no_route_is_forgotten() -> None:
    found = (route.paths for route in ROUTES if {"POST", "DELETE"} & {*route.methods})
    taking = {path for paths in found for path in paths if "{" not in path}
    assert taking == SEEDS.keys() | OTHERS


def short(body: bytes) -> bytes:
    """Let no answer be longer than some tokens: the fake engine says as many as it is asked for."""
    value = json.loads(body)
    for holder, name in ((value, "max_tokens"), (value.get("options"), "num_predict")):
        if isinstance(holder, dict) and isinstance(holder.get(name, 2), int | float):
            holder[name] = 2
    return json.dumps(value).encode()


@pytest.mark.parametrize("route", SEEDS)
def test_fuzz_json(server: Server, route: str) -> None:
    method = "DELETE" if route == "/api/delete" else "POST"

    @fuzz(150)
    @given(body=changed(SEEDS[route], KEYS))
    def ask(body: bytes) -> None:
        body = short(body)
        status, _, answer = server.request(method, route, body)
        assert 200 <= status < 600
        assert b"internal error" not in answer

    ask()
