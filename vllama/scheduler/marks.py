"""Marks: the moments at which a model was loaded, unloaded or evicted, or failed.

Graphs of the last hour show them beside the curves that they explain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from vllama.dialects.events import Mark

MAX_MARKS = 500


class Marks:
    """The latest marks; `count` numbers all that there have ever been."""

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque(maxlen=MAX_MARKS)
        self.count = 0
        self.on_mark: Callable[[Mark], object] = bool
        """Called with every mark: counters must not miss one."""

    def add(self, mark: Mark) -> None:
        """Add a mark, and drop the oldest if there are too many."""
        self._marks.append(mark)
        self.count += 1
        self.on_mark(mark)

    def list_since(self, time_s: float) -> list[Mark]:
        """Return the marks since a Unix time, oldest first."""
        return [mark for mark in self._marks if mark.time >= time_s]

    def list_after(self, count: int) -> list[Mark]:
        """Return the marks that came after the first `count`, as far as they are kept."""
        new = self.count - count
        return list(self._marks)[-new:] if new > 0 else []
