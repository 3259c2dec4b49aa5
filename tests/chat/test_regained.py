"""Answers with log probabilities whose engine leaves out parts of characters."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chat.cuts import ways
from tests.chat.test_engine_request import LCP
from vllama.chat.regained import (
    PART,
    RegainedReply,
    streamed_text,
    text_only,
    whole_characters,
)
from vllama.chat.reply import Reply
from vllama.chat.request import Call
from vllama.dialects.ollama.write import ChatReply, GenerateReply
from vllama.dialects.openai.read import Passage
from vllama.dialects.openai.write import PassThrough, Whole
from vllama.errors import EngineCrashed

TRAITS = replace(LCP, loses_characters=True)
DONE = b"data: [DONE]\n\n"


def frame(choice: dict[str, object]) -> bytes:
    return b"data: " + json.dumps({"id": "chatcmpl-1", "choices": [choice]}).encode() + b"\n\n"


def said(tokens: list[bytes], *, chat: bool = True, end: str = "length") -> bytes:
    """Write the stream of the engine: one token an event, undecodable bytes left out."""
    out = []
    for number, token in enumerate(tokens):
        text = token.decode(errors="ignore")
        top = {"other": -9.0, text: -float(number)}
        choice: dict[str, object] = {"index": 0, "finish_reason": None}
        if chat:
            entries = [
                {"token": name, "logprob": value, "bytes": None} for name, value in top.items()
            ]
            own = {"token": text, "logprob": -float(number), "bytes": None, "top_logprobs": entries}
            choice |= {"delta": {"content": text}, "logprobs": {"content": [own]}}
        else:
            values: dict[str, object] = {"tokens": [text], "token_logprobs": [-float(number)]}
            choice |= {"text": text, "logprobs": values | {"top_logprobs": [top]}}
        out.append(frame(choice))
    last: dict[str, object] = {"delta": {}} if chat else {"text": ""}
    return b"".join(out) + frame({"index": 0, **last, "finish_reason": end}) + DONE


def ollama(kind: type[ChatReply | GenerateReply] = ChatReply, *, stream: bool) -> Reply:
    return kind(
        model="m", stream=stream, started_ns=1, loaded_ns=2, sent_ns=3, traits=TRAITS,
        top_logprobs=2,
    )  # fmt: skip


def openai(*, stream: bool) -> Reply:
    passage = Passage(
        kind="chat", stream=stream, include_usage=False, model="m", upstream_model="e",
        top_logprobs=2,
    )  # fmt: skip
    return (PassThrough if stream else Whole)(passage, TRAITS)


def relayed(reply: RegainedReply, reads: list[bytes], text: str) -> bytes:
    """Do what a relay does."""
    out = [reply.feed(read, 10) for read in reads]
    assert reply.ended
    if reply.lost:
        reply.regain(text, 20)
    return b"".join(out) + reply.finish(30)


def lines(data: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in data.splitlines()]


TOKENS = [b"Hi", b" \xf0\x9f", b"\x8d", b"\x8e", b"!", b"\xe7", b"\x8c\xaa", b" end"]
TEXT = "Hi 🍎!猪 end"


@pytest.mark.parametrize("chat", [True, False])
def test_lost_characters_come_back_with_their_bytes(chat: bool) -> None:
    for reads in ways(said(TOKENS, chat=chat)):
        reply = RegainedReply(ollama(ChatReply if chat else GenerateReply, stream=True))
        *texts, last = lines(relayed(reply, reads, TEXT))
        shown = [one["message"]["content"] if chat else one["response"] for one in texts]  # type: ignore[index]
        assert shown == ["Hi", " ", "🍎", "!", "猪", " end"]
        entries = [entry for one in texts for entry in one["logprobs"]]  # type: ignore[attr-defined]
        assert len(entries) == len(TOKENS)
        assert [entry["token"] for entry in entries[2:4]] == [PART, PART]
        assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == TEXT
        assert [entry["logprob"] for entry in entries] == [-n for n in range(len(TOKENS))]
        assert {"token": PART, "logprob": -2.0, "bytes": entries[2]["bytes"]} in entries[2][
            "top_logprobs"
        ]
        assert last["done_reason"] == "length"


def test_for_openais_clients() -> None:
    stream = relayed(RegainedReply(openai(stream=True)), [said(TOKENS)], TEXT)
    assert stream.endswith(DONE)
    choices = [json.loads(event[6:])["choices"][0] for event in stream.split(b"\n\n")[:-2]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == TEXT
    whole = json.loads(relayed(RegainedReply(openai(stream=False)), [said(TOKENS)], TEXT))
    [choice] = whole["choices"]
    assert choice["message"]["content"] == TEXT
    assert len(choice["logprobs"]["content"]) == len(TOKENS)


def test_nothing_waits_before_the_first_loss() -> None:
    reply = RegainedReply(ollama(stream=True))
    events = said(TOKENS).split(b"\n\n")
    assert reply.feed(events[0] + b"\n\n", 5)
    assert reply.first_token_ns == 5
    assert reply.feed(b"\n\n".join(events[1:3]) + b"\n\n", 6).count(b"\n") == 1  # the space
    assert reply.lost
    assert reply.ended is False


@pytest.mark.parametrize("text", ["", "Hi", "Another answer", TEXT + "s"])
def test_of_another_text_nothing_is_taken(text: str) -> None:
    reply = RegainedReply(ollama(stream=False))
    assert json.loads(relayed(reply, [said(TOKENS)], text))["message"]["content"] == "Hi ! end"


def test_nobody_has_asked_again() -> None:
    reply = RegainedReply(ollama(stream=False))
    reply.feed(said(TOKENS), 10)
    assert json.loads(reply.finish(20))["message"]["content"] == "Hi ! end"


def test_an_answer_that_breaks_off_is_an_error() -> None:
    reply = RegainedReply(ollama(stream=False))
    reply.feed(said(TOKENS).rpartition(b"data: {")[0], 10)
    reply.regain(TEXT, 20)
    with pytest.raises(EngineCrashed):
        reply.finish(20)


def test_a_token_that_is_no_text_stays() -> None:
    reply = RegainedReply(ollama(stream=False))
    answer = json.loads(relayed(reply, [said([b"a", b"", b"b"])], "ab"))
    assert answer["message"]["content"] == "ab"


@st.composite
def answers(draw: st.DrawFn) -> list[bytes]:
    """Cut a text of many scripts anywhere, as a tokenizer of bytes does."""
    text = draw(st.text(st.sampled_from("ab é猪🍎👩"), min_size=1, max_size=12))
    data = text.encode()
    places = sorted(draw(st.sets(st.integers(1, max(1, len(data) - 1)))))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True) if a < b]


@given(answers())
def test_whatever_the_tokens(tokens: list[bytes]) -> None:
    text = b"".join(tokens).decode()
    reply = RegainedReply(ollama(stream=False))
    answer = json.loads(relayed(reply, [said(tokens)], text))
    shown = answer["message"]["content"]
    # a character may be lost between two tokens that both show something
    seen = "".join(token.decode(errors="ignore") for token in tokens)
    if b"" not in [token.decode(errors="ignore").encode() for token in tokens]:
        assert shown == seen
    else:
        assert shown in (text, seen)
    if all(len(token) == 1 or token.isascii() for token in tokens):
        assert shown == text
        assert bytes(b for entry in answer["logprobs"] for b in entry["bytes"]).decode() == text


def test_asking_again() -> None:
    body = b'{"prompt":"x","logprobs":2,"top_logprobs":3,"seed":5,"stream":true}'
    call = Call(path="/v1/completions", body=body)
    again = text_only(call)
    assert again.path == call.path
    assert json.loads(again.body) == {"prompt": "x", "seed": 5, "stream": True}
    assert streamed_text(said([b"a", "é".encode()])) == "aé"
    assert streamed_text(said([b"a"], chat=False)) == "a"
    assert streamed_text(b'{"error":"busy"}') == ""


def test_only_where_an_engine_loses_something() -> None:
    reply = ollama(stream=True)
    asking, plain = (Call(path="/", body=body) for body in (b'{"logprobs":1}', b"{}"))
    assert whole_characters(reply, asking, LCP) is reply
    assert whole_characters(reply, plain, TRAITS) is reply
    assert isinstance(whole_characters(reply, asking, TRAITS), RegainedReply)
