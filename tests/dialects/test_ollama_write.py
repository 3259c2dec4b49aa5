# ruff: noqa: E501 (tables of exact texts)
from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.chat import transcripts as streams
from tests.chat.cuts import hide_ids, run, ways
from tests.chat.replies import chat_reply, generate_reply
from tests.chat.test_engine_request import LCP, VLLM
from vllama.base.errors import BadRequest, EngineCrashed, UpstreamError
from vllama.chat.reply import Reply
from vllama.chat.request import Usage
from vllama.dialects.ollama.answer_types import EmbedAnswer
from vllama.dialects.ollama.embeddings import finish_vector
from vllama.dialects.ollama.write import write_without_text

NOW = 1_795_264_126_000_000_000
TIMED = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def chat(**more: Any) -> Reply:
    times = {"started_ns": NOW, "loaded_ns": NOW + 1, "sent_ns": NOW + 2}
    return chat_reply(**{"model": "smol", "stream": True, "traits": LCP, **times, **more})


def generate(**more: Any) -> Reply:
    times = {"started_ns": NOW, "loaded_ns": NOW + 1, "sent_ns": NOW + 2}
    return generate_reply(**{"model": "smol", "stream": True, "traits": LCP, **times, **more})


def lines(data: bytes) -> list[dict[str, Any]]:
    """Decode the lines; times out, since they depend on the cut."""
    out = [json.loads(line) for line in data.splitlines()]
    for line in out:
        assert line.pop("model") == "smol"
        assert line.pop("created_at").startswith("2026-11-21T12:28:4")
        for name in TIMED:
            assert line.pop(name, 1) > 0
    return out


def said(content: str = "", **more: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": content, **more}, "done": False}


def last(
    reason: str = "stop", prompt: int = 0, count: int = 0, cached: int | None = None
) -> dict[str, Any]:
    return said() | {
        "done": True,
        "done_reason": reason,
        "prompt_eval_count": prompt,
        **({} if cached is None else {"prompt_eval_cached_count": cached}),
        "eval_count": count,
    }


CALL = {"id": "chatcmpl-tool-a", "function": {"index": 0, "name": "weather", "arguments": {"city": "Paris"}}}  # fmt: skip
NOW_CALL = {"id": "call_random", "function": {"index": 1, "name": "now", "arguments": {}}}
LP = {
    "token": "I",
    "logprob": -2.2280375957489014,
    "bytes": [73],
    "top_logprobs": [
        {"token": "I", "logprob": -2.2280375957489014, "bytes": [73]},
        {"token": "Hello", "logprob": -2.4934566020965576, "bytes": [72, 101, 108, 108, 111]},
    ],
}

CHAT_CASES: list[tuple[bytes, dict[str, Any], list[dict[str, Any]]]] = [
    (
        streams.CHAT,
        {"prompt_tokens": 31, "max_tokens": 6},
        [*map(said, ["I", "'m", " glad", " you", "'re", " here"]), last("length", 31, 6)],
    ),
    (
        streams.VLLM_REASONING,
        {"traits": VLLM, "think": True, "prompt_tokens": 99},
        [
            said(thinking="Hm, "),
            said(thinking="4 < 5 & so."),
            said("Grüße 😀"),
            said("."),
            last("stop", 11, 3),
        ],
    ),
    (
        streams.VLLM_REASONING,
        {"traits": VLLM, "think": False},
        [said("Grüße 😀"), said("."), last("stop", 11, 3)],
    ),
    (
        streams.VLLM_TOOLS,
        {"traits": VLLM, "tools": True},
        [said("Let me look."), said(tool_calls=[CALL, NOW_CALL]), last("stop", 11, 3)],
    ),
    (
        streams.VLLM_BROKEN_TOOL,
        {"traits": VLLM, "tools": True},
        [said('{"name": "weather", "arguments": {"city": "Par}'), last("length", 0, 1)],
    ),
    (
        streams.NATIVE,
        {"traits": VLLM, "think": True},
        [said(thinking="why"), said("yes"), last("stop", 10, 9, 4)],
    ),
    (  # the white space that an engine leaves around the thinking
        streams.NATIVE.replace(b'"why"', rb'"\nwhy\n"').replace(b'"yes"', rb'"\n\nyes"'),
        {"traits": VLLM, "think": True},
        [said(thinking="why"), said("yes"), last("stop", 10, 9, 4)],
    ),
    (streams.TRANSFORMERS, {"traits": VLLM}, [said("Hi"), last("stop", 5, 1)]),
]


@pytest.mark.parametrize(("stream", "options", "expected"), CHAT_CASES, ids=range(len(CHAT_CASES)))
def test_chat_any_cut(stream: bytes, options: dict[str, Any], expected: list[Any]) -> None:
    for reads in ways(stream):
        reply = chat(**options)
        assert lines(hide_ids(run(reply, reads, start_ns=NOW + 2))) == expected
        assert reply.tally.ended
        assert reply.content_type == "application/x-ndjson"


@pytest.mark.parametrize(("stream", "options", "expected"), CHAT_CASES, ids=range(len(CHAT_CASES)))
def test_chat_whole(stream: bytes, options: dict[str, Any], expected: list[Any]) -> None:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for line in expected:
        for name, value in line["message"].items():
            if name in ("content", "thinking"):
                message[name] = message.get(name, "") + value
            elif name == "tool_calls":
                message[name] = value
    for reads in ways(stream):
        reply = chat(stream=False, **options)
        out = hide_ids(run(reply, reads, start_ns=NOW + 2))
        assert b"\n" not in out
        assert lines(out) == [expected[-1] | {"message": message}]
        assert reply.content_type == "application/json; charset=utf-8"


@pytest.mark.parametrize(
    ("stream", "options", "content", "thinking", "calls"),
    [
        (streams.THINK_TEXT, {"think": True}, "Four.", "let me see", []),
        (
            streams.THINK_TEXT,
            {"think": True, "keeps_thinking_end": True},
            "Four.",
            "let me see\n",
            [],
        ),
        (streams.THINK_TEXT, {"think": False}, "Four.", "", []),
        (streams.THINK_TEXT, {"think": True, "think_opened": True}, "Four.", "let me see", []),
        (
            streams.THINK_TEXT,
            {},
            "<think>\nlet me see\n</think>\n\nFour.",
            "",
            [],
        ),
        (streams.TOOL_TEXT, {"tools": True}, "", "", [("weather", {"city": "Paris"})]),
        (
            streams.TOOL_TEXT,
            {"tools": True, "think": True},
            "",
            "",
            [("weather", {"city": "Paris"})],
        ),
        (
            streams.TOOL_TEXT,
            {},
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
            "",
            [],
        ),
        (streams.FORCED_TOOL, {"tools": True}, "", "", [("weather", {"city": "Paris"})]),
    ],
)
def test_text_is_split_where_the_engine_does_not(
    stream: bytes, options: dict[str, Any], content: str, thinking: str, calls: list[Any]
) -> None:
    for reads in ways(stream):
        got = lines(run(chat(**options), reads, start_ns=NOW + 2))
        messages = [line["message"] for line in got]
        assert "".join(message["content"] for message in messages) == content
        assert "".join(message.get("thinking", "") for message in messages) == thinking
        found = [call["function"] for m in messages for call in m.get("tool_calls", [])]
        assert [(call["name"], call["arguments"]) for call in found] == calls
        (whole,) = lines(run(chat(stream=False, **options), reads, start_ns=NOW + 2))
        assert whole["message"]["content"] == content
        assert whole["message"].get("thinking", "") == thinking


def test_generate() -> None:
    for reads in ways(streams.COMPLETION):
        reply = generate(prompt_tokens=5, max_tokens=4)
        reply.writer.context = (1, 2, 3)
        *parts, final = lines(hide_ids(run(reply, reads, start_ns=NOW + 2)))
        assert [part["response"] for part in parts] == [" Paris", ".", "\n", "-"]
        assert final == {
            "response": "",
            "done": True,
            "done_reason": "length",
            "context": [1, 2, 3],
            "prompt_eval_count": 5,
            "eval_count": 4,
        }
        assert reply.writer.text == " Paris.\n-"


def test_generate_raw_has_no_context() -> None:
    reply = generate(raw=True, stream=False)
    reply.writer.context = (1, 2)
    (whole,) = lines(run(reply, [streams.COMPLETION], start_ns=NOW))
    assert whole["response"] == " Paris.\n-"
    assert "context" not in whole


def test_generate_from_chat() -> None:
    got = lines(run(generate(traits=VLLM, think=True), [streams.VLLM_REASONING], start_ns=NOW))
    assert got[0] == {"response": "", "thinking": "Hm, ", "done": False}
    (whole,) = lines(run(generate(stream=False, tools=True), [streams.TOOL_TEXT], start_ns=NOW))
    assert whole["tool_calls"][0]["function"]["name"] == "weather"


def test_logprobs() -> None:
    for reads in ways(streams.CHAT_LOGPROBS, seeds=3):
        got = lines(run(chat(top_logprobs=2), reads, start_ns=NOW))
        assert got[0] == said("I") | {"logprobs": [LP]}
        assert "logprobs" not in got[-1]
    (whole,) = lines(run(chat(stream=False), [streams.CHAT_LOGPROBS], start_ns=NOW))
    assert [entry["token"] for entry in whole["logprobs"]] == ["I", "'m"]
    assert not any("top_logprobs" in entry for entry in whole["logprobs"])  # none was asked for
    (whole,) = lines(
        run(generate(stream=False, top_logprobs=5), [streams.COMPLETION_LOGPROBS], start_ns=NOW)
    )
    assert whole["logprobs"][0] == {
        "token": ")",
        "logprob": -1.264532446861267,
        "bytes": [41],
        "top_logprobs": [
            {"token": ")", "logprob": -1.264532446861267, "bytes": [41]},
            {"token": ").", "logprob": -3.5937790870666504, "bytes": [41, 46]},
        ],
    }


def test_times() -> None:
    reply = chat(started_ns=1000, loaded_ns=1100, sent_ns=1200, max_tokens=6)
    events = streams.CHAT.split(b"\n\n")[:-1]
    out = [reply.feed(event + b"\n\n", 2000 + 100 * n) for n, event in enumerate(events)]
    assert reply.tally.first_token_ns == 2100
    final = json.loads(reply.finish(9000))
    assert [final[name] for name in TIMED] == [8000, 100, 900, 600]
    assert final["created_at"] == "1970-01-01T00:00:00.000009000Z"
    assert json.loads(out[1])["created_at"] == "1970-01-01T00:00:00.000Z"  # tokens: milliseconds


def test_times_of_the_engine_win() -> None:
    reply = chat(traits=VLLM)
    reply.feed(streams.NATIVE, NOW + 10)
    final = json.loads(reply.finish(NOW + 20).splitlines()[-1])
    assert final["prompt_eval_duration"] == 2_500_000
    assert final["eval_duration"] == 100_250_000


def test_no_duration_is_zero_even_if_all_comes_at_once_or_the_clock_steps_back() -> None:
    for now_ns in (NOW, NOW + 2, NOW - 10**9):
        reply = chat()
        reply.feed(streams.CHAT, now_ns)
        final = json.loads(reply.finish(now_ns).splitlines()[-1])
        assert all(final[name] >= 1 for name in TIMED)


def test_the_time_is_shared_but_not_wrong() -> None:
    one, other = chat(), chat(model="other")
    event = streams.CHAT.split(b"\n\n")[1] + b"\n\n"
    stamps = [
        json.loads(reply.feed(event, NOW + step))["created_at"]
        for step in (0, 1_000_000, 999_999_999, 1_000_000_000, -1)
        for reply in (one, other)
    ]
    assert (
        stamps[::2]
        == stamps[1::2]
        == [
            "2026-11-21T12:28:46.000Z",
            "2026-11-21T12:28:46.001Z",
            "2026-11-21T12:28:46.999Z",
            "2026-11-21T12:28:47.000Z",
            "2026-11-21T12:28:45.999Z",
        ]
    )


def test_lines_of_one_read_come_joined() -> None:
    out = chat().feed(streams.CHAT, NOW)
    assert out.count(b"\n") == 6


def test_usage_without_the_engines_help() -> None:
    reply = chat(prompt_tokens=31)
    assert reply.tally.usage == Usage(prompt_tokens=31, completion_tokens=0, estimated=True)
    reply.feed(streams.CHAT, NOW)
    assert reply.tally.usage == Usage(prompt_tokens=31, completion_tokens=6, estimated=True)
    assert reply.tally.finish_reason == "length"
    limited = chat(max_tokens=7)  # a chunk held two tokens
    limited.feed(streams.CHAT, NOW)
    assert limited.tally.usage == Usage(prompt_tokens=0, completion_tokens=7)
    unlimited = chat(max_tokens=None)
    unlimited.feed(streams.CHAT, NOW)
    assert unlimited.tally.usage.completion_tokens == 6


CUT_SHORT = "the engine ended the stream before the answer was complete"


@pytest.mark.parametrize("stream", [b"", streams.DONE, streams.CUT, streams.CHAT[:700]])
@pytest.mark.parametrize("streamed", [True, False])
def test_a_cut_stream_is_no_success(stream: bytes, streamed: bool) -> None:
    reply = chat(stream=streamed)
    reply.feed(stream, NOW)
    with pytest.raises((EngineCrashed, UpstreamError)) as caught:
        reply.finish(NOW)
    assert caught.value.status in (500, 502)
    if stream in (b"", streams.DONE, streams.CUT):
        assert caught.value.message == CUT_SHORT


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (streams.VLLM_ERROR, "EngineCore died: see core.py"),
        (streams.VLLM_ABORT, "the engine ended the answer before it was complete"),
        (b'data: {"error": "boom"}\n\n', "boom"),
        (b'data: {"object":"error","message":"too long"}\n\n', "too long"),
        (b'error: {"code":500,"message":"gone"}\n\n', "gone"),
        (b'data: {"error":{}}\n\n', "the engine reported an error without a message"),
        (b'data: {"detail":"no"}\n\n', "no"),
        (b"data: {nonsense\n\n", "the engine sent an event that is not valid JSON: {nonsense"),
    ],
)
def test_errors_in_the_stream(stream: bytes, text: str) -> None:
    for make in (chat, generate):
        for streamed in (True, False):
            for reads in ways(stream, seeds=4):
                reply = make(stream=streamed)
                with pytest.raises((UpstreamError, EngineCrashed)) as caught:
                    run(reply, reads, start_ns=NOW)
                assert caught.value.message == text


def test_what_came_before_an_error_is_sent() -> None:
    reply = chat()
    assert lines(reply.feed(streams.VLLM_ERROR, NOW)) == [said("one")]
    with pytest.raises(UpstreamError):
        reply.finish(NOW)


def test_fail() -> None:
    error = BadRequest("cannot do: it", hint="Do this")
    assert chat().fail(error) == b'{"error":"cannot do: it; Do this","hint":"Do this"}\n'


def test_names_are_escaped() -> None:
    reply = chat(model='we"ird %b\n')
    line = reply.feed(streams.CHAT, NOW).splitlines()[0]
    assert json.loads(line)["model"] == 'we"ird %b\n'


def test_without_text() -> None:
    loaded = write_without_text("m", NOW, "chat", role="assistant", done=True, done_reason="load")
    assert json.loads(loaded) == {
        "model": "m",
        "created_at": "2026-11-21T12:28:46.000000000Z",
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "load",
    }
    unloaded = write_without_text("m", NOW, "generate", role="", done=True, done_reason="unload")
    assert json.loads(unloaded)["response"] == ""


def test_embed() -> None:
    vector = finish_vector([0.5])
    assert json.loads(msgspec.json.encode(EmbedAnswer("m", [vector], 5, 2, 3))) == {
        "model": "m",
        "embeddings": [[1]],
        "total_duration": 5,
        "load_duration": 2,
        "prompt_eval_count": 3,
    }
    nothing = {"model": "m", "embeddings": []}  # Go leaves out numbers that are 0
    assert json.loads(msgspec.json.encode(EmbedAnswer("m", [], 0, 0, 0))) == nothing
