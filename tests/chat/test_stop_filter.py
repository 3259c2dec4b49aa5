"""Stop sequences that the front finds in an engine's stream, in every dialect and cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chat.cuts import run, ways
from tests.chat.replies import chat_reply, collected, generate_reply, streamed
from vllama.chat.engine.traits import Stops, Traits
from vllama.chat.reply import Reply
from vllama.chat.stops import StopFilter, make_stop_filter
from vllama.chat.writer import ReplyOptions

KEPT = Traits(context_length=64, stops=Stops.KEPT)
UNKNOWN = Traits(context_length=64, stops=Stops.UNKNOWN)
OPTIONS = ReplyOptions(kind="chat", stream=True, include_usage=True, model="m")
USAGE = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}


def event(**fields: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps({"id": "1", "model": "e", "created": 1, **fields}).encode()


def stream(*texts: str, chat: bool = True, finish: str = "stop") -> bytes:
    """Return a stream as Transformers writes it: no `[DONE]`, usage beside the last choice."""

    def choice(text: str | None, **more: Any) -> list[dict[str, Any]]:
        inner = (
            {"delta": {} if text is None else {"content": text}} if chat else {"text": text or ""}
        )
        return [{"index": 0, **inner, **more}]

    events = [event(choices=choice(text)) for text in texts]
    return b"".join([*events, event(choices=choice(None, finish_reason=finish), usage=USAGE)])


def ollama(traits: Traits, *stop: str, whole: bool = True, generate: bool = False) -> Reply:
    options: dict[str, Any] = {
        "model": "m", "stream": not whole, "started_ns": 1, "loaded_ns": 2, "sent_ns": 3,
        "traits": traits, "think": None, "stop": stop,
    }  # fmt: skip
    return generate_reply(raw=True, **options) if generate else chat_reply(**options)


def test_an_engine_that_leaves_them_out_is_not_watched() -> None:
    assert make_stop_filter(("7",), Traits(context_length=64)) is None
    assert make_stop_filter((), KEPT) is None
    assert isinstance(make_stop_filter(("7",), KEPT), StopFilter)


@pytest.mark.parametrize("traits", [KEPT, UNKNOWN])
def test_the_answer_ends_before_the_sequence_however_it_is_cut(traits: Traits) -> None:
    data = stream(", 5", ", 6, ", "7", ", 8")
    for reads in ways(data):
        got = json.loads(run(ollama(traits, "7"), reads))
        assert got["message"]["content"] == ", 5, 6, "
        assert got["done_reason"] == "stop"
        assert (got["prompt_eval_count"], got["eval_count"]) == (5, 9)


@pytest.mark.parametrize(
    ("texts", "stops", "left"),
    [
        (("a<|", "im_end", "|>b"), ("<|im_end|>",), "a"),
        (("a<|", "im_start", "|>b"), ("<|im_end|>",), "a<|im_start|>b"),
        (("ab", "cd"), ("bc", "d"), "a"),
        (("ab", "c"), ("cd",), "abc"),
        (("stop",), ("stop",), ""),
    ],
)
def test_over_the_seams_of_events(
    texts: tuple[str, ...], stops: tuple[str, ...], left: str
) -> None:
    reply = ollama(KEPT, *stops)
    got = json.loads(run(reply, [stream(*texts, finish="length")]))
    assert got["message"]["content"] == left
    assert got["done_reason"] == ("stop" if left != "".join(texts) else "length")


def test_a_completion_too() -> None:
    reply = ollama(UNKNOWN, "7", generate=True)
    got = json.loads(run(reply, [stream("5 6 ", "7 8", chat=False)]))
    assert got["response"] == "5 6 "


def test_openai_gets_it_streamed_and_whole() -> None:
    data = stream("5 ", "6 7", " 8")
    whole = json.loads(run(collected(OPTIONS, KEPT, stop=("7",)), [data]))
    assert whole["choices"][0]["message"]["content"] == "5 6 "
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] == 9
    out = run(streamed(OPTIONS, KEPT, stop=("7",)), [data])
    *events, done = [part.removeprefix(b"data: ") for part in out.split(b"\n\n")[:-1]]
    assert done == b"[DONE]"
    choices = [one for part in events for one in json.loads(part)["choices"]]
    assert "".join(one["delta"].get("content") or "" for one in choices) == "5 6 "
    assert [one["finish_reason"] for one in choices if one.get("finish_reason")] == ["stop"]
    assert json.loads(events[-1])["usage"] == USAGE


def test_a_rendered_chat_too() -> None:
    reply = collected(OPTIONS, KEPT, stop=("7",), from_completion=True)
    got = json.loads(run(reply, [stream("5 ", "7", chat=False)]))
    assert got["choices"][0]["message"]["content"] == "5 "


def test_an_engine_that_would_go_on_is_told_that_it_is_enough() -> None:
    for traits, enough in ((UNKNOWN, True), (KEPT, False)):
        reply = ollama(traits, "7")
        reply.feed(event(choices=[{"index": 0, "delta": {"content": "6"}}]), 10)
        assert not reply.has_enough
        reply.feed(event(choices=[{"index": 0, "delta": {"content": "7"}}]), 11)
        assert reply.has_enough is enough
        got = json.loads(reply.finish(12))  # nothing more comes of an engine that was cut
        assert (got["message"]["content"], got["done_reason"]) == ("6", "stop")


def test_what_is_no_event_of_a_choice_passes() -> None:
    reply = collected(OPTIONS, KEPT, stop=("7",))
    with pytest.raises(Exception, match="out of memory"):
        reply.feed(event(error={"message": "out of memory"}), 1)
    with pytest.raises(Exception, match="not valid JSON"):
        collected(OPTIONS, KEPT, stop=("7",)).feed(b'data: {"error": "a "b""}\n\n', 1)


@given(
    st.lists(st.text("ab7", min_size=1, max_size=4), min_size=1, max_size=8),
    st.lists(st.text("ab7", min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_nothing_of_a_sequence_is_left_and_nothing_before_it_is_lost(
    texts: list[str], stops: list[str]
) -> None:
    got = json.loads(run(ollama(KEPT, *stops), [stream(*texts)]))
    content, text = got["message"]["content"], "".join(texts)
    assert text.startswith(content)
    assert not any(stop in content for stop in stops)
    if content != text:
        assert any(text[len(content) :].startswith(stop) for stop in stops)
