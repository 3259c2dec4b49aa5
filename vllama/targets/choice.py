"""Choice among equal targets for the next request, and the record of recent failures.

A target is anything that can answer: a link of a chain, a replica, a server elsewhere. Requests to
one that has failed go elsewhere for a while.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from vllama.base.clock import Clock
from vllama.base.errors import UpstreamError, VllamaError
from vllama.supervise.spec import Endpoint

Target = TypeVar("Target", bound=Hashable)
BROKEN_S, BROKEN_MOST_S = 1.0, 30.0
PROBED_MOST_S = 4.0
"""The longest pause before a probe; with its own limit, a target that is well waits below 10 s."""


def choose_target(
    loads: Mapping[Endpoint, int],
    is_healthy: Callable[[Endpoint], bool],
    known: Endpoint | None = None,
    slots: int = 1,
) -> Endpoint:
    """Return one of `loads`, which has the running requests of each.

    1. The healthy ones, unless there are none.
    2. `known`, which has the prompt's beginning in its cache, unless it is full or has two requests
       more than the least busy one. `slots`: the requests that one without a limit takes at once.
    3. The least busy one with room; requests to a target of weight 2 count half.
    """
    well = [each for each in loads if is_healthy(each)] or list(loads)
    room = [each for each in well if loads[each] < (each.concurrent or math.inf)] or well
    best = min(room, key=lambda each: (loads[each] + 1) / each.weight)
    if known in well and loads[known] <= loads[best] + 1:
        return known if loads[known] < (known.concurrent or slots) else best
    return best


@dataclass(frozen=True, slots=True)
class Break:
    """Why a target gets no requests, and until when (monotonic) nobody tries it."""

    until_s: float
    pause_s: float
    reason: str


class Breakers(Generic[Target]):
    """The breakers of targets.

    The pause starts at `BROKEN_S` and doubles with each failure in a row. When it is over, one
    request or probe tries the target, and the others skip it until that one has succeeded.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[Target, Break] = {}

    def find_reason(self, target: Target) -> str:
        """Return why `target` is skipped; empty if it is not."""
        return self._open[target].reason if target in self._open else ""

    def admit(self, target: Target) -> bool:
        """Return whether one request or probe may try `target` now."""
        broken = self._open.get(target)
        if broken is None:
            return True
        now_s = self._clock.monotonic()
        if now_s < broken.until_s:
            return False
        self._open[target] = Break(now_s + broken.pause_s, broken.pause_s, broken.reason)
        return True

    def note_failure(
        self,
        target: Target,
        *,
        slow: bool = False,
        reason: str = "",
        most_s: float = BROKEN_MOST_S,
        wait_s: float = 0.0,
    ) -> None:
        """Skip `target` for a while, for `most_s` if it is `slow` to fail, as that costs more time.

        `wait_s` is how long it has asked to be left alone.
        """
        before = self._open.get(target)
        pause_s = min(max(BROKEN_S, 2 * before.pause_s if before else 0.0), most_s)
        pause_s = most_s if slow else pause_s
        until_s = self._clock.monotonic() + max(pause_s, wait_s)
        # answers that were under way when it failed do not shorten the wait that it asked for
        until_s = max(until_s, before.until_s) if before else until_s
        self._open[target] = Break(until_s, pause_s, reason or (before.reason if before else ""))

    def note_success(self, target: Target) -> None:
        """Use `target` again."""
        self._open.pop(target, None)


def describe_failure(error: VllamaError) -> str:
    """Return the public part of a failure: nothing that an upstream wrote."""
    if isinstance(error, UpstreamError):
        return {
            404: "it lacks the model (404)",
            429: "it is busy (429)",
            503: "it is busy (503)",
            504: "it generated no token in time",
        }.get(error.status, "it failed a request")
    return "its connection was lost"
