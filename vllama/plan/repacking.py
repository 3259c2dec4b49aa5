"""Weights that an engine keeps a second time, in the order that a processor reads best. Pure.

llama.cpp maps a model's file, and copies the matrices of some types into memory of its own
(`CPU_REPACK` and `AMX` in its log). Which types these are depends on the processor
(ggml/src/ggml-cpu/repack.cpp, `ggml_repack_get_optimal_repack_type`, and amx/common.h). The pages
of the file stay in memory as long as nothing else wants it, so a process shows both, and a machine
with less memory does as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllama.machine.types import Platform
from vllama.models.headers.gguf.types import count_tensor_bytes
from vllama.models.types import ModelInfo

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
        and _is_matrix(shape)
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


def _is_matrix(shape: tuple[int, ...]) -> bool:
    """Tell whether it is a matrix whose rows can be interleaved, or one for each expert."""
    return len(shape) in (2, 3) and shape[1] % _ROWS_MULTIPLE == 0


def _sum_bytes(tensors: Sequence[Tensor]) -> int:
    return sum(count_tensor_bytes(kind, shape) for _, kind, shape in tensors)
