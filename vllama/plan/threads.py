"""How many threads compute. Pure.

Threads that compute together wait for each other after every step of a model, hundreds of times a
token. So one for each core is the fastest on a quiet machine, and where another program takes the
core of one of them, all of them wait (docs/reference/engines.md#threads). The number is chosen at
the load and stays: what other programs do at that moment says little about the next minute.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllama.engines.base import Engine
from vllama.engines.capabilities import Threaded
from vllama.plan.types import Facts, Need

MOST_PER_CORE = 4
"""So many are never faster; far more, an engine cannot start (`num_thread` is a client's word)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """How many threads generate and how many read prompts, and why."""

    generate: int
    batch: int
    reason: str = ""


def choose_threads(facts: Facts, engine: Engine, need: Need, *, on_gpu: bool) -> Threads:
    """Decide for one process of `engine`."""
    platform, settings = facts.platform, facts.settings
    if asked := need.threads or settings.threads:
        limit = MOST_PER_CORE * platform.cores
        if asked > limit:
            reason = f"{_count(limit)}, the most on {platform.cores} cores; {asked} were asked for"
            return Threads(generate=limit, batch=limit, reason=reason)
        return Threads(generate=asked, batch=asked, reason=f"{_count(asked)}, as asked for")
    cores = max(1, (platform.physical_cores or platform.cores) // settings.replicas)
    if not (isinstance(engine, Threaded) and engine.sets_threads) or on_gpu:
        return Threads(generate=max(1, cores - 1), batch=cores)
    reason = f"{_count(cores)}: one on each physical core"
    return Threads(generate=cores, batch=cores, reason=reason)


def _count(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"
