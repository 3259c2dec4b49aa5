"""How far two answers agree, and how far apart the numbers are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllama.lab.compare import compare, divergence
from vllama.observe.captures.answer import Response, Token


def answer(*pieces: str, cut: bool = True, logprobs=None, tops=None) -> Response:
    """Make an answer of pieces of text."""
    tokens, at = [], 0
    for index, piece in enumerate(pieces):
        end = at + len(piece.encode())
        top = {name.encode(): value for name, value in (tops[index] if tops else {}).items()}
        logprob = logprobs[index] if logprobs else None
        tokens.append(Token(start=at, end=end, logprob=logprob, top=top))
        at = end
    return Response(text="".join(pieces).encode(), cut=cut, tokens=tuple(tokens))


@pytest.mark.parametrize(
    ("a", "b", "agreed", "tokens", "text"),
    [
        (answer("a", " b"), answer("a", " b"), 2, 2, 1.0),
        (answer("a", " b", " c", "d"), answer("a", " b", " x", "y"), 2, 4, 4 / 6),
        (answer("a"), answer("b"), 0, 1, 0.0),
        # cut earlier, for its tokens are shorter: no difference
        (answer("a", " ", "b"), answer("a", " b", " c"), 3, 3, 1.0),
        # it ended by itself where the other goes on
        (answer("a", cut=False), answer("a", " b"), 1, 2, 1 / 3),
        (answer("a", " b"), answer("a", cut=False), 1, 2, 1 / 3),
        (answer("a", cut=False), answer("a", cut=False), 1, 1, 1.0),
        (answer(cut=False), answer(cut=False), 0, 0, 1.0),
        (answer(cut=False), answer("a"), 0, 1, 0.0),
        # the same text in other tokens, then a difference
        (answer("ab", "c"), answer("a", "b", "d"), 1, 3, 2 / 3),
    ],
)
def test_agreement(a, b, agreed, tokens, text):
    found = compare(a, b)
    assert (found.agreed, found.tokens) == (agreed, tokens)
    assert found.agreement == pytest.approx(agreed / tokens if tokens else 1.0)
    assert found.text_agreement == pytest.approx(text)
    assert (found.difference is None) == (text == 1.0)


def test_without_tokens_the_text_counts():
    plain = Response(text=b"abcd", cut=False)
    found = compare(plain, answer("ab", "xy"))
    assert (found.agreed, found.agreement) == (None, 0.5)
    assert (found.difference.token, found.difference.character) == (None, 2)
    assert (found.difference.a, found.difference.b) == ("cd", "xy")


def test_the_first_difference_and_how_close_a_call_it_was():
    a = answer("é", " the", logprobs=[-0.1, -0.7], tops=[{}, {" the": -0.7, " a": -0.9}])
    b = answer("é", " a", logprobs=[-0.1, -0.8], tops=[{}, {" a": -0.8, " thin": -0.85}])
    difference = compare(a, b).difference
    assert (difference.token, difference.character) == (1, 1)
    assert (difference.a, difference.b) == (" the", " a")
    assert difference.gap == pytest.approx(0.2) and difference.before == "é"


@pytest.mark.parametrize(
    ("said", "likely", "unforeseen"),
    [
        ("r", {"r": -0.1, "x": -3.0}, True),
        ("r", {"r": -0.1, ",": -0.3}, False),
        # a character of several tokens has the list of its last one
        ("ラ", {"ラ": -0.1, "x": -3.0}, False),
        ("ラ", {"\ufffd": -0.1, "x": -3.0}, False),
    ],
)
def test_a_difference_that_neither_list_has_is_unforeseen(said, likely, unforeseen):
    first, other = {"a": -0.1}, {",": -0.1, "y": -3.0}
    a = answer("a", said, logprobs=[-0.1, -0.1], tops=[first, likely])
    b = answer("a", ",", logprobs=[-0.1, -0.1], tops=[first, other])
    assert compare(a, b).difference.is_unforeseen is unforeseen


def test_a_difference_within_a_character_shows_the_character():
    a = Response(text="aé".encode(), cut=False)
    b = Response(text="aè".encode(), cut=False)
    difference = compare(a, b).difference
    assert (difference.character, difference.a, difference.b) == (1, "é", "è")


def test_numbers_are_of_the_same_text_before_only():
    a = answer(
        "a", " b", " c", " d",
        logprobs=[-0.1, -0.2, -0.3, -0.4], tops=[{}, {}, {" c": -0.3, " x": -1.5}, {}],
    )  # fmt: skip
    b = answer(
        "a", " b", " x", " d",
        logprobs=[-0.15, -0.2, -0.5, -9.0], tops=[{}, {}, {" x": -0.5, " c": -1.0}, {}],
    )  # fmt: skip
    found = compare(a, b)
    # at the difference: what the second engine gave to the first one's choice
    assert found.logprobs == pytest.approx((0.05, 0.0, 0.7))
    assert len(found.divergences) == 1 and found.divergences[0] > 0


def test_the_same_text_in_other_tokens_is_not_compared():
    a = answer("ab", "c", logprobs=[-0.1, -0.2])
    b = answer("a", "b", "c", logprobs=[-3.0, -4.0, -0.3], tops=[{"ab": -5.0}, {}, {}])
    assert compare(a, b).logprobs == pytest.approx((0.1,))


pieces = st.lists(st.sampled_from(["a", " b", "é", "日本", "\n"]), max_size=8)


@given(pieces, pieces, st.booleans())
def test_an_answer_agrees_with_itself_and_shares_are_shares(one, other, cut):
    a, b = answer(*one, cut=cut), answer(*other, cut=cut)
    itself = compare(a, a)
    assert (itself.agreement, itself.text_agreement, itself.difference) == (1.0, 1.0, None)
    found, back = compare(a, b), compare(b, a)
    assert 0.0 <= found.agreement <= 1.0
    assert found.text_agreement == back.text_agreement
    assert (found.difference is None) == (back.difference is None)


def distribution(weights):
    total = sum(weights)
    return {bytes([i]): math.log(weight / total) for i, weight in enumerate(weights)}


weights = st.lists(st.floats(0.001, 1.0), min_size=6, max_size=6)


@given(weights, weights, st.integers(1, 6))
def test_the_divergence_of_heads_is_a_lower_bound(one, other, size):
    p, q = distribution(one), distribution(other)
    whole = sum(math.exp(p[token]) * (p[token] - q[token]) for token in p)
    heads = (dict(sorted(d.items(), key=lambda item: -item[1])[:size]) for d in (p, q))
    known = divergence(*heads)
    assert -1e-12 <= known <= whole + 1e-9
    assert divergence(p, p) == pytest.approx(0.0, abs=1e-9)


def test_divergence_of_two_coins():
    p, q = distribution([0.5, 0.5]), distribution([0.25, 0.75])
    assert divergence(p, q) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    # nothing in common: all others count as one on both sides
    assert divergence({b"a": -0.1}, {b"b": -0.1}) == 0.0
