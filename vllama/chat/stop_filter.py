"""Stop sequences for engines that do not know them, or leave them in the text (`Traits.stops`).

The engine's events are changed before the reply sees them: text only up to the first stop sequence,
then the end. OpenAI's and Ollama's APIs both leave the sequence itself out of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vllama.chat.engine.traits import Stops, Traits
from vllama.chat.filters import AlteredReply
from vllama.chat.reply import Reply


def stopped(reply: Reply, stops: Sequence[str], traits: Traits) -> Reply:
    """Return the reply as it is, or one that ends where the engine does not end by itself."""
    if not stops or traits.stops is Stops.LEFT_OUT:
        return reply
    return StoppedReply(reply, stops, goes_on=traits.stops is Stops.UNKNOWN)


class StoppedReply(AlteredReply):
    """A reply that is fed with the engine's stream up to a stop sequence.

    `enough` is called when one is found and the engine would go on all the same.
    """

    def __init__(self, reply: Reply, stops: Sequence[str], *, goes_on: bool) -> None:
        super().__init__(reply)
        self._stops = stops
        self._goes_on = goes_on
        self._finders: dict[int, StopFinder] = {}
        self.enough: Callable[[], None] = _nothing

    @property
    def may_cut(self) -> bool:
        """Whether the engine's answer may be ended before the engine ends it."""
        return self._goes_on or super().may_cut

    def _pass(self, payloads: list[bytes], now_ns: int) -> bytes:
        out = super()._pass(payloads, now_ns)
        if self._goes_on and self._finders and all(f.found for f in self._finders.values()):
            self.enough()
        return out

    def _alter(self, event: dict[str, Any]) -> dict[str, Any]:
        """Leave out what comes after a stop sequence."""
        event["choices"] = [one for one in event["choices"] if self._choice(one)]
        return event

    def _choice(self, choice: Any) -> bool:
        """Cut a choice's text in place; False if it had ended before."""
        if not isinstance(choice, dict):
            return True  # the reply says what is wrong with it
        index = choice.get("index") or 0
        finder = self._finders.get(index)
        if finder is None:
            finder = self._finders[index] = StopFinder(self._stops)
        had_ended = finder.found is not None
        if had_ended:
            return False
        delta = choice.get("delta")
        holder, name = (delta, "content") if isinstance(delta, dict) else (choice, "text")
        text = finder.feed(holder.get(name) or "")
        if choice.get("finish_reason") is not None:
            text += finder.finish()
        elif finder.found is not None:
            choice["finish_reason"] = "stop"
        if text or holder.get(name):
            holder[name] = text
        return True


def _nothing() -> None:
    """Stand for a callback that nobody has set."""


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
        """Return what is certain to come before any stop sequence."""
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
        """Return what was held back: nothing more comes."""
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
