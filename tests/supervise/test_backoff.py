"""Restart decisions, as a table."""

from __future__ import annotations

import pytest

from vllama.supervise.backoff import RestartPolicy, Restarts

POLICY = RestartPolicy(delays_s=(0.0, 0.5, 4.0), healthy_after_s=5.0, start_retries=2)


@pytest.mark.parametrize(
    ("crashes", "start_s", "ready_s", "count", "delay_s"),
    [
        (0, 1.0, 0.0, 1, 0.0),
        (1, 1.0, 0.0, 2, 0.5),
        (2, 1.0, 4.9, 3, 4.0),
        (3, 1.0, 0.0, 4, None),
        (3, 1.0, 4.9, 4, None),  # longer than its start, but not healthy for long enough
        (3, 60.0, 59.0, 4, None),  # long, but not longer than its start
        (3, 60.0, 61.0, 1, 0.0),
        (3, 1.0, 5.0, 1, 0.0),
        (9, 5.0, 5.0, 10, None),
    ],
)
def test_after_crash(
    crashes: int, start_s: float, ready_s: float, count: int, delay_s: float | None
) -> None:
    restarts = Restarts(POLICY)
    restarts.crashes = crashes
    assert restarts.after_crash(start_s=start_s, ready_s=ready_s) == delay_s
    assert restarts.crashes == count


@pytest.mark.parametrize(
    ("retryable", "delays_s"), [(True, [0.0, 0.0, None]), (False, [None, None, None])]
)
def test_after_failed_starts(retryable: bool, delays_s: list[float | None]) -> None:
    restarts = Restarts(POLICY)
    assert [restarts.after_failed_start(retryable=retryable) for _ in range(3)] == delays_s


@pytest.mark.parametrize(
    ("oom", "delays_s"),
    [
        (None, [0.0, None]),  # who did it is not known
        (True, [0.0, None]),
        (False, [0.0, 0.0, None]),  # a stranger did it, which says nothing of the next start
    ],
)
def test_one_that_was_killed_is_tried_again(oom: bool | None, delays_s: list[float | None]) -> None:
    restarts = Restarts(POLICY)
    for delay_s in delays_s:
        found = restarts.after_failed_start(retryable=False, killed=True, oom=oom)
        assert found == delay_s


def test_no_delays_means_no_restart() -> None:
    restarts = Restarts(RestartPolicy(delays_s=()))
    assert restarts.after_crash(start_s=1.0, ready_s=99.0) is None


def test_crashes_and_failed_starts_are_counted_apart() -> None:
    restarts = Restarts(POLICY)
    assert restarts.after_failed_start(retryable=True) == 0.0
    delays_s = [
        restarts.after_crash(start_s=1.0, ready_s=ready_s) for ready_s in (0, 0, 9, 0, 0, 0)
    ]
    assert delays_s == [0.0, 0.5, 0.0, 0.5, 4.0, None]
