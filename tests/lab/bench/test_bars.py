"""Rows in, verdicts out."""

import pytest

from bench.bars import CPU, Finding, bars, over_added, pick, together, verdict
from bench.report import BEGIN, END, insert


def row(scenario, target, round=0, step="s", cpu=None, **more):
    watch = {} if cpu is None else {"watch": {"proxy": {"cpu_us_per_token": cpu}}}
    return {"scenario": scenario, "target": target, "round": round, "step": step, **watch, **more}


def finding(rows, bar, word):
    return next(f for f in bars(rows) if f.bar == bar and word in f.what)


def test_ratios_are_taken_within_a_round_and_a_step():
    rows = [
        row("steady256", "nginx", 0, cpu=10),
        row("steady256", "vllama-chat", 0, cpu=20),
        row("steady256", "nginx", 1, cpu=100),
        row("steady256", "vllama-chat", 1, cpu=100),
        row("steady256", "vllama-chat", 1, step="alone", cpu=9000),
    ]
    found = finding(rows, 1, "/api/chat")
    assert found.values == (2.0, 1.0)
    assert found.reached is True
    assert finding(rows, 1, "/v1").reached is None


@pytest.mark.parametrize(
    ("a", "b", "direct", "result"),
    [(3, 2, 1, 2), (0.5, 2, 1, 0), (3, 1, 1, None), (3, 0.5, 1, None)],
)
def test_what_is_added_is_compared(a, b, direct, result):
    assert over_added(a, b, direct) == result


def test_rounds_that_say_nothing_are_left_out():
    rows = [row("ttft", t, i, ttft_ms={"p50": v}) for i in (0, 1) for t, v in VALUES[i].items()]
    assert finding(rows, 3, "`/v1`: first token p50, what it adds to").values == (2.0,)


def test_what_nginx_adds_stands_beside_a_goal_that_may_lie_below_it():
    values = {"direct": 1.0, "nginx": 1.5, "vllama-v1": 2.0, "litellm": 11.0}
    rows = [row("ttft", target, ttft_ms={"p50": value}) for target, value in values.items()]
    assert finding(rows, 3, "`/v1`: first token p50, what it adds ÷ what litellm").values == (0.1,)
    assert sum("(nginx: 0.05 ×)" in found.what for found in bars(rows)) == 2


VALUES = (
    {"direct": 1.0, "nginx": 1.5, "vllama-v1": 2.0},
    {"direct": 1.0, "nginx": 0.9, "vllama-v1": 2.0},
)


@pytest.mark.parametrize(
    ("values", "limit", "at_least", "reached"),
    [
        ((1, 9, 2), 2, False, True),
        ((3,), 2, False, False),
        ((3,), 2, True, True),
        ((), 2, True, None),
    ],
)
def test_the_median_decides(values, limit, at_least, reached):
    found = Finding(bar=1, what="", values=values, limit=limit, at_least=at_least)
    assert found.reached is reached


@pytest.mark.parametrize(("errors", "reached"), [((0, 0), True), ((0, 1), False)])
def test_one_wrong_reply_fails(errors, reached):
    rows = [row("utf8", "vllama-chat", i, ok=3, errors=n) for i, n in enumerate(errors)]
    assert finding(rows, 8, "/api/chat").reached is reached
    rows = [row("steady512", "vllama-chat", i, errors=n) for i, n in enumerate(errors)]
    assert finding(rows, 4, "`/api/chat`: errors").reached is reached


def test_a_run_that_broke_is_not_lost():
    rows = [row("tool", "vllama-v1", failed="Traceback", errors=1)]
    assert finding(rows, 8, "/v1").reached is False


def test_the_table_says_what_was_not_measured():
    text = verdict(bars([]))
    assert "0 reached, 0 not" in text
    assert text.count("not measured |") == len(bars([]))


def test_together_wants_every_column():
    rows = [row("a", "x", i, cpu=i) for i in range(3)] + [row("b", "x", 1, cpu=5)]
    both = together(lambda a, b: a + b, pick(rows, "a", "x", CPU), pick(rows, "b", "x", CPU))
    assert both == (6,)


def test_the_report_replaces_only_what_is_between_the_markers():
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert insert(text, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert insert(insert(text, "x"), "new") == insert(text, "new")
    with pytest.raises(ValueError, match="markers"):
        insert("no markers", "new")
