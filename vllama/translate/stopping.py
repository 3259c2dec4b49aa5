"""Stop sequences for engines that do not know them, or leave them in the text (`Traits.stops`).

The engine's events are changed before the reply sees them: text only up to the first stop sequence,
then the end. OpenAI's and Ollama's APIs both leave the sequence itself out of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from vllama.errors import VllamaError
from vllama.translate.framing import DONE, SseReader, sse
from vllama.translate.reply import Reply
from vllama.translate.stops import StopFinder
from vllama.translate.traits import Stops, Traits
from vllama.translate.types import Usage


def stopped(reply: Reply, stops: Sequence[str], traits: Traits) -> Reply:
    """Return the reply as it is, or one that ends where the engine does not end by itself."""
    if not stops or traits.stops is Stops.LEFT_OUT:
        return reply
    return StoppedReply(reply, stops, goes_on=traits.stops is Stops.UNKNOWN)


class StoppedReply:
    """A reply that is fed with the engine's stream up to a stop sequence.

    `enough` is called when one is found and the engine would go on all the same.
    """

    def __init__(self, reply: Reply, stops: Sequence[str], *, goes_on: bool) -> None:
        self._reply = reply
        self._stops = stops
        self._goes_on = goes_on
        self._finders: dict[int, StopFinder] = {}
        self._reader = SseReader()
        self.usual = None  # every text is looked at
        self.enough: Callable[[], None] = _nothing
        self.content_type = reply.content_type
        self.ended = reply.ended
        self.first_token_ns = reply.first_token_ns

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return self._reply.usage

    def feed(self, chunk: bytes, now_ns: int) -> bytes:
        """Take bytes of the engine's stream. Raises what the reply raises."""
        return self._pass(self._reader.feed(chunk), now_ns)

    def finish(self, now_ns: int) -> bytes:
        """Return the rest. Raises what the reply raises."""
        rest = self._pass(self._reader.close(), now_ns)
        return rest + self._reply.finish(now_ns)

    def fail(self, error: VllamaError) -> bytes:
        """Return how the dialect reports an error."""
        return self._reply.fail(error)

    def __getattr__(self, name: str) -> Any:
        """Give what else the reply knows (its text, its finish reason)."""
        return getattr(self._reply, name)

    def _pass(self, payloads: list[bytes], now_ns: int) -> bytes:
        events = b"".join(sse(self._event(payload)) for payload in payloads)
        out = self._reply.feed(events, now_ns) if events else b""
        self.ended = self._reply.ended
        self.first_token_ns = self._reply.first_token_ns
        if self._goes_on and self._finders and all(f.found for f in self._finders.values()):
            self.enough()
        return out

    def _event(self, payload: bytes) -> bytes:
        """Return an event without what comes after a stop sequence."""
        if payload == DONE:
            return payload
        try:
            event = msgspec.json.decode(payload)
        except ValueError:
            return payload  # the reply says what is wrong with it
        choices = event.get("choices") if isinstance(event, Mapping) else None
        if not isinstance(choices, list):
            return payload
        event["choices"] = [one for one in choices if self._choice(one)]
        return msgspec.json.encode(event)

    def _choice(self, choice: dict[str, Any]) -> bool:
        """Cut a choice's text in place; False if it had ended before."""
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
