from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from tests.chat import transcripts as streams
from tests.chat.bodies import parse
from tests.chat.cuts import ways
from tests.chat.replies import collected, streamed
from tests.chat.test_engine_request import LCP, VLLM
from tests.dialects.answers import read_events as events
from tests.dialects.test_anthropic_write import passage
from vllama.base.errors import BadRequest, UpstreamError
from vllama.chat.request import Call, Usage
from vllama.dialects.openai.choices import NthChoice, Totals, merge_choices, reseed
from vllama.dialects.openai.read import read_chat
from vllama.dialects.openai.request_types import ChatCompletionBody

HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(("value", "n"), [(None, 1), (1, 1), (128, 128), (2.0, 2)])
def test_n(value: object, n: int) -> None:
    assert read_chat(parse({"messages": HI, "n": value}, ChatCompletionBody)).n == n


@pytest.mark.parametrize("value", [0, -1, 129, 10**30, 1.5, "2", True, [], {}])
def test_no_n(value: object) -> None:
    with pytest.raises(BadRequest, match="'n'"):
        parse({"messages": HI, "n": value}, ChatCompletionBody)


@pytest.mark.parametrize("usage", [True, False])
def test_three_streams_are_one(usage: bool) -> None:
    asked = replace(passage(), include_usage=usage)
    for reads in ways(streams.CHAT, seeds=4):
        totals = Totals()
        out = b""
        for number in range(3):
            part = NthChoice(
                totals=totals, index=number, is_last=number == 2, new_prompt=number != 1
            )
            reply = streamed(asked, LCP, part=part, prompt_tokens=5)
            out += b"".join(reply.feed(read, 1) for read in reads) + reply.finish(2)
            assert reply.tally.ended and reply.tally.usage.completion_tokens == 6
        got = events(out)
        closing = [event for event in got if not event["choices"]]
        said: dict[int, str] = {}
        for event in got:
            assert (event["id"], event["created"]) == ("chatcmpl-1", 1795264126)
            for choice in event["choices"]:
                text = choice["delta"].get("content") or ""
                said[choice["index"]] = said.get(choice["index"], "") + text
        assert said == dict.fromkeys(range(3), "I'm glad you're here")
        if usage:
            assert closing == [got[-1]]
            assert closing[0]["usage"] == {
                "prompt_tokens": 10, "completion_tokens": 18, "total_tokens": 28,
            }  # fmt: skip
        else:
            assert not closing


def test_a_failure_ends_all() -> None:
    part = NthChoice(totals=Totals(), index=0, is_last=False, new_prompt=True)
    reply = streamed(passage(), VLLM, part=part)
    sent = reply.feed(streams.VLLM_ERROR, 1)
    with pytest.raises(UpstreamError) as caught:
        reply.finish(2)
    got = events(sent + reply.fail(caught.value))
    assert "EngineCore died" in got[-1]["error"]["message"]


def test_whole_answers_are_one() -> None:
    bodies = []
    for _ in range(2):
        made = collected(passage(False), LCP, prompt_tokens=5)
        made.feed(streams.CHAT, 1)
        bodies.append(made.finish(2))
    usages = [
        (Usage(prompt_tokens=5, completion_tokens=6), True),
        (Usage(prompt_tokens=5, completion_tokens=6), False),
    ]
    value = json.loads(merge_choices(bodies, usages))
    assert [choice["index"] for choice in value["choices"]] == [0, 1]
    assert value["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
    assert value["id"] == "chatcmpl-1"


def test_a_fixed_seed_differs_between_choices() -> None:
    call = Call(path="/x", fields={"seed": 4294967295, "a": 1})
    assert reseed(call, LCP, 0) is call
    assert reseed(call, LCP, 2).fields == {"seed": 1, "a": 1}  # 32 bits wide
    none = Call(path="/x", fields={"a": 1})
    assert reseed(none, LCP, 2) is none
