"""Answers of all dialects are read alike, streamed or whole."""

import json

import pytest

from tests.observe.captures.samples import make_capture
from vllama.lab.commands.replay import format_rate
from vllama.observe.captures.reading import read_answer

MESSAGES = [{"role": "user", "content": "hi @tokens=3"}]
SAID = b"tok0 tok1 tok2 "
ROUTES = {
    "/api/chat": {"messages": MESSAGES},
    "/api/generate": {"prompt": "hi @tokens=3"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi @tokens=3"},
    "/v1/responses": {"input": "hi @tokens=3"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 50},
}


def read(path, answer, content_type="application/json", status=200):
    content = answer if isinstance(answer, bytes | list) else json.dumps(answer).encode()
    capture = make_capture(path=path, answer=content, content_type=content_type, status=status)
    return read_answer(path, capture.answer)


def read_events(path, *events):
    lines = (
        "".join(f"event: x\ndata: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n"
    )
    data = lines.encode()
    middle = len(data) // 2  # in the midst of an event
    parts = [(0.5, data[:middle]), (1.5, data[middle:])]
    return read(path, parts, "text/event-stream")


def texts(reading):
    return {name: one.text.decode() for name, one in reading.texts.items()}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_a_servers_own_answers(server, path, stream):
    body = ROUTES[path] | {"model": "counts", "stream": stream}
    status, headers, content = server.request("POST", path, body)
    reading = read(path, content, headers["content-type"], status)
    assert texts(reading) == {"text": SAID.decode()}
    assert reading.generated_tokens == 3
    # OpenAI's streams tell their counts only if they are asked for them
    tells = not (stream and path.endswith("/completions"))
    assert bool(reading.prompt_tokens) is tells is not reading.is_estimated
    assert not reading.texts["text"].cut
    limited = body | {"options": {"num_predict": 2}, "max_tokens": 2, "max_output_tokens": 2}
    status, headers, content = server.request("POST", path, limited)
    reading = read(path, content, headers["content-type"], status)
    assert texts(reading) == {"text": "tok0 tok1 "}
    if path != "/v1/responses":  # which calls an answer of the client's own length complete
        assert reading.texts["text"].cut


@pytest.mark.parametrize("path", ROUTES)
def test_a_servers_errors(server, path):
    status, headers, content = server.request("POST", path, ROUTES[path] | {"model": "missing"})
    reading = read(path, content, headers["content-type"], status)
    assert reading.status == status >= 400 and list(reading.texts) == ["error"]
    assert b"missing" in reading.texts["error"].text


def test_a_whole_answer_of_ollama_tells_how_long_it_took():
    told = {"response": "hi", "done": True, "eval_count": 10, "eval_duration": 2_000_000_000}
    assert read("/api/generate", told).tokens_per_s == 5.0
    chat = {"message": {"content": "hi"}, **told}
    assert read("/api/chat", chat).tokens_per_s == 5.0
    usage = {"usage": {"prompt_tokens": 1, "completion_tokens": 10}}
    whole = {"choices": [{"message": {"content": "hi"}}], **usage}
    assert read("/v1/chat/completions", whole).tokens_per_s is None
    assert format_rate(read("/v1/chat/completions", whole), 2.0) == "at least 5.0"


def test_vectors_are_numbers(server):
    body = {"model": "counts", "input": ["a", "b"]}
    for path, names in {
        "/api/embed": ["embeddings[0]", "embeddings[1]"],
        "/v1/embeddings": ["data[0].embedding", "data[1].embedding"],
    }.items():
        status, headers, content = server.request("POST", path, body)
        reading = read(path, content, headers["content-type"], status)
        assert list(reading.numbers) == names and len(reading.numbers[names[0]]) == 8


def test_vectors_in_base64_are_numbers_too(server):
    found = []
    for form in ("float", "base64"):
        body = {"model": "counts", "input": ["a", "b"], "encoding_format": form}
        status, headers, content = server.request("POST", "/v1/embeddings", body)
        found.append(read("/v1/embeddings", content, headers["content-type"], status))
    assert found[0].texts == found[1].texts
    assert found[1].numbers.keys() == found[0].numbers.keys()
    for name, values in found[0].numbers.items():
        assert found[1].numbers[name] == pytest.approx(values, abs=1e-6)


CALL = {"function": {"name": "add", "arguments": {"b": 2, "a": 1}}}
WHOLE = {
    "/api/chat": {
        "message": {"content": "so", "thinking": "why", "tool_calls": [CALL]}, "done": True,
    },
    "/v1/chat/completions": {
        "choices": [
            {
                "index": 0,
                "message": {
                    "content": "so",
                    "reasoning": "why",
                    "tool_calls": [{"function": {"name": "add", "arguments": '{"b":2,"a":1}'}}],
                },
            }
        ]
    },
    "/v1/messages": {
        "content": [
            {"type": "thinking", "thinking": "why"},
            {"type": "text", "text": "so"},
            {"type": "tool_use", "id": "1", "name": "add", "input": {"b": 2, "a": 1}},
        ],
        "stop_reason": "tool_use",
    },
    "/v1/responses": {
        "status": "completed",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "why"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "so"}]},
            {"type": "function_call", "name": "add", "arguments": '{"b": 2, "a": 1}'},
        ],
    },
}  # fmt: skip
SAYS = {"text": "so", "thinking": "why", "tool calls": 'add({"a": 1, "b": 2})\n'}


@pytest.mark.parametrize("path", WHOLE)
def test_thinking_and_tool_calls(path):
    assert texts(read(path, WHOLE[path])) == SAYS


def test_streamed_tool_calls():
    def openai(**delta):
        return {"choices": [{"index": 0, "delta": delta}]}

    def call(**function):
        return openai(tool_calls=[{"index": 0, "function": function}])

    reading = read_events(
        "/v1/chat/completions",
        openai(reasoning="why"), openai(content="so"),
        call(name="add", arguments=""), call(arguments='{"b": 2,'), call(arguments='"a": 1}'),
    )  # fmt: skip
    assert texts(reading) == SAYS
    tool = {"type": "tool_use", "id": "1", "name": "add", "input": {}}
    reading = read_events(
        "/v1/messages",
        {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 7}}},
        {"index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"index": 0, "delta": {"type": "thinking_delta", "thinking": "why"}},
        {"index": 1, "content_block": {"type": "text", "text": ""}},
        {"index": 1, "delta": {"type": "text_delta", "text": "so"}},
        {"index": 2, "content_block": tool},
        {"index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"b": 2,'}},
        {"index": 2, "delta": {"type": "input_json_delta", "partial_json": ' "a": 1}'}},
        {"delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 9}},
    )
    assert texts(reading) == SAYS and reading.texts["text"].cut
    assert (reading.prompt_tokens, reading.generated_tokens) == (7, 9)
    assert reading.last_s == 1.5


def test_several_choices():
    choices = [
        {"index": n, "message": {"content": f"c{n}"}, "finish_reason": "stop"} for n in (0, 1)
    ]
    reading = read("/v1/chat/completions", {"choices": choices})
    assert texts(reading) == {"text": "c0", "text 2": "c1"}


def test_times_of_a_stream():
    parts = [
        (0.1, b'{"message":{"content":""}}\n'),
        (0.5, b'{"message":{"content":"a"}}\n{"mess'),
        (1.0, b'age":{"content":"b"}}\n'),
        (1.5, b'{"message":{"content":"c"}}\n'),
        (2.5, b'{"message":{"content":""},"done":true,"eval_count":3}\n'),
    ]
    reading = read("/api/chat", parts, "application/x-ndjson")
    assert (reading.first_s, reading.last_s, reading.tokens_per_s) == (0.5, 1.5, 2.0)


def test_log_probabilities_have_places():
    def entry(token, logprob, *others):
        tops = [{"token": t, "logprob": lp, "bytes": list(t.encode())} for t, lp in others]
        return {
            "token": token,
            "logprob": logprob,
            "bytes": list(token.encode()),
            "top_logprobs": tops,
        }

    logprobs = [entry("ü", -0.1, ("ü", -0.1), ("u", -2.0)), entry("ber", -0.5)]
    answer = {"message": {"content": "über"}, "logprobs": logprobs, "done": True}
    tokens = read("/api/chat", answer).texts["text"].tokens
    assert [(one.start, one.end, one.logprob) for one in tokens] == [(0, 2, -0.1), (2, 5, -0.5)]
    assert tokens[0].top == {"ü".encode(): -0.1, b"u": -2.0}


@pytest.mark.parametrize(
    ("content", "content_type", "text"),
    [
        (b"plain", "text/plain; charset=utf-8", "plain"),
        (b"not json", "application/json", "8 bytes, SHA-256 "),
        (b"\xff\x00", "audio/wav", "2 bytes, SHA-256 "),
    ],
)
def test_what_is_no_json(content, content_type, text):
    reading = read("/v1/audio/speech", content, content_type)
    assert texts(reading)["answer"].startswith(text)


def test_what_varies_is_left_out():
    path = "/v1/rerank"
    one, other = (
        {"id": number, "results": [{"index": 0, "relevance_score": 0.5}], "created": number}
        for number in (1, 2)
    )
    assert read(path, one) == read(path, other)
    assert read(path, one).numbers == {"results[0].relevance_score": [0.5]}
