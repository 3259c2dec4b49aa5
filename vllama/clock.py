"""The clock as a dependency, so that tests of decisions about time need not wait."""

from __future__ import annotations

import time
from typing import Protocol

# wall time that never goes back, because durations in answers are differences of such times
EPOCH_NS = time.time_ns() - time.monotonic_ns()


def now_ns() -> int:
    """Return nanoseconds since the Unix epoch, monotonic within this process."""
    return EPOCH_NS + time.monotonic_ns()


class Clock(Protocol):
    """Source of monotonic and wall time."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...

    def time(self) -> float:
        """Return seconds since the Unix epoch."""
        ...


class RealClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()

    def time(self) -> float:
        """Return `time.time()`."""
        return time.time()


class ManualClock:
    """A clock that moves only by `advance`; for tests."""

    def __init__(self, start_s: float = 1_000_000.0) -> None:
        self._now_s = start_s

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`."""
        self._now_s += seconds

    def monotonic(self) -> float:
        """Return the current manual time."""
        return self._now_s

    def time(self) -> float:
        """Return the current manual time."""
        return self._now_s
