"""The buffer for intermediate results against what llama.cpp logged for models of these shapes.

Two builds: llama_cpp_python 0.3.36, whose server keeps the logits of a whole batch, and
llama-server b11549, which keeps those of one token for each slot.
"""

import pytest

from tests.facts import MIB
from vllama.engines.base import Overhead
from vllama.models.types import ModelInfo
from vllama.plan.fit import estimate_model_memory

EVERY_ROW = Overhead(logits_rows=512, batch_rows=512)
LAST_ROW = Overhead(logits_rows=4, batch_rows=512, whole_windows=False)


def model(
    width: int,
    inner: int,
    *,
    heads: int,
    kv_heads: int,
    head: int = 0,
    vocabulary: int = 32_000,
    arch: str = "llama",
    window: int | None = None,
    layers: int = 2,
    **numbers: int,
) -> ModelInfo:
    """Return a model of that shape; `numbers` are more of its metadata."""
    metadata = {"feed_forward_length": inner, **numbers}
    return ModelInfo(
        architecture=arch,
        embedding_length=width,
        block_count=layers,
        head_count=heads,
        head_count_kv=(kv_heads,),
        key_length=head or width // heads,
        value_length=head or width // heads,
        vocab_size=vocabulary,
        sliding_window=window,
        metadata={f"{arch}.{key}": value for key, value in metadata.items()},
    )


GQA = model(1024, 2816, heads=16, kv_heads=4)
MHA = model(1024, 2816, heads=16, kv_heads=16)
NARROW_HEADS = model(2048, 5632, heads=32, kv_heads=8)
LARGE_VOCABULARY = model(2048, 5632, heads=16, kv_heads=4, vocabulary=128_256)
MISTRAL = model(4096, 14336, heads=32, kv_heads=8)
WIDE_INNER = model(1024, 16384, heads=16, kv_heads=4, vocabulary=8000)
SQUARE = model(4096, 4096, heads=32, kv_heads=8, vocabulary=8000)
WIDE_HEADS = model(1024, 1024, heads=32, kv_heads=8, head=128, vocabulary=2000)
QWEN = model(1024, 3072, heads=16, kv_heads=8, head=128, vocabulary=2000)
GEMMA = model(
    *(1152, 6912),
    heads=4,
    kv_heads=1,
    head=256,
    vocabulary=2000,
    arch="gemma3",
    window=512,
    layers=8,
)
FEW_EXPERTS = model(
    *(1024, 2048), heads=16, kv_heads=4, vocabulary=2000,
    expert_used_count=2, expert_feed_forward_length=2048,
)  # fmt: skip
MANY_EXPERTS = model(
    *(2048, 768), heads=32, kv_heads=4, head=128, vocabulary=2000,
    expert_used_count=8, expert_feed_forward_length=768,
)  # fmt: skip


@pytest.mark.parametrize(
    ("info", "context", "flash", "every_mib", "last_mib"),
    [
        (GQA, 2048, True, 66.5, 28.5),
        (MHA, 2048, True, 66.5, 28.5),
        (NARROW_HEADS, 2048, True, 70.5, 55.0),
        (NARROW_HEADS, 8192, False, 550.0, 554.0),
        (LARGE_VOCABULARY, 2048, True, 258.5, 55.0),
        (MISTRAL, 2048, True, 118.0, 126.0),
        (MISTRAL, 8192, True, 124.0, 132.0),
        (MISTRAL, 8192, False, 572.0, 580.0),
        (WIDE_INNER, 2048, True, 106.0, 108.0),
        (SQUARE, 512, True, 40.5, 48.5),
        (SQUARE, 2048, True, 42.0, 50.0),
        (WIDE_HEADS, 2048, True, 24.0, 28.0),
        (QWEN, 2048, True, 24.0, 30.0),
        (QWEN, 16384, True, 38.0, 44.0),
        (GEMMA, 8192, True, 65.3, 60.8),
        (FEW_EXPERTS, 2048, True, 34.0, 36.0),
        (MANY_EXPERTS, 2048, True, 90.0, 90.0),
    ],
)
def test_the_buffer_is_what_llama_cpp_logs(info, context, flash, every_mib, last_mib):
    for overhead, logged_mib in ((EVERY_ROW, every_mib), (LAST_ROW, last_mib)):
        memory = estimate_model_memory(
            info, context, overhead, every_row=False, on_gpu=False, flash=flash
        )
        assert memory.compute_bytes / MIB == pytest.approx(logged_mib, rel=0.08)
