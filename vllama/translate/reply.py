"""What the relay needs of a translator of replies, whatever the dialect."""

from __future__ import annotations

from typing import Protocol

from vllama.errors import VllamaError
from vllama.translate.types import Usage

CUT_SHORT = "the engine ended the stream before the answer was complete"


class Reply(Protocol):
    """What the relay needs of a translator of replies."""

    content_type: str
    ended: bool
    first_token_ns: int | None

    @property
    def text(self) -> str:
        """The answer so far, without its thinking."""
        ...

    @property
    def usage(self) -> Usage:
        """Tokens so far, as the engine says or as counted."""
        ...

    def feed(self, chunk: bytes, now_ns: int) -> bytes:
        """Take bytes of the engine's stream; return what to send now. May raise VllamaError."""
        ...

    def finish(self, now_ns: int) -> bytes:
        """Return the rest after the engine's stream has ended. May raise VllamaError."""
        ...

    def fail(self, error: VllamaError) -> bytes:
        """Return how the dialect reports `error` inside a stream that has begun."""
        ...
