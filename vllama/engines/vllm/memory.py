"""vLLM's memory options, from the model and the free memory. Pure.

Sources: vLLM 0.32 (`v1/kv_cache_interface.py`, `v1/worker/gpu_worker.py`, `cpu_worker.py`). On a
GPU `--gpu-memory-utilization` is this instance's share of the whole GPU, which must be free when it
starts; vLLM measures what the model needs and gives the rest of the share to the cache. On a CPU
the same option is a share of a NUMA node's memory, and its default of 0.92 refuses to start beside
anything else. There the size of the cache is given in bytes, which skips that check.

Of a GPU that shares the RAM (GB10, Jetson), a context takes at most half of what is left beside the
model, several take a quarter, in bytes, too: for vLLM psutil's available RAM is free there
(`utils/mem_utils.py`), so it would take for its own what others use while it measures.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from vllama.engines.argv import flag_number, flag_value, has_flag
from vllama.engines.base import Memory, Mode, Tuning, TuningRequest
from vllama.engines.vllm.parallel import (
    Layout,
    choose_layout,
    group_equal,
    parse_layout,
    spans_machines,
)
from vllama.engines.vllm.tables import FP8_CACHE
from vllama.machine.types import Accelerator
from vllama.models.types import ModelInfo

MIB = 1024**2
GIB = 1024**3
BLOCK = 16

# measured on the CPU build: three Pythons with torch (server, engine, worker), without the weights
CPU_FIXED = int(1.8 * GIB)
MAX_CPU_SEQUENCES = 128
CPU_CONTEXTS = 8
# CUDA's context, graphs (0.5 GiB) and workspaces of one GPU. On an H200 vLLM 0.24 had 122.1 GiB for
# the cache where this left 121.2, and took 129.27 GiB, its share being 129.2
GPU_FIXED = 2 * GIB
MAX_GPU_SEQUENCES = 256
GPU_CONTEXTS = 64
GPU_BATCH = 8192
MAX_SHARE = 0.92
MIN_CONTEXT = 2048
ACCEPTABLE_CONTEXTS = (8192, MIN_CONTEXT)
# prompts up to this length are read in one step on a CPU, see `supports_seeds`
MAX_WHOLE_PROMPT = 32_768

SHARE = "--gpu-memory-utilization"
CACHE = "--kv-cache-memory-bytes"
LENGTH = "--max-model-len"
SEQUENCES = "--max-num-seqs"
BATCH = "--max-num-batched-tokens"
CACHE_TYPE = "--kv-cache-dtype"
FP8_TYPES = ("q8_0", "q4_0", "fp8")


def tune(request: TuningRequest) -> Tuning:
    """Set all memory options; see `Tunable`."""
    return _tune_gpus(request) if request.on_gpu else _tune_cpu(request)


def count_token_bytes(info: ModelInfo, *, fp8: bool = False) -> int:
    """Return the bytes of one token in the cache, over all layers and GPUs.

    Sum over layers of heads × (key + value width) × 2 bytes, 1 with an fp8 cache. With latent
    attention (DeepSeek) it is the latent's and the rotary part's width, once.
    """
    layers, size = info.block_count or 0, 1 if fp8 else 2
    latent = info.metadata.get(f"{info.architecture}.attention.kv_lora_rank")
    if isinstance(latent, int):
        rotary = info.metadata.get(f"{info.architecture}.rope.dimension_count")
        return layers * (latent + (rotary if isinstance(rotary, int) else 0)) * size
    if not (keys := info.key_length):
        return 0
    return sum(info.cached_heads) * (keys + (info.value_length or keys)) * size


def supports_seeds(context_length: int, args: Sequence[str]) -> bool:
    """Tell whether a CPU build survives a request with a `seed`.

    vLLM resets a seeded generator when it reads a prompt in parts (`gpu_model_runner`). torch's CPU
    generator cannot be reset ("CPU Generator does not use offset"), and the engine dies. So prompts
    are read whole where the context is short enough for that; otherwise no seed is sent.
    """
    if has_flag(args, "--no-enable-chunked-prefill"):
        return True
    return context_length <= MAX_WHOLE_PROMPT and not has_flag(
        args, "--enable-chunked-prefill", BATCH
    )


def _tune_cpu(request: TuningRequest) -> Tuning:
    settings, info = request.settings, request.info
    args = settings.extra_args
    layout = parse_layout(args) or Layout()
    free = request.platform.ram_available_bytes - request.reserve_bytes
    total = request.platform.ram_total_bytes - request.reserve_bytes
    fixed = CPU_FIXED * layout.processes
    weights = info.weights_bytes * layout.data
    each = count_token_bytes(info, fp8=_uses_fp8(request)) * layout.data
    context, reasons = settings.context_length, []
    most = min(request.at_most or MAX_CPU_SEQUENCES, MAX_CPU_SEQUENCES)
    sequences = flag_number(args, SEQUENCES, default=settings.parallel or most)

    # the free memory; if that is too little, what would be free without the other models
    least = context if request.context_asked else min(context, MIN_CONTEXT)
    room = (free if weights + fixed + each * least <= free else total) - weights - fixed
    if not request.context_asked and each:
        context, lowered = _shrink_context(context, room // each)
        reasons += lowered
    contexts = min(sequences, settings.parallel or CPU_CONTEXTS)
    cache = parse_size(flag_value(args, CACHE)) or _round_to_blocks(
        max(each * context, min(each * context * contexts, room // 2)), each
    )

    own: list[str] = [LENGTH, str(context), SEQUENCES, str(sequences)]
    if not has_flag(args, CACHE, SHARE):
        own += [CACHE, str(cache)]
        reasons.append(
            f"cache of {cache / GIB:.2f} GiB: {cache // max(1, each)} tokens, "
            f"{each / 1024:.1f} KiB each, of {room / GIB:.1f} GiB free beside weights and process"
        )
    if not has_flag(args, "--compilation-config", "-cc", "-O", "-O0", "-O1", "-O2", "-O3"):
        own.append("--enforce-eager")  # compiling takes a minute and gains little on a CPU
    whole = settings.mode is Mode.CHAT and supports_seeds(context, args)  # vectors have no seed
    if whole and not has_flag(args, "--no-enable-chunked-prefill"):
        # a step has room for the longest prompt and one token of every other answer
        own += ["--no-enable-chunked-prefill", BATCH, str(max(context, MIN_CONTEXT) + sequences)]
    return Tuning(
        settings=replace(settings, context_length=context, tuned_args=tuple(own)),
        memory=Memory(
            weights_bytes=weights,
            kv_bytes=cache,
            compute_bytes=min(sequences, BLOCK) * (info.vocab_size or 0) * 4,
            fixed_bytes=fixed,
        ),
        reasons=tuple(reasons),
    )


def _tune_gpus(request: TuningRequest) -> Tuning:
    settings, info = request.settings, request.info
    args = settings.extra_args
    each = count_token_bytes(info, fp8=_uses_fp8(request))
    most = MAX_GPU_SEQUENCES
    wanted = min(settings.parallel or request.at_most or most, most)
    sequences = flag_number(args, SEQUENCES, default=wanted)
    shared = any(gpu.shares_ram for gpu in request.platform.accelerators)
    compute = _estimate_activations(info, sequences)
    fixed = GPU_FIXED + (CPU_FIXED if shared else 0)
    buffers = compute + fixed

    def need(shards: int, context: int) -> int:
        """Return the bytes that one GPU needs for `context` tokens."""
        return (info.weights_bytes + each * context) // shards + buffers

    layout, now = _choose_layout(request, need)
    gpus = layout.gpus or tuple(g for g in request.platform.accelerators if g.total_bytes)
    room = _available_bytes(gpus, request.reserve_bytes, now=now)
    context = settings.context_length
    reasons = [f"{layout.describe()} of {len(request.platform.accelerators)}"]
    if len(group_equal(request.platform.accelerators)) > 1:
        reasons[0] += ", which differ: a model is split only across identical GPUs"
    if not request.context_asked and each:
        left = (room - need(layout.shards, 0)) * layout.shards // (2 if shared else 1)
        context, lowered = _shrink_context(context, left // each)
        reasons += lowered
    contexts = min(sequences, settings.parallel or (CPU_CONTEXTS if shared else GPU_CONTEXTS))
    target = need(layout.shards, context * contexts)
    if shared:
        target = min(target, (3 * need(layout.shards, 0) + room) // 4)
    taken = max(need(layout.shards, context), min(target, room))
    smallest = min((gpu.total_bytes for gpu in gpus), default=0)

    own = [LENGTH, str(context), SEQUENCES, str(sequences), *layout.args()]
    if request.eager and not has_flag(args, "--enforce-eager", "--no-enforce-eager"):
        own.append("--enforce-eager")  # CUDA graphs take memory outside the share
        reasons.append("no CUDA graphs, to save memory (--enforce-eager)")
    if _uses_fp8(request) and not has_flag(args, CACHE_TYPE):
        own += [CACHE_TYPE, "fp8"]
    elif lack := settings.kv_cache_type in FP8_TYPES and FP8_CACHE.see(request.platform)[1]:
        reasons.append(f"no fp8 cache: {lack}")
    if given := parse_size(flag_value(args, CACHE)):
        taken = need(layout.shards, 0) + given
    elif has_flag(args, SHARE):
        taken = int(smallest * _parse_share(flag_value(args, SHARE), MAX_SHARE))
    elif smallest:
        share = min(MAX_SHARE, math.ceil(taken / smallest * 1000) / 1000)
        if taken <= room:  # rounded up, it must not be more than is free
            share = min(share, math.floor(room / smallest * 1000) / 1000)
        own += [SHARE, f"{share:.3f}"]
    cache = max(0, taken - need(layout.shards, 0))
    if shared and not has_flag(args, CACHE, SHARE):
        own += [CACHE, str(cache + BLOCK * each)]
    reasons.append(
        f"{taken / max(1, smallest):.0%} of {'the RAM' if shared else 'each GPU'} "
        f"({taken / GIB:.1f} GiB, {room / GIB:.1f} free): weights "
        f"{info.weights_bytes / layout.shards / GIB:.1f}, buffers {buffers / GIB:.1f}, "
        f"cache {cache / GIB:.1f} GiB for "
        f"{cache * layout.shards // max(1, each)} tokens of {each / 1024:.1f} KiB"
    )
    if spans_machines(args):
        reasons.append("across machines, as requested: only this machine's memory is counted")
    workers = max(1, len(layout.gpus) or min(layout.processes, len(gpus) or 1))
    return Tuning(
        settings=replace(
            settings,
            context_length=context,
            tuned_args=tuple(own),
            gpus=tuple(gpu.index for gpu in layout.gpus),
        ),
        memory=Memory(
            weights_bytes=info.weights_bytes // layout.shards * workers,
            kv_bytes=cache * workers,
            compute_bytes=compute * workers,
            fixed_bytes=fixed * workers,
            on_gpu=True,
        ),
        reasons=tuple(reasons),
    )


def _choose_layout(request: TuningRequest, need: Callable[[int, int], int]) -> tuple[Layout, bool]:
    """Return the layout, and whether it fits into the memory that is free now.

    If none does, the layout is for what would be free without the other models. A shorter context
    is preferred to more GPUs, or to unloading another model, only down to an acceptable length.
    """
    if (given := parse_layout(request.settings.extra_args)) is not None:
        return given, True
    wanted = request.settings.context_length
    acceptable = sorted({min(wanted, length) for length in ACCEPTABLE_CONTEXTS})[::-1]
    lengths = [wanted] if request.context_asked else acceptable
    layout = Layout()
    for now in (True, False):
        for length in lengths:

            def fits(
                gpus: Sequence[Accelerator], shards: int, now: bool = now, length: int = length
            ) -> bool:
                room = _available_bytes(gpus, request.reserve_bytes, now=now)
                return need(shards, length) <= room

            layout = choose_layout(request, fits)
            if fits(layout.gpus, layout.shards):
                return layout, now
    return layout, False


def _available_bytes(gpus: Sequence[Accelerator], reserve_bytes: int, *, now: bool) -> int:
    """Return the bytes that one instance can have on the tightest of the GPUs."""
    free = {gpu: gpu.free_bytes if now else gpu.total_bytes for gpu in gpus}
    rooms = (min(free[gpu] - reserve_bytes, int(gpu.total_bytes * MAX_SHARE)) for gpu in gpus)
    return min(rooms, default=0)


def parse_size(text: str | None) -> int:
    """Parse a size as vLLM does (`4G` is binary, `4g` decimal); 0 if it is not one."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)", text or "")
    if found is None:
        return 0
    step = 1024 if found[2].isupper() else 1000
    return int(float(found[1]) * step ** " kmgt".index(found[2].lower() or " "))


def _parse_share(text: str | None, default: float) -> float:
    try:
        return float(text or "")
    except ValueError:
        return default


def _estimate_activations(info: ModelInfo, sequences: int) -> int:
    """Estimate one step's buffers on a GPU: hidden states of a batch, and the logits."""
    hidden = GPU_BATCH * (info.embedding_length or 0) * 2 * 8
    return hidden + sequences * (info.vocab_size or 0) * 4


def _shrink_context(context: int, tokens: int) -> tuple[int, list[str]]:
    """Halve the context until `tokens` of cache hold it; return it, and the reason."""
    lowered = context
    while lowered > tokens and lowered > MIN_CONTEXT:
        lowered = max(MIN_CONTEXT, -(-lowered // 2 // BLOCK) * BLOCK)
    if lowered == context:
        return context, []
    return lowered, [f"context reduced from {context} to {lowered} tokens to fit into memory"]


def _round_to_blocks(size: int, each: int) -> int:
    """Round up to whole blocks of the CPU's cache (128 tokens), plus its null block."""
    block = max(1, each * 128)
    return (-(-size // block) + 1) * block


def _uses_fp8(request: TuningRequest) -> bool:
    able = request.on_gpu and not FP8_CACHE.see(request.platform)[1]
    return able and request.settings.kv_cache_type in FP8_TYPES
