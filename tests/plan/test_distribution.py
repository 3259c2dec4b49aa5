"""What llama-server says of its buffers on a Vulkan device (Mesa's), beside the plan."""

from __future__ import annotations

import pytest

from tests.facts import GIB, LLAMA_SERVER_HERE, MIB, facts
from tests.plan.machines import Box, make_model
from vllama.engines.base import Mode, Settings
from vllama.engines.llamacpp.llama_server import ENGINE
from vllama.models.types import ModelInfo
from vllama.plan.distribution import divide, place

PLAIN = make_model("llama", 16, 1024, 16, 4, 3072, 32_000, kind="Q8_0", head=64, context=4096)
TIED = make_model(
    "llama", 16, 1024, 16, 4, 3072, 32_000, kind="Q8_0", head=64, context=4096, tied=True
)
MIXED = make_model(
    "qwen3moe", 12, 1024, 16, 4, 512, 32_000, kind="Q8_0", head=64, context=4096, experts=16, used=4
)


@pytest.mark.parametrize(
    ("model", "layers", "moe", "weights", "cache", "compute"),
    [
        (PLAIN, 2, 0, 45.4, 4, 31.1),
        (PLAIN, 5, 0, 82.1, 16, 31.1),
        (PLAIN, 16, 0, 216.6, 60, 31.1),
        (PLAIN, 17, 0, 228.8, 64, 26.0),
        (TIED, 5, 0, 82.1, 16, 31.1),
        (TIED, 17, 0, 228.8, 64, 26.0),
        (MIXED, 13, 0, 371.9, 48, 12.1),
        (MIXED, 13, 3, 295.4, 48, 20.6),
        (MIXED, 13, 12, 65.9, 48, 20.6),
        (MIXED, 5, 0, 146.1, 16, 21.6),
        (MIXED, 5, 12, 44.1, 16, 21.6),
    ],
)
def test_a_gpu_holds_what_the_engine_says(model, layers, moe, weights, cache, compute) -> None:
    known = facts(Box(name="", ram=16, gpus=((8, 500),)).platform, (LLAMA_SERVER_HERE,))
    launch = Settings(mode=Mode.CHAT, alias="", context_length=4096, gpu_layers=layers, cpu_moe=moe)
    memory = place(known, ENGINE, model, launch, 1, on_gpu=True).memory
    held = memory.gpu_parts["gpu0"] / MIB
    # the rows of a batch are reckoned in full, and experts as on a CPU
    spare = 28 if model is MIXED else 14
    assert weights + cache + compute <= held * 1.01 <= weights + cache + compute + spare
    in_ram = model.weights_bytes / MIB - weights + (33.2 if model is TIED else 0)
    assert memory.ram_bytes / MIB == pytest.approx(in_ram + 60 + 4 + cache_of(model) - cache, abs=2)


def cache_of(model: ModelInfo) -> int:
    return 4 * (model.block_count or 0)


@pytest.mark.parametrize(
    ("items", "rooms", "counts"),
    [
        ([1] * 10, [50, 50], [5, 5]),
        ([1] * 10, [60, 20], [8, 2]),
        ([1] * 10, [9, 1], [9, 1]),
        ([4, 4, 4], [8, 4], [2, 1]),
        ([5, 5, 5], [9, 11], [1, 2]),
        ([3] * 4, [100], [4]),
        ([3] * 4, [0, 12], [0, 4]),
        ([3] * 4, [2, 2], [0, 4]),
    ],
)
def test_layers_are_whole(items: list[int], rooms: list[int], counts: list[int]) -> None:
    assert divide([item * GIB for item in items], [room * GIB for room in rooms]) == counts
