"""The prompt tokens that an engine took from its cache, in every dialect."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.chat.cuts import run
from tests.chat.replies import chat_reply, collected, generate_reply, openai_reply, streamed
from tests.chat.test_engine_request import VLLM
from vllama.chat.reply import Reply
from vllama.chat.request import Usage
from vllama.chat.writer import ReplyOptions
from vllama.dialects.anthropic.write import MessagesWriter
from vllama.dialects.openai.choices import NthChoice, merge_choices
from vllama.dialects.openai.completions import TextWriter
from vllama.dialects.responses.write import ResponsesWriter

USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
TIMINGS = {"cache_n": 6, "prompt_n": 3, "prompt_ms": 1, "predicted_n": 2, "predicted_ms": 1}
TOLD: dict[str, dict[str, Any]] = {
    "usage": {"usage": USAGE | {"prompt_tokens_details": {"cached_tokens": 6}}},
    "timings": {"usage": USAGE, "timings": TIMINGS},
    "both": {
        "usage": USAGE | {"prompt_tokens_details": {"cached_tokens": 6}},
        "timings": TIMINGS,
    },
}
UNTOLD: dict[str, dict[str, Any]] = {
    "no details": {"usage": USAGE},
    "no number": {"usage": USAGE | {"prompt_tokens_details": None}},
    "something else": {"usage": USAGE | {"prompt_tokens_details": {"cached_tokens": "many"}}},
}
COMMON = {"model": "m", "stream": False, "started_ns": 1, "loaded_ns": 1, "sent_ns": 1}


def stream(**counts: Any) -> bytes:
    """An engine's answer that ends with an event that has `counts`."""
    events = [
        {"choices": [{"index": 0, "delta": {"content": "x"}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], **counts},
    ]
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)


def options(*, whole: bool = True) -> ReplyOptions:
    return ReplyOptions(kind="chat", stream=not whole, include_usage=True, model="m")


def messages() -> Reply:
    return openai_reply(MessagesWriter(options(), seed="5"), VLLM)


def responses() -> Reply:
    writer = ResponsesWriter(options(), seed="5", created_ns=0, echo={}, names={})
    return openai_reply(writer, VLLM)


def text() -> Reply:
    return openai_reply(TextWriter(options()), VLLM)


def last_usage(data: bytes) -> Any:
    """The usage of a stream of chunks."""
    *_, usage, done = data.split(b"\n\n")[:-1]
    assert done == b"data: [DONE]"
    return json.loads(usage.removeprefix(b"data: "))["usage"]


def ollama(data: bytes) -> Any:
    answer = json.loads(data)
    assert answer["prompt_eval_count"] == 9
    return answer.get("prompt_eval_cached_count")


def openai(usage: Any) -> Any:
    assert usage["prompt_tokens"] == 9 and usage["total_tokens"] == 11
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def anthropic(data: bytes) -> Any:
    usage = json.loads(data)["usage"]
    cached = usage["cache_read_input_tokens"]
    # Anthropic's kinds of input are disjoint and their sum is the prompt
    assert usage["input_tokens"] + cached + usage["cache_creation_input_tokens"] == 9
    return cached


WAYS: dict[str, tuple[Callable[[], Reply], Callable[[bytes], Any]]] = {
    "/api/chat": (lambda: chat_reply(traits=VLLM, **COMMON), ollama),
    "/api/generate": (lambda: generate_reply(traits=VLLM, **COMMON), ollama),
    "/v1/chat/completions": (
        lambda: collected(options(), VLLM),
        lambda data: openai(json.loads(data)["usage"]),
    ),
    "/v1/chat/completions, streamed": (
        lambda: streamed(options(whole=False), VLLM),
        lambda data: openai(last_usage(data)),
    ),
    "/v1/completions": (text, lambda data: openai(json.loads(data)["usage"])),
    "/v1/responses": (
        responses,
        lambda data: json.loads(data)["usage"]["input_tokens_details"]["cached_tokens"],
    ),
    "/v1/messages": (messages, anthropic),
}


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("way", WAYS)
def test_what_the_engine_tells_is_told(way: str, told: str) -> None:
    make, read = WAYS[way]
    assert read(run(make(), [stream(**TOLD[told])])) == 6


@pytest.mark.parametrize("untold", UNTOLD)
@pytest.mark.parametrize("way", ["/api/chat", "/api/generate"])
def test_ollama_leaves_out_what_nobody_knows(way: str, untold: str) -> None:
    make, read = WAYS[way]
    assert read(run(make(), [stream(**UNTOLD[untold])])) is None


@pytest.mark.parametrize("way", ["/v1/responses", "/v1/messages"])
def test_dialects_that_must_have_a_number_say_none_was_cached(way: str) -> None:
    make, read = WAYS[way]
    assert read(run(make(), [stream(**UNTOLD["no details"])])) == 0


def test_an_empty_cache_is_not_an_unknown_one() -> None:
    data = stream(usage=USAGE, timings=TIMINGS | {"cache_n": 0, "prompt_n": 9})
    assert ollama(run(chat_reply(traits=VLLM, **COMMON), [data])) == 0


def test_choices_of_one_prompt_count_its_cached_tokens_once() -> None:
    usage = Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=6)
    bodies = [b'{"choices":[{}]}', b'{"choices":[{}]}', b'{"choices":[{}]}']
    whole = json.loads(merge_choices(bodies, [(usage, True), (usage, False), (usage, True)]))
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 12}
    parts = [part for part in NthChoice.several([2, 1]) if part is not None]
    *_, last = [part.add(usage) for part in parts]
    assert last["prompt_tokens_details"] == {"cached_tokens": 12}
    nobody_knows = Usage(prompt_tokens=9, completion_tokens=2)
    assert (
        "prompt_tokens_details"
        not in json.loads(merge_choices(bodies[:1], [(nobody_knows, True)]))["usage"]
    )
