"""The history of a process: its attempts, and why the last one ended.

The supervisor writes it; all others only read.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path

from vllama.clock import Clock
from vllama.supervise.spec import Attempt, Diagnosis, Exit

_MAX_ATTEMPTS = 20


class History:
    """The latest attempts; the last of them may be running."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._attempts: deque[Attempt] = deque(maxlen=_MAX_ATTEMPTS)
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

    def record_pid(self, pid: int) -> None:
        """Record the engine's pid."""
        self._attempts[-1] = replace(self._attempts[-1], pid=pid)

    def record_ready(self) -> None:
        """Record that the process serves."""
        self.ever_ready = True
        self._ready_s = self._clock.monotonic()
        self._attempts[-1] = replace(self._attempts[-1], ready_s=self._clock.time())

    def compute_durations(self) -> tuple[float, float]:
        """Return the seconds for which it was starting, and then ready."""
        now_s = self._clock.monotonic()
        ready_s = now_s if self._ready_s is None else self._ready_s
        return ready_s - self._began_s, now_s - ready_s

    def record_end(self, ended: Exit | None, diagnosis: Diagnosis | None) -> None:
        """Record how it ended, and why unless it was stopped. Later calls add to earlier ones."""
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
