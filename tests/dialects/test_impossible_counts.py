"""Numbers of tokens that no engine can mean are left out, and the answer comes all the same."""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec
import pytest

from tests.chat.cuts import run
from tests.chat.replies import collected, streamed
from tests.chat.test_engine_request import VLLM
from tests.dialects.test_cached_tokens import USAGE, WAYS, options
from vllama.chat.engine.claims import MAX_COUNT, clean_usage, read_count, warn_left_out
from vllama.dialects.ollama.embeddings import decode_embeddings
from vllama.dialects.rerank import read_scores

IMPOSSIBLE = {
    "beyond": MAX_COUNT + 3,
    "beyond 64 bits": 99999999999999999999,
    "beyond all": int("9" * 400),
    "negative": -5,
    "float": 3.5,
    "beyond float": msgspec.Raw(b"1e999"),
    "text": "12",
    "bool": True,
    "list": [[[1]]],
    "nested": {"prompt_tokens": {"prompt_tokens": -1}},
}
DETAILS = {
    "prompt_tokens_details": "cached_tokens",
    "completion_tokens_details": "reasoning_tokens",
}
FIELDS = ("prompt_tokens", "completion_tokens", "total_tokens", *DETAILS)
TIMINGS = ("prompt_n", "cache_n", "predicted_n", "prompt_ms", "predicted_ms")


def encode(value: Any) -> bytes:
    def plain(item: Any) -> Any:
        if isinstance(item, int) and abs(item) >= 1 << 63:
            return msgspec.Raw(str(item).encode())
        if isinstance(item, dict):
            return {key: plain(each) for key, each in item.items()}
        return item

    return msgspec.json.encode(plain(value))


def stream(counts: dict[str, Any]) -> bytes:
    """Return an answer of one token whose last event has `counts`."""
    events = [
        {"choices": [{"index": 0, "delta": {"content": "x"}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], **counts},
    ]
    return b"".join(b"data: %b\n\n" % encode(event) for event in events)


def whole_numbers(value: Any) -> list[int]:
    """Return all integers in an answer; numbers of tokens are nothing else."""
    if isinstance(value, dict):
        odd = {key: item for key, item in value.items() if key.endswith("_tokens")}
        assert all(item is None or type(item) is int for item in odd.values()), odd
        return [number for item in value.values() for number in whole_numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in whole_numbers(item)]
    return [value] if type(value) is int else []


def list_counts() -> list[tuple[dict[str, Any], str]]:
    cases: list[tuple[dict[str, Any], str]] = []
    for name, number in IMPOSSIBLE.items():
        cases += [({"usage": USAGE | {field: number}}, f"{field} {name}") for field in FIELDS]
        for part, detail in DETAILS.items():
            cases.append(({"usage": USAGE | {part: {detail: number}}}, f"{detail} {name}"))
        cases += [
            (
                {"usage": USAGE, "timings": {"prompt_n": 9, "predicted_n": 2, field: number}},
                f"{field} {name}",
            )
            for field in TIMINGS
            if number != 3.5 or field.endswith("_n")
        ]
        cases.append(({"usage": number}, f"usage {name}"))
        if name != "nested":  # a field of which nobody knows anything
            cases.append(({"timings": number}, f"timings {name}"))
    return cases


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_comes_whatever_numbers_the_engine_tells(way: str) -> None:
    for counts, label in list_counts():
        reply = WAYS[way][0]()
        data = run(reply, [stream(counts)])
        for line in data.splitlines():
            text = line.removeprefix(b"data: ")
            if text.startswith(b"{"):
                value = json.loads(text)
                assert "error" not in value or value["error"] is None, (label, value)
                assert all(0 <= n <= MAX_COUNT for n in whole_numbers(value)), (label, value)
        usage = reply.tally.usage
        assert type(usage.prompt_tokens) is type(usage.completion_tokens) is int, label
        assert 0 <= usage.prompt_tokens <= MAX_COUNT, label
        assert 0 <= usage.completion_tokens <= MAX_COUNT, label
        assert 0 <= (usage.cached_tokens or 0) <= MAX_COUNT, label


def test_the_good_numbers_of_an_answer_stay() -> None:
    reply = streamed(options(whole=False), VLLM)
    run(reply, [stream({"usage": USAGE | {"prompt_tokens": -1, "cost": -0.5, "by": "me"}})])
    assert (reply.tally.usage.prompt_tokens, reply.tally.usage.completion_tokens) == (0, 2)
    assert reply.tally.usage_object["cost"] == -0.5 and reply.tally.usage_object["by"] == "me"
    assert clean_usage({"is_free": False, "details": {"audio": 3}, "other": -2}) == {
        "is_free": False,
        "details": {"audio": 3},
    }


@pytest.mark.parametrize("make", [streamed, collected])
def test_no_choice_has_more_tokens_than_it_may_have(make: Any) -> None:
    for choices, said, told in ((1, 2, 1), (2, 3, 2), (1, 1, 1)):
        reply = make(options(whole=make is collected), VLLM, max_tokens=1)
        counts = {"prompt_tokens": 9, "completion_tokens": said, "total_tokens": 9 + said}
        ends = [{"index": i, "delta": {}, "finish_reason": "length"} for i in range(choices)]
        events = [{"choices": ends}, {"choices": [], "usage": counts}]
        data = run(reply, [b"".join(b"data: %b\n\n" % encode(event) for event in events)])
        assert b'"completion_tokens":%d,"total_tokens":%d' % (told, 9 + told) in data, data
        assert reply.tally.usage.completion_tokens == told


@pytest.mark.parametrize("number", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_vectors_and_scores_come_whatever_numbers_the_engine_tells(number: Any) -> None:
    for usage in ({"prompt_tokens": number, "total_tokens": number}, number):
        vectors = {"data": [{"embedding": [1.0, 2.0]}], "usage": usage}
        assert decode_embeddings(encode(vectors), VLLM) == ([[1.0, 2.0]], 0)
        scores = {"results": [{"index": 0, "relevance_score": 0.5}], "usage": usage}
        assert read_scores(encode(scores), 1) == ([0.5], 0)


def test_what_is_left_out_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    warn_left_out.cache_clear()
    with caplog.at_level(logging.WARNING):
        for number in IMPOSSIBLE.values():
            assert read_count(number, "the usage") is None
    assert caplog.text.count("ignoring unreadable data") == 1
    assert read_count(None, "the usage") is None and read_count(MAX_COUNT, "x") == MAX_COUNT
