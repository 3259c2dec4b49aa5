# ruff: noqa: E501 (tables of exact texts)
from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.chat import transcripts as streams
from tests.chat.cuts import hide_ids, run, ways
from tests.chat.replies import collected, streamed
from tests.chat.test_engine_request import LCP, VLLM
from tests.dialects.answers import read_events as events
from vllama.base.errors import ContextOverflow, EngineCrashed, UpstreamError
from vllama.chat.request import Usage
from vllama.chat.writer import ReplyOptions

NOW = 1_795_264_126_000_000_000
PLAIN = ReplyOptions(kind="chat", stream=True, include_usage=False, model="m")
ALIAS = ReplyOptions(kind="chat", stream=True, include_usage=False, model='a"b')
USAGE = ReplyOptions(kind="chat", stream=True, include_usage=True, model="m")
TOOLS = ReplyOptions(kind="chat", stream=True, include_usage=False, model="m")
TEXT = ReplyOptions(kind="completion", stream=True, include_usage=True, model="m")


def deltas(got: list[Any], name: str) -> str:
    return "".join(c["delta"].get(name) or "" for e in got for c in e["choices"])


FINGERPRINT = b'"system_fingerprint":"fp_ollama",'


def test_bytes_pass_untouched_but_for_the_fingerprint() -> None:
    for stream in (streams.CHAT, streams.COMPLETION):
        for reads in ways(stream):
            reply = streamed(PLAIN, LCP)
            out = run(reply, reads, start_ns=NOW)
            assert out.replace(FINGERPRINT, b"") == stream
            assert out.count(FINGERPRINT) == stream.count(b"data: {")
            assert reply.tally.ended and reply.content_type == "text/event-stream"


SILENT = (
    b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}],"created":5,"id":"i","model":"m",'
    b'"object":"text_completion","usage":{"prompt_tokens":2,"completion_tokens":1}}\n\n'
    b"data: [DONE]\n\n"
)


@pytest.mark.parametrize("options", [PLAIN, USAGE])
def test_usage_is_told_once(options: ReplyOptions) -> None:
    """Clients add up the usage of all chunks; llama-server's completions have it in the last."""
    got = events(run(streamed(options, LCP, from_completion=True), [SILENT], start_ns=NOW))
    assert not any("usage" in event for event in got if event["choices"])
    told = [event["usage"]["completion_tokens"] for event in got if "usage" in event]
    assert told == ([1] if options.include_usage else [])


def test_an_answer_that_says_nothing_begins_with_its_role() -> None:
    got = events(run(streamed(PLAIN, LCP, from_completion=True), [SILENT], start_ns=NOW))
    choices = [event["choices"][0] for event in got]
    assert [choice["delta"] for choice in choices] == [{"role": "assistant", "content": ""}, {}]
    assert [choice["finish_reason"] for choice in choices] == [None, "length"]
    assert got[0].keys() == got[1].keys()


@pytest.mark.parametrize(
    "theirs",
    [b'"system_fingerprint":"b0-unknown",', b'"system_fingerprint": null,', FINGERPRINT, b""],
)
def test_an_engine_s_own_fingerprint_is_not_shown(theirs: bytes) -> None:
    stream = streams.CHAT.replace(b"data: {", b"data: {" + theirs)
    got = events(run(streamed(PLAIN, LCP), [stream], start_ns=NOW))
    assert {event["system_fingerprint"] for event in got} == {"fp_ollama"}
    assert deltas(got, "content") == deltas(events(streams.CHAT), "content")
    whole = json.loads(run(collected(PLAIN, LCP), [stream], start_ns=NOW))
    assert whole["system_fingerprint"] == "fp_ollama"


@pytest.mark.parametrize("name", [b"reasoning", b"reasoning_content"])
def test_white_space_around_thinking(name: bytes) -> None:
    stream = (
        streams.VLLM_REASONING.replace(b'"reasoning"', b'"%b"' % name)
        .replace(b"Hm, ", rb"\nHm, ")
        .replace(b" & so.", rb" & so.\n")
        .replace("Grüße 😀".encode(), rb"\n\n")
        .replace(b'"content":"."', rb'"content":"\nHi. "')
    )
    for reads in ways(stream):
        got = events(run(streamed(PLAIN, VLLM), reads, start_ns=NOW))
        assert deltas(got, "reasoning") == "Hm, 4 < 5 & so."
        assert (deltas(got, "content"), deltas(got, "reasoning_content")) == ("Hi. ", "")
        whole = json.loads(run(collected(PLAIN, VLLM), reads, start_ns=NOW))
        message = whole["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == ("Hm, 4 < 5 & so.", "Hi. ")


def test_logprobs_get_their_bytes() -> None:
    got = run(streamed(PLAIN, LCP), [streams.CHAT_LOGPROBS], start_ns=NOW)
    items = [item for e in events(got) for c in e["choices"] if c["logprobs"]
             for item in c["logprobs"]["content"]]  # fmt: skip
    assert items and all(item["bytes"] == list(item["token"].encode()) for item in items)


def test_events_flow_at_once() -> None:
    reply = streamed(PLAIN, LCP)
    first = streams.CHAT.split(b"\n\n")[0] + b"\n\n"
    assert reply.feed(first, NOW).replace(FINGERPRINT, b"") == first
    assert reply.tally.first_token_ns is None
    reply.feed(streams.CHAT[len(first) :], NOW + 5)
    assert reply.tally.first_token_ns == NOW + 5


def test_name_comments_and_usage() -> None:
    for reads in ways(streams.VLLM_REASONING):
        reply = streamed(ALIAS, VLLM)
        out = run(reply, reads, start_ns=NOW)
        got = events(out)
        assert {event["model"] for event in got} == {'a"b'}
        assert b"keepalive" not in out
        assert all(event["choices"] for event in got)
        assert deltas(got, "content") == "Grüße 😀."
        assert deltas(got, "reasoning") == "Hm, 4 < 5 & so."
        assert reply.tally.usage == Usage(prompt_tokens=11, completion_tokens=3, reasoning_tokens=1)


def test_usage_is_passed_when_asked_for() -> None:
    got = events(run(streamed(USAGE, VLLM), [streams.VLLM_REASONING], start_ns=NOW))
    assert got[-1]["choices"] == [] and got[-1]["usage"]["completion_tokens"] == 3
    assert sum("usage" in event for event in got) == 1


def test_usage_is_made_when_the_engine_has_none() -> None:
    for reads in ways(streams.CHAT, seeds=4):
        got = events(run(streamed(USAGE, LCP, prompt_tokens=31), reads, start_ns=NOW))
        assert got[-1] == {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1795264126,
            "model": "m",
            "system_fingerprint": "fp_ollama",
            "choices": [],
            "usage": {"prompt_tokens": 31, "completion_tokens": 6, "total_tokens": 37},
        }
    got = events(
        run(streamed(TEXT, LCP, prompt_tokens=5, max_tokens=4), [streams.COMPLETION], start_ns=NOW)
    )
    assert got[-1]["object"] == "text_completion"
    assert got[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}


def test_done_is_made_when_the_engine_has_none() -> None:
    for reads in ways(streams.TRANSFORMERS):
        got = events(run(streamed(USAGE, VLLM), reads, start_ns=NOW))
        assert got[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
        assert {event["model"] for event in got} == {"m"}


def test_reasoning_has_one_name() -> None:
    got = events(run(streamed(PLAIN, VLLM), [streams.NATIVE], start_ns=NOW))
    assert deltas(got, "reasoning") == "why"
    assert deltas(got, "reasoning_content") == ""


def test_thinking_is_split_from_text() -> None:
    for reads in ways(streams.THINK_TEXT):
        got = events(run(streamed(PLAIN, LCP, think=True), reads, start_ns=NOW))
        assert deltas(got, "reasoning") == "let me see"
        assert deltas(got, "content") == "Four."
        assert got[0]["choices"][0]["delta"]["role"] == "assistant"
        assert got[-1]["choices"][0]["finish_reason"] == "stop"
    whole = json.loads(run(collected(PLAIN, LCP, think=True), [streams.THINK_TEXT], start_ns=NOW))
    message = whole["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Four.", "reasoning": "let me see"}


def test_tool_calls_are_found_in_text() -> None:
    for reads in ways(streams.TOOL_TEXT):
        got = events(run(streamed(TOOLS, LCP, tools=True), reads, start_ns=NOW))
        assert deltas(got, "content") == ""
        choice = got[-1]["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["delta"]["tool_calls"]
        assert call["type"] == "function" and call["index"] == 0
        assert call["function"] == {"name": "weather", "arguments": '{"city":"Paris"}'}
    whole = json.loads(run(collected(TOOLS, LCP, tools=True), [streams.TOOL_TEXT], start_ns=NOW))
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    assert whole["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather"
    assert whole["choices"][0]["message"]["content"] == ""


def test_a_name_repeated_in_every_piece_is_said_once() -> None:
    for reads in ways(streams.FORCED_TOOL, seeds=3):
        got = events(run(streamed(TOOLS, LCP, tools=True), reads, start_ns=NOW))
        pieces = [p for e in got for p in e["choices"][0]["delta"].get("tool_calls") or ()]
        assert "".join(p["function"].get("name", "") for p in pieces) == "weather"
        assert sum("id" in p for p in pieces) == 1
        joined = "".join(p["function"]["arguments"] for p in pieces)
        assert json.loads(joined) == {"city": "Paris"}


def call_pieces(*pieces: str, reason: str = "tool_calls") -> bytes:
    """Return the stream of an engine that finds calls itself."""
    deltas = [f'{{"tool_calls": [{piece}]}}' for piece in pieces]
    sent = [f'{{"index": 0, "delta": {delta}, "finish_reason": null}}' for delta in deltas]
    sent.append(f'{{"index": 0, "delta": {{}}, "finish_reason": "{reason}"}}')
    lines = [f'data: {{"id": "chatcmpl-7", "choices": [{choice}]}}\n\n' for choice in sent]
    return "".join(lines).encode() + streams.DONE


def join_calls(stream: bytes) -> dict[int, tuple[str, str, str]]:
    """Join the pieces of each call as clients do: its id, name and arguments."""
    joined: dict[int, tuple[str, str, str]] = {}
    for event in events(run(streamed(TOOLS, VLLM, tools=True), [stream], start_ns=NOW)):
        for piece in event["choices"][0]["delta"].get("tool_calls") or ():
            function = piece.get("function") or {}
            new = (piece.get("id"), function.get("name"), function.get("arguments"))
            old = joined.get(piece["index"], ("", "", ""))
            joined[piece["index"]] = tuple(a + (b or "") for a, b in zip(old, new, strict=True))
    return joined


@pytest.mark.parametrize("arguments", ["", ', "arguments": ""', ', "arguments": null'])
def test_a_call_without_arguments_has_an_empty_object(arguments: str) -> None:
    named = f'"function": {{"name": "now"{arguments}}}'
    stream = call_pieces(
        f'{{"index": 0, "id": "a", {named}}}',
        '{"index": 1, "id": "b", "function": {"name": "f", "arguments": "{\\"a\\""}}',
        '{"index": 1, "function": {"arguments": ":1}"}}',
        f'{{"index": 2, "id": "c", {named}}}',
    )
    expected = {0: ("a", "now", "{}"), 1: ("b", "f", '{"a":1}'), 2: ("c", "now", "{}")}
    assert join_calls(stream) == expected


def test_a_call_that_was_cut_off_before_its_arguments_gets_none() -> None:
    stream = call_pieces('{"index": 0, "id": "a", "function": {"name": "now"}}', reason="length")
    assert join_calls(stream) == {0: ("a", "now", "")}


def test_a_call_without_an_id_gets_one_for_all_of_its_pieces() -> None:
    stream = call_pieces(
        '{"index": 0, "function": {"name": "f", "arguments": "{"}}',
        '{"index": 0, "function": {"name": "f", "arguments": "}"}}',
    )
    first, second = (join_calls(stream)[0] for _ in range(2))
    assert re.fullmatch("call_[a-z0-9]{8}", first[0])
    assert first[1:] == second[1:] == ("f", "{}")
    assert first[0] != second[0]


def test_whole() -> None:
    for reads in ways(streams.VLLM_TOOLS):
        reply = collected(USAGE, VLLM)
        out = run(reply, reads, start_ns=NOW)
        assert reply.content_type == "application/json"
        assert json.loads(hide_ids(out)) == {
            "id": "chatcmpl-7",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "system_fingerprint": "fp_ollama",
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": "Let me look.",
                        "tool_calls": [
                            {
                                "index": 0,
                                "id": "chatcmpl-tool-a",
                                "type": "function",
                                "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
                            },
                            {
                                "index": 1,
                                "id": "call_random",
                                "type": "function",
                                "function": {"name": "now", "arguments": "{}"},
                            },
                        ],
                    },
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
        }


def test_whole_completion() -> None:
    whole = json.loads(
        run(collected(TEXT, LCP, prompt_tokens=5, max_tokens=4), [streams.COMPLETION], start_ns=NOW)
    )
    assert whole["object"] == "text_completion"
    assert whole["choices"] == [{"index": 0, "text": " Paris.\n-", "finish_reason": "length"}]
    assert whole["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}


def test_whole_logprobs() -> None:
    chat = json.loads(run(collected(PLAIN, LCP), [streams.CHAT_LOGPROBS], start_ns=NOW))
    assert [e["token"] for e in chat["choices"][0]["logprobs"]["content"]] == ["I", "'m"]
    text = json.loads(
        run(collected(TEXT, LCP, max_tokens=4), [streams.COMPLETION_LOGPROBS], start_ns=NOW)
    )
    assert text["choices"][0]["logprobs"]["tokens"] == [")", "\n"]
    assert text["choices"][0]["logprobs"]["text_offset"] == [3, 4]


def test_several_choices() -> None:
    def event(index: int, text: str, finish: str = "null") -> str:
        return f'data: {{"choices":[{{"index":{index},"delta":{{"content":"{text}"}},"finish_reason":{finish}}}]}}\n\n'

    stream = (
        event(1, "b") + event(0, "a") + event(0, "A", '"stop"') + event(1, "B", '"length"')
    ).encode()
    whole = json.loads(run(collected(PLAIN, VLLM), [stream], start_ns=NOW))
    assert [(c["message"]["content"], c["finish_reason"]) for c in whole["choices"]] == [
        ("aA", "stop"),
        ("bB", "length"),
    ]
    half = stream[: stream.rindex(b"data:")]
    for make in (streamed, collected):
        with pytest.raises(EngineCrashed):
            run(make(PLAIN, VLLM), [half], start_ns=NOW)


@pytest.mark.parametrize("make", [streamed, collected])
@pytest.mark.parametrize("stream", [b"", streams.DONE, streams.CUT])
def test_a_cut_stream_is_no_success(make: Any, stream: bytes) -> None:
    reply = make(USAGE, LCP)
    assert b"[DONE]" not in reply.feed(stream, NOW)
    with pytest.raises(EngineCrashed, match="ended the stream early"):
        reply.finish(NOW)


@pytest.mark.parametrize("make", [streamed, collected])
@pytest.mark.parametrize("stream", [streams.VLLM_ERROR, streams.VLLM_ABORT, b"data: {\n\n"])
def test_errors_in_the_stream(make: Any, stream: bytes) -> None:
    for reads in ways(stream, seeds=4):
        with pytest.raises((UpstreamError, EngineCrashed)):
            run(make(PLAIN, VLLM), reads, start_ns=NOW)


def test_fail() -> None:
    error = ContextOverflow("too long")
    (event,) = events(streamed(PLAIN, VLLM).fail(error))
    assert event == {
        "error": {
            "message": "too long",
            "type": "invalid_request_error",
            "param": None,
            "code": "context_length_exceeded",
        }
    }
    assert json.loads(collected(PLAIN, VLLM).fail(error)) == event


@pytest.mark.parametrize("event", [b"{}", b'{"choices":null}', b'{"id":"x"}', b"", b"null"])
def test_an_event_that_says_nothing_is_passed_over(event: bytes) -> None:
    assert not streamed(PLAIN, VLLM).feed(b"data: %b\n\n" % event, 1)


def test_an_event_without_choices_stays_json() -> None:
    out = streamed(PLAIN, VLLM).feed(b'data:  {"choices":[],"filters":[]}\n\n', 1)
    assert json.loads(out.removeprefix(b"data: "))["filters"] == []
