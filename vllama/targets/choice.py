"""Which of several equal targets answers the next request: a pure decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from vllama.supervise.spec import Endpoint


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
