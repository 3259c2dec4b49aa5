"""The stages of a relayed answer, and what a relay asks of others on the way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum

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
    RESUMING = "resuming"  # the engine has died or was stopped, and is asked again


TRANSITIONS: Mapping[RelayState, frozenset[RelayState]] = {
    RelayState.CONNECTING: frozenset(
        {RelayState.AWAITING_HEAD, RelayState.RESUMING, RelayState.ABORTED}
    ),
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
