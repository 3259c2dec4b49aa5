"""The verdict over all prompts, and its table."""

import json
import math

import pytest

from tests.lab.verify.test_compare import answer as make_answer
from vllama.lab.commands.verify import COLUMNS, report, shorten, table
from vllama.lab.compare import compare
from vllama.lab.judge import judge_engines, percent
from vllama.observe.captures.answer import Response


def answer(*pieces, logprobs=None, top=None):
    return make_answer(*pieces, cut=False, logprobs=logprobs, tops=[top or {}] * len(pieces))


def make_report(prompts, a, b):
    return report(prompts, a, b, [compare(*pair) for pair in zip(a, b, strict=True)])


def test_a_report_is_plain_values_and_a_table_of_them():
    plain = Response(text=b"xy", cut=False)
    a = [answer("a", " b", logprobs=[-0.1, -0.2], top={" b": -0.2, " c": -0.7}), plain]
    b = [answer("a", " c", logprobs=[-0.1, -0.4], top={" c": -0.4, " b": -0.5}), plain]
    told = make_report(["One\ntwo", "x" * 50], a, b)
    assert json.loads(json.dumps(told)) == told
    assert told["agreement"] == 0.75 and told["same_answers"] == 1
    one, other = told["prompts"]
    assert (one["agreed_tokens"], one["tokens"], one["answers"]) == (1, 2, ["a b", "a c"])
    assert one["compared"] == told["compared"] == 2
    assert one["logprob_mean"] == pytest.approx(0.15) and one["logprob_max"] == pytest.approx(0.3)
    assert other["difference"] is None and other["kl_mean"] is None and other["tokens"] is None
    rows = table(told)
    assert {len(row) for row in rows} == {len(COLUMNS)}
    assert rows[0][:5] == ("One two", "1 of 2", '" b" or " c", by 0.500', "0.1500", "0.3000")
    assert rows[1][1:] == ("100 %", "none", "-", "-", "-")
    assert rows[2][:3] == ("all", "75.0 %", "1 of 2 the same")


def test_line_ends_and_the_end_of_an_answer_can_be_seen():
    told = make_report(["p"], [answer("a", "\n")], [answer("a")])
    assert table(told)[0][2] == '"\\n" or its end'


@pytest.mark.parametrize(
    ("share", "text"), [(1.0, "100 %"), (0.99999, "99.9 %"), (0.5, "50.0 %"), (0.0, "0.0 %")]
)
def test_percent(share, text):
    assert percent(share) == text


def test_shorten():
    assert shorten("a b", 3) == "a b"
    assert shorten("word " * 30, 7) == "word w…"


def verdict(a, b, *, min_agreement=None, max_kl=0.02):
    return judge_engines([compare(a, b)], min_agreement=min_agreement, max_kl=max_kl)


def distribution(**odds):
    """Return log probabilities of pieces, the likeliest first."""
    return {piece: math.log(share) for piece, share in odds.items()}


def chosen(piece, top):
    """Return an answer of one token, which was chosen from `top`."""
    return answer(piece, logprobs=[top[piece]], top=top)


def test_equal_weights_agree_though_a_close_call_parts_the_texts():
    a = chosen("x", distribution(x=0.41, y=0.40, z=0.1))
    b = chosen("y", distribution(y=0.41, x=0.40, z=0.1))
    agrees, reason = verdict(a, b)
    assert agrees and "nats" in reason and "text" not in reason
    assert not verdict(a, b, min_agreement=0.5)[0]  # who asks for the text, gets it
    assert not verdict(a, b, max_kl=0.0001)[0]


def test_other_probabilities_do_not_agree_though_the_texts_are_the_same():
    a = chosen("x", distribution(x=0.9, y=0.05))
    b = chosen("x", distribution(x=0.4, y=0.35))
    assert not verdict(a, b)[0]


def test_one_wide_gap_among_many_tokens_does_not_agree():
    sure = distribution(x=0.5, y=0.49)
    equal = [answer(*"abcdefgh", logprobs=[-0.1] * 8, top=sure)] * 20
    a, b = chosen("x", distribution(x=0.8, y=0.1)), chosen("y", distribution(y=0.8, x=0.1))
    told = make_report(["p"] * 21, [*equal, a], [*equal, b])
    assert told["wide_gaps"] == 1
    found = [compare(*pair) for pair in zip([*equal, a], [*equal, b], strict=True)]
    agrees, reason = judge_engines(found, min_agreement=None, max_kl=1.0)
    assert not agrees and "preferred by 2.08 nats" in reason


def test_choices_of_which_the_other_engine_did_not_think_do_not_agree():
    a, b = chosen("x", distribution(x=0.5, v=0.5)), chosen("y", distribution(y=0.5, w=0.5))
    assert not verdict(a, b)[0]


def test_without_log_probabilities_the_text_counts():
    same, other = Response(text=b"abcd", cut=False), Response(text=b"abxx", cut=False)
    assert verdict(same, same)[0] and verdict(same, other)[0]
    assert not verdict(same, other, min_agreement=0.6)[0]
    assert not verdict(same, Response(text=b"xxxx", cut=False))[0]
