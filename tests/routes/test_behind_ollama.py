"""A vllama before a vllama, or before an Ollama: prompts, numbers and descriptions stay theirs."""

from __future__ import annotations

import json

import pytest

from tests.routes.test_ollama_chat import until, user
from tests.scripted import Scripted, list_models
from tests.server_process import Server

pytestmark = pytest.mark.slow  # two servers as processes of their own

ONCE = "Once upon a time"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
PIXEL = "iVBORw0KGgo="  # nobody looks into it
USUAL = {"top_p": 0.9}  # Ollama's default, in case it goes by /v1
OPTIONS = {"temperature": 0, "num_predict": 3, "stop": ["tok9"], "top_k": 7, "seed": 5}
GENERATED = [
    {"prompt": ONCE, "raw": True},
    {"prompt": ONCE, "raw": True, "options": OPTIONS},
    {"prompt": f"@tokens=30 {ONCE}", "raw": True, "options": {"num_predict": 9}},
    {"prompt": "<|x|>[INST] \u00e9\U0001f600\n", "raw": True, "options": {"seed": 0}},
    {"prompt": ONCE, "raw": True, "format": "json"},
    {"prompt": ONCE, "raw": True, "format": SCHEMA},
    {"prompt": ONCE, "raw": True, "logprobs": True, "top_logprobs": 2},
    {"prompt": ONCE, "raw": True, "options": {"num_ctx": 2048}},
]
TIMES = {"created_at", "total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Return a vllama with an engine, and one before it."""
    folder = tmp_path_factory.mktemp("pair")
    with Server(folder / "node") as node:
        node.model("m")
        with Server(folder / "head", "--upstream", node.url, fake=False) as head:
            assert node.post("/api/generate", {"model": "m"})[0] == 200
            yield node, head


def find_rows(server):
    """Return the rows of its models by their names."""
    return {row["name"]: row for row in server.get("/api/tags")["models"]}


def generate(server, node, body):
    """Return all lines of an answer without times, and what the engine was sent for it."""
    status, _, data = server.request("POST", "/api/generate", {"model": "m", **body})
    assert status == 200, data
    lines = [json.loads(line) for line in data.splitlines()]
    for line in lines:
        assert line.keys() - TIMES and "error" not in line, line
        for name in TIMES:
            line.pop(name, None)
    sent = node.sent("m")
    sent.pop("model")
    return lines, sent


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("body", GENERATED, ids=range(len(GENERATED)))
def test_a_prompt_reaches_the_engine_as_without_the_server_between(pair, body, stream):
    node, head = pair
    there, sent = generate(node, node, {**body, "stream": stream})
    here, passed = generate(head, node, {**body, "stream": stream})
    assert passed == sent
    texts = ["".join(line["response"] for line in lines) for lines in (there, here)]
    assert texts[0] == texts[1]
    assert here[-1] | {"response": ""} == there[-1] | {"response": ""}
    if body.get("logprobs"):
        assert [one for line in here for one in line.get("logprobs", ())] == [
            one for line in there for one in line.get("logprobs", ())
        ]


def test_a_template_made_here_is_the_only_one(pair):
    node, head = pair
    made = {"model": "mine", "from": "m", "template": "Q: {{ .Prompt }} A:", "stream": False}
    assert head.post("/api/create", made)[0] == 200
    for path in ("/api/chat", "/api/generate", "/v1/chat/completions"):
        asked = {"model": "mine", "prompt": "why?", "stream": False}
        if path != "/api/generate":
            asked = {"model": "mine", **user("why?"), "stream": False}
        status, reply = head.post(path, asked)
        assert status == 200, reply
        assert node.sent("m")["prompt"] == "Q: why? A:"


def test_it_is_described_as_there(pair):
    node, head = pair
    tags = [find_rows(server) for server in (node, head)]
    for name in ("size", "digest", "capabilities"):
        assert tags[0]["m:latest"][name] == tags[1]["m:latest"][name]
    lengths = [each["m:latest"]["details"]["context_length"] for each in tags]
    assert lengths == [4096, 4096]
    shown = [server.post("/api/show", {"model": "m"})[1] for server in (node, head)]
    for name in ("template", "capabilities"):
        assert shown[0][name] == shown[1][name]
    assert shown[0]["model_info"].items() <= shown[1]["model_info"].items()
    generate(head, node, {"prompt": ONCE})
    rows = [server.get("/api/ps")["models"][0] for server in (node, head)]
    for name in ("size", "size_vram", "context_length", "digest"):
        assert rows[0][name] == rows[1][name], name


LAST = {"response": "", "done": True, "done_reason": "length", "context": [1, 2, 3],
        "prompt_eval_count": 7, "eval_count": 3, "prompt_eval_duration": 5_000_000,
        "eval_duration": 9_000_000}  # fmt: skip
LINES = [{"response": "Hel", "done": False}, {"response": "lo\n", "done": False}, LAST]


def find_sent(there):
    """Return the last body of a generation; the server is checked meanwhile."""
    return [body for path, body in there.asked if path == "/api/generate"][-1]


def stream(lines):
    """Return an answer whose reads end in the midst of lines."""
    data = b"".join(json.dumps({"model": "m", **line}).encode() + b"\n" for line in lines)
    pieces = [data[at : at + 17] for at in range(0, len(data), 17)]
    return 200, {"Content-Type": "application/x-ndjson"}, pieces


def be_ollama(digest, context):
    """Return the routes of an Ollama with one model."""
    shown = {
        "template": "{{ .System }}{{ .Prompt }}",
        "system": "Be kind.",
        "license": "MIT",
        "parameters": 'stop "x"',
        "details": {"family": "toy", "quantization_level": "Q4_0"},
        "model_info": {"general.architecture": "toy", "toy.context_length": context},
        "capabilities": ["completion", "vision", "insert"],
    }
    row = {"name": "m:latest", "model": "m:latest", "size": 12345, "digest": digest}
    loaded = row | {"size": 777, "size_vram": 555, "context_length": 2048}
    return {
        "/v1/models": list_models("m:latest", owner="library"),
        "/api/version": (200, {}, {"version": "0.9"}),
        "/api/show": (200, {}, shown),
        "/api/tags": (200, {}, {"models": [row]}),
        "/api/ps": (200, {}, {"models": [loaded]}),
        "/api/generate": stream(LINES),
    }


@pytest.fixture
def ollama(tmp_path):
    """Return an Ollama by script, and vllama before it."""
    with (
        Scripted(be_ollama("a" * 64, 32768)) as there,
        Server(tmp_path, "--upstream", there.url, fake=False) as server,
    ):
        until(lambda: "m:latest" in find_rows(server))
        yield there, server


def test_an_ollama_is_asked_by_its_own_route(ollama):
    there, server = ollama
    body = {"prompt": "a", "raw": True, "images": [PIXEL], "format": SCHEMA, "options": OPTIONS,
            "logprobs": True, "top_logprobs": 1}  # fmt: skip
    for streamed in (True, False):
        asked = {"model": "m", **body, "stream": streamed}
        status, _, data = server.request("POST", "/api/generate", asked)
        assert status == 200
        lines = [json.loads(line) for line in data.splitlines()]
        assert "".join(line["response"] for line in lines) == "Hello\n"
        last = lines[-1]
        assert (last["done_reason"], last["prompt_eval_count"], last["eval_count"]) == (
            "length",
            7,
            3,
        )
        assert (last["prompt_eval_duration"], last["eval_duration"]) == (5_000_000, 9_000_000)
        assert "context" not in last  # as Ollama's, of a raw prompt
        sent = find_sent(there)
        assert sent == {**body, "model": "m:latest", "stream": True, "options": OPTIONS | USUAL}


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        ((500, {}, {"error": "out of memory"}), 502, "out of memory"),
        ((400, {}, {"error": "raw mode does not support that"}), 400, "raw mode does not"),
        (stream([{"error": "it broke"}]), 502, "it broke"),
        (stream(LINES[:2]), 502, "ended the stream early"),
        ((200, {}, b"<html>"), 502, "a line that is not in Ollama's format"),
        ((200, {}, b'{"response":5}\n'), 502, "a line that is not in Ollama's format"),
        ((200, {}, b"[" * 100_000), 502, "a line that is not in Ollama's format"),
    ],
)
def test_its_failures_are_told(ollama, answer, status, words):
    there, server = ollama
    there.routes["/api/generate"] = answer
    got, reply = server.post(
        "/api/generate", {"model": "m", "prompt": "a", "raw": True, "stream": False}
    )
    assert (got, words in reply["error"]) == (status, True), reply


def test_it_is_asked_anew_when_it_has_been_away(ollama):
    there, server = ollama

    def look():
        row = find_rows(server)["m:latest"]
        shown = server.post("/api/show", {"model": "m"})[1]
        return row["size"], row["digest"], row["details"]["context_length"], shown["template"]

    assert look() == (12345, "a" * 64, 32768, "{{ .System }}{{ .Prompt }}")
    shown = server.post("/api/show", {"model": "m"})[1]
    assert (shown["system"], shown["license"], shown["parameters"]) == (
        "Be kind.",
        "MIT",
        'stop "x"',
    )
    server.post("/api/generate", {"model": "m", "prompt": "a", "raw": True, "stream": False})
    row = server.get("/api/ps")["models"][0]
    assert (row["size"], row["size_vram"], row["context_length"]) == (777, 555, 2048)
    gone = dict.fromkeys(there.routes, (503, {}, {"error": "away"}))
    there.routes = gone
    until(
        lambda: (
            ("/v1/models", None) in there.asked[-3:] and server.request("GET", "/readyz")[0] == 503
        )
    )
    there.asked.clear()
    until(lambda: server.get("/api/tags") and sum(p == "/v1/models" for p, _ in there.asked) > 2)
    there.routes = be_ollama("b" * 64, 4096)
    until(lambda: look() == (12345, "b" * 64, 4096, "{{ .System }}{{ .Prompt }}"))


def test_another_server_is_asked_for_a_completion(tmp_path):
    done = {"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}
    event = b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(done).encode()
    routes = {
        "/v1/models": list_models("m", owner="vllm"),
        "/v1/completions": (200, {"Content-Type": "text/event-stream"}, [event]),
    }
    with (
        Scripted(routes) as there,
        Server(tmp_path, "--upstream", there.url, fake=False) as server,
    ):
        asked = {"model": "m", "prompt": ONCE, "raw": True, "stream": False}
        assert server.post("/api/generate", asked)[1]["response"] == "x"
        ((_, sent),) = [each for each in there.asked if each[0] == "/v1/completions"]
        assert sent["prompt"] == ONCE
