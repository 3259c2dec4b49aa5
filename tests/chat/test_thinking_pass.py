"""Two calls for one response: what each asks for, and what is made of both, however cut."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.chat.cuts import ways
from vllama.chat.engine.traits import Stops, Traits
from vllama.chat.filters import compose_filters
from vllama.chat.inspect import Inspect
from vllama.chat.parsers.harmony import FINAL
from vllama.chat.parsers.thinking import PAIRS
from vllama.chat.prepare import prepare_chat
from vllama.chat.reply import Reply
from vllama.chat.request import Call, ChatRequest, Message
from vllama.chat.templates.template_style import Style
from vllama.chat.thinking_pass import ThinkingPass
from vllama.chat.writer import ReplyOptions
from vllama.dialects.openai.write import StreamWriter

TRAITS = Traits(
    context_length=1000,
    parameters={"max_tokens": "max_tokens", "stop": "stop"},
    parses_tools=False,
    splits_reasoning=False,
)
OPTIONS = ReplyOptions(kind="chat", stream=True, include_usage=True, model="m")
BODY: dict[str, Any] = {
    "prompt": "Where?", "max_tokens": 100, "seed": 7, "stop": ["x"],
    "json_schema": {"type": "object"}, "response_format": {"type": "json_object"},
}  # fmt: skip
CALL = Call(path="/v1/completions", fields=BODY, grammar=b"g")
VALUE = '{"a": 1}'


def stream(texts: list[str], reason: str | None, usage: dict[str, Any] | None, name: str) -> bytes:
    head = {"id": name, "object": "text_completion", "created": 1, "model": "m"}
    choices = [{"index": 0, "text": text, "finish_reason": None} for text in texts]
    choices += [{"index": 0, "text": "", "finish_reason": reason}] if reason else []
    events: list[dict[str, Any]] = [head | {"choices": [choice]} for choice in choices]
    events += [head | {"choices": [], "usage": usage}] if usage else []
    data = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return (data + ("data: [DONE]\n\n" if reason else "")).encode()


def thought(tokens: int) -> dict[str, Any]:
    return {"completion_tokens_details": {"reasoning_tokens": tokens}}


def usage(prompt: int, tokens: int, cached: int) -> dict[str, Any]:
    details = {"cached_tokens": cached}
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens,
            "prompt_tokens_details": details}  # fmt: skip


def make_reply(*, closing: str = "") -> Reply:
    filters = compose_filters(TRAITS, thinks=True, think_opened=bool(closing), from_completion=True)
    return Reply(StreamWriter(OPTIONS), filters, passes=ThinkingPass(TRAITS, closing=closing))


def listen(data: bytes) -> tuple[str, str, list[str], set[str], dict[str, Any]]:
    """Return the thinking, the text, the ends, the ids and the usage of a client's stream."""
    thinking, text, ends, ids, told = "", "", [], set(), {}
    for line in data.split(b"\n\n"):
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        ids.add(event.get("id"))
        told = event.get("usage") or told
        for choice in event["choices"]:
            thinking += choice["delta"].get("reasoning") or ""
            text += choice["delta"].get("content") or ""
            ends += [choice["finish_reason"]] if choice["finish_reason"] else []
    return thinking, text, ends, ids, told


def converse(reply: Reply, reads: list[bytes], second: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return what the client gets, and the body of the second call."""
    assert reply.passes is not None
    reply.passes.begin(CALL)
    out, now_ns = b"", 1
    for read in reads:
        out += reply.feed(read, now_ns := now_ns + 1)
        if reply.second_call is not None:
            break
    assert reply.second_call is not None
    body = json.loads(reply.second_call.encode())
    reply._expect_stream()
    out += reply.feed(second, now_ns + 1) + reply.finish(now_ns + 2)
    return out, body


FAMILIES = [*PAIRS.items(), ("<|channel|>analysis<|message|>", FINAL)]


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("leaves_mark", [False, True])
@pytest.mark.parametrize(("opening", "closing"), FAMILIES, ids=[name for name, _ in FAMILIES])
def test_thinking_of_every_family_ends_at_its_mark(opening, closing, leaves_mark, opened) -> None:
    if opened and closing == FINAL:
        return
    begins = "" if opened else opening
    texts = [f"{begins}\nI l", "ook < [ ◁", " closely."]
    second = stream(list(VALUE), "stop", usage(40, 8, 39), "two")
    said = "".join(texts) + closing
    if leaves_mark:  # and goes on: what follows is not the response
        data = stream([*texts, *closing, "\n\nNo f", "ormat"], "stop", None, "one")
    else:
        data = stream(texts, "stop", usage(10, 20, 4), "one")
    for reads in ways(data, seeds=4):
        out, body = converse(make_reply(closing=closing if opened else ""), reads, second)
        thinking, text, ends, ids, told = listen(out)
        assert (thinking, text, ends) == ("I look < [ ◁ closely.", VALUE, ["stop"])
        assert len(ids) == 1
        assert body["prompt"] == BODY["prompt"] + said
        tokens = 3 + len(closing) if leaves_mark else 20
        assert body == BODY | {"prompt": body["prompt"], "max_tokens": body["max_tokens"]}
        assert 100 - tokens <= body["max_tokens"] <= 100 - 1
        if not leaves_mark:
            assert body["max_tokens"] == 80
            assert told == usage(10, 28, 4) | thought(20)


def test_the_first_call_has_neither_format_nor_stop_sequences_of_the_client() -> None:
    passes = ThinkingPass(TRAITS)
    first = passes.begin(CALL)
    body = json.loads(first.encode())
    assert set(body.pop("stop")) >= set(PAIRS.values())
    assert body == {"prompt": "Where?", "max_tokens": 100, "seed": 7} and not first.grammar
    first = ThinkingPass(TRAITS, closing="</think>").begin(CALL)
    assert json.loads(first.encode())["stop"] == ["</think>"]


@pytest.mark.parametrize("text", ["", "\n", "Paris", "\n <th", "<thin air>", "<|chan"])
def test_what_is_no_thinking_is_dropped(text) -> None:
    second = stream([VALUE], "stop", usage(10, 8, 9), "two")
    for reads in ways(stream(list(text), "stop", usage(10, 3, 4), "one"), seeds=4):
        out, body = converse(make_reply(), reads, second)
        thinking, said, ends, _, _ = listen(out)
        assert (thinking, said, ends) == ("", VALUE, ["stop"])
        assert body["prompt"] == BODY["prompt"]


@pytest.mark.parametrize("tokens", [100, 120])
def test_thinking_that_takes_all_tokens_ends_the_response(tokens) -> None:
    for reason in ("length", "stop"):  # the mark may be the last token
        told = usage(10, tokens, 4)
        for reads in ways(stream(["<think>I look"], reason, told, "one"), seeds=4):
            reply = make_reply()
            reply.passes.begin(CALL)
            out = b"".join(reply.feed(read, 1) for read in reads) + reply.finish(2)
            assert reply.second_call is None and reply.tally.ended
            assert listen(out)[:3] == ("I look", "", ["length"])
            assert listen(out)[4] == told | thought(tokens)


def test_thinking_that_fills_the_context_ends_the_response() -> None:
    reply = make_reply()
    reply.passes.begin(CALL)
    reply.feed(stream(["<think>I look"], "stop", usage(950, 50, 0), "one"), 1)
    assert reply.second_call is None
    assert listen(reply.finish(2))[2] == [] and reply.tally.finish_reason == "length"


def test_tokens_of_a_prompt_stay_tokens() -> None:
    passes = ThinkingPass(TRAITS, closing="</think>")
    reply = make_reply()
    reply.passes = passes
    passes.begin(Call(path="/", fields={"prompt": [1, 2]}))
    reply.feed(stream(["a"], "stop", None, "one"), 1)
    assert json.loads(reply.second_call.encode())["prompt"] == [1, 2, "a</think>"]


def test_a_response_that_asks_no_engine_has_no_passes() -> None:
    """`num_predict` 0."""
    reply = make_reply()
    data = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
    assert listen(reply.feed(data, 1) + reply.finish(2))[2] == ["length"]


# -- which requests think first ------------------------------------------------------------------

ASKED = ChatRequest(
    model="m",
    messages=(Message(role="user", content="Where?"),),
    response_format={"type": "json_object"},
)
SWITCH = Style(switches=frozenset({"enable_thinking"}))
IMAGE = (Message(role="user", content="What?", images=("aGk=",)),)
BEGUN = (*ASKED.messages, Message(role="assistant", content="In"))
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
FORCED: dict[str, Any] = {"response_format": None, "tools": (TOOL,), "tool_choice": "required"}
VLLM = {"passed_fields": frozenset({"guided_regex", "guided_json", "structured_outputs"})}


@pytest.mark.parametrize(
    ("traits", "asked", "more", "expected"),
    [
        ({}, {}, {}, "first"),
        ({}, {"think": True}, {}, "first"),
        ({}, {"think": "high"}, {}, "first"),
        ({}, FORCED, {}, "first"),
        ({}, {"think": False}, {}, "off"),
        ({}, {}, {"thinks": False}, "off"),
        ({}, {"response_format": None}, {}, "free"),
        (
            VLLM,
            {"response_format": None, "extra": {"guided_json": {"type": "object"}}},
            {},
            "first",
        ),
        (VLLM, {"response_format": None, "extra": {"guided_regex": "a+"}}, {}, "first"),
        ({"splits_reasoning": True}, {"think": True}, {}, "free"),
        ({"splits_reasoning": True}, {"think": True}, {"renders": True}, "first"),
        # one call: it cannot think, which is told
        ({}, {}, {"n": 2}, "named"),
        ({}, {"think": True, "logprobs": True}, {}, "named"),
        ({}, {"messages": IMAGE}, {}, "named"),
        ({}, {"messages": BEGUN}, {}, "named"),
        ({}, {"context": (1, 2)}, {}, "named"),
        ({}, {"inspect": Inspect()}, {}, "named"),
        ({}, {"raw": True, "prompt": "a"}, {}, "off"),
        ({}, {}, {"style": None}, "named"),
        ({"formats_completions": False}, {}, {}, "named"),
        ({"completes": False}, {"think": True}, {}, "named"),
        ({"stops": Stops.UNKNOWN}, {}, {}, "named"),
        ({"parameters": {}}, {}, {}, "named"),
        ({"formats_completions": False}, {"think": False}, {}, "off"),
    ],
)
def test_who_thinks_first(traits, asked, more, expected) -> None:
    given: dict[str, Any] = {"style": SWITCH, "thinks": True} | more
    style = given.pop("style")
    request = ChatRequest(
        **{name: getattr(ASKED, name) for name in ASKED.__struct_fields__} | asked
    )
    chat = prepare_chat(request, replace(TRAITS, **traits), style, **given)
    assert chat.thinks_first is (expected == "first")
    assert chat.constrained is (expected in ("off", "named"))
    assert (chat.think is False) is chat.constrained
    assert ("think" in chat.ignored) is (expected == "named")
