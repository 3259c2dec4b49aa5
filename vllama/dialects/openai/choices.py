"""Several choices in one answer, each made by a request of its own.

Most engines make one choice a request, so `n` and a list of prompts become requests one after the
other, whose answers are numbered and joined here (OpenAI's API: `choices[].index`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from vllama.chat.engine.fields import mask_seed
from vllama.chat.engine.traits import Traits
from vllama.chat.framing import DONE, sse
from vllama.chat.go_json import kind
from vllama.chat.reply import CountsReader, Reply
from vllama.chat.request import Call, Usage
from vllama.errors import BadRequest, VllamaError

MAX_CHOICES = 128
"""OpenAI's own limit of `n`."""


def parse_n(value: object) -> int:
    """Return how many choices are wanted; None is one. Raises BadRequest."""
    if value is None:
        return 1
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(
            f"Invalid type for 'n': expected an integer, but got {kind(value)} instead."
        )
    if not 1 <= value <= MAX_CHOICES:
        raise BadRequest(f"Invalid 'n': expected 1 to {MAX_CHOICES}, but got {value}.")
    return value


def reseeded(call: Call, traits: Traits, number: int) -> Call:
    """Return the call for choice `number`: a fixed seed must not make all the same."""
    name = traits.parameters.get("seed")
    value = msgspec.json.decode(call.body) if number else {}
    if name is None or name not in value:
        return call
    value[name] = mask_seed(value[name] + number, traits)
    return msgspec.structs.replace(call, body=msgspec.json.encode(value))


class Totals:
    """What the parts of one answer share: the identity of the first and the sum of the tokens."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        self.prompt_tokens = 0
        self.completion_tokens = 0

    def add(self, usage: Usage, *, prompt: bool) -> None:
        """Add a part's tokens; those of its `prompt` only once for all of its choices."""
        self.prompt_tokens += usage.prompt_tokens if prompt else 0
        self.completion_tokens += usage.completion_tokens

    def usage(self) -> dict[str, int]:
        """Return OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    def identify(self, value: dict[str, Any]) -> None:
        """Give an object or a chunk the identity of the first."""
        if not self.head:
            self.head = {name: value[name] for name in ("id", "created") if name in value}
        value.update(self.head)


class Numbered:
    """One choice of a streamed answer, around the reply that makes it."""

    def __init__(
        self, inner: Reply, totals: Totals, index: int, *, last: bool, new_prompt: bool
    ) -> None:
        """`last`: the usage and the end of the stream follow this choice."""
        self._inner = inner
        self._totals = totals
        self._index = index
        self._last = last
        self._new_prompt = new_prompt
        self.usual = None  # what the reply writes is not what the client gets
        self._closing: dict[str, Any] | None = None  # the chunk with the usage, if asked for
        self.content_type = inner.content_type
        self.ended = False
        self.first_token_ns: int | None = None
        self.failed = False

    @property
    def usage(self) -> Usage:
        """Tokens of this choice."""
        return self._inner.usage

    @property
    def counts(self) -> CountsReader | None:
        """What tells the counts at the end, where the engine's stream does not."""
        return self._inner.counts

    @counts.setter
    def counts(self, reader: CountsReader | None) -> None:
        self._inner.counts = reader

    @property
    def may_cut(self) -> bool:
        """Whether the engine's answer may be ended before the engine ends it."""
        return self._inner.may_cut

    def feed(self, chunk: bytes, now_ns: int) -> bytes:
        """Take bytes of the engine's stream; return what to send now."""
        data = self._inner.feed(chunk, now_ns)
        self.ended, self.first_token_ns = self._inner.ended, self._inner.first_token_ns
        return self._renumbered(data)

    def finish(self, now_ns: int) -> bytes:
        """Return the rest of this choice, after the last one usage and end of the stream."""
        out = self._renumbered(self._inner.finish(now_ns))
        self._totals.add(self.usage, prompt=self._new_prompt)
        if not self._last:
            return out
        if self._closing is not None:
            self._closing["usage"] = self._totals.usage()
            out += sse(msgspec.json.encode(self._closing))
        return out + sse(DONE)

    def fail(self, error: VllamaError) -> bytes:
        """Return the error's event: no choice follows it."""
        self.failed = True
        return self._inner.fail(error)

    def _renumbered(self, data: bytes) -> bytes:
        """Rewrite whole events, for a reply never gives a part of one; keep those of the end."""
        out = []
        for event in data.split(b"\n\n")[:-1]:
            payload = event.removeprefix(b"data: ")
            if payload == DONE:
                continue
            value = msgspec.json.decode(payload)
            self._totals.identify(value)
            if not value["choices"]:
                self._closing = value
                continue
            for choice in value["choices"]:
                choice["index"] = self._index
            out.append(sse(msgspec.json.encode(value)))
        return b"".join(out)


def merged(bodies: Sequence[bytes], usages: Sequence[tuple[Usage, bool]]) -> bytes:
    """Join whole answers of one choice each; `usages` say whose prompt counts."""
    totals = Totals()
    objects = [msgspec.json.decode(body) for body in bodies]
    for usage, new_prompt in usages:
        totals.add(usage, prompt=new_prompt)
    first: dict[str, Any] = objects[0]
    first["choices"] = [
        choice | {"index": number}
        for number, value in enumerate(objects)
        for choice in value["choices"]
    ]
    first["usage"] = totals.usage()
    return msgspec.json.encode(first)
