"""The counts of a response: the engine's numbers, else those counted on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllama.base.errors import EngineCrashed
from vllama.chat.engine.events import Chunk, Timings, check_finish
from vllama.chat.event_template import EventTemplate
from vllama.chat.request import Usage

CACHED = ("prompt_tokens_details", "cached_tokens")
_THOUGHT = ("completion_tokens_details", "reasoning_tokens")
CUT_SHORT = "the engine ended the stream early"


class Tally:
    """The counts of a response: its tokens, the times of its first and last, its end."""

    def __init__(
        self,
        template: EventTemplate,
        *,
        prompt_tokens: int | None = None,
        max_tokens: int | None = None,
    ) -> None:
        """`prompt_tokens` as counted before; `max_tokens` of an answer that may end for its length.

        Both are used where the engine does not say.
        """
        self.streams = True  # its tokens come one by one
        self.ended = self.left = False  # `left`: the client has, while the engine was at work
        self.first_token_ns: int | None = None
        self.finish_reason: str | None = None
        self.timings = Timings()
        self.read: Timings | None = None  # of the prompt, by a call before the one that responds
        self._thoughts = 0.0  # events of thinking
        self.moved = 0  # tokens of the answer that the engine counts with the prompt
        self.collected: dict[str, Any] = {}  # vllama's own fields, at the answer's end
        self._template = template  # counts the events that are not decoded
        self.prompt_tokens = prompt_tokens
        self._max_tokens = max_tokens
        self._usage: dict[str, Any] = {}
        self._choices, self.unfinished = 1, set[int]()
        self._final: Usage | None = None

    @property
    def has_begun(self) -> bool:
        """True once the engine has worked for it, so that its tokens count."""
        return self.ended or self.left or self.first_token_ns is not None

    @property
    def last_token_ns(self) -> int:
        """The time of the newest token."""
        return self._template.last_ns

    @property
    def usage(self) -> Usage:
        """Tokens so far: the engine's numbers, else those counted here."""
        if self._final is not None:
            return self._final
        timings = self.timings
        prompt = _count(self._usage.get("prompt_tokens"))
        if prompt is None and self.prompt_tokens is None and timings.prompt_n is not None:
            prompt = timings.prompt_n + (timings.cache_n or 0)
        prompt = self.prompt_tokens if prompt is None else prompt - self.moved
        limit = self._max_tokens if self.finish_reason == "length" else None
        completion = _count(self._usage.get("completion_tokens"), timings.predicted_n)
        completion = limit if completion is None else completion + self.moved
        tokens = self._template.tokens if completion is None else completion
        if self._max_tokens is not None:  # the engine may finish a character beyond the limit
            tokens = min(tokens, self._max_tokens * self._choices)
        # as large a part of the tokens as of the events, of which most have one
        thought = int(tokens * min(1, self._thoughts / max(1, self._template.tokens)))
        return Usage(
            prompt_tokens=prompt or 0,
            completion_tokens=tokens,
            cached_tokens=_count(find_detail(self._usage, *CACHED), timings.cache_n)
            if self.read is None
            else self.read.cache_n,
            reasoning_tokens=find_detail(self._usage, *_THOUGHT) or thought or None,
            estimated=completion is None,
        )

    @property
    def usage_object(self) -> dict[str, Any]:
        """OpenAI's usage object, with whatever else the engine says in it."""
        usage = self.usage
        known = self._usage
        counts = {  # in Ollama's order
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        value: dict[str, Any] = counts | known | counts
        details = ((CACHED, usage.cached_tokens), (_THOUGHT, usage.reasoning_tokens))
        for (group, name), number in details:
            if number is not None:
                value[group] = {**(known.get(group) or {}), name: number}
        return value

    def move_to_prompt(self, both_tokens: int | None) -> int:
        """Note that the engine counts what has come with the prompt; return how much that is.

        `both_tokens`: the prompt and what has come, as the engine counts.
        """
        self._usage, self.moved = {}, self._template.tokens
        if both_tokens is not None and self.prompt_tokens is not None:
            self.moved = max(self.moved, both_tokens - self.prompt_tokens)
        return self.moved

    def expect(self, choices: int) -> None:
        """Expect this many choices."""
        self._choices, self.unfinished = choices, set(range(choices))

    def count(self, chunk: Chunk, now_ns: int) -> None:
        """Count the tokens of an event as the engine sent it, whatever filters make of it."""
        for choice in chunk.choices or ():
            if choice.speaks:
                if self.first_token_ns is None:
                    self.first_token_ns = now_ns
                self._template.last_ns = now_ns
                self._template.tokens += 1

    def count_thinking(self, chunk: Chunk) -> None:
        """Count the thinking that filters have told apart; of an event with a text it is a part."""
        for choice in chunk.choices or ():
            if choice.delta is not None and (thinking := len(choice.delta.thinking)):
                self._thoughts += thinking / (thinking + len(choice.delta.said))

    def take(self, chunk: Chunk, now_ns: int) -> None:
        """Take note of the engine's numbers, and of the end of choices.

        Raises EngineCrashed when the engine says that it gave up.
        """
        if chunk.usage is not None:
            self._usage = chunk.usage
        if (said := chunk.timings) is not None:
            if (read := self.read) is not None:
                said.prompt_n = (said.prompt_n or 0) + (read.prompt_n or 0)
                said.prompt_ms = (said.prompt_ms or 0) + (read.prompt_ms or 0)
                said.cache_n = read.cache_n
            self.timings = said
        for choice in chunk.choices or ():
            self._choices = max(self._choices, choice.index + 1)
            self.unfinished.add(choice.index)
            if choice.finish_reason is not None:
                check_finish(choice.finish_reason)
                self.unfinished.discard(choice.index)
                self.finish_reason = choice.finish_reason
                self._template.last_ns = now_ns
                self.ended = not self.unfinished

    def complete(self) -> None:
        """Fix the usage, which is often read. Raises EngineCrashed if the answer is not whole."""
        if self.finish_reason is None or self.unfinished:
            raise EngineCrashed(CUT_SHORT)
        self._final = self.usage


def find_detail(usage: Mapping[str, Any], group: str, name: str) -> int | None:
    """Return one of the details of OpenAI's usage object, None if it does not tell."""
    details = usage.get(group)
    return _count(details.get(name)) if isinstance(details, dict) else None


def _count(*numbers: object) -> int | None:
    """Return the first that is a number."""
    for number in numbers:
        if type(number) is int:
            return number
    return None
