"""Counts what Python does, so that no test has to measure time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooMany(AssertionError):
    """More steps than were allowed."""


@contextmanager
def steps(most: int) -> Iterator[None]:
    """Fail where more than `most` lines and calls of Python are run within, and end them there."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> object:
        nonlocal count
        count += 1
        if count > most:
            raise TooMany(f"more than {most} steps, now in {frame.f_code.co_qualname}")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
    assert count <= most  # also where what was raised has been caught
