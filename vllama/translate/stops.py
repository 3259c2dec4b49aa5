"""Stop sequences found by the front, for engines that do not tell which one ended an answer."""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Lets text through up to the first stop sequence, however the text is cut into pieces.

    The one that is complete first counts, as if the text came letter by letter.
    """

    __slots__ = ("_held", "_stops", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are not empty strings."""
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Return what is certain to come before any stop sequence."""
        if self.found is not None:
            return ""
        text = self._held + text
        hits = [
            (place + len(stop), place, stop)
            for stop in self._stops
            if (place := text.find(stop)) >= 0
        ]
        if hits:
            _, place, self.found = min(hits)
            self._held = ""
            return text[:place]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return what was held back: nothing more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return how many of the last letters of `text` begin `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
