"""Several choices in one answer, each made by a request of its own.

Most engines make one choice a request, so `n` and a list of prompts become requests one after the
other, whose answers are numbered and joined here (OpenAI's API: `choices[].index`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from vllama.chat.engine.events import Chunk
from vllama.chat.engine.fields import mask_seed
from vllama.chat.engine.traits import Traits
from vllama.chat.request import Call, Usage

MAX_CHOICES = 128
"""OpenAI's own limit of `n`."""


def reseed(call: Call, traits: Traits, number: int) -> Call:
    """Return the call for choice `number`: a fixed seed must not make all the same."""
    name = traits.parameters.get("seed")
    if name is None or name not in call.fields or not number:
        return call
    return call.put(**{name: mask_seed(call.fields[name] + number, traits)})


class Totals:
    """Shared fields of a response's parts: the identity of the first and the sum of the tokens."""

    def __init__(self) -> None:
        self.identity: tuple[str | None, int | None] | None = None
        self.prompt_tokens = 0
        self.completion_tokens = self.reasoning_tokens = 0
        self.cached_tokens: int | None = None

    def add(self, usage: Usage, *, prompt: bool) -> dict[str, Any]:
        """Add a part's tokens, those of its `prompt` only once; return OpenAI's usage object."""
        self.prompt_tokens += usage.prompt_tokens if prompt else 0
        self.completion_tokens += usage.completion_tokens
        if prompt and usage.cached_tokens is not None:
            self.cached_tokens = (self.cached_tokens or 0) + usage.cached_tokens
        total: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }
        self.reasoning_tokens += usage.reasoning_tokens or 0
        if self.cached_tokens is not None:
            total["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        if self.reasoning_tokens:
            total["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return total


class NthChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a streamed answer whose choices are made one after the other.

    `is_last`: the usage and the end of the stream follow it; `new_prompt`: it is the first one of
    its prompt, whose tokens count.
    """

    totals: Totals
    index: int
    is_last: bool
    new_prompt: bool

    @classmethod
    def several(cls, counts: Sequence[int]) -> list[NthChoice | None]:
        """Return the parts of an answer with so many choices for each prompt; one has none."""
        number = sum(counts)
        if number == 1:
            return [None]
        totals = Totals()
        new = [position == 0 for count in counts for position in range(count)]
        return [
            cls(totals=totals, index=index, is_last=index == number - 1, new_prompt=first)
            for index, first in enumerate(new)
        ]

    def identify(self, chunk: Chunk) -> None:
        """Give a chunk the identity of the answer's first."""
        if self.totals.identity is None:
            self.totals.identity = (chunk.id, chunk.created)
        chunk.id, chunk.created = self.totals.identity

    def add(self, usage: Usage) -> dict[str, Any]:
        """Add its tokens; return the usage of all parts so far."""
        return self.totals.add(usage, prompt=self.new_prompt)


def merge_choices(bodies: Sequence[bytes], usages: Sequence[tuple[Usage, bool]]) -> bytes:
    """Join whole answers of one choice each; `usages` say whose prompt counts."""
    totals = Totals()
    objects = [msgspec.json.decode(body) for body in bodies]
    first: dict[str, Any] = objects[0]
    for usage, new_prompt in usages:
        first["usage"] = totals.add(usage, prompt=new_prompt)
    first["choices"] = [
        choice | {"index": number}
        for number, value in enumerate(objects)
        for choice in value["choices"]
    ]
    return msgspec.json.encode(first)
