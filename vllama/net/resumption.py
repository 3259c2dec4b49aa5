"""How an answer is asked for again: from its beginning, or from the text that has come."""

from __future__ import annotations

from typing import Protocol

from vllama.base.errors import EngineError, VllamaError
from vllama.chat.engine.events import decode_event
from vllama.chat.replay import Rest
from vllama.chat.reply import Reply
from vllama.chat.request import Call
from vllama.net.relay_types import Prepare
from vllama.net.upstream.pool import Upstream


class Resumer(Protocol):
    """Finds what an answer goes on with when its engine has died, or others need it first."""

    async def resume(self, error: EngineError, reply: Reply, *, was_sent: bool) -> Upstream:
        """Wait for an engine that may be asked for the same answer; return it.

        `was_sent`: the request was written to a connection before `error`.
        Raises VllamaError if none may, and ClientGone.
        """
        ...

    async def wait_for_turn(self) -> Upstream:
        """Let other requests have the engine; return what to go on with after them.

        Raises VllamaError if that is nothing.
        """
        ...

    def note_progress(self) -> None:
        """Note that something new has come of an answer that was asked for again."""
        ...


class Resumption:
    """What one answer goes on with."""

    def __init__(self, reply: Reply, call: Call, resumer: Resumer, prepare: Prepare | None) -> None:
        """`call` is what the engine was asked, before `prepare`."""
        self._reply, self._asked, self._resumer, self._prepare = reply, call, resumer, prepare
        self._rest: Rest | None = None

    @property
    def is_suspended(self) -> bool:
        """Whether it was stopped because others need the engine."""
        return self._rest is not None

    def suspend(self) -> bool:
        """Note that it goes on later, from the text that has come; False if that cannot be."""
        self._rest = self._reply.make_rest(self._asked)
        return self.is_suspended

    async def find(self, error: VllamaError | None, *, was_sent: bool) -> tuple[Upstream, Call]:
        """Wait for an engine; return it, and what to ask of it. Raises ClientGone, VllamaError."""
        if self._rest is not None:
            return await self._find_rest(self._rest)
        assert isinstance(error, EngineError)
        upstream = await self._resumer.resume(error, self._reply, was_sent=was_sent)
        call = self._asked
        if self._prepare is not None:
            call = await self._prepare(upstream, call)
        self._reply.begin_again()
        return upstream, call

    async def _find_rest(self, rest: Rest) -> tuple[Upstream, Call]:
        """Have the engine read what has come; return it, and the call for what follows.

        It finds most of it in its cache, as it was computed token by token.
        """
        tally, count_prompt = self._reply.tally, self._reply.count_prompt
        if tally.prompt_tokens is None and count_prompt is not None:
            tally.prompt_tokens = await count_prompt()
        upstream = await self._resumer.wait_for_turn()
        both_tokens = await _read(upstream, rest.read_said)
        self._rest = None
        self._asked = self._reply.go_on(rest, both_tokens)
        return upstream, self._asked


async def _read(upstream: Upstream, call: Call) -> int | None:
    """Have an engine read a prompt; return its tokens, None if it does not tell."""
    answer = await upstream.fetch(call)
    tokens = (decode_event(answer.body).chunk.usage or {}).get("prompt_tokens")
    return tokens if type(tokens) is int else None
