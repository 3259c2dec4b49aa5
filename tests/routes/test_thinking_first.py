"""A thinking model thinks before it holds a format: two calls to the engine, one response."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.chaos.asks import CHATS, Dialect, read_events
from tests.server_process import LIMIT_S, Server

pytestmark = pytest.mark.slow

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if tools %}tools: {{ tools|tojson }}\n{% endif %}[assistant]"
    "{% if enable_thinking is defined and not enable_thinking %} <think></think>{% endif %}"
)
OPENS = TEMPLATE + "{% if enable_thinking|default(true) %} <think>\n{% endif %}"
THOUGHT = "I look at it, stop END and think about it for a while."
VALUE = '{"city": "Paris, France", "country": "a long name of a country, and then more of it"}'
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
    "required": ["city", "country"],
}
SAY = f"<think>\n{THOUGHT}\n</think>\n\nParis."
NAMES = ("wide-bare-counts-replays", "wide-bare-opens-counts-replays", "wide-bare-oss-counts")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return a server with models that think, and hold a format where they are given one."""
    held = ("--say-held", json.dumps(VALUE))
    with Server(tmp_path_factory.mktemp("first"), "--strict") as running:
        running.model(NAMES[0], "--say", json.dumps(SAY), *held, template=TEMPLATE)
        opened = SAY.removeprefix("<think>\n")
        running.model(NAMES[1], "--say", json.dumps(opened), *held, template=OPENS)
        harmony = (
            f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final"
            "<|message|>Paris."
        )
        running.model(NAMES[2], "--say", json.dumps(harmony), *held, template=TEMPLATE)
        running.model("bare-silent", "--say", json.dumps("Paris."), *held, template=TEMPLATE)
        running.model("bare-endless", "--say", json.dumps(f"<think>{THOUGHT}"), *held,
                      template=TEMPLATE)  # fmt: skip
        running.model("bare-chats-only", "--say", json.dumps(SAY), *held, template=TEMPLATE)
        running.model("plain", "--say", json.dumps("Paris."), *held, template=TEMPLATE)
        call = json.dumps({"name": "weather", "arguments": json.loads(VALUE)})
        running.model("bare-calls", "--say", json.dumps(SAY), "--say-held", json.dumps(call),
                      template=TEMPLATE)  # fmt: skip
        yield running


@dataclass
class Heard:
    """What came of one response."""

    thinking: str = ""
    text: str = ""
    reason: str = ""
    tokens: tuple[int, int] | None = None
    error: str = ""
    ignored: str = ""
    resumed: bool = False


FORMATS: dict[str, dict[str, Any]] = {
    "/api/chat": {"format": SCHEMA},
    "/api/generate": {"format": SCHEMA},
    "/v1/chat/completions": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        "stream_options": {"include_usage": True},
    },
    "/v1/messages": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "/v1/responses": {
        "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
    },
}


def hear(value: dict[str, Any], heard: Heard) -> None:
    """Read one object of a response, of any dialect."""
    value = value.get("response") if isinstance(value.get("response"), dict) else value
    if value.get("error"):
        heard.error = str(value["error"])
    for part in (value.get("message"), value if "response" in value else None):
        if part and isinstance(part.get("content", part.get("response")), str):
            heard.thinking += part.get("thinking") or ""
            heard.text += part.get("content") or part.get("response") or ""
    heard.reason = value.get("done_reason") or value.get("stop_reason") or heard.reason
    for choice in value.get("choices") or ():
        part = choice.get("message") or choice.get("delta") or {}
        heard.thinking += part.get("reasoning") or ""
        heard.text += part.get("content") or ""
        heard.reason = choice.get("finish_reason") or heard.reason
    if value.get("type") == "message":
        for block in value["content"]:
            heard.thinking += block.get("thinking", "")
            heard.text += block.get("text", "")
    delta = value.get("delta")
    if value.get("type") == "content_block_delta":
        heard.thinking += delta.get("thinking", "")
        heard.text += delta.get("text", "")
    if value.get("type") == "message_delta":
        heard.reason = delta["stop_reason"]
    if value.get("object") == "response" and value.get("output"):
        heard.thinking = heard.text = ""
        for item in value["output"]:
            for part in item.get("summary") or item.get("content") or ():
                if item["type"] == "reasoning":
                    heard.thinking += part["text"]
                else:
                    heard.text += part["text"]
        heard.reason = value["status"]
    usage = value.get("usage") or {}
    names = ("prompt_eval_count", "prompt_tokens", "input_tokens")
    prompt = next((x[name] for x in (value, usage) for name in names if name in x), None)
    names = ("eval_count", "completion_tokens", "output_tokens")
    made = next((x[name] for x in (value, usage) for name in names if name in x), None)
    if prompt is not None and made is not None:
        heard.tokens = (prompt, made)
    elif made is not None and heard.tokens:
        heard.tokens = (heard.tokens[0], made)


def ask(server: Server, dialect: Dialect, model: str, *, stream: bool, **fields: Any) -> Heard:
    body = {"model": model, **dialect.ask("Where is it?", 1000), "stream": stream}
    body |= FORMATS[dialect.path] | fields
    if not stream:
        body.pop("stream_options", None)
    with httpx.Client(base_url=server.url, timeout=LIMIT_S) as client:
        reply = client.post(dialect.path, json=body)
    heard = Heard(ignored=reply.headers.get("x-vllama-ignored", ""))
    if stream and reply.status_code == 200:
        for event in read_events(reply.text, lines=dialect.lines):
            hear(event, heard)
    else:
        hear(reply.json(), heard)
    return heard


def pieces(text: str) -> int:
    """Return the fake engine's tokens of a text."""
    return -(-len(text) // 3)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", CHATS, ids=lambda one: one.path)
@pytest.mark.parametrize("model", NAMES)
def test_it_thinks_and_then_holds_the_schema(server, model, dialect, stream) -> None:
    heard = ask(server, dialect, model, stream=stream)
    assert (heard.thinking.strip(), heard.text, heard.error) == (THOUGHT, VALUE, "")
    assert heard.reason in ("stop", "end_turn", "completed") and not heard.ignored
    thinks, holds = [body for body in server.stats(model)["bodies"] if "stream" in body][-2:]
    assert "json_schema" not in json.dumps(thinks) and "response_format" not in thinks
    assert holds["response_format"] and holds["prompt"].startswith(thinks["prompt"])
    assert THOUGHT in holds["prompt"] and "Paris" not in holds["prompt"]
    said = len(holds["prompt"]) - len(thinks["prompt"])
    made = pieces("x" * said)  # the marks at its end are no tokens to the fake engine
    if heard.tokens is not None:
        prompt, tokens = heard.tokens
        assert prompt == len(thinks["prompt"].split())
        assert abs(tokens - made - pieces(VALUE)) <= 16
        assert holds["max_tokens"] == 1000 - (tokens - pieces(VALUE))


CHAT, GENERATE, OPENAI = CHATS[:3]
FIRST = pieces(f"<think>\n{THOUGHT}\n")
"""Tokens of the first pass with the fake engine, which has none for the stop sequence."""


def load(server: Server, model: str, *first: str) -> None:
    """Load a model anew; its first engine has the switches `first` as well."""
    server.post("/api/generate", {"model": model, "keep_alive": 0})
    deadline_s = time.monotonic() + LIMIT_S
    while any(row["name"].startswith(model) for row in server.get("/api/ps")["models"]):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    server.model(model, *first, once=True)
    assert server.post("/api/generate", {"model": model})[0] == 200


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", CHATS, ids=lambda one: one.path)
@pytest.mark.parametrize("after", [2, 0, FIRST + 2], ids=["first", "between", "second"])
def test_a_response_is_whole_and_equal_if_its_engine_dies(server, dialect, stream, after) -> None:
    whole = ask(server, dialect, NAMES[0], stream=stream)
    load(server, NAMES[0], *(("--die-after", str(after)) if after else ("--die-held",)))
    assert ask(server, dialect, NAMES[0], stream=stream) == whole
    assert server.get("/api/requests/ended?limit=1")["requests"][0]["resumed"] == 1


def test_an_error_is_told_where_the_engine_does_not_repeat_itself(server) -> None:
    load(server, NAMES[2], "--die-held")
    heard = ask(server, OPENAI, NAMES[2], stream=True)
    assert "the connection to the engine was lost" in heard.error and not heard.text


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", CHATS, ids=lambda one: one.path)
def test_the_limit_counts_the_tokens_of_both(server, dialect, stream) -> None:
    names = {"/v1/messages": "max_tokens", "/v1/responses": "max_output_tokens"}

    def limit(tokens: int) -> Heard:
        if dialect.path.startswith("/api/"):
            fields: dict[str, Any] = {"options": {"num_predict": tokens}}
        else:
            fields = {names.get(dialect.path, "max_tokens"): tokens}
        return ask(server, dialect, NAMES[0], stream=stream, **fields)

    for tokens in (6, FIRST, FIRST + 4):
        heard = limit(tokens)
        assert heard.reason in ("length", "max_tokens", "incomplete") and not heard.error
        assert THOUGHT.startswith(heard.thinking.strip()) and heard.thinking
        assert heard.text == VALUE[: 3 * max(0, tokens - FIRST)]
        assert heard.tokens is None or heard.tokens[1] == tokens


def test_what_is_no_thinking_is_dropped_and_thinking_without_an_end_ends(server) -> None:
    for stream in (True, False):
        heard = ask(server, CHAT, "bare-silent", stream=stream)
        assert (heard.thinking, heard.text, heard.error) == ("", VALUE, "")
        heard = ask(server, OPENAI, "bare-endless", stream=stream)
        assert (heard.thinking, heard.text, heard.error) == (THOUGHT, VALUE, "")


@pytest.mark.parametrize("stream", [True, False])
def test_stop_sequences_hold_for_the_response_only(server, stream) -> None:
    stop = {"options": {"stop": ["END", "France"]}}
    heard = ask(server, CHAT, NAMES[0], stream=stream, **stop)
    assert (heard.thinking, heard.text) == (THOUGHT, VALUE.partition("France")[0])
    heard = ask(server, CHATS[3], NAMES[0], stream=stream, stop_sequences=["END", "France"])
    assert (heard.thinking, heard.text) == (THOUGHT, VALUE.partition("France")[0])
    assert heard.reason == "stop_sequence"


@pytest.mark.parametrize("stream", [True, False])
def test_a_forced_call_comes_after_the_thinking(server, stream) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        body = {"model": "bare-calls", "messages": [{"role": "user", "content": "Weather?"}],
                "tools": [tool], "tool_choice": choice, "stream": stream}  # fmt: skip
        status, _, data = server.request("POST", "/v1/chat/completions", body)
        assert status == 200
        events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
        values = events if stream else [json.loads(data)]
        parts = [one.get("message") or one["delta"] for x in values for one in x["choices"]]
        assert "".join(part.get("reasoning") or "" for part in parts) == THOUGHT
        (call,) = [call for part in parts for call in part.get("tool_calls") or ()]
        assert json.loads(call["function"]["arguments"]) == json.loads(VALUE)
        assert not "".join(part.get("content") or "" for part in parts)


@pytest.mark.parametrize("stream", [True, False])
def test_each_choice_thinks(server, stream) -> None:
    body = {"model": NAMES[0], "messages": [{"role": "user", "content": "Where?"}], "n": 2}
    body |= FORMATS[OPENAI.path] | {"stream": stream}
    if not stream:
        del body["stream_options"]
    _, headers, data = server.request("POST", OPENAI.path, body)
    assert "x-vllama-ignored" not in headers
    events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
    values = events if stream else [json.loads(data)]
    for number in range(2):
        parts = [one.get("message") or one["delta"] for x in values
                 for one in x["choices"] if one["index"] == number]  # fmt: skip
        assert "".join(part.get("reasoning") or "" for part in parts) == THOUGHT
        assert "".join(part.get("content") or "" for part in parts) == VALUE
    assert len({value["id"] for value in values}) == 1


@pytest.mark.parametrize(
    ("model", "fields", "ignored"),
    [
        ("bare-chats-only", {}, "think"),
        ("bare-chats-only", {"think": True}, "think"),
        ("bare-chats-only", {"think": False}, ""),
        (NAMES[0], {"logprobs": True}, "think"),
        (NAMES[0], {"think": False}, ""),
        ("plain", {}, ""),
    ],
)
def test_what_cannot_think_first_says_so(server, model, fields, ignored) -> None:
    heard = ask(server, CHAT, model, stream=False, **fields)
    assert (heard.thinking, heard.text, heard.ignored) == ("", VALUE, ignored)


def test_a_client_that_leaves_in_the_second_pass_stops_the_engine(server) -> None:
    server.model("bare-slow", "--say", json.dumps(SAY), "--say-held", json.dumps(VALUE),
                 "--token-interval", "0.02", template=TEMPLATE)  # fmt: skip
    body = {"model": "bare-slow", "messages": [{"role": "user", "content": "Where?"}]}
    with server.open("/api/chat", body | {"format": SCHEMA}) as answer:
        while not json.loads(answer.readline())["message"]["content"]:
            pass
    deadline_s = time.monotonic() + LIMIT_S
    while (ended := server.get("/api/requests/ended?limit=1")["requests"])[0]["outcome"] == "ok":
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    assert FIRST <= ended[0]["generated_tokens"] < FIRST + pieces(VALUE)
    assert server.stats("bare-slow")["tokens"] < FIRST + pieces(VALUE)
