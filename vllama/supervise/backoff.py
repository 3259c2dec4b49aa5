"""When to restart a process that ended unexpectedly: pure decisions, and the counts they need.

Knows no process and no clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When and how often to restart after an unexpected exit while serving.

    `delays_s[n]` is the pause before restart n+1; after the last restart the process is `failed`.
    The count is reset if a process was ready for longer than it took to start, and for at least
    `healthy_after_s`. `start_retries` is how often a failed start is retried if its diagnosis says
    that this can help (a taken port).
    """

    delays_s: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
    healthy_after_s: float = 5.0
    start_retries: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Wait `delay_s` seconds and start again, or give up if it is None.

    `count` is the new count, to be passed to the next decision.
    """

    count: int
    delay_s: float | None


def after_crash(policy: RestartPolicy, *, crashes: int, start_s: float, ready_s: float) -> Verdict:
    """Decide after an unexpected exit by the rules of `RestartPolicy`.

    `crashes` counts earlier crashes. `start_s` is the time until the process was ready, `ready_s`
    the time for which it then was (0 if it never became ready).
    """
    healthy = ready_s > start_s and ready_s >= policy.healthy_after_s
    before = 0 if healthy else crashes
    delay_s = policy.delays_s[before] if before < len(policy.delays_s) else None
    return Verdict(count=before + 1, delay_s=delay_s)


def after_failed_start(
    policy: RestartPolicy,
    *,
    retries: int,
    retryable: bool,
    killed: bool = False,
    oom: bool | None = None,
) -> Verdict:
    """Decide after an exit before the process was ever ready, and after `retries` retries.

    A start is retried, at once, only if the next one may succeed: after a `retryable` cause (a
    taken port), or if the process was `killed`. The kernel kills processes when memory runs out,
    and would probably do so again. Unless that is known not to be the cause (`oom` False), a killed
    process is therefore retried only once.
    """
    again = retries < (
        policy.start_retries if retryable or (killed and oom is False) else int(killed)
    )
    return Verdict(count=retries + 1, delay_s=0.0 if again else None)


class Restarts:
    """The counts of crashes and retries of one supervised process."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._crashes = 0
        self._retries = 0

    def compute_delay_s(
        self,
        *,
        ever_ready: bool,
        start_s: float,
        ready_s: float,
        retryable: bool,
        killed: bool = False,
        oom: bool | None = None,
    ) -> float | None:
        """Count an unexpected end; return the pause before the next start, None to give up."""
        if ever_ready:
            verdict = after_crash(
                self._policy, crashes=self._crashes, start_s=start_s, ready_s=ready_s
            )
            self._crashes = verdict.count
        else:
            verdict = after_failed_start(
                self._policy,
                retries=self._retries,
                retryable=retryable,
                killed=killed,
                oom=oom,
            )
            self._retries = verdict.count
        return verdict.delay_s
