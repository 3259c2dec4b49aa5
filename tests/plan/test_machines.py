"""Where models lie on the machines that people own: 60 machines × 12 models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.facts import LLAMA_SERVER_HERE, MIB, bundle, facts
from tests.plan.machines import MACHINES, MODELS, Box
from vllama.base.errors import NotEnoughMemory
from vllama.engines.devices import Device
from vllama.models.types import ModelInfo
from vllama.plan.choose import draft_plan, make_plan
from vllama.plan.distribution import list_needs, list_usable, measure_sizes
from vllama.plan.fit import list_kv_bytes
from vllama.plan.report import make_device_rows
from vllama.plan.types import Estimate, Need, Plan

GPU_BUILD = replace(LLAMA_SERVER_HERE, offloads=True, backend="CUDA")


def decide(box: Box, model: ModelInfo, **settings: object) -> tuple[Plan, Estimate]:
    plan, _, estimate = draft_plan(
        facts(box.platform, (GPU_BUILD,), **settings), bundle(), model, Need()
    )
    return plan, estimate


def count_layers(plan: Plan) -> tuple[int, int]:
    """Return the layers on GPUs, and of these the ones whose experts are there, too."""
    settings, count = plan.settings, plan.info.block_count or 0
    if not plan.memory.on_gpu:
        return 0, 0
    on_gpus = count if settings.gpu_layers < 0 else max(0, settings.gpu_layers - 1)
    return on_gpus, count - max(settings.cpu_moe, count - on_gpus)


def time_token(plan: Plan, box: Box) -> float:
    """Return the seconds that it takes to read what one token needs, with a full context."""
    info, settings = plan.info, plan.settings
    sizes, count = measure_sizes(info), info.block_count or 0
    used = info.metadata.get(f"{info.architecture}.expert_used_count", 1)
    experts = info.metadata.get(f"{info.architecture}.expert_count", 1)
    share = float(str(used)) / float(str(experts))
    caches = list_kv_bytes(info, 4096, GPU_ENGINE.overhead, settings.kv_cache_type)
    on_gpus, _ = count_layers(plan)
    speeds = [box.ram_speed] * (count - on_gpus)
    for index, layers in zip(settings.gpus, settings.gpu_shares, strict=True):
        speeds += [box.gpus[index][1]] * layers
    speeds += [box.ram_speed] * (count + 1 - len(speeds))
    seconds = (sizes.output or sizes.input) / speeds[count]
    for n in range(count):
        dense = sizes.layers[n] + caches[n]
        of_experts = box.ram_speed if n < settings.cpu_moe else speeds[n]
        seconds += dense / speeds[n] + share * sizes.experts[n] / of_experts
    return seconds


GPU_ENGINE = facts(installed=(GPU_BUILD,)).found.engines["llama-server"]


@pytest.mark.parametrize("box", MACHINES, ids=lambda box: box.name)
def test_a_model_lies_where_it_is_fast_and_is_never_refused_for_a_gpu(box: Box) -> None:
    without = replace(box, gpus=())
    rooms = {"ram": box.platform.ram_total_bytes}
    rooms |= {f"gpu{gpu.index}": gpu.free_bytes for gpu in box.platform.accelerators}
    for name, model in MODELS.items():
        plan, estimate = decide(box, model)
        alone, on_cpu = decide(without, model)
        if on_cpu.fits:
            assert estimate.fits, name
            assert plan.settings.context_length >= alone.settings.context_length, name
        if not estimate.fits:
            continue
        needs = list_needs(plan, list_usable(box.platform))
        assert all(size < rooms[pool] for pool, size in needs.items()), name
        assert sum(needs.values()) == plan.memory.total_bytes, name
        if box.shares_ram:
            assert sum(needs.values()) < rooms["ram"], name
        if plan.memory.on_gpu and on_cpu.fits:
            assert time_token(plan, box) <= 1.001 * time_token(alone, box), name


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ram", [16, 64, 256])
def test_more_memory_never_means_fewer_layers_on_the_gpu(name: str, ram: float) -> None:
    before = (0, 0)
    for size in (2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 48, 80, 141, 192):
        plan, estimate = decide(Box(name="", ram=ram, gpus=((size, 500),)), MODELS[name])
        if estimate.fits and plan.settings.context_length == 4096:
            now = count_layers(plan)
            assert now >= before, size
            before = now


@pytest.mark.parametrize("name", MODELS)
def test_more_ram_never_means_fewer_layers_on_the_gpu(name: str) -> None:
    before = (0, 0)
    for ram in (8, 16, 24, 32, 64, 128, 256):
        plan, estimate = decide(Box(name="", ram=ram, gpus=((12, 500),)), MODELS[name])
        if estimate.fits:
            assert count_layers(plan) >= before, ram
            before = count_layers(plan)


BOXES = {box.name: box for box in MACHINES}


@pytest.mark.parametrize(
    ("machine", "model", "layers", "moe", "context", "says"),
    [
        ("no GPU, 1.3 GiB", "0.5B", 0, 0, 4096, "1.1 GiB usable (166 MiB reserved)"),
        ("no GPU, 16 GiB", "8B", 0, 0, 4096, "15.5 GiB usable (512 MiB reserved)"),
        ("GTX 1650, 16 GiB", "8B", 22, 0, 4096, "21 of 32 layers on the 4 GB, 11 in RAM: 4.2 GiB"),
        ("RTX 3060, 32 GiB", "8B", -1, 0, 4096, "all layers on the GPU (CUDA)"),
        ("RTX 3060, 32 GiB", "32B", 39, 0, 4096, "38 of 64 layers on the 12 GB, 26 in RAM"),
        ("RTX 3060, 32 GiB", "30B-A3B", -1, 17, 4096, "48 of 48 layers on the 12 GB, the experts"),
        ("RTX 3090, 64 GiB", "70B", 48, 0, 4096, "47 of 80 layers on the 24 GB, 33 in RAM"),
        ("RTX 3090, 128 GiB", "235B-A22B", -1, 80, 4096, "the experts of 80 layers in RAM"),
        ("RTX 3090, 64 GiB", "70B", 48, 0, 4096, "context of 4096 tokens, not 32768"),
        ("RTX 4090 + RTX 3060", "32B", -1, 0, 32_768, "GPU 0 ("),
        ("RTX 4090, taken by others, 64 GiB", "8B", 9, 0, 4096, "2.0 GiB free there"),
        ("GB10", "8B", -1, 0, 131_072, "all layers on the GPU"),
        ("Strix Halo, 128 GiB", "70B", -1, 0, 131_072, "all layers on the GPU"),
        ("Mac, 32 GiB", "14B, many heads", -1, 0, 4096, "all layers on Metal"),
    ],
)
def test_what_is_decided(
    machine: str, model: str, layers: int, moe: int, context: int, says: str
) -> None:
    plan, estimate = decide(BOXES[machine], MODELS[model])
    settings = plan.settings
    assert estimate.fits
    assert (settings.gpu_layers, settings.cpu_moe, settings.context_length) == (
        layers,
        moe,
        context,
    )
    assert any(says in reason for reason in plan.reasons), plan.reasons


@pytest.mark.parametrize("asked", [1, 20, 33, 99])
def test_a_number_of_layers_that_was_asked_for_is_kept(asked: int) -> None:
    box = BOXES["RTX 3060, 32 GiB"]
    plan, estimate = decide(box, MODELS["8B"], gpu_layers=asked)
    assert plan.settings.gpu_layers == asked and estimate.fits
    whole, _ = decide(box, MODELS["8B"])
    share = min(1.0, asked / 33)
    assert plan.memory.gpu_parts["gpu0"] <= share * whole.memory.gpu_parts["gpu0"] + 2**30


def test_a_q8_cache_is_used_where_it_saves_layers() -> None:
    model = MODELS["14B, many heads"]
    for ram_gib, kind, layers in ((12, None, -1), (10, "q8_0", -1), (6, "q8_0", None)):
        box = Box(name="", ram=32, gpus=((ram_gib, 500),))
        settings = decide(box, model, kv_cache_type="fit")[0].settings
        assert settings.kv_cache_type == kind
        assert layers is None or settings.gpu_layers == layers


def test_strict_leaves_no_layer_in_ram() -> None:
    assert not decide(BOXES["GTX 1650, 16 GiB"], MODELS["8B"], strict=True)[1].fits


def test_without_layers_on_a_gpu_no_buffer_is_there() -> None:
    device = Device("Vulkan0", "AMD Radeon RX 6800 XT", 0, 0)
    here = replace(GPU_BUILD, devices=(device,))
    for build, asked, devices in (
        (here, 0, ("none",)), (here, None, ()), (replace(here, executable=None), 0, ()),
        (GPU_BUILD, 0, ()),
    ):  # fmt: skip
        known = facts(BOXES["RX 6800 XT, 32 GiB"].platform, (build,), gpu_layers=asked)
        assert draft_plan(known, bundle(), MODELS["8B"], Need())[0].settings.devices == devices


def test_a_card_without_room_does_not_take_the_others_along() -> None:
    box = Box(name="", ram=24, gpus=((12, 360), (4, 112)))
    full, free = box.platform.accelerators
    machine = replace(box.platform, accelerators=(replace(full, free_bytes=300 * MIB), free))
    plan = draft_plan(facts(machine, (GPU_BUILD,)), bundle(), MODELS["8B"], Need())[0]
    assert plan.settings.gpus == (1,) and plan.settings.gpu_layers > 10


@pytest.mark.parametrize("box", MACHINES, ids=lambda box: box.name)
def test_what_is_told_to_be_needed_is_more_than_is_usable_where_it_does_not_fit(box: Box) -> None:
    for model in MODELS.values():
        for asked in ({}, {"gpu_layers": 20}, {"gpu_layers": 99}, {"strict": True}):
            _, estimate = decide(box, model, **asked)
            needed, usable = estimate.sums
            assert (needed <= usable) is estimate.fits, (model.architecture, asked, estimate.kind)


@pytest.mark.parametrize(
    ("box", "asked", "says"),
    [
        ("GTX 1650, 16 GiB", {"gpu_layers": 30}, "more GPU memory (4.2 GiB of 4.9 GiB: weights"),
        ("GTX 1650, 16 GiB", {"strict": True}, "more GPU memory (4.6 GiB of 4.9 GiB: weights"),
        ("no GPU, 4 GiB", {}, "more system memory (4.9 GiB: weights"),
    ],
)
def test_a_refusal_tells_which_memory_is_too_small(box: str, asked: dict, says: str) -> None:
    with pytest.raises(NotEnoughMemory) as caught:
        make_plan(facts(BOXES[box].platform, (GPU_BUILD,), **asked), bundle(), MODELS["8B"], Need())
    assert says in caught.value.message


def test_memory_that_is_shared_is_counted_once_in_the_devices() -> None:
    for box in MACHINES:
        for model in MODELS.values() if box.shares_ram else ():
            known = facts(box.platform, (GPU_BUILD,))
            plan, estimate = decide(box, model)
            rows = {row["pool"]: row for row in make_device_rows(known, plan)}
            if plan.memory.on_gpu:
                assert "shares the RAM" in rows["gpu0"]["device"]
                held = rows["gpu0"]["takes_bytes"] + rows["ram"]["usable_bytes"]
                assert held == box.platform.ram_total_bytes - known.system_bytes
            fits = all(row["takes_bytes"] <= row["usable_bytes"] for row in rows.values())
            assert fits is estimate.fits, box.name


@pytest.mark.parametrize("box", [box for box in MACHINES if box.shares_ram], ids=lambda b: b.name)
def test_layers_in_ram_leave_the_system_its_reserve(box: Box) -> None:
    known = facts(box.platform, (GPU_BUILD,))
    for name, model in MODELS.items():
        plan, estimate = decide(box, model)
        if plan.memory.on_gpu and estimate.fits:
            left = box.platform.ram_total_bytes - plan.memory.total_bytes
            assert left >= known.system_bytes, name
        assert estimate.usable_bytes <= box.platform.ram_total_bytes, name


def test_all_layers_that_were_asked_for_are_not_divided() -> None:
    assert not decide(BOXES["GTX 1650, 16 GiB"], MODELS["8B"], gpu_layers=-1)[1].fits
