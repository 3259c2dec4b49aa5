"""Where the tokens of an answer stand, however an engine writes parts of characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.observe.captures.answer import Span, lacks_text, locate_tokens, read_answer


def spans(text: str, *pieces: str | bytes | None) -> list[tuple[str, int | None]] | None:
    """Place pieces; return the text of each place, and which piece it is."""
    data = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    found = locate_tokens(text.encode(), data)
    if found is None:
        return None
    return [(text.encode()[span.start : span.end].decode(), span.token) for span in found]


@pytest.mark.parametrize(
    ("text", "pieces", "places"),
    [
        ("a cat", ("a", " cat"), [("a", 0), (" cat", 1)]),
        # the first tokens of a character are empty, the last is the character
        ("ララ", (None, "ラ", None, "ラ"), [("ラ", 1), ("ラ", 3)]),
        # all tokens of a character are empty
        ("ラ, a", (None, None, ",", " a"), [("ラ", None), (",", 2), (" a", 3)]),
        ("aé", ("a", None), [("a", 0), ("é", 1)]),
        ("éa", (None, "a"), [("é", 0), ("a", 1)]),
        # " \xe3" without its last byte
        ("x ラ", ("x", " ", None), [("x", 0), (" ", 1), ("ラ", 2)]),
        ("ラx", ("ラ", "x"), [("ラ", 0), ("x", 1)]),
        (" éx", (" ", "x"), [(" é", 0), ("x", 1)]),
        # a character after an unknown one that is the same
        ("ééa", (None, "é", "a"), [("é", 0), ("é", 1), ("a", 2)]),
        # the token that ends an answer, or tokens after the cut
        ("a", ("a", "<|end|>"), [("a", 0)]),
        ("a", ("a", None, None), [("a", 0)]),
        ("aé", ("a", None, "<|end|>"), [("a", 0), ("é", 1)]),
        ("a ", ("a", b" \xe3"), [("a", 0), (" ", 1)]),
        # nothing fits
        ("a b", ("a", "c"), None),
        ("a b", ("a",), None),
        ("éa", ("a",), None),
    ],
)
def test_place(text, pieces, places):
    assert spans(text, *pieces) == places


texts = st.text(st.sampled_from("ab é日🎩"), min_size=1, max_size=12)


@given(texts, st.data())
def test_tokens_of_whole_characters_and_of_parts(text, data):
    """However the bytes are cut, what is known stands right, and all of the text has an owner."""
    raw = text.encode()
    cuts = data.draw(st.sets(st.integers(1, max(1, len(raw) - 1))))
    ends = [*sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    cut = [raw[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    shown = [piece.decode(errors="ignore").encode() for piece in cut]  # as an engine does
    found = locate_tokens(raw, [piece or None for piece in shown])
    assert found is not None
    assert [span.start for span in found] == [0, *(span.end for span in found)][: len(found)]
    assert found[-1].end == len(raw)
    placed = {span.token: span.start for span in found}
    for span in found:
        if span.token is not None:
            assert raw[span.start : span.end].startswith(shown[span.token])
    for index, (piece, start) in enumerate(zip(cut, [0, *ends], strict=False)):
        if piece.isascii():
            assert placed[index] == start


def choice(text, tokens, reason="length", top=None):
    return {
        "text": text,
        "finish_reason": reason,
        "logprobs": {
            "tokens": tokens,
            "token_logprobs": [-0.5 * (i + 1) for i in range(len(tokens))],
            "top_logprobs": top or [None] * len(tokens),
        },
    }


def test_an_answer_has_numbers_for_each_token():
    top = [{"a": -0.5, "b": -2.0}, {" é": -7.0, "\ufffd": -1.1, "": -3.0, "c": -4.0}]
    answer = read_answer(choice("a é", ["a", " é"], top=top))
    one, two = answer.tokens
    assert (one.logprob, one.top) == (-0.5, {b"a": -0.5, b"b": -2.0})
    # of two tokens with the same text the chosen one counts; parts of characters have no name
    assert (two.logprob, two.top) == (-1.0, {" é".encode(): -1.0, b"c": -4.0})
    assert answer.piece(two) == " é".encode() and answer.cut


def test_a_text_that_lacks_characters_comes_from_elsewhere():
    reply = choice(", a", ["", "", ",", " a"])
    assert lacks_text(reply) and not lacks_text(choice(", a", [",", " a"]))
    answer = read_answer(reply, {"text": "ラ, a", "finish_reason": "stop"})
    assert answer.text.decode() == "ラ, a" and not answer.cut
    assert [token.logprob for token in answer.tokens] == [None, -1.5, -2.0]


def test_without_logprobs_there_is_the_text():
    answer = read_answer({"text": "a b", "finish_reason": "stop", "logprobs": None})
    assert (answer.text, answer.cut, answer.tokens) == (b"a b", False, None)


def test_half_a_character_at_the_cut_is_none():
    answer = read_answer(choice("a\ufffd", ["a", "\ufffd"]))
    assert answer.text == b"a" and [token.end for token in answer.tokens] == [1]
    assert locate_tokens(b"a", [b"a"]) == [Span(0, 1, 0)]
