"""The stages of a relayed answer, and what a relay asks of others on the way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Protocol

from vllama.base.errors import EngineError
from vllama.chat.reply import Reply
from vllama.chat.request import Call
from vllama.net.upstream.pool import Upstream

Prepare = Callable[[Upstream, Call], Awaitable[Call]]
"""Returns a request as it is sent, each time that it is."""
Finish = Callable[[Upstream], Awaitable[None]]
"""What is still to be asked of the engine that has answered."""


class RelayState(StrEnum):
    """The stages of an answer."""

    CONNECTING = "connecting"
    AWAITING_HEAD = "awaiting_head"
    STREAMING = "streaming"
    DRAINING = "draining"  # the engine has finished; the end is still to be sent
    DONE = "done"
    ABORTED = "aborted"  # the client has disconnected
    RESUMING = "resuming"  # the engine has died, and is asked again


TRANSITIONS: Mapping[RelayState, frozenset[RelayState]] = {
    RelayState.CONNECTING: frozenset({RelayState.AWAITING_HEAD, RelayState.ABORTED}),
    RelayState.AWAITING_HEAD: frozenset(
        {RelayState.STREAMING, RelayState.DRAINING, RelayState.RESUMING, RelayState.ABORTED}
    ),
    RelayState.STREAMING: frozenset({RelayState.DRAINING, RelayState.RESUMING, RelayState.ABORTED}),
    RelayState.RESUMING: frozenset(
        {RelayState.AWAITING_HEAD, RelayState.DRAINING, RelayState.ABORTED}
    ),
    RelayState.DRAINING: frozenset({RelayState.DONE, RelayState.ABORTED}),
    RelayState.DONE: frozenset(),
    RelayState.ABORTED: frozenset(),
}
"""The states that may follow each state; docs/architecture.md shows them as a diagram."""


class Resumer(Protocol):
    """Finds what an answer goes on with when its engine has died."""

    async def resume(self, error: EngineError, reply: Reply, *, was_sent: bool) -> Upstream:
        """Wait for an engine that may be asked for the same answer; return it.

        `was_sent`: the request was written to a connection before `error`.
        Raises VllamaError if none may, and ClientGone.
        """
        ...

    def note_progress(self) -> None:
        """Note that something new has come of an answer that was asked for again."""
        ...
