"""Stop sequences: found in a text that comes in pieces, and answers that end before them."""

from __future__ import annotations

from collections.abc import Sequence

from vllama.base.errors import BadRequest
from vllama.chat.engine.events import ChunkChoice, Event
from vllama.chat.engine.traits import Stops, Traits

MAX_STOPS = 1000
MAX_STOP_TEXT = 100_000
"""Sequences, and characters in all of them: more would take long with each token."""


def check_stops(stops: Sequence[str]) -> None:
    """Raise BadRequest for more stop sequences than can be looked for."""
    if len(stops) > MAX_STOPS or sum(map(len, stops)) > MAX_STOP_TEXT:
        raise BadRequest(
            f"too many stop sequences: at most {MAX_STOPS}, with {MAX_STOP_TEXT} characters in "
            "total"
        )


class StopFinder:
    """Lets text through up to the first stop sequence, however the text is cut into pieces.

    The one that is complete first counts, as if the text came letter by letter. Each letter is
    looked at once for each sequence (the method of Knuth, Morris and Pratt), so that neither a long
    sequence nor a text that almost is one takes long.
    """

    __slots__ = ("_held", "_matchers", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are not empty strings."""
        self._matchers = [_Matcher(stop) for stop in stops]
        self._held = (0, "")  # so many letters are held back: those that this sequence begins with
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Return the text that is certain to come before any stop sequence."""
        if self.found is not None:
            return ""
        kept, start = self._held
        hits = [
            (end, -len(matcher.stop), matcher.stop)
            for matcher in self._matchers
            if (end := matcher.feed(text)) is not None
        ]
        if hits:
            end, _, self.found = min(hits)
            self._held = (0, "")
            certain = kept + end - len(self.found)
        else:
            self._held = max(((one.matched, one.stop) for one in self._matchers), default=(0, ""))
            certain = kept + len(text) - self._held[0]
        return start[: min(kept, certain)] + text[: max(certain - kept, 0)]

    def finish(self) -> str:
        """Return the held-back rest: nothing more comes."""
        (kept, start), self._held = self._held, (0, "")
        return start[:kept]


class _Matcher:
    """Looks for one sequence in a text that comes in pieces."""

    __slots__ = ("_borders", "matched", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        """How many of the last letters begin the sequence."""
        # for each beginning of the sequence: how many of its last letters begin it as well
        self._borders = [0]
        for letter in stop[1:]:
            self._borders.append(self._next(self._borders[-1], letter))

    def feed(self, text: str) -> int | None:
        """Return where in `text` the sequence is complete first; None: it is not."""
        matched, at = self.matched, 0
        while at < len(text):
            if not matched:
                at = text.find(self.stop[0], at)
                if at < 0:
                    break
            matched = self._next(matched, text[at])
            at += 1
            if matched == len(self.stop):
                return at
        self.matched = matched
        return None

    def _next(self, matched: int, letter: str) -> int:
        """Return how much of the sequence is matched with one letter more."""
        while matched and self.stop[matched] != letter:
            matched = self._borders[matched - 1]
        return matched + (self.stop[matched] == letter)


def make_stop_filter(stops: Sequence[str], traits: Traits) -> StopFilter | None:
    """Return the stop sequences where the engine does not end it as OpenAI's API says."""
    if not stops or traits.stops is Stops.LEFT_OUT:
        return None
    return StopFilter(stops, cuts=traits.stops is Stops.UNKNOWN)


class StopFilter:
    """Lets the text through up to the first stop sequence, which is left out, and ends it there.

    For engines that do not know stop sequences, leave them in the text, or do not say which one
    they met. OpenAI's and Ollama's APIs both leave the sequence out of the answer.
    """

    def __init__(self, stops: Sequence[str], *, cuts: bool) -> None:
        """`cuts`: the engine would go on all the same."""
        self.cuts = cuts
        self._stops = stops
        self._finders: dict[int, StopFinder] = {}

    @property
    def is_over(self) -> bool:
        """True if the engine goes on although all choices have ended."""
        return (
            self.cuts
            and bool(self._finders)
            and all(finder.found is not None for finder in self._finders.values())
        )

    def take(self, event: Event) -> None:
        """Leave out what comes after a stop sequence."""
        choices = event.chunk.choices
        if not choices:
            return
        event.changed, event.text = True, None
        event.chunk.choices = [choice for choice in choices if self._choice(choice)]
        event.silent = not event.chunk.choices and event.chunk.usage is None

    def _choice(self, choice: ChunkChoice) -> bool:
        """Cut a choice's text in place; False if it had ended before."""
        finder = self._finders.get(choice.index)
        if finder is None:
            finder = self._finders[choice.index] = StopFinder(self._stops)
        had_ended = finder.found is not None
        if had_ended:
            return False
        delta = choice.delta
        given = choice.text if delta is None else delta.content
        text = finder.feed(given or "")
        if choice.finish_reason is not None:
            text += finder.finish()
        if finder.found is not None:
            choice.finish_reason, choice.stop_reason = "stop", finder.found
        if text or given:
            if delta is None:
                choice.text = text
            else:
                delta.content = text
        return True
