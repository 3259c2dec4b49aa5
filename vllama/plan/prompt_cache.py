"""How much memory an engine may keep conversations in that have lost their slot. Pure.

A slot holds one conversation. When another one takes it, an engine with a prompt cache copies what
it has read of the first into RAM, and copies it back when that goes on; without one it reads the
whole conversation again.
"""

from __future__ import annotations

from vllama.engines.base import Engine, Mode
from vllama.engines.capabilities import PromptCaching
from vllama.plan.types import Facts, Memory, Need

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
