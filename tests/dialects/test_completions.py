from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.chat import transcripts as streams
from tests.chat.bodies import adapt_completion
from tests.chat.bodies import parse as typed
from tests.chat.cuts import run, ways
from tests.chat.replies import openai_reply
from tests.chat.test_engine_request import LCP, VLLM
from tests.dialects.answers import FAILURES
from tests.dialects.answers import make_openai_client as client
from tests.dialects.answers import read_events as events
from tests.dialects.test_anthropic_write import passage
from vllama.base.errors import BadRequest, UpstreamError
from vllama.chat.engine.traits import Traits
from vllama.chat.reply import Reply
from vllama.chat.request import Message
from vllama.dialects.openai.completions import (
    CompletionRequest,
    TextWriter,
    answer_without_engine,
    parse_completion,
)
from vllama.dialects.openai.request_types import CompletionBody

pytestmark = pytest.mark.usefixtures("official_clients")


def parse(**fields: Any) -> CompletionRequest:
    return parse_completion(typed({"prompt": "Hi"} | fields, CompletionBody))


def test_the_least() -> None:
    asked = parse()
    assert (asked.prompts, asked.n, asked.max_tokens, asked.logprobs) == (("Hi",), 1, None, None)
    chat = asked.read_prompt("Hi", truncate=True)
    assert chat.messages == (Message(role="user", content="Hi"),)
    assert "max_tokens" not in chat.parameters and chat.assumed["temperature"] == 1.0
    sent = adapt_completion({"prompt": "Hi"}, LCP)
    assert sent["prompt"] == "Hi" and sent["max_tokens"] == 2048  # not OpenAI's 16


def test_all_of_it() -> None:
    asked = parse(
        prompt=["a", "b"], suffix="s", echo=True, n=2, best_of=5, logprobs=3, max_tokens=7,
        stream=True, stream_options={"include_usage": True}, raw=True, seed=4, stop=["x"],
        temperature=0.5, user="me", messages=[1], tools=[2],
    )  # fmt: skip
    assert asked.prompts == ("a", "b") and asked.suffix == "s" and asked.echo and asked.raw
    assert (asked.n, asked.logprobs, asked.max_tokens) == (2, 3, 7)
    assert asked.stream and asked.include_usage and asked.ignored == ("best_of",)
    assert asked.fields == {"seed": 4, "stop": ["x"], "temperature": 0.5, "user": "me"}
    text = asked.read_prompt("a", truncate=True)
    assert (text.messages, text.prompt, text.suffix, text.raw) == ((), "a", "s", True)
    assert (text.logprobs, text.top_logprobs, text.parameters["max_tokens"]) == (True, 3, 7)


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"prompt": None}, "prompts", ("",)),
        ({"prompt": [""]}, "prompts", ("",)),
        ({"logprobs": 0}, "logprobs", 0),
        ({"max_tokens": -1}, "max_tokens", None),
        ({"max_tokens": 5.0}, "max_tokens", 5),
        ({"max_completion_tokens": 6}, "max_tokens", 6),
        ({"n": 3, "best_of": 3}, "ignored", ()),
        ({"prompt": [1, 2]}, "prompts", ([1, 2],)),
        ({"prompt": [[1], [2, 3]]}, "prompts", ([1], [2, 3])),
        ({"prompt": ["a", 1]}, "prompts", ("a", 1)),
    ],
)
def test_fields(fields: dict[str, Any], name: str, value: object) -> None:
    assert getattr(parse(**fields), name) == value


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"prompt": [[]]}, "Invalid value for 'prompt[0]': expected an array of length >= 1."),
        ({"prompt": [1.5]}, "Invalid value for 'prompt[0]'"),
        ({"prompt": []}, "Invalid value for 'prompt': expected an array of length >= 1."),
        (
            {"prompt": {"a": 1}},
            "Invalid value for 'prompt': expected a string or an array, got an object.",
        ),
        ({"suffix": 1}, "Invalid value for 'suffix': expected a string, got an integer."),
        ({"stop": ["x", 5]}, "Invalid value for 'stop[1]': expected a string, got an integer."),
        ({"logprobs": 21}, "Invalid 'logprobs'"),
        ({"logprobs": "x"}, "Invalid value for 'logprobs': expected an integer, got a string."),
        ({"max_tokens": "x"}, "Invalid value for 'max_tokens': expected an integer, got a string."),
        (
            {"stream_options": []},
            "Invalid value for 'stream_options': expected an object, got an array.",
        ),
        ({"prompt": ["a"] * 1025, "n": 2}, "cannot generate 2050 choices"),
    ],
)
def test_errors(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(**fields)
    assert caught.value.message.startswith(text)


def reply(traits: Traits = LCP, *, stream: bool = True, **more: Any) -> Reply:
    usage = more.pop("include_usage", False)
    asked = replace(passage(stream), kind="completion", include_usage=usage)
    options = {name: more.pop(name) for name in ("echo", "top") if name in more}
    return openai_reply(TextWriter(asked, **options), traits, max_tokens=6, **more)


CASES: list[tuple[bytes, Traits, dict[str, Any], str, str]] = [
    (streams.CHAT, LCP, {}, "I'm glad you're here", "length"),
    (streams.CHAT, LCP, {"echo": "Hi: "}, "Hi: I'm glad you're here", "length"),
    (streams.COMPLETION, LCP, {"echo": "In"}, "In Paris.\n-", "length"),
    (streams.VLLM_REASONING, VLLM, {"think": True}, "Grüße 😀.", "stop"),
    (streams.THINK_TEXT, LCP, {"think": True}, "Four.", "stop"),
]


@pytest.mark.parametrize(("data", "traits", "options", "text", "reason"), CASES)
def test_answers(
    data: bytes, traits: Traits, options: dict[str, Any], text: str, reason: str
) -> None:
    for reads in ways(data, seeds=5):
        made = reply(traits, **options)
        got = events(run(made, reads))
        assert made.tally.ended and made.content_type == "text/event-stream"
        assert "".join(event["choices"][0]["text"] for event in got) == text
        reasons = [event["choices"][0]["finish_reason"] for event in got]
        assert reasons == [None] * (len(got) - 1) + [reason]
        assert {(e["object"], e["model"], e["id"]) for e in got} == {
            ("text_completion", "m", got[0]["id"])
        }
        assert got[0]["id"].startswith("cmpl-") and "chatcmpl" not in got[0]["id"]
        whole = run(reply(traits, stream=False, **options), reads)
        done = client(whole, "application/json").completions.create(model="m", prompt="x")
        assert (done.choices[0].text, done.choices[0].finish_reason) == (text, reason)


@pytest.mark.parametrize(("reason", "reasons"), [("length", [None, "length"]), ("stop", ["stop"])])
def test_tokens_without_text_are_a_chunk(reason: str, reasons: list[str | None]) -> None:
    data = f'data: {{"choices":[{{"index":0,"text":"","finish_reason":"{reason}"}}]}}\n\n'
    got = events(run(reply(), [data.encode() + b"data: [DONE]\n\n"]))
    assert [event["choices"][0]["finish_reason"] for event in got] == reasons
    assert {event["choices"][0]["text"] for event in got} == {""}


def test_usage_comes_when_asked_for() -> None:
    made = reply(prompt_tokens=4, include_usage=True)
    got = events(run(made, [streams.CHAT]))
    usage = {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}
    assert got[-1]["choices"] == [] and got[-1]["usage"] == usage
    assert not any("usage" in event for event in got[:-1])
    whole = json.loads(run(reply(prompt_tokens=4, stream=False), [streams.CHAT]))
    assert whole["usage"] == usage


@pytest.mark.parametrize("data", [streams.CHAT_LOGPROBS, streams.COMPLETION_LOGPROBS])
def test_logprobs_of_both_forms(data: bytes) -> None:
    out = run(reply(echo="abc", top=1), [data])
    stream = client(out, "text/event-stream").completions.create(model="m", prompt="x", stream=True)
    pieces = [part.choices[0].logprobs for part in stream if part.choices[0].logprobs]
    whole = json.loads(run(reply(stream=False, echo="abc", top=1), [data]))["choices"][0]
    logprobs = whole["logprobs"]
    assert [token for piece in pieces for token in piece.tokens or ()] == logprobs["tokens"]
    assert "abc" + "".join(logprobs["tokens"]) == whole["text"]
    assert logprobs["text_offset"] == [3, 3 + len(logprobs["tokens"][0])]
    assert all(value <= 0 for value in logprobs["token_logprobs"])
    assert all(len(top) == 1 for top in logprobs["top_logprobs"])
    none = json.loads(run(reply(stream=False, top=0), [data]))["choices"][0]["logprobs"]
    assert none["top_logprobs"] == [None, None]


@pytest.mark.parametrize(("data", "error"), FAILURES)
def test_failures(data: bytes, error: type[Exception]) -> None:
    for stream in (True, False):
        with pytest.raises(error):
            run(reply(VLLM, stream=stream), [data])
    error_event = events(reply().fail(UpstreamError("it died")))
    assert error_event[0]["error"]["message"] == "it died"
    assert json.loads(reply(stream=False).fail(UpstreamError("it died")))["error"]


def test_what_needs_no_engine() -> None:
    load = json.loads(answer_without_engine(parse(prompt=""), "m", 5, "7"))
    assert load["choices"] == [
        {"text": "", "index": 0, "finish_reason": "load"}
    ]  # fmt: skip
    assert load["id"] == "cmpl-7" and load["usage"]["total_tokens"] == 0
    asked = parse(prompt=["a", "b"], n=2, echo=True, max_tokens=0, stream=True,
                  stream_options={"include_usage": True})  # fmt: skip
    assert not asked.loads
    got = events(answer_without_engine(asked, "m", 5, "7"))
    said = [(c["index"], c["text"], c["finish_reason"]) for e in got for c in e["choices"]]
    assert said == [(0, "a", "length"), (1, "a", "length"), (2, "b", "length"), (3, "b", "length")]
    assert got[-1]["usage"]["prompt_tokens"] == 0
