"""Restarts of a process that ended unexpectedly.

Knows no process and no clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Times and number of restarts after an unexpected exit while serving.

    `delays_s[n]` is the pause before restart n+1; after the last restart the process is `failed`.
    The count is reset if a process was ready for longer than it took to start, and for at least
    `healthy_after_s`, or has given a whole response. `start_retries` is how often a failed start is
    retried if its diagnosis says that this can help (a taken port).
    """

    delays_s: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
    healthy_after_s: float = 5.0
    start_retries: int = 3


class Restarts:
    """The decisions about one supervised process, which count its crashes and retries."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self.crashes = 0
        self.retries = 0

    def after_crash(self, *, start_s: float, ready_s: float) -> float | None:
        """Return the pause before the next start, None to give up, by `RestartPolicy`.

        `start_s` is the time until the process was ready, `ready_s` the time for which it then was
        (0 if it never became ready).
        """
        delays_s = self._policy.delays_s
        if ready_s > start_s and ready_s >= self._policy.healthy_after_s:
            self.crashes = 0
        self.crashes += 1
        return delays_s[self.crashes - 1] if self.crashes <= len(delays_s) else None

    def after_failed_start(
        self, *, retryable: bool, killed: bool = False, oom: bool | None = None
    ) -> float | None:
        """Return the pause after an exit before the process was ever ready, None to give up.

        A start is retried, at once, only if the next one may succeed: after a `retryable` cause (a
        taken port), or if the process was `killed`. The kernel kills processes when memory runs
        out, and would probably do so again. Unless that is known not to be the cause (`oom` False),
        a killed process is therefore retried only once.
        """
        self.retries += 1
        is_worth_it = retryable or (killed and oom is False)
        most = self._policy.start_retries if is_worth_it else int(killed)
        return 0.0 if self.retries <= most else None
