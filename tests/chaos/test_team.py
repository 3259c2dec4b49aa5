"""A short run in the suite; `python -m tests.chaos.team --seconds 300` is a long one."""

import pytest

from tests.chaos.team import PERIOD_S, RATE, check_rate, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_sums_of_the_server_are_those_of_its_clients(tmp_path):
    assert not run(tmp_path, 6.0)


def test_the_judge_sees_a_rate_that_is_exceeded():
    assert not check_rate([(0.0, 1.0)] * RATE + [(PERIOD_S - 1, PERIOD_S + 1)])
    assert check_rate([(0.0, 1.0)] * RATE + [(PERIOD_S - 2, PERIOD_S - 1)])
