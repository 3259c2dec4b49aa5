"""How large the buffer for intermediate results is. Pure.

The engine evaluates a prompt in batches (`Overhead.batch_rows`) and reserves memory for the
largest step of one batch. The rules are read from llama.cpp's graphs (`src/llama-graph.cpp`), and
what its allocator leaves unused from the log of models with made-up shapes.

All values are float32. For each token of a batch, with E the width of the model, A that of all
attention heads, K that of the heads in the cache, and F that of the feed-forward network:

============  ============================================================================
attention     2 A + 2 E + K, or without flash attention cells × (heads + 1) + 5.5 E
feed-forward  3 F + 2 E, and 2 E more if what attention has left is too small for F
experts       F counts for each expert in use, whose results (D) take 2 D + F + 3 E
logits        vocabulary + 2 E, for as many rows as get logits
============  ============================================================================

With flash attention a mask of the cells comes to it, in float16, one for each kind of layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllama.engines.base import Overhead
from vllama.models.types import ModelInfo

VALUE_BYTES = 4
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
    logits = logits_rows * ((info.vocab_size or 0) + 2 * width) * VALUE_BYTES
    rows = overhead.batch_rows
    if not rows:
        return logits
    every_row = logits_rows >= rows  # else others are left out of the last layer, by a copy
    copied = 0 if every_row else width
    if flash or not info.head_count:
        dense = max(_count_attention(info), _count_feed_forward(info, every_row=every_row))
        values = max(dense + copied, _count_experts(info))
        mask_bytes = rows * sum(cells) * MASK_BYTES
    else:
        values = int(max(cells, default=0) * (info.head_count + 1) + 5.5 * width) + copied
        mask_bytes = 0
    return max(logits, rows * values * VALUE_BYTES + mask_bytes)


def _count_attention(info: ModelInfo) -> int:
    queries, keys = _get_head_widths(info)
    return 2 * queries + 2 * (info.embedding_length or 0) + keys


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
