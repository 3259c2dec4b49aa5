"""A reply whose engine's events are changed before it sees them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import msgspec

from vllama.errors import VllamaError
from vllama.translate.framing import DONE, SseReader, sse
from vllama.translate.reply import CountsReader, Reply
from vllama.translate.types import Usage


class AlteredReply:
    """Stands before a reply; `_alter` says what is changed.

    Not an `ABC`: whether a reply is one is asked with every request, which is slow for those.
    """

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._reader = SseReader()
        self.usual = None  # the reply does not see what the engine sends
        self.content_type = reply.content_type
        self.ended = reply.ended
        self.first_token_ns = reply.first_token_ns

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return self._reply.usage

    @property
    def counts(self) -> CountsReader | None:
        """What tells the counts at the end, where the engine's stream does not."""
        return self._reply.counts

    @counts.setter
    def counts(self, reader: CountsReader | None) -> None:
        self._reply.counts = reader

    @property
    def may_cut(self) -> bool:
        """Whether the engine's answer may be ended before the engine ends it."""
        return self._reply.may_cut

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

    @abstractmethod
    def _alter(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return what the reply sees of an event, whose `choices` are a list."""

    def _pass(self, payloads: list[bytes], now_ns: int) -> bytes:
        events = b"".join(sse(self._payload(payload)) for payload in payloads)
        out = self._reply.feed(events, now_ns) if events else b""
        self.ended = self._reply.ended
        self.first_token_ns = self._reply.first_token_ns
        return out

    def _payload(self, payload: bytes) -> bytes:
        """Change one event; errors and the end stay."""
        if payload == DONE:
            return payload
        try:
            event = msgspec.json.decode(payload)
        except ValueError:
            return payload  # the reply says what is wrong with it
        if not isinstance(event, dict) or not isinstance(event.get("choices"), list):
            return payload
        return msgspec.json.encode(self._alter(event))
