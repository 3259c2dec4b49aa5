"""When to start again after an unasked end: pure decisions, and the counts they need.

Knows no process and no clock: numbers in, a verdict out.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllama.supervise.spec import RestartPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to do: wait `delay_s` and start again, or give up (None).

    `count` is the new count, to be handed in the next time.
    """

    count: int
    delay_s: float | None


def after_crash(policy: RestartPolicy, *, crashes: int, start_s: float, ready_s: float) -> Verdict:
    """Decide after an unasked exit; the rules are in the docstring of `RestartPolicy`.

    `crashes` counts those before this one. `start_s` is how long the process took until it was
    ready, `ready_s` how long it then was (0 if it never became ready).
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
    """Decide after an exit before the process was ever ready, `retries` retries before it.

    Only what can go well the next time (a taken port) is tried again, and at once; so is one that
    was `killed` by somebody. The system does so too when memory runs out, and then does it again:
    unless that is known not to be the reason (`oom` False), it is tried once more only.
    """
    again = retries < (
        policy.start_retries if retryable or (killed and oom is False) else int(killed)
    )
    return Verdict(count=retries + 1, delay_s=0.0 if again else None)


class Restarts:
    """The counts of one life."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._crashes = 0
        self._retries = 0

    def delay_s(
        self,
        *,
        ever_ready: bool,
        start_s: float,
        ready_s: float,
        retryable: bool,
        killed: bool = False,
        oom: bool | None = None,
    ) -> float | None:
        """Count an unasked end and return when to start again; None: never."""
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
