"""The interface of the dialects' writers, and the form of a response that a client wants."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from vllama.base.errors import VllamaError
from vllama.chat.engine.events import Event
from vllama.chat.event_template import EventTemplate
from vllama.chat.tally import Tally

EVENT_STREAM = "text/event-stream"
JSON = "application/json"


class ReplyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The form of a response that an OpenAI client wants; the engine always streams with usage.

    `model` is the name that the client wrote, which the answer bears; `customs` are custom tools.
    """

    kind: Literal["chat", "completion"]
    stream: bool
    include_usage: bool
    model: str
    top_logprobs: int = 0
    customs: frozenset[str] = frozenset()


class Writer(Protocol):
    """Writes one answer in a client's dialect. An error or the end comes once, last."""

    @property
    def content_type(self) -> str:
        """The media type of its bytes."""

    @property
    def template(self) -> EventTemplate:
        """The template of its plain events."""

    @property
    def streams(self) -> bool:
        """True if plain events are written as they come, not kept by the template for the end."""

    def write(self, event: Event, tally: Tally, now_ns: int) -> bytes:
        """Return one event as the client gets it; b"" if that comes later."""

    def finish(self, tally: Tally, now_ns: int) -> bytes:
        """Return the end, or the whole answer."""

    def fail(self, error: VllamaError) -> bytes:
        """Return how the dialect reports `error` inside an answer that has begun."""
