"""How many threads compute, and how much memory keeps idle conversations. Pure.

Threads that compute together wait for each other after every step of a model, hundreds of times a
token. So one for each core is the fastest on a quiet machine, and where another program takes the
core of one of them, all of them wait (docs/reference/engines.md#threads). The number is chosen at
the load and stays: what other programs do at that moment says little about the next minute.

A slot holds one conversation. When another one takes it, an engine with a prompt cache copies what
it has read of the first into RAM, and copies it back when that goes on; without one it reads the
whole conversation again.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllama.engines.base import Engine, Memory, Mode
from vllama.engines.capabilities import PromptCaching, Threaded
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


MIB = 1024**2
CONVERSATIONS = 16
"""So many whole contexts are worth keeping."""
SHARE = 2
"""Of the free memory that is left beside the model, one part in so many."""
LEAST_BYTES, MOST_BYTES = 64 * MIB, 8192 * MIB


def size_prompt_cache(
    facts: Facts, engine: Engine, need: Need, memory: Memory, slots: int | None
) -> int:
    """Return the size of the cache, a power of two MiB; 0: none.

    It takes memory only as conversations come, and never so much that the model would not fit into
    what is free now: where that is little, the cache is small, or there is none.
    """
    if not isinstance(engine, PromptCaching) or not engine.caches_prompts:
        return 0
    if need.mode is not Mode.CHAT or facts.settings.replicas > 1:
        return 0
    conversation = memory.kv_bytes // (slots or 1)
    taken = 0 if memory.on_gpu else memory.total_bytes
    platform = facts.platform
    free = min(platform.ram_available_bytes, platform.ram_total_bytes)
    spare = free - facts.reserve_bytes - taken
    most = min(CONVERSATIONS * conversation, spare // SHARE, MOST_BYTES)
    if most < LEAST_BYTES:
        return 0
    return MIB << ((most // MIB).bit_length() - 1)
