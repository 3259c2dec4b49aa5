"""A short storm in the suite; `make soak SECONDS=600` runs a long one."""

import pytest

from tests.chaos.storm import MORE_FDS, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("seed", [6])
def test_a_storm_leaves_nothing_wrong_and_nothing_behind(tmp_path, seed):
    storm, (before, after) = run(tmp_path, 20.0, seed)
    assert not storm.wrong, "\n".join(storm.wrong)
    assert storm.seen["right"], storm.seen
    assert storm.seen["kill"] + storm.seen["freeze"] + storm.seen["term"] > 0, storm.seen
    assert after["fds"] <= before["fds"] + MORE_FDS
    assert after["children"] == 0
