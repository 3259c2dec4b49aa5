"""How much memory is too much for an engine, from its plan."""

from __future__ import annotations

import pytest

from vllama.engines.base import Memory
from vllama.engines.registry import load_engines

GIB = 1024**3
SPARE = 4


def memory(ram: float, **more: int | bool | dict[str, int]) -> Memory:
    """Return an estimate of `ram` GiB in RAM, besides what is on GPUs."""
    parts = more.pop("gpu_parts", {})
    assert isinstance(parts, dict)
    sizes = {name: int(size * GIB) for name, size in more.items() if name != "on_gpu"}
    return Memory(
        weights_bytes=int((ram + sum(parts.values())) * GIB),
        kv_bytes=0,
        compute_bytes=0,
        fixed_bytes=0,
        on_gpu=bool(more.get("on_gpu")),
        gpu_parts={pool: size * GIB for pool, size in parts.items()},
        **sizes,
    )


@pytest.mark.parametrize(
    ("estimate", "limit"),
    [
        (memory(1), 1 + SPARE),
        (memory(20), 40),
        (memory(1, prompt_cache_bytes=1, copied_bytes=1), 3 + SPARE),
        (memory(2, on_gpu=True, gpu_parts={"gpu0": 10, "gpu1": 5}), 2 + SPARE + 15),
        # conversations are kept in RAM even if the model is on a GPU
        (memory(0, on_gpu=True, gpu_parts={"gpu0": 10}, prompt_cache_bytes=8), 16 + 10),
        (memory(10, on_gpu=True), None),  # nobody knows what of it is in RAM
    ],
)
def test_the_limit_is_twice_the_plan_or_the_reserve_beyond_it(estimate, limit) -> None:
    assert estimate.find_limit(SPARE * GIB) == (None if limit is None else limit * GIB)
    assert estimate.find_limit(None) is None


def test_only_engines_whose_memory_was_measured_have_a_limit() -> None:
    limited = {name for name, engine in load_engines().items() if engine.spare_bytes}
    assert limited >= {"llama-server", "vllm"}
    assert not limited & {"transformers", "tinygrad", "mlx-lm", "sglang", "max"}
