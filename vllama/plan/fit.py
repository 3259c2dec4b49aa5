"""Memory of a model, and the largest context that fits. Pure.

The formulas are llama.cpp's own (`src/llama-kv-cache.cpp`, `src/llama-kv-cache-iswa.cpp`,
`src/llama-context.cpp`). Compared with its log: weights and cache are exact to 0.01 MiB, the sum is
within 5 % (`tests/e2e/test_memory_real.py`).

The engine evaluates a prompt in batches (`Overhead.batch_rows`) and reserves memory for the
intermediate results of the largest step of one batch. The rules are read from llama.cpp's graphs
(`src/llama-graph.cpp`), and what its allocator leaves unused from the log of models with made-up
shapes. All values are float32. For each token of a batch, with E the width of the model, A that of
all attention heads, K that of the heads in the cache, and F that of the feed-forward network:

============  ============================================================================
attention     2 A + 2 E + K, or without flash attention cells × (heads + 1) + 5.5 E
feed-forward  3 F + 2 E, and 2 E more if what attention has left is too small for F
experts       F counts for each expert in use, whose results (D) take 2 D + F + 3 E
logits        vocabulary + 2 E, for as many rows as get logits
============  ============================================================================

With flash attention a mask of the cells comes to it, in float16, one for each kind of layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vllama.engines.base import Memory, Overhead
from vllama.machine.types import Platform
from vllama.models.headers.gguf.parser import count_tensor_bytes
from vllama.models.types import ModelInfo

MIN_AUTO_CONTEXT = 2048
MIB = 1024**2
GIB = 1024**3
CELLS_MULTIPLE = 256

# Ollama's tiers of the default context by total GPU memory
CONTEXT_TIERS = ((47 * GIB, 262_144), (23 * GIB, 32_768), (0, 4096))

# bytes of one value in the cache: block bytes / block values (ggml)
DEFAULT_CACHE_TYPE = "f16"
VALUE_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}

# every n-th layer sees all, the others a window (llama.cpp's models; a file's own word counts more)
WINDOW_PERIODS = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma-embedding": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "cohere2": 4,
    "llama4": 4,
    "exaone4": 4,
    "olmo2": 4,
}


def choose_default_context(gpu_bytes: int) -> int:
    """Return the default context in tokens, by total GPU memory."""
    return next(context for floor, context in CONTEXT_TIERS if gpu_bytes >= floor)


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def find_windowed_layers(info: ModelInfo) -> Sequence[bool]:
    """Return of each layer whether it sees a window only.

    From `{arch}.attention.sliding_window_pattern` (a list of booleans, or a period), else by
    architecture; none if the model has no window.
    """
    count = info.block_count or 0
    if not info.sliding_window:
        return [False] * count
    pattern = info.metadata.get(f"{info.architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, list | tuple) and len(pattern) == count:
        return [bool(item) for item in pattern]
    period = pattern if isinstance(pattern, int) else WINDOW_PERIODS.get(info.architecture, 0)
    return [period > 0 and layer % period != period - 1 for layer in range(count)]


def kv_bytes(
    info: ModelInfo,
    context_length: int,
    overhead: Overhead,
    cache_type: str | None = None,
) -> int:
    """Return the size of the whole KV cache; see `list_kv_bytes`."""
    return sum(list_kv_bytes(info, context_length, overhead, cache_type))


def list_kv_bytes(
    info: ModelInfo,
    context_length: int,
    overhead: Overhead,
    cache_type: str | None = None,
) -> list[int]:
    """Return the size of each layer's KV cache: cells × heads × (key + value length) × bytes.

    Encoders have none; a header that lacks the needed numbers gives an empty list.
    """
    heads = info.cached_heads
    if not heads or not info.key_length:
        return []
    if info.metadata.get(f"{info.architecture}.attention.causal") is False:
        return []
    width = info.key_length + (info.value_length or info.key_length)
    whole, narrow = count_cells(info, context_length, overhead)
    # of each layer, whether its cache holds a window only
    windowed = [False] * len(heads) if overhead.whole_windows else find_windowed_layers(info)
    value_bytes = VALUE_BYTES.get(cache_type or DEFAULT_CACHE_TYPE, 2.0)
    return [
        int((narrow if is_windowed else whole) * count * width * value_bytes)
        for count, is_windowed in zip(heads, windowed, strict=True)
    ]


def count_cells(info: ModelInfo, context_length: int, overhead: Overhead) -> tuple[int, int]:
    """Return the tokens that a cache has room for: one of the whole context, and of a window."""
    cells = round_up(context_length, CELLS_MULTIPLE)
    batch = overhead.batch_rows or overhead.logits_rows
    window = round_up((info.sliding_window or 0) + batch, CELLS_MULTIPLE)
    return cells, min(cells, window)


def list_masks(info: ModelInfo, context_length: int, overhead: Overhead) -> tuple[int, ...]:
    """Return the cells of each kind of cache that a model has."""
    whole, narrow = count_cells(info, context_length, overhead)
    kinds = set(find_windowed_layers(info)) or {False}
    return tuple(narrow if windowed and not overhead.whole_windows else whole for windowed in kinds)


def estimate_model_memory(
    info: ModelInfo,
    context_length: int,
    overhead: Overhead,
    *,
    every_row: bool,
    on_gpu: bool,
    cache_type: str | None = None,
    flash: bool = True,
    slots: int = 1,
) -> Memory:
    """Estimate what one process takes; see `kv_bytes` and `compute_bytes`.

    With `every_row` the logits of every position are kept.

    Each of `slots` has a cache of its own, for the whole context.
    """
    return Memory(
        weights_bytes=info.weights_bytes,
        kv_bytes=slots * kv_bytes(info, context_length, overhead, cache_type),
        compute_bytes=compute_bytes(
            info,
            list_masks(info, context_length, overhead),
            overhead,
            logits_rows=context_length if every_row else overhead.logits_rows,
            flash=flash,
        ),
        fixed_bytes=overhead.fixed_bytes,
        on_gpu=on_gpu,
    )


def find_largest_context(
    wanted: int, multiple: int, least: int, fits: Callable[[int], bool]
) -> int | None:
    """Return the largest context from `wanted` down to `least` that fits, or None.

    Halved from `wanted` down, so that the number is one that people know.
    """
    context = wanted
    while not fits(context):
        if context <= least:
            return None
        context = max(least, round_up(context // 2, multiple))
    return context


FLOAT_BYTES = 4
MASK_BYTES = 2


def compute_bytes(
    info: ModelInfo,
    cells: Sequence[int],
    overhead: Overhead,
    *,
    logits_rows: int,
    flash: bool,
) -> int:
    """Return the size of the buffer: the largest step of a batch.

    `cells` are those of the cache, for each kind of layer; `logits_rows` are the positions that get
    logits.
    """
    width = info.embedding_length or 0
    logits = logits_rows * ((info.vocab_size or 0) + 2 * width) * FLOAT_BYTES
    rows = overhead.batch_rows
    if not rows:
        return logits
    every_row = logits_rows >= rows  # else others are left out of the last layer, by a copy
    copied = 0 if every_row else width
    if flash or not info.head_count:
        queries, keys = _get_head_widths(info)
        dense = max(2 * queries + 2 * width + keys, _count_feed_forward(info, every_row=every_row))
        values = max(dense + copied, _count_experts(info))
        mask_bytes = rows * sum(cells) * MASK_BYTES
    else:
        values = int(max(cells, default=0) * (info.head_count + 1) + 5.5 * width) + copied
        mask_bytes = 0
    return max(logits, rows * values * FLOAT_BYTES + mask_bytes)


def _count_feed_forward(info: ModelInfo, *, every_row: bool) -> int:
    width, inner = info.embedding_length or 0, _get_inner_width(info)
    queries, keys = _get_head_widths(info)
    left_over = queries + (2 * keys if every_row else 0)  # of the attention, in one piece
    return 3 * inner + 2 * width + (0 if inner <= left_over else 2 * width)


def _count_experts(info: ModelInfo) -> int:
    used, width = _get_number(info, "expert_used_count"), info.embedding_length or 0
    return 2 * used * width + _get_inner_width(info) + 3 * width if used else 0


def _get_inner_width(info: ModelInfo) -> int:
    """Return the width of the feed-forward network, of all experts in use together."""
    inner = _get_number(info, "feed_forward_length")
    if used := _get_number(info, "expert_used_count"):
        return used * (_get_number(info, "expert_feed_forward_length") or inner)
    return inner


def _get_head_widths(info: ModelInfo) -> tuple[int, int]:
    """Return the widths of all heads, and of those in the cache."""
    width = info.key_length or 0
    return (info.head_count or 0) * width, max(info.head_count_kv or (0,)) * width


def _get_number(info: ModelInfo, key: str) -> int:
    """Return a number of the metadata; of one for each layer the largest."""
    value = info.metadata.get(f"{info.architecture}.{key}")
    numbers = value if isinstance(value, list | tuple) else [value]
    return max((one for one in numbers if isinstance(one, int)), default=0)


Tensor = tuple[str, str, tuple[int, ...]]
_BY_FEATURE = {
    "avx2": frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}),
    "avx512f": frozenset({"Q2_K"}),
    "amx_int8": frozenset({"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"}),
    "asimddp": frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "Q8_0"}),
}
_ROWS_MULTIPLE = 8
_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"


def count_second_copy(info: ModelInfo, platform: Platform) -> int:
    """Return how many bytes of a model's weights are in memory twice; 0 without its tensors.

    llama.cpp maps a model's file, and copies the matrices of some types into memory of its own, in
    the order that the processor reads best (`CPU_REPACK` and `AMX` in its log). Which types these
    are depends on the processor (ggml/src/ggml-cpu/repack.cpp,
    `ggml_repack_get_optimal_repack_type`, and amx/common.h). The pages of the file stay in memory
    as long as nothing else wants it: a machine with less memory does as well.

    A file is mapped from the first to the last tensor that is used in place, so copied ones at its
    ends are there once. Embeddings that also make the logits are copied for that.
    """
    types = frozenset[str]().union(
        *(types for feature, types in _BY_FEATURE.items() if feature in platform.cpu_features)
    )
    if not types:
        return 0
    has_output = any(name == _OUTPUT for name, _, _ in info.tensors)
    copied = {
        name
        for name, kind, shape in info.tensors
        if kind in types
        # a matrix whose rows can be interleaved, or one for each expert
        and (len(shape) in (2, 3) and shape[1] % _ROWS_MULTIPLE == 0)
        and (name.startswith("blk.") or name == (_OUTPUT if has_output else _EMBEDDING))
    }
    in_place = [
        n for n, (name, _, _) in enumerate(info.tensors) if name not in copied or name == _EMBEDDING
    ]
    if not in_place:
        return 0
    mapped = info.tensors[in_place[0] : in_place[-1] + 1]
    twice = [one for one in info.tensors if one[0] in copied]
    return max(0, _sum_bytes(twice) + _sum_bytes(mapped) - _sum_bytes(info.tensors))


def _sum_bytes(tensors: Sequence[Tensor]) -> int:
    return sum(count_tensor_bytes(kind, shape) for _, kind, shape in tensors)
