"""Verdicts: the same, the same within an engine's noise, or different."""

import pytest

from vllama.lab.judge import Verdict, judge, judge_all
from vllama.observe.captures.answer import make_answer
from vllama.observe.captures.reading import Reading


def entry(token, logprob=-0.1, **top):
    tops = [{"token": name, "logprob": value} for name, value in {token: logprob, **top}.items()]
    return {"token": token, "logprob": logprob, "top_logprobs": tops}


def says(text, *entries, name="text", status=200, cut=False):
    return Reading(status=status, texts={name: make_answer(text, cut=cut, entries=entries)})


def test_the_same_text():
    found = judge(says("ab"), says("ab"))
    assert found.verdict is Verdict.SAME and found.difference is None and found.agreement == 1.0


def test_other_texts_without_log_probabilities():
    found = judge(says("one two"), says("one too"))
    assert found.verdict is Verdict.DIFFERENT
    assert "log probabilities are not available" in found.reason
    difference = found.difference
    assert (difference.where, difference.character) == ("text", 5)
    assert (difference.before, difference.a, difference.b) == ("one t", "wo", "oo")


def test_a_close_call_is_noise():
    # only the replay tells log probabilities: the captured text goes on with a token it knows
    b = says("one too", entry("one"), entry(" too", -0.7, **{" two": -0.8, " t": -5.0}))
    found = judge(says("one two"), b)
    assert found.verdict is Verdict.NOISE
    assert found.difference.gap == pytest.approx(0.1)
    a = says("one two", entry("one"), entry(" two", -0.7, **{" too": -0.71}))
    assert judge(a, b).verdict is Verdict.NOISE


def test_a_clear_call_is_no_noise():
    b = says("one too", entry("one"), entry(" too", -0.1, **{" two": -4.1}))
    found = judge(says("one two"), b)
    assert found.verdict is Verdict.DIFFERENT and "4.00 nats" in found.reason
    unforeseen = says("one too", entry("one"), entry(" too", -0.1, x=-4.1))
    found = judge(says("one two"), unforeseen)
    assert found.verdict is Verdict.DIFFERENT and "not even likely" in found.reason


def test_the_same_text_by_other_probabilities():
    a = says("x", entry("x", -0.1, y=-2.4))
    b = says("x", entry("x", -0.6, y=-0.8))
    found = judge(a, b)
    assert found.verdict is Verdict.DIFFERENT and "the texts are the same" in found.reason
    assert found.kl_mean > 0.02
    assert judge(a, b, max_kl=1).verdict is Verdict.SAME
    assert judge(a, a).kl_mean == 0


def test_texts_that_differ_by_chance_are_not_called_the_same():
    found = judge(says("a"), says("b"), chance="it samples")
    assert found.verdict is Verdict.UNDECIDED and "it samples" in found.reason
    assert judge_all([found, found]).verdict is Verdict.UNDECIDED
    assert judge(says("a"), says("a"), chance="it samples").verdict is Verdict.SAME
    found = judge(says("a"), says("b", status=500), chance="it samples")
    assert found.verdict is Verdict.DIFFERENT and found.reason == "the status was 200 and is 500"


def test_the_first_text_that_differs_is_shown():
    a, b = says("t1"), says("t2")
    a.texts["thinking"], b.texts["thinking"] = (make_answer(t, cut=False) for t in ("x", "y"))
    assert judge(a, b).difference.where == "thinking"
    b.texts["tool calls"] = make_answer("f({})", cut=False)
    b.texts["thinking"], b.texts["text"] = a.texts["thinking"], a.texts["text"]
    found = judge(a, b)
    assert found.verdict is Verdict.DIFFERENT and found.difference.where == "tool calls"


def test_an_answer_that_is_cut_earlier_is_another_one():
    found = judge(says("one", cut=True), says("one two", cut=True))
    assert found.verdict is Verdict.DIFFERENT and "a different length" in found.reason
    assert judge(says("one", cut=True), says("one", cut=True)).verdict is Verdict.SAME
    # an engine that stops in the midst of a character may say so by a sign for it, or not at all
    assert judge(says("one", cut=True), says("one\ufffd", cut=True)).verdict is Verdict.SAME
    assert judge(says("one"), says("one two")).verdict is Verdict.DIFFERENT


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ([0.5, -1.0], Verdict.SAME),
        ([0.501, -1.0], Verdict.NOISE),
        ([0.6, -1.0], Verdict.DIFFERENT),
        ([0.5], Verdict.DIFFERENT),
    ],
)
def test_numbers(other, verdict):
    a, b = (
        Reading(status=200, numbers={"v": [0.5, -1.0]}),
        Reading(status=200, numbers={"v": other}),
    )
    assert judge(a, b).verdict is verdict


def test_several_replays():
    same, other = judge(says("a"), says("a")), judge(says("a"), says("b"))
    assert judge_all([same, same]).verdict is Verdict.SAME
    assert judge_all([other, other]).verdict is Verdict.DIFFERENT
    found = judge_all([same, other, same])
    assert found.verdict is Verdict.NOISE and "2 of 3" in found.reason
