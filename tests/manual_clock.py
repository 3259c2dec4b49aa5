"""A clock that tests move."""

from __future__ import annotations


class ManualClock:
    """A clock that moves only by `advance`."""

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
