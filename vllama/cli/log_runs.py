"""Shortens long runs of lines of one kind in an engine's log, such as one about each tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

LONGEST_RUN = 40
"""Lines in a row that begin alike and are shown; lists of metadata are shorter."""


class RunShortener:
    """Passes lines on, but of a long run only its beginning and how many more there were.

    Engines name the part that speaks before a colon; lines of one part in a row are a run.
    """

    def __init__(self) -> None:
        self._part = ""
        self._count = 0

    def feed(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield what to show of these lines."""
        for line in lines:
            part, colon, _ = line.partition(": ")
            if not colon or part != self._part:
                yield from self.flush()
                self._part, self._count = part if colon else "", 0
            self._count += 1
            if self._count <= LONGEST_RUN or not self._part:
                yield line

    def flush(self) -> Iterator[str]:
        """Yield how many lines were left out since the last one that was shown."""
        left_out = self._count - LONGEST_RUN
        if self._part and left_out > 0:
            yield f"… {left_out} more lines of {self._part} (all: vllama logs --debug)"
        self._count = min(self._count, LONGEST_RUN)
