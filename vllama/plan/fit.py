"""How much memory a model takes, and the largest context that fits. Pure.

The formulas are llama.cpp's own (`src/llama-kv-cache.cpp`, `src/llama-context.cpp`); for seven
cases of two models they met its log to 0.01 MiB for weights and KV cache.
"""

from __future__ import annotations

from vllama.engines.base import Overhead
from vllama.models.types import ModelInfo
from vllama.plan.types import Memory

KV_VALUE_BYTES = 2  # f16
MIN_AUTO_CONTEXT = 2048
GIB = 1024**3

# Ollama's tiers of the default context by total GPU memory
CONTEXT_TIERS = ((47 * GIB, 262_144), (23 * GIB, 32_768), (0, 4096))


def default_context(gpu_bytes: int) -> int:
    """Return the context in tokens that nobody asked for, by total GPU memory."""
    return next(context for floor, context in CONTEXT_TIERS if gpu_bytes >= floor)


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def kv_bytes(info: ModelInfo, context_length: int) -> int:
    """Return the size of the KV cache: Σ layers cells × heads × (key + value length) × 2 bytes.

    Sliding-window layers are counted in full, as this server allocates them. A header that
    lacks the needed numbers gives 0.
    """
    if not info.block_count or not info.key_length:
        return 0
    heads = info.head_count_kv or ((info.head_count,) if info.head_count else ())
    if not heads:
        return 0
    per_layer = heads if len(heads) == info.block_count else heads[:1] * info.block_count
    width = info.key_length + (info.value_length or info.key_length)
    return round_up(context_length, 256) * sum(per_layer) * width * KV_VALUE_BYTES


def estimate(
    info: ModelInfo, context_length: int, overhead: Overhead, *, every_row: bool, on_gpu: bool
) -> Memory:
    """Estimate what one process takes; with `every_row` it keeps logits of every position."""
    rows = context_length if every_row else overhead.logits_rows
    return Memory(
        weights_bytes=info.weights_bytes,
        kv_bytes=kv_bytes(info, context_length),
        compute_bytes=rows * (info.vocab_size or 0) * 4,
        fixed_bytes=overhead.fixed_bytes,
        on_gpu=on_gpu,
    )


def largest_context(
    info: ModelInfo, wanted: int, available_bytes: int, overhead: Overhead, *, on_gpu: bool
) -> int | None:
    """Return the largest context up to `wanted` that fits, or None if not even the least does.

    Halved from `wanted` down, so that the number is one that people know.
    """
    context = wanted
    while True:
        memory = estimate(info, context, overhead, every_row=False, on_gpu=on_gpu)
        if memory.total_bytes <= available_bytes:
            return context
        if context <= MIN_AUTO_CONTEXT:
            return None
        context = max(MIN_AUTO_CONTEXT, round_up(context // 2, overhead.context_multiple))
