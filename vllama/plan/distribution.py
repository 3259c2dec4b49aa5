"""Distribution of a model's layers, experts and cache over GPUs and RAM. Pure.

The rules are llama.cpp's (`load_tensors` in src/llama-model.cpp, b11434): of `--n-gpu-layers N` the
last N layers are on the GPUs, where the output counts as a layer, the last one. The token
embeddings are read in RAM always; where they also make the logits, a copy of them is the output.
`--n-cpu-moe N` leaves the experts of the first N layers in RAM. The cache of a layer lies where the
layer lies. Several GPUs get consecutive layers, in the proportions of `--tensor-split`.

Compute buffers, measured on a Vulkan device (docs/reference/engines.md#divided-models): weights in
RAM are copied to a GPU for each large batch, so a GPU needs room for the largest of them, the batch
itself and one more mask. Several GPUs that have all layers work on up to four batches at a time,
each with a mask.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from vllama.base.units import format_amount
from vllama.engines.base import Engine, Memory, Mode, Settings
from vllama.machine.types import Accelerator, Platform, Vendor, name_pool
from vllama.models.headers.gguf.parser import count_tensor_bytes
from vllama.models.table_kinds import SPREAD
from vllama.models.types import ModelInfo
from vllama.plan.fit import (
    FLOAT_BYTES,
    MASK_BYTES,
    count_second_copy,
    estimate_model_memory,
    list_kv_bytes,
    list_masks,
)
from vllama.plan.types import RAM, Facts, Plan

UNKNOWN_LAYERS = 32
"""Equal parts of a model whose header does not tell its layers: GPUs can share it."""
BATCHES = 4  # in the pipeline of several GPUs
_INPUT = ("token_embd.", "per_layer_token_embd.", "position_embd.", "token_types.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The parts of a model in bytes; `mask` and `batch` are those of one batch of a launch."""

    layers: Sequence[int]  # without their experts
    experts: Sequence[int]
    largest: Sequence[tuple[int, int]] = ()  # tensor of each layer and of its experts
    input: int = 0
    output: int = 0  # 0: the input makes the logits, too
    beside: int = 0  # projector and draft model
    caches: Sequence[int] = ()  # of each layer
    mask: int = 0
    batch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A launch with its GPUs, what it takes, and why these GPUs, "" without a choice.

    `usable_bytes` are those of the pools that it takes part of, and `lacking` those of the pools
    without room for their part; None where only the sum is known.
    """

    settings: Settings
    memory: Memory
    usable_bytes: int
    lacking: Mapping[str, int] | None = None
    reason: str = ""


def list_usable(platform: Platform) -> tuple[Accelerator, ...]:
    """Return the GPUs that can be used together: of one vendor, and not divided by MIG.

    A process can use one instance of MIG only (MIG User Guide, "CUDA Device Enumeration").
    """
    remote = platform.of(Vendor.REMOTE)  # they come first: the logits do not cross the network
    for vendor in Vendor:
        if vendor is not Vendor.REMOTE and (gpus := platform.of(vendor)):
            whole = tuple(gpu for gpu in gpus if not gpu.is_divided)
            return remote + (whole or (max(gpus, key=lambda gpu: gpu.total_bytes),))
    return remote


def describe_gpu(gpu: Accelerator, *, alone: bool) -> str:
    """Return a GPU's name without its vendor's, with its number if there are several."""
    if gpu.is_remote:
        return gpu.name
    name = re.sub(r"^(NVIDIA |AMD |Intel |GeForce |Radeon (?=RX|PRO|AI))+", "", gpu.name)
    return f"the {name}" if alone else f"GPU {gpu.index} ({name})"


def is_divided(info: ModelInfo, settings: Settings) -> bool:
    """Tell whether a launch leaves layers or experts in RAM."""
    return 0 <= settings.gpu_layers <= (info.block_count or 0) or settings.cpu_moe > 0


def measure_sizes(info: ModelInfo) -> Sizes:
    """Return the sizes of a model's parts, by its tensors; without them all layers are equal.

    The tensors may be those of another quantization than `weights_bytes`: the proportions are the
    same.
    """
    count, beside = info.block_count or UNKNOWN_LAYERS, info.beside_bytes
    own_bytes = info.weights_bytes - beside
    layers, experts, inputs, outputs = [0] * count, [0] * count, 0, 0
    largest, largest_experts = [0] * count, [0] * count
    for name, kind, shape in info.tensors:
        size, number = count_tensor_bytes(kind, shape), name.partition("blk.")[2].partition(".")[0]
        if number.isdecimal() and int(number) < count:
            n, is_expert = int(number), "_exps" in name
            (experts if is_expert else layers)[n] += size
            most = largest_experts if is_expert else largest
            most[n] = max(most[n], size)
        elif name.startswith(_INPUT):
            inputs += size
        else:
            outputs += size
    known_bytes = sum(layers) + sum(experts) + inputs + outputs
    if not known_bytes:
        return Sizes(layers=[-(-own_bytes // count)] * count, experts=experts, beside=beside)
    scale = own_bytes / known_bytes
    has_output = any(name == "output.weight" for name, _, _ in info.tensors)
    return Sizes(
        layers=[int(size * scale) for size in layers],
        experts=[int(size * scale) for size in experts],
        largest=[
            (int(a * scale), int(b * scale)) for a, b in zip(largest, largest_experts, strict=True)
        ],
        input=int(inputs * scale),
        output=int(outputs * scale) if has_output else 0,
        beside=beside,
    )


def count_expert_layers(info: ModelInfo) -> int:
    """Return how many layers there are up to the last one with experts; 0 for a dense model."""
    experts = measure_sizes(info).experts
    return max((number for number, size in enumerate(experts, 1) if size), default=0)


def find_rooms(
    facts: Facts, gpus: Sequence[Accelerator], *, now: bool = False
) -> Mapping[str, int]:
    """Return the bytes of RAM and of each GPU that one replica of a model may take.

    What other programs hold of a GPU is not to be had; they give RAM back that they do not use.
    `now`: nor is what our own engines hold of a GPU.
    """
    rooms = {RAM: facts.platform.ram_total_bytes - facts.reserve_of()}
    for gpu in gpus:
        pool, size = name_pool(gpu.index), gpu.total_bytes
        if now or not gpu.shares_ram:
            size = min(size, gpu.free_bytes + (0 if now else facts.ours.get(pool, 0)))
        rooms[pool] = size - facts.reserve_of(pool)
    limits = facts.relief.room
    return {
        pool: max(0, min(size, limits.get(pool, size))) // facts.settings.replicas
        for pool, size in rooms.items()
    }


def count_ram_beside(facts: Facts, room: int, gpu_parts: Mapping[str, int]) -> int:
    """Return how much of the `room` in RAM is left beside the parts of GPUs that share it."""
    return room + facts.reserve_of() - facts.system_bytes - sum(gpu_parts.values())


def list_needs(plan: Plan, gpus: Sequence[Accelerator]) -> dict[str, int]:
    """Return a plan's estimate by pool; of an engine that does not tell, GPUs hold equal parts."""
    memory = plan.memory
    if not (memory.on_gpu and gpus):
        return {RAM: memory.total_bytes}
    if memory.gpu_parts:
        return {**memory.gpu_parts, RAM: memory.ram_bytes}
    used = plan.settings.gpus or tuple(gpu.index for gpu in gpus)
    return dict.fromkeys(map(name_pool, used), -(-memory.total_bytes // len(used)))


def place(
    facts: Facts, engine: Engine, info: ModelInfo, settings: Settings, slots: int, *, on_gpu: bool
) -> Placement:
    """Choose the GPUs for a launch, and tell what it takes of each pool.

    As few GPUs as hold it, those with the most free memory first and remote ones last, so that the
    others stay free for other models: by what is free now, or else, if other models have to be
    unloaded first, by what there is. A divided model gets all that have room for their buffers and
    a layer. What the user named is taken as it is.
    """
    memory = estimate_memory(engine, info, settings, on_gpu=on_gpu, slots=slots)
    gpus = list_usable(facts.platform) if on_gpu else ()
    rooms = find_rooms(facts, gpus)
    if not gpus:
        if engine.overhead.repacks:
            memory = replace(memory, copied_bytes=count_second_copy(info, facts.platform))
        usable = rooms[RAM]
        lacking = {RAM: usable} if memory.total_bytes > usable else {}
        return Placement(settings=settings, memory=memory, usable_bytes=usable, lacking=lacking)
    sizes, context, overhead = measure_sizes(info), settings.context_length, engine.overhead
    caches = list_kv_bytes(info, context, overhead, settings.kv_cache_type)
    sizes = replace(
        sizes,
        caches=[slots * size for size in caches] or [0] * len(sizes.layers),
        mask=overhead.batch_rows * MASK_BYTES * sum(list_masks(info, context, overhead)),
        batch=overhead.batch_rows * FLOAT_BYTES * (info.embedding_length or 0),
    )
    divided = is_divided(info, settings)

    def attempt(group: Sequence[Accelerator], rooms: Mapping[str, int], why: str) -> Placement:
        group = sorted(group, key=lambda gpu: not gpu.is_remote)
        launch, takes = distribute(sizes, memory, settings, group, rooms)
        parts = {**takes.gpu_parts, RAM: takes.ram_bytes}
        room = {pool: rooms[pool] for pool in parts}
        usable = sum(room[pool] for pool in parts if divided or pool != RAM)
        if shared := [name_pool(gpu.index) for gpu in group if gpu.shares_ram]:
            room[RAM] = count_ram_beside(facts, room[RAM], {pool: parts[pool] for pool in shared})
            usable = room[RAM] + sum(takes.gpu_parts.values()) if divided else usable
        return Placement(
            settings=launch,
            memory=takes,
            usable_bytes=usable,
            lacking={pool: room[pool] for pool, size in parts.items() if size > room[pool]},
            reason=describe_gpus(group, launch.gpu_shares, why) if why else "",
        )

    if facts.gpus is not None:
        why = "spread over all, as asked for" if facts.gpus == SPREAD else "as asked for"
        return attempt(gpus, rooms, why)
    several = len(gpus) > 1
    for room in () if divided else (find_rooms(facts, gpus, now=True), rooms):
        order = sorted(gpus, key=lambda g: (g.is_remote, -room[name_pool(g.index)], g.index))
        for count in range(1, len(order) + 1):
            free = f"{format_amount(sum(gpu.free_bytes for gpu in order[:count]))} free"
            placed = attempt(order[:count], room, free if several else "")
            if not placed.lacking:
                return placed
    order = sorted(gpus, key=lambda g: (g.is_remote, -rooms[name_pool(g.index)], g.index))
    if divided:
        for count in range(len(order), 0, -1):
            placed = attempt(order[:count], rooms, "")
            if not (placed.lacking or {}).keys() - {RAM}:
                break
        return placed
    return attempt(order, rooms, "all of them" if several else "")


def estimate_memory(
    engine: Engine, info: ModelInfo, settings: Settings, *, on_gpu: bool, slots: int
) -> Memory:
    """Estimate what one process takes that is launched with `settings`, wherever it lies."""
    overhead = engine.overhead
    every_row = settings.mode is Mode.EMBED  # it evaluates its whole context in one batch
    return estimate_model_memory(
        info,
        settings.context_length,
        overhead,
        every_row=every_row or (settings.logprobs and overhead.logprobs_take_memory),
        on_gpu=on_gpu,
        cache_type=settings.kv_cache_type,
        flash=settings.flash_attention,
        slots=slots,
    )


def distribute(
    sizes: Sizes,
    memory: Memory,
    settings: Settings,
    gpus: Sequence[Accelerator],
    rooms: Mapping[str, int],
) -> tuple[Settings, Memory]:
    """Return the launch with the layers of each GPU, and the memory with what each of them holds.

    What is on no GPU is in RAM, with one more mask. The first GPU has what is beside the model.
    """
    count = len(sizes.layers)
    on_gpus = count + 1 if settings.gpu_layers < 0 else min(settings.gpu_layers, count + 1)
    first = count + 1 - on_gpus  # of the layers on GPUs
    items = [
        sizes.layers[n] + sizes.caches[n] + (sizes.experts[n] if n >= settings.cpu_moe else 0)
        for n in range(first, count)
    ]
    items.append(sizes.output or sizes.input)
    pools = [name_pool(gpu.index) for gpu in gpus]
    copied = [size for size, _ in sizes.largest[:first]]
    copied += [size for _, size in sizes.largest[: max(first, settings.cpu_moe)]]
    compute = memory.compute_bytes
    if first or settings.cpu_moe:
        compute += max(copied, default=0) + sizes.batch + sizes.mask
    elif len(gpus) > 1:
        compute += BATCHES * (sizes.mask + sizes.batch)
    own = [compute + (0 if number else sizes.beside) for number in range(len(gpus))]
    counts = divide(items, [max(0, rooms[p] - size) for p, size in zip(pools, own, strict=True)])
    ends = list(accumulate(counts))
    parts = {
        pool: sum(items[end - taken : end]) + size
        for pool, taken, end, size in zip(pools, counts, ends, own, strict=True)
    }
    return replace(
        settings, gpus=tuple(gpu.index for gpu in gpus), gpu_shares=tuple(counts)
    ), replace(
        memory,
        weights_bytes=memory.weights_bytes + (0 if sizes.output else sizes.input),
        compute_bytes=compute * len(gpus) + sizes.mask,
        gpu_parts=parts,
    )


def leave_out_output(shares: Sequence[int]) -> list[int]:
    """Return the layers of each GPU as people count them: the output on the last one is none."""
    return [*shares[:-1], shares[-1] - 1]


def describe_gpus(gpus: Sequence[Accelerator], shares: Sequence[int], why: str) -> str:
    """Return which GPUs were chosen, with the layers of each, and why."""
    names = [gpu.name if gpu.is_remote else f"GPU {gpu.index}" for gpu in gpus]
    if len(gpus) > 1:
        held = leave_out_output(shares)
        names = [f"{name} ({count} layers)" for name, count in zip(names, held, strict=True)]
    return f"on {' and '.join(names) if len(names) < 3 else ', '.join(names)}: {why}"


def divide(items: Sequence[int], rooms: Sequence[int]) -> list[int]:
    """Return how many consecutive items each room gets: in proportion, else as many as fit.

    What fits nowhere is in the last one.
    """
    total, space = sum(items), sum(rooms)
    bounds = [end * total / space if space else 0.0 for end in accumulate(rooms)]
    counts, done, middle = [0] * len(rooms), 0, 0.0
    for item in items:
        middle = done + item / 2
        place = next((n for n, bound in enumerate(bounds) if middle <= bound), len(rooms) - 1)
        counts[place] += 1
        done += item
    ends = list(accumulate(counts))
    held = [sum(items[end - count : end]) for end, count in zip(ends, counts, strict=True)]
    if all(size <= room for size, room in zip(held, rooms, strict=True)):
        return counts
    counts, left = [0] * len(rooms), list(rooms)
    place = 0
    for item in items:
        while place < len(rooms) - 1 and item > left[place]:
            place += 1
        counts[place] += 1
        left[place] -= item
    return counts
