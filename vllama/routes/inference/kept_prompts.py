"""The part of `--cache-disk` in requests: conversations in engines' slots, and vLLM's salt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllama.chat.reply import Reply
from vllama.chat.request import Call
from vllama.net.upstream.pool import Upstream
from vllama.routes.recording.running import RunningRequest
from vllama.routes.recording.stage import Stage

if TYPE_CHECKING:
    from vllama.scheduler.slot_cache.cache import CachedTurn, SlotCache


class KeptPrompts(Stage):
    """Restores conversations before requests are sent, and notes them after; one for each key."""

    def __init__(self, cache: SlotCache) -> None:
        self._cache = cache
        self._turns: dict[RunningRequest, tuple[Reply, CachedTurn]] = {}

    async def before_send(
        self, running: RunningRequest, reply: Reply, upstream: Upstream, call: Call
    ) -> Call:
        """Return the call with its slot and mark, and with the salt of its key."""
        lease, access = running.lease, running.access
        if lease is None:
            return call
        if (salt_field := lease.traits.salt_field) is not None and access is not None:
            call = call.put(**{salt_field: access.identity})
        if reply.prompt_text is None:
            return call
        earlier, turn = self._turns.get(running, (None, None))
        if turn is None or earlier is not reply:
            self.released(running)  # choices are made one after the other
            turn = self._cache.begin(reply.prompt_text, access)
            self._turns[running] = reply, turn
            reply.keep_text()
        return await turn.prepare(lease, upstream, call, restores=not reply.resumes_text)

    def released(self, running: RunningRequest) -> None:
        """Note the end of an answer."""
        if running in self._turns:
            reply, turn = self._turns.pop(running)
            turn.end(reply.taken_text, reply.tally.usage)
