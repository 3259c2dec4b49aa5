"""What the bench's engine sends is what its client calls right, and nothing else is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.answers import HEAD, STAMP_DIGITS, Ask, directives, stream, whole
from bench.protocol import (
    Expected,
    dechunk,
    documents,
    expected,
    fault,
    joined,
    request,
    take_request,
)


def ask(*, chat: bool = True, tokens: int = 4, words: str = "", usage: bool = True) -> Ask:
    asked = directives(words.encode())
    return Ask(
        chat=chat,
        rid="r",
        model="m",
        created=1,
        tokens=tokens,
        prompt_tokens=3,
        utf8="utf8" in asked,
        tool="tool" in asked and chat,
        finish="stop",
        usage=usage,
        reasoning_field="reasoning",
    )


def sent(of: Ask, think: int, stamps: list[int]) -> bytes:
    parts = stream(of)
    body = b""
    for number, stamp in enumerate(stamps):
        pre = parts.pre_think if number < think else parts.pre
        body += pre + b"%0*d" % (STAMP_DIGITS, stamp) + parts.suf
    return parts.head.removeprefix(HEAD) + body + parts.tail


@given(
    chat=st.booleans(),
    tokens=st.integers(1, 9),
    think=st.integers(0, 12),
    flags=st.sets(st.sampled_from(["@utf8", "@tool"])),
    usage=st.booleans(),
)
def test_what_the_engine_streams_is_right(chat, tokens, think, flags, usage):
    if not chat:
        flags, think = flags - {"@tool"}, 0
    words = f"{' '.join(sorted(flags))} @think={think}"
    api = "openai-chat" if chat else "openai-completions"
    raw = sent(
        ask(chat=chat, tokens=tokens, words=words, usage=usage),
        think,
        list(range(10**12, 10**12 + tokens)),
    )
    docs = documents(api, dechunk(raw), True)
    assert fault(api, words, tokens, docs) is None
    assert fault(api, words, tokens + 1, docs) is not None
    assert b"[DONE]" in joined(raw[-200:])


@given(tokens=st.integers(1, 9), think=st.integers(0, 9), utf8=st.booleans(), tool=st.booleans())
def test_a_whole_answer_is_right(tokens, think, utf8, tool):
    words = f"@think={think} {'@utf8' * utf8} {'@tool' * tool}"
    doc = whole(ask(tokens=tokens, words=words), 10**12, think)
    assert (
        fault(
            "openai-chat", words, tokens, documents("openai-chat", json.dumps(doc).encode(), False)
        )
        is None
    )


def line(content: str, **more: object) -> dict:
    return {"message": {"role": "assistant", "content": content}, "done": False, **more}


ONE, TWO = f" ~{10**12}", f" ~{10**12 + 1}"
LAST = line("", done=True, eval_count=2)


@pytest.mark.parametrize(
    ("docs", "words", "wrong"),
    [
        ([line(ONE), line(TWO), LAST], "", None),
        ([line(ONE + TWO), LAST], "", None),
        ([line(TWO), line(ONE), LAST], "", "out of order"),
        ([line(ONE), LAST], "", "1 tokens of 2"),
        ([line(ONE), line(TWO + "x"), LAST], "", "2 tokens of 2"),
        ([line(ONE), line(TWO), LAST, line("")], "", "done is not"),
        ([line(ONE), line(TWO), {**LAST, "eval_count": 3}], "", "counts 3"),
        ([line(ONE), line(TWO), LAST], "@utf8", "0 tokens of 2"),
        ([line(ONE), line(TWO), LAST], "@think=1", "thinking: 0 tokens of 1"),
        ([line(ONE), line(TWO), LAST], "@tool", "calls: []"),
        ([], "", "nothing"),
    ],
)
def test_each_fault_of_a_reply_is_found(docs, words, wrong):
    found = fault("ollama-chat", words, 2, docs)
    assert found is None if wrong is None else wrong in found


@pytest.mark.parametrize(
    ("api", "prompt", "stream", "right"),
    [
        ("ollama-chat", "", True, Expected(tokens=9, end=b'"done":true')),
        ("openai-chat", "@rate=0", True, Expected(tokens=9, end=b"[DONE]")),
        ("openai-chat", "@tokens=3", True, Expected(tokens=3, end=b"[DONE]")),
        ("openai-chat", "@abort=5", True, Expected(tokens=5, end=b"[DONE]", cut=True)),
        ("openai-chat", "@abort=50", True, Expected(tokens=9, end=b"[DONE]")),
        ("ollama-chat", "@status=503", True, Expected(status=503)),
        ("ollama-chat", "", False, Expected()),
        ("ollama-embed", "", True, Expected()),
    ],
)
def test_the_prompt_says_what_is_right(api, prompt, stream, right):
    assert expected(api, prompt, 9, stream) == right


@given(cut=st.integers(0, 1000), keep=st.booleans())
def test_a_request_is_taken_whole_or_not_at_all(cut, keep):
    data = request("ollama-chat", "h", prompt="@tool", keep=keep)
    cut = min(cut, len(data) - 1)
    assert take_request(data[:cut]) is None
    method, path, body, close, rest = take_request(data + b"next")
    assert (method, path, close, rest) == (b"POST", b"/api/chat", not keep, b"next")
    assert json.loads(body)["tools"][0]["function"]["name"] == "get_weather"


def test_a_marker_across_two_chunks_is_found():
    assert b"[DONE]" in joined(b"data: [DONE\r\n3\r\n]\n\n\r\n0\r\n\r\n")


def test_something_else_between_events_is_refused():
    with pytest.raises(ValueError, match="not an event"):
        documents("openai-chat", b"data: {}\n\nhello\n\n", True)
