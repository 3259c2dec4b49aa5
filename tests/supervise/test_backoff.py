"""Restart decisions, as a table."""

from __future__ import annotations

import pytest

from vllama.supervise.backoff import RestartPolicy, Restarts, after_crash, after_failed_start

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
    verdict = after_crash(POLICY, crashes=crashes, start_s=start_s, ready_s=ready_s)
    assert (verdict.count, verdict.delay_s) == (count, delay_s)


@pytest.mark.parametrize(
    ("retries", "retryable", "delay_s"),
    [(0, True, 0.0), (1, True, 0.0), (2, True, None), (0, False, None)],
)
def test_after_failed_start(retries: int, retryable: bool, delay_s: float | None) -> None:
    verdict = after_failed_start(POLICY, retries=retries, retryable=retryable)
    assert (verdict.count, verdict.delay_s) == (retries + 1, delay_s)


@pytest.mark.parametrize(
    ("oom", "retries", "delay_s"),
    [
        (None, 0, 0.0),  # who did it is not known
        (None, 1, None),
        (True, 0, 0.0),
        (True, 1, None),
        (False, 0, 0.0),  # a stranger did it, which says nothing of the next start
        (False, 1, 0.0),
        (False, 2, None),
    ],
)
def test_one_that_was_killed_is_tried_again(
    oom: bool | None, retries: int, delay_s: float | None
) -> None:
    verdict = after_failed_start(POLICY, retries=retries, retryable=False, killed=True, oom=oom)
    assert verdict.delay_s == delay_s


def test_no_delays_means_no_restart() -> None:
    policy = RestartPolicy(delays_s=())
    assert after_crash(policy, crashes=0, start_s=1.0, ready_s=99.0).delay_s is None


def test_restarts_count() -> None:
    restarts = Restarts(POLICY)

    def crash(ready_s: float) -> float | None:
        return restarts.compute_delay_s(
            ever_ready=True, start_s=1.0, ready_s=ready_s, retryable=False
        )

    assert restarts.compute_delay_s(ever_ready=False, start_s=1, ready_s=0, retryable=True) == 0.0
    assert [crash(0.0), crash(0.0), crash(9.0), crash(0.0), crash(0.0), crash(0.0)] == [
        *(0.0, 0.5, 0.0, 0.5, 4.0),
        None,
    ]
