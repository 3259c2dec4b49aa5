"""The clock as a dependency, so that tests of decisions about time need not wait; and waits."""

from __future__ import annotations

import asyncio
import math
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

    def time(self) -> float:
        """Return seconds since the Unix epoch."""


class RealClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()

    def time(self) -> float:
        """Return `time.time()`."""
        return time.time()


async def wait_for(event: asyncio.Event, limit_s: float) -> bool:
    """Wait until `event` is set, or for `limit_s`, which may be infinite; return whether it is."""
    try:
        async with asyncio.timeout(limit_s if math.isfinite(limit_s) else None):
            return await event.wait()
    except TimeoutError:
        return False
