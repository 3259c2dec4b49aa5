"""Resuming a response: from its beginning, or from the text that has come."""

from __future__ import annotations

from typing import Protocol

from vllama.base.errors import EngineCrashed, EngineError, VllamaError
from vllama.chat.engine.events import decode_event
from vllama.chat.replay import Rest
from vllama.chat.reply import Reply
from vllama.chat.request import Call
from vllama.chat.tally import CUT_SHORT
from vllama.net.relay_types import Prepare
from vllama.net.upstream.connection import Connection, ConnectionLost
from vllama.net.upstream.pool import Upstream


class Resumer(Protocol):
    """Finds what an answer goes on with when its engine has died, or others need it first."""

    async def resume(self, error: EngineError, reply: Reply, *, was_sent: bool) -> Upstream:
        """Wait for an engine that may be asked for the same answer; return it.

        `was_sent`: the request was written to a connection before `error`.
        Raises VllamaError if none may, and ClientGone.
        """

    async def wait_for_turn(self) -> Upstream:
        """Let other requests have the engine; return what to go on with after them.

        Raises VllamaError if that is nothing.
        """

    def note_progress(self) -> None:
        """Note that something new has come of an answer that was asked for again."""


class Resumption:
    """The means to go on with one response."""

    def __init__(
        self, reply: Reply, call: Call, resumer: Resumer | None, prepare: Prepare | None
    ) -> None:
        """`call` is what the engine was asked, before `prepare`."""
        self._reply, self._asked, self.resumer, self._prepare = reply, call, resumer, prepare
        self._rest: Rest | None = None
        self._waits = False  # others have the engine
        self._upstream: Upstream

    @property
    def is_suspended(self) -> bool:
        """True while it is stopped because others need the engine."""
        return self._rest is not None

    async def begin(self, upstream: Upstream) -> Call:
        """Return the first call to the engine."""
        self._upstream, passes = upstream, self._reply.passes
        call = await self._prepare_call(upstream, self._asked)
        return call if passes is None else passes.begin(call)

    async def _prepare_call(self, upstream: Upstream, call: Call) -> Call:
        return call if self._prepare is None else await self._prepare(upstream, call)

    def suspend(self) -> bool:
        """Note that it goes on later, from the text that has come; False if that cannot be."""
        self._rest = self._rest or self._reply.make_rest(self._asked)
        self._waits = self.is_suspended
        return self._waits

    async def find(
        self, error: VllamaError | None, *, was_sent: bool
    ) -> tuple[Upstream, Call, Connection]:
        """Wait for an engine; return it, what to ask of it, and a connection.

        May be canceled by whoever suspends it meanwhile. Raises ClientGone, VllamaError.
        """
        tally, count_prompt = self._reply.tally, self._reply.count_prompt
        if error is None and (second := self._reply.second_call) is not None:
            await self._reply.begin_second()
            return self._upstream, second, await self._upstream.connect()
        while True:
            if self.resumer is None:
                raise error or EngineCrashed(CUT_SHORT)
            if self._waits:
                if tally.prompt_tokens is None and count_prompt is not None:
                    tally.prompt_tokens = await count_prompt()
                self._waits = False
                upstream = await self.resumer.wait_for_turn()
            else:
                assert isinstance(error, EngineError)
                upstream = await self.resumer.resume(error, self._reply, was_sent=was_sent)
            if self._rest is None:
                call = await self.begin(upstream)
                self._reply.begin_again()
                return upstream, call, await upstream.connect()
            self._reply.resumes_text = True
            try:
                # it finds most of it in its cache, as it was computed token by token
                read_said = await self._prepare_call(upstream, self._rest.read_said)
                both_tokens = await _read(upstream, read_said)
                connection = await upstream.connect()
            except ConnectionLost as lost:
                error, was_sent = lost, True
                continue
            self._asked, self._rest = self._reply.go_on(self._rest, both_tokens), None
            return upstream, await self._prepare_call(upstream, self._asked), connection


async def _read(upstream: Upstream, call: Call) -> int | None:
    """Let an engine read a prompt; return its tokens, None if it does not tell."""
    answer = await upstream.fetch(call)
    tokens = (decode_event(answer.body).chunk.usage or {}).get("prompt_tokens")
    return tokens if type(tokens) is int else None
