"""The two searches: each finds what was planted, with few trials."""

import itertools
import math

import pytest

from vllama.lab.bisection import Outcome, find_fewest, find_first_bad

GOOD, BAD, SKIP = Outcome.GOOD, Outcome.BAD, Outcome.SKIP


class Trials:
    """Counts trials; `judge` says what comes of one."""

    def __init__(self, judge) -> None:
        self.tried = []
        self._judge = judge

    def __call__(self, trial):
        assert trial not in self.tried, "a trial was made twice"
        self.tried.append(trial)
        return self._judge(trial)


@pytest.mark.parametrize("count", [2, 3, 7, 64])
def test_every_first_bad_version_is_found_by_halving(count):
    for first_bad in range(1, count):
        trials = Trials(lambda at, first=first_bad: BAD if at >= first else GOOD)
        assert find_first_bad(count, trials) == (first_bad - 1, first_bad)
        assert len(trials.tried) <= math.ceil(math.log2(count))


def test_versions_that_cannot_be_tried_are_gone_round():
    def judge(at):
        return SKIP if at in (4, 5) else BAD if at >= 7 else GOOD

    assert find_first_bad(10, Trials(judge)) == (6, 7)


def test_a_change_among_versions_that_cannot_be_tried_has_a_range():
    def judge(at):
        return SKIP if 3 <= at <= 6 else BAD if at >= 5 else GOOD

    assert find_first_bad(10, Trials(judge)) == (2, 7)
    assert find_first_bad(5, Trials(lambda at: SKIP)) == (0, 4)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_guilty_set_of_settings_is_found(size):
    names = "abcdefgh"
    for guilty in itertools.combinations(names, size):
        trials = Trials(lambda chosen, all_=set(guilty): BAD if all_ <= chosen else GOOD)
        assert set(find_fewest(names, trials)) == set(guilty)


def test_one_of_many_settings_takes_few_trials():
    names = [str(number) for number in range(64)]
    trials = Trials(lambda chosen: BAD if "37" in chosen else GOOD)
    assert find_fewest(names, trials) == ("37",)
    assert len(trials.tried) <= 2 * math.log2(64)


def test_settings_that_do_not_start_are_not_blamed():
    # `a` alone does not start: only with `b`
    def judge(chosen):
        if "a" in chosen and "b" not in chosen:
            return SKIP
        return BAD if "a" in chosen else GOOD

    assert set(find_fewest("abcd", Trials(judge))) == {"a", "b"}
