"""How many threads compute. Pure.

Threads that compute together wait for each other after every step of a model, hundreds of times a
token. So one for each core is the fastest on a quiet machine, and where another program takes the
core of one of them, all of them wait: on two cores beside a busy loop, two threads had from a tenth
to a half of one thread's speed (BENCHMARKS.md). `scheduler.contention` notices that, and asks for
a plan with fewer.
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
    """How many threads generate and how many read prompts, and why.

    `most` is how many would generate if no other program wanted a core; None: the number is not to
    be changed, because somebody asked for it, or because the engine has no use for it.
    """

    generate: int
    batch: int
    most: int | None = None
    reason: str = ""


def choose_threads(facts: Facts, engine: Engine, need: Need, *, on_gpu: bool) -> Threads:
    """Decide for one process of `engine`."""
    platform, prefs = facts.platform, facts.preferences
    if asked := need.threads or prefs.threads:
        limit = MOST_PER_CORE * platform.cores
        if asked > limit:
            reason = f"{_count(limit)}, the most on {platform.cores} cores; {asked} were asked for"
            return Threads(generate=limit, batch=limit, reason=reason)
        return Threads(generate=asked, batch=asked, reason=f"{_count(asked)}, as asked for")
    cores = max(1, (platform.physical_cores or platform.cores) // prefs.replicas)
    if not (isinstance(engine, Threaded) and engine.sets_threads) or on_gpu:
        return Threads(generate=max(1, cores - 1), batch=cores)
    fewer = min(cores, need.threads_at_most or cores)
    if fewer < cores:
        reason = f"{_count(fewer)} instead of {cores}: other programs keep the cores busy"
    else:
        reason = f"{_count(cores)}: one on each physical core"
    most = cores if prefs.replicas == 1 else None
    return Threads(generate=fewer, batch=cores, most=most, reason=reason)


def _count(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"
