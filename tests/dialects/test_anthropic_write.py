from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.chat import transcripts as streams
from tests.chat.cuts import hide_ids, run, ways
from tests.chat.replies import openai_reply
from tests.chat.test_engine_request import LCP, VLLM
from tests.dialects.answers import FAILURES
from tests.dialects.answers import read_named_events as events
from vllama.base.errors import ContextOverflow, EngineCrashed, UpstreamError
from vllama.chat.engine.traits import Traits
from vllama.chat.reply import Reply
from vllama.chat.request import Usage
from vllama.chat.stops import StopFilter
from vllama.chat.writer import ReplyOptions
from vllama.dialects.anthropic.write import MessagesWriter, make_too_long_error

if TYPE_CHECKING:
    from anthropic import Anthropic

pytestmark = pytest.mark.usefixtures("official_clients")

CALL = [{"type": "tool_use", "id": "chatcmpl-tool-a", "name": "weather",
         "input": {"city": "Paris"}}]  # fmt: skip


def passage(stream: bool = True, **more: Any) -> ReplyOptions:
    return ReplyOptions(kind="chat", stream=stream, include_usage=False, model="m", **more)


def reply(traits: Traits = VLLM, *, stream: bool = True, **more: Any) -> Reply:
    tools, limit = more.pop("tools", False), more.pop("max_tokens", None)
    asked = passage(stream)
    stop = more.get("stop")
    stops = StopFilter(stop, cuts=True) if stop and not traits.names_stop else None
    own = ("request_id", "estimate", "stop", "hide_thinking")
    options = {name: more.pop(name) for name in own if name in more}
    writer = MessagesWriter(asked, seed="5eed", **options)
    return openai_reply(writer, traits, tools=tools, max_tokens=limit, stops=stops, **more)


def shape(got: list[Any]) -> list[str]:
    """Name the events in order, deltas of one kind once."""
    out: list[str] = []
    for event in got:
        name = event.get("delta", {}).get("type") or event["type"]
        if event["type"] == "content_block_start":
            name = "+" + event["content_block"]["type"]
        if not out or out[-1] != name or not name.endswith("delta"):
            out.append(name)
    return out


def joined(got: list[Any], name: str) -> str:
    return "".join(e["delta"].get(name, "") for e in got if e["type"] == "content_block_delta")


def client(data: bytes, kind: str) -> Anthropic:
    """Return the official client, behind which `data` is all that a server says."""
    from anthropic import Anthropic  # 3,000 modules: only who runs these tests reads them

    headers = {"content-type": kind, "request-id": "req_1"}
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, content=data))
    return Anthropic(
        api_key="x", base_url="http://test", http_client=httpx2.Client(transport=transport)
    )


def message(data: bytes) -> dict[str, Any]:
    """Return the message that the official client makes of a stream."""
    got: dict[str, Any] = json.loads(read_with_client(data))
    return got


@cache
def read_with_client(data: bytes) -> str:
    """Read a stream, however it was cut before, once: as a whole message, and event by event."""
    asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    with client(data, "text/event-stream").messages.stream(**asked) as stream:
        got = stream.get_final_message().to_json()
    with client(data, "text/event-stream") as raw:
        raw_events = [e.type for e in raw.messages.create(**asked, stream=True)]
    assert raw_events[0] == "message_start" and raw_events[-1] == "message_stop"
    return got


CASES: list[tuple[str, bytes, Traits, dict[str, Any], Any, str]] = [
    (
        "text", streams.CHAT, LCP, {"prompt_tokens": 7, "max_tokens": 6},
        [{"type": "text", "text": "I'm glad you're here"}], "max_tokens",
    ),
    (
        "reasoning", streams.VLLM_REASONING, VLLM, {},
        [{"type": "thinking", "thinking": "Hm, 4 < 5 & so."},
         {"type": "text", "text": "Grüße 😀."}], "end_turn",
    ),
    (
        "hidden reasoning", streams.VLLM_REASONING, VLLM, {"hide_thinking": True},
        [{"type": "text", "text": "Grüße 😀."}], "end_turn",
    ),
    (
        "tags of thinking", streams.THINK_TEXT, LCP, {"think": True},
        [{"type": "thinking", "thinking": "let me see"}, {"type": "text", "text": "Four."}],
        "end_turn",
    ),
    (
        "calls", streams.VLLM_TOOLS, VLLM, {"tools": True},
        [{"type": "text", "text": "Let me look."}, *CALL,
         {"type": "tool_use", "id": None, "name": "now", "input": {}}], "tool_use",
    ),
    (
        "calls in the text", streams.TOOL_TEXT, LCP, {"tools": True},
        [{"type": "tool_use", "id": None, "name": "weather", "input": {"city": "Paris"}}],
        "tool_use",
    ),
    (
        "a forced call", streams.FORCED_TOOL, LCP, {"tools": True},
        [{"type": "tool_use", "id": "call__0_weather_cmpl-1", "name": "weather",
          "input": {"city": "Paris"}}], "tool_use",
    ),
    (
        "native", streams.NATIVE, VLLM, {},
        [{"type": "thinking", "thinking": "why"}, {"type": "text", "text": "yes"}], "end_turn",
    ),
    ("crlf", streams.TRANSFORMERS, VLLM, {}, [{"type": "text", "text": "Hi"}], "end_turn"),
]  # fmt: skip


def same(content: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert len(content) == len(wanted)
    for block, want in zip(content, wanted, strict=True):
        if block["type"] == "thinking":
            assert block.pop("signature")
        if want.get("id", "") is None:
            assert block["id"]
            want = want | {"id": block["id"]}
        assert block == want


@pytest.mark.parametrize(("name", "data", "traits", "options", "content", "reason"), CASES)
def test_streams(
    name: str, data: bytes, traits: Traits, options: dict[str, Any], content: Any, reason: str
) -> None:
    outs: set[str] = set()
    for reads in ways(data):
        made = reply(traits, **options)
        got = events(run(made, reads))
        assert made.tally.ended and made.content_type == "text/event-stream"
        assert got[0]["type"] == "message_start"
        assert [event["type"] for event in got[-2:]] == ["message_delta", "message_stop"]
        assert got[-2]["delta"] == {"stop_reason": reason, "stop_sequence": None}
        outs.add(json.dumps(shape(got)))
        open_block = None
        for event in got[1:-2]:
            match event["type"]:
                case "content_block_start":
                    assert open_block is None
                    open_block = event["index"]
                case "content_block_stop":
                    assert event["index"] == open_block
                    open_block = None
                case _:
                    assert event["index"] == open_block
        assert open_block is None
    assert len(outs) == 1
    final = message(run(reply(traits, **options), [data]))
    same(final["content"], content)
    assert final["stop_reason"] == reason and final["id"] == "msg_5eed"


@pytest.mark.parametrize(("name", "data", "traits", "options", "content", "reason"), CASES)
def test_whole(
    name: str, data: bytes, traits: Traits, options: dict[str, Any], content: Any, reason: str
) -> None:
    outs = {hide_ids(run(reply(traits, stream=False, **options), reads)) for reads in ways(data)}
    assert len(outs) == 1
    whole = outs.pop()
    asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    got = client(whole, "application/json").messages.create(**asked)
    assert got._request_id == "req_1"
    value = json.loads(whole)
    same(value["content"], content)
    assert (value["type"], value["role"], value["model"]) == ("message", "assistant", "m")
    assert value["stop_reason"] == reason and value["stop_sequence"] is None


def test_order_of_events() -> None:
    got = events(run(reply(tools=True), [streams.VLLM_TOOLS]))
    assert shape(got) == [
        "message_start",
        "+text", "text_delta", "content_block_stop",
        "+tool_use", "input_json_delta", "content_block_stop",
        "+tool_use", "input_json_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert joined(got, "partial_json") == '{"city": "Paris"}{}'
    got = events(run(reply(), [streams.VLLM_REASONING]))
    assert shape(got) == [
        "message_start",
        "+thinking", "thinking_delta", "signature_delta", "content_block_stop",
        "+text", "text_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert joined(got, "thinking") == "Hm, 4 < 5 & so."


def test_tokens_flow_at_once() -> None:
    made = reply(LCP)
    frames = [frame + b"\n\n" for frame in streams.CHAT.split(b"\n\n")]
    assert b"message_start" in made.feed(frames[0], 1)
    assert made.tally.first_token_ns is None
    assert b'"text":"I"' in made.feed(frames[1], 2)
    assert made.tally.first_token_ns == 2
    assert made.feed(frames[2], 3).count(b"event:") == 1


def test_usage() -> None:
    got = events(run(reply(estimate=40), [streams.VLLM_REASONING]))
    assert got[0]["message"]["usage"]["input_tokens"] == 40
    assert got[-2]["usage"]["input_tokens"] == 11 and got[-2]["usage"]["output_tokens"] == 3
    made = reply(LCP, prompt_tokens=31, estimate=40, max_tokens=6)
    got = events(run(made, [streams.CHAT]))
    assert got[0]["message"]["usage"]["input_tokens"] == 31
    assert got[-2]["usage"]["input_tokens"] == 31 and got[-2]["usage"]["output_tokens"] == 6
    assert made.tally.usage == Usage(prompt_tokens=31, completion_tokens=6)


def chunk(delta: Any, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def piece(index: int, arguments: str = "", name: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"tool_calls": [{"index": index, "function": function}]}


def test_a_stop_sequence_that_the_engine_names() -> None:
    tells = replace(VLLM, names_stop=True)
    data = chunk({"content": "one"}) + chunk({}, "stop", stop_reason="END")
    got = events(run(reply(tells, stop=("END",)), [data]))
    assert got[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}
    for stop_reason in (151645, None, "other"):
        data = chunk({"content": "one"}) + chunk({}, "stop", stop_reason=stop_reason)
        got = events(run(reply(tells, stop=("END",)), [data]))
        assert got[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


def test_a_stop_sequence_found_by_the_front() -> None:
    before = chunk({"content": "one E"}) + chunk({"content": "N"})
    data = before + chunk({"content": "D two"}) + chunk({"content": "three"}) + chunk({}, "stop")
    for reads in ways(data):
        for stream in (True, False):
            made = reply(stop=("END",), stream=stream, prompt_tokens=7)
            out = run(made, reads)
            got = message(out) if stream else json.loads(out)
            assert got["content"] == [{"type": "text", "text": "one "}]
            assert (got["stop_reason"], got["stop_sequence"]) == ("stop_sequence", "END")
            assert got["usage"]["output_tokens"] == 3 and got["usage"]["input_tokens"] == 7
            assert made.has_enough and made.tally.ended
    cut = before + chunk({"content": "D"})[:30]  # the engine is cut off as soon as it is found
    for data, text in ((before + chunk({"content": "D"}), "one "), (cut, None)):
        if text is None:
            with pytest.raises((EngineCrashed, UpstreamError)):
                run(reply(stop=("END",)), [data])
        else:
            got = message(run(reply(stop=("END",)), [data, b"data: {half"]))
            assert got["content"][0]["text"] == text
    not_met = before + chunk({}, "stop")
    for reads in ways(not_met):
        got = message(run(reply(stop=("END",)), reads))
        assert got["content"][0]["text"] == "one EN" and got["stop_reason"] == "end_turn"
    at_once = chunk({"content": "END"}) + chunk({}, "stop")
    got = message(run(reply(stop=("END",)), [at_once]))
    assert got["content"] == [] and got["stop_sequence"] == "END"


def test_a_prompt_that_is_too_long() -> None:
    error = ContextOverflow("it is long", hint="shorten it")
    assert make_too_long_error(error).sentence() == "prompt is too long: it is long; shorten it"
    error.tokens, error.limit = 900, 800
    assert make_too_long_error(error).message == "prompt is too long: 900 tokens > 800 maximum"


def test_calls_whose_pieces_are_mixed() -> None:
    data = (
        chunk(piece(0, '{"a"', "f")) + chunk(piece(1, '{"b"', "g"))
        + chunk(piece(0, ":1}")) + chunk(piece(1, ":2}")) + chunk({}, "tool_calls")
    )  # fmt: skip
    for reads in ways(data):
        final = message(run(reply(tools=True), reads))
        assert [(b["name"], b["input"]) for b in final["content"]] == [
            ("f", {"a": 1}), ("g", {"b": 2}),
        ]  # fmt: skip


def test_space_around_calls_is_no_block() -> None:
    data = (
        chunk({"content": "\n\n"}) + chunk(piece(0, "{}", "f")) + chunk({"content": "\n"})
        + chunk(piece(1, "{}", "g")) + chunk({"content": " "}) + chunk({}, "tool_calls")
    )  # fmt: skip
    for stream in (True, False):
        made = reply(tools=True, stream=stream)
        out = run(made, [data])
        content = message(out)["content"] if stream else json.loads(out)["content"]
        assert [block["type"] for block in content] == ["tool_use", "tool_use"]
    first = chunk({"content": "\n"}) + chunk({"content": "Hi"}) + chunk({}, "stop")
    assert message(run(reply(), [first]))["content"] == [{"type": "text", "text": "\nHi"}]
    only = chunk({"content": "\n"}) + chunk({}, "stop")
    assert message(run(reply(), [only]))["content"] == [{"type": "text", "text": "\n"}]


def test_text_between_the_pieces_of_a_call_waits() -> None:
    data = (
        chunk(piece(0, '{"a"', "f")) + chunk({"content": "so"}) + chunk(piece(0, ":1}"))
        + chunk({}, "tool_calls")
    )  # fmt: skip
    content = message(run(reply(tools=True), [data]))["content"]
    assert content[0]["input"] == {"a": 1} and content[1] == {"type": "text", "text": "so"}


def test_arguments_as_an_object_and_a_name_that_comes_late() -> None:
    whole = {"tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}
    data = chunk(whole) + chunk(whole) + chunk({}, "tool_calls")
    assert message(run(reply(tools=True), [data]))["content"][0]["input"] == {"a": 1}
    data = chunk(piece(0, '{"a":')) + chunk(piece(0, "1}", "f")) + chunk({}, "tool_calls")
    assert message(run(reply(tools=True), [data]))["content"][0]["input"] == {"a": 1}


def test_a_call_cut_by_its_length() -> None:
    final = message(run(reply(tools=True), [streams.VLLM_BROKEN_TOOL]))
    assert final["stop_reason"] == "max_tokens"
    assert final["content"][0]["input"] == {}  # the client drops the half of a string
    whole = json.loads(run(reply(tools=True, stream=False), [streams.VLLM_BROKEN_TOOL]))
    assert whole["content"][0]["type"] == "text" and whole["stop_reason"] == "max_tokens"


def test_a_broken_call_is_text_in_a_whole_answer() -> None:
    data = chunk(piece(0, "{nonsense", "f")) + chunk({}, "tool_calls")
    whole = json.loads(run(reply(tools=True, stream=False), [data]))
    assert whole["content"] == [{"type": "text", "text": '{"name": "f", "arguments": {nonsense}'}]
    assert whole["stop_reason"] == "max_tokens"


def test_an_empty_answer() -> None:
    final = message(run(reply(), [chunk({"role": "assistant"}) + chunk({}, "stop")]))
    assert final["content"] == [] and final["stop_reason"] == "end_turn"


@pytest.mark.parametrize(("data", "error"), FAILURES)
def test_failures(data: bytes, error: type[Exception]) -> None:
    for stream in (True, False):
        for reads in ways(data) if data else [[b""]]:
            with pytest.raises(error):
                run(reply(stream=stream), reads)


def test_what_came_before_a_failure_is_sent() -> None:
    made = reply(request_id="req_7")
    sent = made.feed(streams.VLLM_ERROR, 5)
    assert b'"text":"one"' in sent
    with pytest.raises(UpstreamError) as caught:
        made.feed(b"", 6)
    (event,) = events(made.fail(caught.value))
    assert event["type"] == "error" and event["request_id"] == "req_7"
    assert event["error"]["type"] == "api_error"
    assert json.loads(reply(stream=False).fail(caught.value))["type"] == "error"
