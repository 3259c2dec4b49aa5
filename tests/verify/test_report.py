"""The verdict over all prompts, and its table."""

import json

import pytest

from vllama.verify.answer import Answer, Token
from vllama.verify.report import COLUMNS, percent, report, shorten, table


def answer(*pieces, logprobs=None, top=None):
    tokens, at = [], 0
    for index, piece in enumerate(pieces):
        logprob = logprobs[index] if logprobs else None
        tokens.append(Token(start=at, end=at + len(piece), logprob=logprob, top=top or {}))
        at += len(piece)
    return Answer(text="".join(pieces).encode(), cut=False, tokens=tuple(tokens))


def test_a_report_is_plain_values_and_a_table_of_them():
    plain = Answer(text=b"xy", cut=False)
    a = [answer("a", " b", logprobs=[-0.1, -0.2], top={b" b": -0.2, b" c": -0.7}), plain]
    b = [answer("a", " c", logprobs=[-0.1, -0.4], top={b" c": -0.4, b" b": -0.5}), plain]
    told = report(["One\ntwo", "x" * 50], a, b)
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
    told = report(["p"], [answer("a", "\n")], [answer("a")])
    assert table(told)[0][2] == '"\\n" or its end'


@pytest.mark.parametrize(
    ("share", "text"), [(1.0, "100 %"), (0.99999, "99.9 %"), (0.5, "50.0 %"), (0.0, "0.0 %")]
)
def test_percent(share, text):
    assert percent(share) == text


def test_shorten():
    assert shorten("a\n b") == "a b"
    assert len(shorten("word " * 30)) == 32
