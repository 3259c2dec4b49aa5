"""What happened to a process: its attempts and why the last one ended.

Knows no process: the supervisor tells, everybody may read.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path

from vllama.clock import Clock
from vllama.supervise.spec import Attempt, Diagnosis, Exit

_ATTEMPTS_KEPT = 20


class History:
    """The newest attempts, the last of which may be running."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._attempts: deque[Attempt] = deque(maxlen=_ATTEMPTS_KEPT)
        self.diagnosis: Diagnosis | None = None
        self._began_s = 0.0
        self._ready_s: float | None = None
        self.ever_ready = False

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The attempts, oldest first."""
        return tuple(self._attempts)

    @property
    def is_ready(self) -> bool:
        """Whether the running attempt became ready."""
        return self._ready_s is not None

    def begin(self, number: int, log_path: Path) -> None:
        """Begin an attempt."""
        self._began_s, self._ready_s = self._clock.monotonic(), None
        started_s = self._clock.time()
        self._attempts.append(Attempt(number=number, started_s=started_s, log_path=log_path))

    def spawned(self, pid: int) -> None:
        """Note the engine's pid."""
        self._attempts[-1] = replace(self._attempts[-1], pid=pid)

    def ready(self) -> None:
        """Note that it serves."""
        self.ever_ready = True
        self._ready_s = self._clock.monotonic()
        self._attempts[-1] = replace(self._attempts[-1], ready_s=self._clock.time())

    def durations(self) -> tuple[float, float]:
        """Return for how long it was starting, and then ready, in seconds."""
        now_s = self._clock.monotonic()
        ready_s = now_s if self._ready_s is None else self._ready_s
        return ready_s - self._began_s, now_s - ready_s

    def ended(self, ended: Exit | None, diagnosis: Diagnosis | None) -> None:
        """Note how and, if it was not asked to, why it ended. A later call completes an earlier."""
        if diagnosis is not None:
            self.diagnosis = diagnosis
        if not self._attempts:
            return
        last = self._attempts[-1]
        self._attempts[-1] = replace(
            last,
            ended_s=self._clock.time() if last.ended_s is None else last.ended_s,
            exit=ended or last.exit,
            diagnosis=diagnosis or last.diagnosis,
        )
