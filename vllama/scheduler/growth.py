"""The size of a model by the requests that come. Pure.

A model gets several slots when requests come together, and a larger context when one asks for it.
Once no request has needed that for a while, the idle model is loaded again without.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from vllama.base.units import format_amount
from vllama.plan.types import Need, Plan

LEAST_SHARE = 0.1  # of the model's memory has to become free


@dataclass(slots=True, eq=False)
class Growth:
    """The demand for slots and context of a model, over all its instances.

    Times are monotonic. `concurrent`: its loads get several slots; `crowded_s` is when several
    requests ran last. `num_ctx` is that of the latest request, `context_s` when one named any.
    """

    concurrent: bool = False
    crowded_s: float = -math.inf
    num_ctx: int = 0
    context_s: float = -math.inf

    def note_context(self, num_ctx: int | None, now_s: float) -> None:
        """Note the context that a request asks for."""
        self.num_ctx = num_ctx or 0
        self.context_s = now_s if num_ctx else self.context_s

    def note_crowd(self, now_s: float) -> None:
        """Note that requests have to wait for a load with several slots."""
        self.concurrent, self.crowded_s = True, now_s

    def reduce(self, need: Need, plan: Plan) -> tuple[Need, str, float]:
        """Return the need of a load for less, what that gives, and since when (infinite: never)."""
        slots, context = plan.settings.parallel or 1, plan.settings.context_length
        fewer, less, since_s = slots, context, -math.inf
        if need.concurrent:
            fewer, since_s = 1, self.crowded_s
        if self.num_ctx <= plan.usual_context < context:
            less, since_s = plan.usual_context, max(since_s, self.context_s)
            load = msgspec.structs.replace(need.load, num_ctx=None)
            need = msgspec.structs.replace(need, load=load)
        freed = plan.memory.kv_bytes - plan.memory.kv_bytes * fewer * less // (slots * context)
        if freed <= LEAST_SHARE * plan.memory.total_bytes:
            return need, "", math.inf
        count = f"{fewer} slot{'s' if fewer > 1 else ''}"
        words = f"idle: reloading with {count} of {less} tokens, {format_amount(freed)} less"
        return msgspec.structs.replace(need, concurrent=False), words, since_s
