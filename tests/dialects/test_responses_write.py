from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.chat import transcripts as streams
from tests.chat.cuts import hide_ids, run, ways
from tests.chat.replies import openai_reply
from tests.chat.test_engine_request import LCP, VLLM
from tests.dialects.answers import FAILURES, read_named_events
from tests.dialects.answers import make_openai_client as client
from tests.dialects.test_anthropic_write import chunk, passage, piece
from vllama.base.errors import ContextOverflow, UpstreamError
from vllama.chat.engine.deltas import MAX_CALLS
from vllama.chat.engine.traits import Traits
from vllama.chat.reply import Reply
from vllama.dialects.blocks import Block
from vllama.dialects.responses.read import parse_responses
from vllama.dialects.responses.write import ResponsesWriter

pytestmark = pytest.mark.usefixtures("official_clients")

NOW = 1_795_264_126_000_000_000


def reply(traits: Traits = VLLM, *, stream: bool = True, **more: Any) -> Reply:
    tools, limit = more.pop("tools", False), more.pop("max_tokens", None)
    space = {"type": "namespace", "name": "at", "tools": [{"type": "function", "name": "now"}]}
    custom = {"type": "custom", "name": "patch"}
    body = {"model": "m", "input": "x", "tools": [space, custom] if tools else []}
    asked = parse_responses(json.dumps(body).encode())
    options, keep = replace(passage(stream), customs=asked.customs), more.pop("keep", None)
    writer = ResponsesWriter(
        options,
        seed="5eed",
        created_ns=NOW,
        echo=asked.echo,
        names=asked.names,
        keep=keep,
    )
    return openai_reply(writer, traits, tools=tools, max_tokens=limit, **more)


def events(data: bytes) -> list[Any]:
    got = read_named_events(data)
    assert [one["sequence_number"] for one in got] == [*range(len(got))]
    return got


def shape(got: list[Any]) -> list[str]:
    """Name the events in order, deltas in a row once."""
    out: list[str] = []
    for event in got:
        name = event["type"].removeprefix("response.")
        if not out or out[-1] != name or not name.endswith("delta"):
            out.append(name)
    return out


def final(data: bytes) -> dict[str, Any]:
    """Return the response of the last event, after the official client has read the stream."""
    kinds = []
    with client(data, "text/event-stream").responses.stream(model="m", input="x") as stream:
        for event in stream:
            kinds.append(event.type)
            last: Any = event
        if last.type == "response.completed":
            assert stream.get_final_response().output_text == last.response.output_text
    assert kinds[:2] == ["response.created", "response.in_progress"]
    raw = client(data, "text/event-stream").responses.create(model="m", input="x", stream=True)
    assert [event.type for event in raw] == kinds
    value: dict[str, Any] = events(data)[-1]["response"]
    assert last.response.status == value["status"]
    return value


def plain(items: list[dict[str, Any]]) -> list[Any]:
    """Return what items say."""
    out: list[Any] = []
    for item in items:
        match item["type"]:
            case "message":
                out.append(item["content"][0]["text"])
            case "reasoning":
                assert item["encrypted_content"] == item["summary"][0]["text"]
                out.append({"thinking": item["encrypted_content"]})
            case "function_call":
                assert item["call_id"]
                name = f"{item.get('namespace', '')}/{item['name']}"
                out.append((name, json.loads(item["arguments"])))
            case "custom_tool_call":
                assert item["call_id"] and "arguments" not in item
                out.append((item["name"], item["input"]))
    return out


CASES: list[tuple[str, bytes, Traits, dict[str, Any], Any, str]] = [
    (
        "text", streams.CHAT, LCP, {"prompt_tokens": 7, "max_tokens": 6},
        ["I'm glad you're here"], "incomplete",
    ),
    (
        "reasoning", streams.VLLM_REASONING, VLLM, {},
        [{"thinking": "Hm, 4 < 5 & so."}, "Grüße 😀."], "completed",
    ),
    (
        "tags of thinking", streams.THINK_TEXT, LCP, {"think": True},
        [{"thinking": "let me see"}, "Four."], "completed",
    ),
    (
        "calls", streams.VLLM_TOOLS, VLLM, {"tools": True},
        ["Let me look.", ("/weather", {"city": "Paris"}), ("/now", {})], "completed",
    ),
    (
        "calls in the text", streams.TOOL_TEXT, LCP, {"tools": True},
        [("/weather", {"city": "Paris"})], "completed",
    ),
    (
        "a forced call", streams.FORCED_TOOL, LCP, {"tools": True},
        [("/weather", {"city": "Paris"})], "completed",
    ),
    (
        "a tool of a namespace", chunk(piece(0, "{}", "at.now")) + chunk({}, "tool_calls"), VLLM,
        {"tools": True}, [("at/now", {})], "completed",
    ),
    (
        "a custom tool",
        chunk(piece(0, '{"inp', "patch"))
        + chunk(piece(0, 'ut": "*** a\\nb"}'))
        + chunk({}, "tool_calls"),
        VLLM, {"tools": True}, [("patch", "*** a\nb")], "completed",
    ),
    ("native", streams.NATIVE, VLLM, {}, [{"thinking": "why"}, "yes"], "completed"),
    ("crlf", streams.TRANSFORMERS, VLLM, {}, ["Hi"], "completed"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "traits", "options", "items", "status"), CASES)
def test_streams(
    name: str, data: bytes, traits: Traits, options: dict[str, Any], items: Any, status: str
) -> None:
    outs = set()
    for reads in ways(data):
        made = reply(traits, **options)
        out = run(made, reads)
        got = events(out)
        assert (
            made.tally.ended and made.content_type == "text/event-stream" and b"[DONE]" not in out
        )
        outs.add(json.dumps(shape(got)))
        last = got[-1]
        assert last["type"] == "response.completed"
        assert last["response"]["status"] == status
        assert (last["response"]["incomplete_details"] is not None) == (status == "incomplete")
        assert plain(last["response"]["output"]) == items
        done = [e["item"] for e in got if e["type"] == "response.output_item.done"]
        assert done == last["response"]["output"]
        for item in done:
            deltas = [e["delta"] for e in got if e.get("item_id") == item["id"] and "delta" in e]
            said = item.get("arguments") or item.get("input") or plain([item])[0]
            text = said["thinking"] if isinstance(said, dict) else said
            assert "".join(deltas) == text or (text == "{}" and not deltas)
    assert len(outs) == 1
    assert plain(final(run(reply(traits, **options), [data]))["output"]) == items


@pytest.mark.parametrize(("name", "data", "traits", "options", "items", "status"), CASES)
def test_whole(
    name: str, data: bytes, traits: Traits, options: dict[str, Any], items: Any, status: str
) -> None:
    outs = {
        hide_ids(run(reply(traits, stream=False, **options), reads, start_ns=NOW, step_ns=0))
        for reads in ways(data)
    }
    assert len(outs) == 1
    whole = outs.pop()
    got = client(whole, "application/json").responses.create(model="m", input="x")
    value = json.loads(whole)
    assert got.status == value["status"] == status
    assert (value["incomplete_details"] is not None) == (status == "incomplete")
    assert plain(value["output"]) == items
    assert value["id"] == "resp_5eed" and value["object"] == "response"
    assert value["created_at"] == NOW // 10**9
    assert value["completed_at"] == NOW // 10**9


def test_a_stream_that_needed_no_token_has_no_output() -> None:
    data = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    kept: list[dict[str, Any]] = []
    assert events(run(reply(keep=kept.append), [data]))[-1]["response"]["output"] is None
    assert kept[0]["output"] == []  # a conversation may go on from it
    assert json.loads(run(reply(stream=False), [data]))["output"] != []
    counted = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    usage = b"data: " + json.dumps({"choices": [], "usage": counted}).encode() + b"\n\n"
    assert final(run(reply(), [data + usage]))["output"] == []


def test_order_of_events() -> None:
    got = events(run(reply(tools=True), [streams.VLLM_TOOLS]))
    message = [
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
    ]  # fmt: skip
    call = [
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done",
    ]  # fmt: skip
    assert shape(got) == [
        "created", "in_progress", *message, *call, *call, "completed",
    ]  # fmt: skip
    ids = {event["item"]["id"] for event in got if "item" in event}
    assert ids == {"msg_5eed00", "fc_5eed01", "fc_5eed02"}
    reasoning = [
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
    ]  # fmt: skip
    got = events(run(reply(), [streams.VLLM_REASONING]))
    assert shape(got) == ["created", "in_progress", *reasoning, *message, "completed"]
    assert got[2]["item"]["id"] == "rs_5eed00" and got[2]["item"]["summary"] == []


def test_usage() -> None:
    usage = final(run(reply(), [streams.VLLM_REASONING]))["usage"]
    assert usage == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 14,
    }
    details = {
        "prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }  # fmt: skip
    counted = b"data: " + json.dumps({"choices": [], "usage": details}).encode() + b"\n\n"
    data = chunk({"content": "x"}) + chunk({}, "stop") + counted
    usage = json.loads(run(reply(stream=False), [data]))["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == 8
    assert usage["output_tokens_details"]["reasoning_tokens"] == 2


def test_a_call_is_not_read_again_with_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Block] = []
    monkeypatch.setattr(Block, "complete", property(lambda block: not looks.append(block)))
    begin, go_on = chunk(piece(0, '{"city": "', "f")), chunk(piece(0, "Paris"))
    data = begin + go_on * 100 + chunk(piece(0, '"}')) + chunk({}, "tool_calls")
    said = run(reply(tools=True), [data])
    assert final(said)["output"][0]["arguments"] == json.dumps({"city": "Paris" * 100})
    assert len(looks) <= 3


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_has_so_many_calls(stream: bool) -> None:
    data = b"".join(chunk(piece(i, "{}", "f")) for i in range(MAX_CALLS + 1))
    with pytest.raises(UpstreamError, match="too many tool calls"):
        run(reply(tools=True, stream=stream), [data])


def test_a_call_cut_by_its_length() -> None:
    value = final(run(reply(tools=True), [streams.VLLM_BROKEN_TOOL]))
    (item,) = value["output"]
    assert (value["status"], item["status"]) == ("incomplete", "incomplete")
    assert item["arguments"] == '{"city": "Par'


@pytest.mark.parametrize(("data", "error"), FAILURES)
def test_failures(data: bytes, error: type[Exception]) -> None:
    for stream in (True, False):
        for reads in ways(data) if data else [[b""]]:
            with pytest.raises(error):
                run(reply(stream=stream), reads)


def test_a_failure_in_mid_stream_is_an_event() -> None:
    made = reply()
    sent = made.feed(streams.VLLM_ERROR, 5)
    with pytest.raises(UpstreamError) as caught:
        made.finish(6)
    value = final(sent + made.fail(caught.value))
    assert value["status"] == "failed" and value["error"]["code"] == "server_error"
    assert "EngineCore died" in value["error"]["message"]
    assert value["output"][0]["status"] == "incomplete"
    assert b"invalid_prompt" in made.fail(ContextOverflow("too long"))
    assert "error" in json.loads(reply(stream=False).fail(caught.value))
