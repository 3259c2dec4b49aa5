"""What has come of an answer is taken out of the same answer, however that is cut into events."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from vllama.chat.engine.events import Chunk
from vllama.chat.replay import Departed, Taken, continue_call
from vllama.chat.request import Call

CHAT = [
    {"delta": {"role": "assistant"}},
    {"delta": {"reasoning_content": "Hm… "}},
    {"delta": {"reasoning_content": "yes."}},
    {"delta": {"content": "Grüß "}},
    {"delta": {"content": "dich 🙂"}},
    {"delta": {"content": ", 世界"}},
    {"delta": {"tool_calls": [{"index": 0, "id": "1", "function": {"name": "look"}}]}},
    {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"at":'}}]}},
    {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}},
    {"delta": {}, "finish_reason": "stop"},
]
TEXT = [
    {"text": "one "},
    {"text": "two "},
    {"text": "three"},
    {"text": "", "finish_reason": "stop"},
]


def chunk(choice) -> Chunk:
    return msgspec.convert({"choices": [choice]}, Chunk)


def read(chunks) -> list[tuple]:
    """Return what a client makes of events."""
    text, thinking, names, arguments, ends, roles = "", "", [], "", [], []
    for one in chunks:
        for choice in one.choices or ():
            ends += [choice.finish_reason] if choice.finish_reason else []
            text += choice.text or ""
            if (delta := choice.delta) is None:
                continue
            roles += [delta.role] if delta.role else []
            text += delta.content or ""
            thinking += delta.reasoning or delta.reasoning_content or ""
            for call in delta.tool_calls or ():
                names += [call.function.name] if call.function.name else []
                arguments += call.function.arguments or ""
    return [text, thinking, names, arguments, ends, roles]


@pytest.mark.parametrize("answer", [CHAT, TEXT])
def test_every_cut_gives_the_whole_answer(answer) -> None:
    whole = read(map(chunk, answer))
    for first, second in itertools.combinations_with_replacement(range(len(answer)), 2):
        taken, seen = Taken(), []
        for length in (first, second, len(answer)):  # it dies twice
            taken.rewind()
            for choice in answer[:length]:
                one = chunk(choice)
                if taken.is_behind:
                    seen += [one] if taken.swallow(one) else []
                else:
                    taken.add(one)
                    seen.append(one)
        assert read(seen) == whole, (first, second)


def test_events_may_be_cut_elsewhere() -> None:
    taken = Taken()
    taken.add(chunk({"delta": {"content": "Grüß di"}}))
    taken.rewind()
    seen = []
    for text in ("G", "rüß", " dich", " 🙂"):
        one = chunk({"delta": {"role": "assistant", "content": text}})
        if not taken.is_behind or taken.swallow(one):
            seen.append(one)
    assert read(seen)[0] == "ch 🙂"


@pytest.mark.parametrize(
    "other",
    [
        [{"delta": {"content": "one two"}}],
        [{"delta": {"content": "one "}}, {"delta": {"content": "Two"}}],
        [{"delta": {"content": "one "}, "finish_reason": "stop"}],  # it ends too early
    ],
)
def test_another_answer_is_noticed(other) -> None:
    taken = Taken()
    for text in ("one ", "three"):
        taken.add(chunk({"delta": {"content": text}}))
    taken.rewind()
    with pytest.raises(Departed):
        for choice in other:
            taken.swallow(chunk(choice))


def make_call(**body) -> Call:
    return Call(path="/v1/completions", fields={"prompt": "a", **body})


def test_a_text_is_read_and_gone_on_from() -> None:
    rest = continue_call(make_call(seed=1, max_tokens=9, stream=True), "b")
    reading = {"prompt": "a", "seed": 1, "max_tokens": 0, "stream": False}
    assert rest.read_said.fields == reading | {"prompt": "ab"}
    assert rest.without(4).fields == {
        "prompt": "ab", "seed": 1, "max_tokens": 5, "stream": True,
    }  # fmt: skip
    assert rest.without(9).fields["max_tokens"] == 1
    rest = continue_call(make_call(), "b")
    assert "max_tokens" not in rest.without(4).fields


@pytest.mark.parametrize(
    "body",
    [
        {"json_schema": {}}, {"grammar": "root"}, {"response_format": {}}, {"logprobs": 1},
        {"n": 2}, {"prompt": [1, 2]}, {"prompt": None, "messages": []},
    ],
)  # fmt: skip
def test_what_cannot_be_gone_on_from(body) -> None:
    assert continue_call(make_call(**body), "b") is None
