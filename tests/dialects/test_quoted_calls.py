"""Text that quotes calls, and thinking that never ends, in all dialects, streamed and whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.chat.cuts import run, ways
from tests.chat.parsers.test_families import FAMILIES, SCHEMAS
from tests.chat.parsers.test_quoted_calls import WAYS
from vllama.chat.engine.traits import Traits
from vllama.chat.filters import CallSource, compose_filters
from vllama.chat.parsers.call_values import Toolset
from vllama.chat.reply import Reply
from vllama.chat.writer import ReplyOptions, Writer
from vllama.dialects.anthropic.write import MessagesWriter
from vllama.dialects.ollama.write import ChatWriter
from vllama.dialects.openai.write import StreamWriter, WholeWriter
from vllama.dialects.responses.write import ResponsesWriter
from vllama.engines.external import UNKNOWN

EXTERNAL = replace(UNKNOWN, may_leave_calls=True, may_leave_thinking=True)
TOOLS = Toolset(schemas=SCHEMAS, after_text=False)
QUOTED = [
    WAYS[way](text)
    for number, (_, _, text, _, calls) in enumerate(FAMILIES)
    if calls
    for way in (list(WAYS)[number % len(WAYS)], list(WAYS)[(number + 7) % len(WAYS)])
]
CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'

Said = tuple[str, str, int]
"""Thinking, text and the number of calls."""


def options(stream: bool) -> ReplyOptions:
    return ReplyOptions(kind="chat", stream=stream, include_usage=False, model="m")


def make_ollama(stream: bool) -> Writer:
    times = {"started_ns": 0, "loaded_ns": 1, "sent_ns": 2}
    return ChatWriter(model="m", stream=stream, hide_thinking=False, top_logprobs=0, **times)


def read_ollama(data: bytes) -> Said:
    said = [json.loads(line)["message"] for line in data.splitlines()]
    texts = ("".join(each.get(name, "") for each in said) for name in ("thinking", "content"))
    return (*texts, sum(len(each.get("tool_calls", ())) for each in said))  # type: ignore[return-value]


def make_openai(stream: bool) -> Writer:
    return StreamWriter(options(True)) if stream else WholeWriter(options(False))


def read_events(data: bytes) -> list[dict[str, Any]]:
    found = [line[6:] for line in data.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in found if line != "[DONE]"] or [json.loads(data)]


def read_openai(data: bytes) -> Said:
    said = [
        choice.get("delta") or choice["message"]
        for event in read_events(data)
        for choice in event["choices"]
        if choice.get("delta") or choice.get("message")
    ]
    thinking = "".join(each.get("reasoning") or "" for each in said)
    text = "".join(each.get("content") or "" for each in said)
    return thinking, text, sum(len(each.get("tool_calls") or ()) for each in said)


def make_messages(stream: bool) -> Writer:
    return MessagesWriter(options(stream), seed="5")


def read_messages(data: bytes) -> Said:
    blocks: list[dict[str, Any]] = []
    for event in read_events(data):
        blocks += event.get("content", ())  # of a whole answer
        blocks += [event[name] for name in ("content_block", "delta") if name in event]
    thinking = "".join(block.get("thinking", "") for block in blocks)
    text = "".join(block.get("text", "") for block in blocks)
    return thinking, text, sum(block.get("type") == "tool_use" for block in blocks)


def make_responses(stream: bool) -> Writer:
    return ResponsesWriter(options(stream), seed="5", created_ns=0, echo={}, names={})


def read_responses(data: bytes) -> Said:
    last = read_events(data)[-1]
    items = last.get("response", last)["output"]
    thinking = "".join(
        part["text"] for item in items for part in item.get("summary", ()) or item.get("x", ())
    )
    text = "".join(part["text"] for item in items for part in item.get("content", ()) or ())
    return thinking, text, sum(item["type"] == "function_call" for item in items)


DIALECTS: dict[str, tuple[Callable[[bool], Writer], Callable[[bytes], Said]]] = {
    "/api/chat": (make_ollama, read_ollama),
    "/v1/chat/completions": (make_openai, read_openai),
    "/v1/messages": (make_messages, read_messages),
    "/v1/responses": (make_responses, read_responses),
}


def event(finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode()


def answer(
    dialect: str,
    stream: bool,
    text: str,
    *,
    finish: str = "stop",
    before: bytes = b"",
    piece: int = 3,
    traits: Traits = EXTERNAL,
    source: CallSource | None = None,
) -> set[Said]:
    """Return what the client reads, however the engine's stream is cut into reads."""
    make, read = DIALECTS[dialect]
    pieces = [text[at : at + piece] for at in range(0, len(text), piece)]
    data = event(role="assistant") + before + b"".join(event(content=each) for each in pieces)
    data += event(finish) + b"data: [DONE]\n\n"
    found = set()
    for reads in ([data], list(ways(data, 1))[-1]):
        writer = make(stream)
        filters = compose_filters(
            traits, tools=TOOLS, thinks=True, is_whole=not writer.streams, source=source
        )
        found.add(read(run(Reply(writer, filters), reads)))
    return found


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_quotations_arrive_as_they_are(dialect: str, stream: bool) -> None:
    assert len(QUOTED) >= 60
    for text in QUOTED:
        assert answer(dialect, stream, text) == {("", text, 0)}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_after_a_parsed_call_text_is_text(
    dialect: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source = CallSource(model="big")
    text = f"I look.\n{CALL}"
    with caplog.at_level("INFO"):
        for _ in range(2):
            assert answer(dialect, stream, text, source=source) == {("", "I look.\n", 1)}
    assert [record.message for record in caplog.records] == [
        "big: found a tool call in the text of the response"
    ]
    call = {"index": 0, "id": "c", "type": "function"}
    call["function"] = {"name": "now", "arguments": '{"a":1}'}  # type: ignore[assignment]
    own = event(tool_calls=[call])
    assert {calls for _, _, calls in answer(dialect, stream, "", before=own, source=source)} == {1}
    assert source.parses
    assert answer(dialect, stream, text, source=source) == {("", text, 0)}
    # and within one answer
    fresh = CallSource(model="big")
    found = answer(dialect, stream, text, before=own, source=fresh)
    assert found == {("", text, 1)}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_thinking_that_is_never_closed_is_text(dialect: str, stream: bool) -> None:
    text = f"<think> is a tag.\n\n{CALL}\n"
    ((thinking, said, calls),) = answer(dialect, stream, text)
    assert (said, calls) == (text, 0)
    assert stream or not thinking
    # one that was cut is an unfinished thought
    ((thinking, said, calls),) = answer(dialect, stream, "<think>Where", finish="length")
    assert (thinking, said) == ("Where", "")
    ((thinking, said, calls),) = answer(dialect, stream, f"<think>Where?</think>\n{CALL}")
    assert (thinking, said, calls) == ("Where?", "", 1)
    # of a model that is known to think, the same is a thought
    known = replace(EXTERNAL, splits_reasoning=False, may_leave_thinking=False)
    ((thinking, said, calls),) = answer(dialect, stream, "<think>Where", traits=known)
    assert (thinking, said) == ("Where", "")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_where_the_engine_splits_thinking_a_tag_is_text(dialect: str) -> None:
    source = CallSource(model="big")
    own = event(reasoning_content="Hm.")
    ((thinking, text, _),) = answer(dialect, False, "Yes.", before=own, source=source)
    assert (thinking, text, source.splits) == ("Hm.", "Yes.", True)
    text = "<think>a</think> is how it thinks."
    assert answer(dialect, True, text, source=source) == {("", text, 0)}
