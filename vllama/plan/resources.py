"""Resources beside a model's own memory: threads, and memory for conversations. Pure.

Threads that compute together wait for each other after every step of a model, hundreds of times a
token. So one for each core is the fastest on a quiet machine, and where another program takes the
core of one of them, all of them wait (docs/reference/engines.md#threads). The number is chosen at
the load and stays: what other programs do at that moment says little about the next minute.

A slot holds one conversation. When another one takes it, an engine with a prompt cache copies what
it has read of the first into RAM, and copies it back when that goes on; without one it reads the
whole conversation again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from vllama.base.errors import NoPlan
from vllama.base.units import format_bytes_decimal
from vllama.engines.base import Engine, Memory, Mode
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.plan.types import Choice, Estimate, Facts, Need, Plan

MOST_PER_CORE = 4
"""So many are never faster; far more, an engine cannot start (`num_thread` is a client's word)."""

MIB = 1024**2
CONVERSATIONS = 16
"""So many whole contexts are worth keeping."""
SHARE = 2
"""Of the free memory that is left beside the model, one part in so many."""
LEAST_BYTES, MOST_BYTES = 64 * MIB, 8192 * MIB


def keep_named(facts: Facts, model: str) -> Facts:
    """Return the facts with the GPUs that the user named for a model. Raises NoPlan."""
    named, platform = facts.gpus, facts.platform
    if named is None or isinstance(named, str) or not platform.accelerators:
        return facts
    here = {gpu.index: gpu for gpu in platform.accelerators if not gpu.is_remote}
    if absent := [index for index in named if index not in here]:
        raise NoPlan(
            f"cannot put '{model}' on GPU {absent[0]}: no such GPU",
            hint=f"choose from {', '.join(map(str, sorted(here)))} (gpus in the config file)",
        )
    remote = (gpu for gpu in platform.accelerators if gpu.is_remote)
    gpus = (*remote, *(here[index] for index in named))
    return replace(facts, platform=replace(platform, accelerators=gpus))


def refuse_cpu(facts: Facts, model: str, reasons: Sequence[str]) -> None:
    """Refuse a plan that leaves the GPUs alone, if only a GPU will do. Raises NoPlan."""
    settings, platform = facts.settings, facts.platform
    wanted = platform.accelerators or facts.gpus is not None
    if not (settings.strict and wanted) or settings.gpu_layers == 0:
        return
    why = next((reason for reason in reasons if "CPU" in reason), "no GPU was found")
    notes = (
        f" ({'; '.join(platform.notes)})" if platform.notes and not platform.accelerators else ""
    )
    raise NoPlan(
        f"cannot serve '{model}' on a GPU, as required by 'strict': {why}{notes}",
        hint="install a build of the engine with GPU support (vllama doctor), or omit strict",
    )


def leaves_gpus(plan: Plan) -> bool:
    """Return whether a model runs on the CPU of this machine."""
    return not plan.memory.on_gpu and plan.bundle.format is not Format.REMOTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """Numbers of threads for generation and for prompts, with the reason."""

    generate: int
    batch: int
    reason: str = ""


def choose_threads(facts: Facts, engine: Engine, need: Need, *, on_gpu: bool) -> Threads:
    """Decide for one process of `engine`."""
    platform, settings = facts.platform, facts.settings
    if asked := need.load.num_thread or settings.threads:
        limit = MOST_PER_CORE * platform.cores
        if asked > limit:
            reason = f"{_count(limit)}, the maximum for {platform.cores} cores; requested: {asked}"
            return Threads(generate=limit, batch=limit, reason=reason)
        return Threads(generate=asked, batch=asked, reason=f"{_count(asked)}, as requested")
    cores = max(1, (platform.physical_cores or platform.cores) // settings.replicas)
    if on_gpu or not engine.sets_threads:
        return Threads(generate=max(1, cores - 1), batch=cores)
    reason = f"{_count(cores)}: one per physical core"
    return Threads(generate=cores, batch=cores, reason=reason)


def _count(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"


RECURRENT = (".ssm.", ".shortconv.", ".wkv.", "rwkv")
"""Parts of the names of what a recurrent model's file says of it."""


BLOCKS = "blocks"
"""The folder of engines that keep the blocks of their cache by themselves, one for each model."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The folder where slots are saved, the bytes for them in RAM, a sentence for the plan.

    `stays`: what is saved there outlives the engine; else it is what requests share for a while.
    """

    slot_dir: Path | None
    cache_bytes: int
    reason: str = ""
    stays: bool = False


def keep_conversations(
    facts: Facts, choice: Choice, bundle: Bundle, info: ModelInfo, need: Need, estimate: Estimate
) -> Kept:
    """Decide which conversations are kept after they have lost their place in the engine."""
    engine, memory = facts.found.engines[choice.engine], estimate.memory
    most_bytes = _size_prompt_cache(facts, need, memory, estimate.settings.parallel)
    cache_bytes = most_bytes if engine.caches_prompts else 0
    keeps = engine.saves_slots or (engine.offloads_blocks and memory.on_gpu)
    # what is restored of these was measured to answer differently, or to help nothing
    restores = not (
        info.sliding_window or any(word in name for name in info.metadata for word in RECURRENT)
    )
    if facts.slot_dir is None or not keeps or need.mode is not Mode.CHAT:
        shares = engine.saves_slots and restores and need.mode is Mode.CHAT
        return Kept(facts.share_dir if shares else None, cache_bytes)
    if not restores:
        why = "it has sliding windows or recurrent layers"
        return Kept(None, cache_bytes, f"its conversations are not stored on disk: {why}")
    size = format_bytes_decimal(facts.settings.cache_disk_bytes)
    words = f"conversations are stored on disk: up to {size} for all models"
    if (own := bundle.settings.cache_disk) is not None and not isinstance(own, bool):
        words += f", {format_bytes_decimal(own)} for this one"
    if engine.saves_slots:
        return Kept(facts.slot_dir, cache_bytes, words, stays=True)
    if not most_bytes or facts.platform.shared_memory_bytes < most_bytes:
        why = f"{engine.title} needs RAM for that, in /dev/shm"
        return Kept(None, 0, f"its conversations are not stored on disk: {why}")
    # its files tell the model by its path only
    name = f"{bundle.digest[:16]}-{choice.installation.version}"
    folder = facts.slot_dir / BLOCKS / quote(bundle.name, safe="") / name
    words += f", through {format_bytes_decimal(most_bytes)} of RAM"
    return Kept(folder, most_bytes, words, stays=True)


def _size_prompt_cache(facts: Facts, need: Need, memory: Memory, slots: int | None) -> int:
    """Return the size of the cache, a power of two MiB; 0: none.

    It takes memory only as conversations come, and never so much that the model would not fit into
    what is free now: where that is little, the cache is small, or there is none.
    """
    if need.mode is not Mode.CHAT or facts.settings.replicas > 1:
        return 0
    conversation = memory.kv_bytes // (slots or 1)
    platform = facts.platform
    shared = any(gpu.shares_ram for gpu in platform.accelerators)
    taken = memory.total_bytes if shared else memory.ram_bytes
    free = min(platform.ram_available_bytes, platform.ram_total_bytes)
    spare = free - facts.reserve_of() - taken
    most = min(CONVERSATIONS * conversation, spare // SHARE, MOST_BYTES)
    if most < LEAST_BYTES:
        return 0
    return MIB << ((most // MIB).bit_length() - 1)
