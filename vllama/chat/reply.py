"""What the relay needs of a translator of replies, and what every one watches in the stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from vllama.chat.engine.events import Chunk, EngineUsage, check_finish
from vllama.chat.engine.traits import Traits
from vllama.chat.event_template import Usual
from vllama.chat.framing import SseReader
from vllama.chat.request import Usage
from vllama.dialects.openai.read import Passage
from vllama.errors import EngineCrashed, VllamaError
from vllama.parsers.tool_calls import Toolset

CUT_SHORT = "the engine ended the stream before the answer was complete"
EVENT_STREAM = "text/event-stream"
JSON = "application/json"

CountsReader = Callable[[], EngineUsage | None]
"""Returns an answer's counts once its `finish_reason` is known, None if they cannot be had."""


class Reply(Protocol):
    """What the relay needs of a translator of replies."""

    content_type: str
    ended: bool
    first_token_ns: int | None
    counts: CountsReader | None

    @property
    def may_cut(self) -> bool:
        """Whether it may end the engine's answer before the engine does."""
        ...

    @property
    def usual(self) -> Usual | None:
        """What is known of plain tokens; None if all must go through `feed`."""
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


class Tap(ABC):
    """What replies watch in the stream: usage, ends, the first token, the whole text."""

    def __init__(
        self,
        passage: Passage,
        traits: Traits,
        *,
        prompt_tokens: int | None = None,
        think: bool = False,
        think_opened: bool = False,
    ) -> None:
        """`think`: the model may think; `think_opened`: the prompt ended inside the tag."""
        self.content_type = JSON
        self.ended = False
        self.first_token_ns: int | None = None
        self.counts: CountsReader | None = None
        self.may_cut = False
        self.events = 0
        self._passage = passage
        self._split = think and not traits.splits_reasoning
        self._opened = think_opened and not passage.constrained
        tools = passage.tools
        by_schema = isinstance(tools, Toolset) and tools.forced
        self._scan = tools if by_schema or not traits.parses_tools else False
        self._prompt_tokens = prompt_tokens
        self._reader = SseReader()
        self.usual = Usual()
        self._unfinished: set[int] = set()
        self._finish_reason: str | None = None
        self._usage: dict[str, Any] | None = None
        self._failure: VllamaError | None = None

    @property
    def finish_reason(self) -> str | None:
        """Why the engine stopped; None before that."""
        return self._finish_reason

    @property
    def usage(self) -> Usage:
        """Tokens so far: the engine's numbers, else those counted here."""
        given = self._usage or {}
        prompt, completion = given.get("prompt_tokens"), given.get("completion_tokens")
        if not isinstance(prompt, int):
            prompt = self._prompt_tokens or 0
        limit = self._passage.max_tokens if self._finish_reason == "length" else None
        told = isinstance(completion, int) or limit is not None
        if not isinstance(completion, int):
            completion = self.usual.tokens if limit is None else limit
        return Usage(prompt_tokens=prompt, completion_tokens=completion, estimated=not told)

    def feed(self, chunk: bytes, now_ns: int) -> bytes:
        """Take bytes of the engine's stream; return what they are to the client.

        Raises UpstreamError or EngineCrashed for an error in the stream, but first returns what
        came before it in the same read.
        """
        if self._failure is not None:
            raise self._failure
        out: list[bytes] = []
        try:
            self._take(self._reader.feed(chunk), now_ns, out)
        except VllamaError as error:
            if not out:
                raise
            self._failure = error
        return b"".join(out)

    @abstractmethod
    def _take(self, payloads: list[bytes], now_ns: int, out: list[bytes]) -> None:
        """Take whole events; append what can be sent."""

    def _take_rest(self, now_ns: int, out: list[bytes]) -> None:
        """Take what the stream's end completes. Raises EngineCrashed if the answer is not whole."""
        if self._failure is not None:
            raise self._failure
        self._take(self._reader.close(), now_ns, out)
        if self._finish_reason is None or self._unfinished:
            raise EngineCrashed(CUT_SHORT)

    def _watch(self, chunk: Chunk, now_ns: int) -> None:
        """Take note of one event. Raises EngineCrashed when the engine says that it gave up."""
        self.events += 1
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices or ():
            delta = choice.delta
            text = choice.text if delta is None else delta.content
            if text or (
                delta is not None
                and (delta.reasoning or delta.reasoning_content or delta.tool_calls)
            ):
                if self.first_token_ns is None:
                    self.first_token_ns = now_ns
                self.usual.tokens += 1
            self._unfinished.add(choice.index)
            if choice.finish_reason is not None:
                check_finish(choice.finish_reason)
                self._unfinished.discard(choice.index)
                self._finish_reason = choice.finish_reason
                self.ended = not self._unfinished
                if self.counts is not None and (counted := self.counts()) is not None:
                    self._usage = msgspec.to_builtins(counted)

    def _usage_object(self) -> dict[str, Any]:
        usage = self.usage
        return {
            **(self._usage or {}),
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
