"""Stop sequences for engines that do not know them, or leave them in the text (`Traits.stops`).

The engine's events are changed before the reply sees them: text only up to the first stop sequence,
then the end. OpenAI's and Ollama's APIs both leave the sequence itself out of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vllama.translate.altered import AlteredReply
from vllama.translate.reply import Reply
from vllama.translate.stops import StopFinder
from vllama.translate.traits import Stops, Traits


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
