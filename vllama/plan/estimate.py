"""Estimate of a model's memory and context on this machine. Pure: facts in, numbers out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from vllama.base.units import format_amount
from vllama.engines.base import Engine, Installation, Mode, Settings, TuningRequest
from vllama.machine.types import Platform, Vendor, name_pool
from vllama.models.types import Format, ModelInfo
from vllama.plan.distribution import (
    Placement,
    count_expert_layers,
    describe_gpu,
    find_rooms,
    is_divided,
    leave_out_output,
    list_usable,
    place,
)
from vllama.plan.fit import MIN_AUTO_CONTEXT, choose_default_context, find_largest_context, round_up
from vllama.plan.types import FIT, RAM, Choice, Estimate, Facts, Need

UNKNOWN_CONTEXT = 131_072
LEAST_CONTEXT = 512
SENSIBLE_CONTEXT = 4096
"""Tokens that a quantization leaves room for before the context is shrunk instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One way to place a model.

    `divided`: a part that a GPU could take is in RAM, so an automatic context is no longer than one
    can work with. `last`: rather than refuse the model, an automatic context is lowered further.
    """

    gpu_layers: int
    cpu_moe: int = 0
    cache_type: str | None = None
    divided: bool = False
    last: bool = False


def make_estimate(
    facts: Facts, choice: Choice, format_: Format, info: ModelInfo, need: Need
) -> Estimate:
    """Decide about layers, context and memory; whether it fits is for the caller to judge.

    An engine that divides models takes the first rung of this ladder that fits: all on the GPUs,
    with a context lowered to what one can work with; the same with a cache in q8_0, where the
    settings say `fit`; the experts of as few layers as possible in RAM; as few layers as possible
    in RAM; RAM alone. If none fits, the estimate is that of the rung with the most memory.
    """
    engine, given = facts.found.engines[choice.engine], facts.settings
    facts = facts.restrict_to(engine)
    gpu_layers, why = layers(facts, choice, format_, info, need)
    divides = engine.splits_layers and gpu_layers < 0 and bool(facts.platform.accelerators)
    divides = divides and not given.strict and given.gpu_layers is None
    cache_type = None if given.kv_cache_type == FIT else given.kv_cache_type
    whole = Rung(gpu_layers=gpu_layers, cache_type=cache_type, last=not divides)

    def attempt(rung: Rung) -> Estimate:
        return make_rung_estimate(facts, choice, format_, info, need, rung)

    estimate = attempt(whole)
    if given.kv_cache_type == FIT and divides and not estimate.fits:
        whole, why = replace(whole, cache_type="q8_0"), f"{why}, with the KV cache in q8_0"
        estimate = attempt(whole)
    if gpu_layers > 0 and estimate.memory.gpu_parts and not estimate.is_whole:
        why = f"{describe_division(facts, info, estimate)}, as requested"
    if estimate.fits or not divides:
        return estimate.because(why)
    for rungs in list_divisions(engine, choice.installation, info, whole):
        # with each of them the GPUs hold less, and the RAM more
        first = bisect_left(rungs, True, key=lambda rung: attempt(rung).fits_gpus)
        estimate = attempt(rungs[min(first, len(rungs) - 1)])
        if estimate.fits_gpus:
            estimate = estimate.because(describe_division(facts, info, estimate))
            break
    if estimate.fits:
        return estimate
    alone = replace(attempt(replace(whole, gpu_layers=0, last=True)), is_whole=False)
    if estimate.fits_gpus and not alone.fits:
        return estimate
    free = format_amount(sum(gpu.free_bytes for gpu in list_usable(facts.platform)))
    return alone.because(f"all layers in RAM: {free} of free GPU memory cannot hold one layer")


def list_divisions(
    engine: Engine, installation: Installation, info: ModelInfo, whole: Rung
) -> Iterator[Sequence[Rung]]:
    """Yield the rungs between the GPUs alone and RAM alone, those with the most on GPUs first."""
    count, divided = info.block_count or 0, replace(whole, divided=True)
    moves_experts = engine.splits_experts and installation.executable is not None
    if moves_experts and (experts := count_expert_layers(info)):
        yield [replace(divided, cpu_moe=number) for number in range(1, experts + 1)]
        divided = replace(divided, cpu_moe=experts)
    if count > 1:
        yield [replace(divided, gpu_layers=count + 1 - in_ram) for in_ram in range(1, count)]


def describe_division(facts: Facts, info: ModelInfo, estimate: Estimate) -> str:
    """Return where the parts of a divided model lie, and why, with the figures."""
    settings, count = estimate.settings, info.block_count or 0
    in_ram = 0 if settings.gpu_layers < 0 else count + 1 - settings.gpu_layers
    gpus = {gpu.index: gpu for gpu in list_usable(facts.platform)}
    held = leave_out_output(settings.gpu_shares)
    parts = [
        f"{layers} on {describe_gpu(gpus[index], alone=len(held) == 1)}"
        for index, layers in zip(settings.gpus, held, strict=True)
    ]
    parts[0] = parts[0].replace(" on ", f" of {count} layers on ", 1)
    if in_ram:
        parts.append(f"{in_ram} in RAM")
    if (moved := settings.cpu_moe - in_ram) > 0:
        parts.append(f"the experts of {moved} layers in RAM")
    return (
        f"{', '.join(parts)}: {format_amount(info.weights_bytes)} of weights, "
        f"{format_amount(sum(gpus[index].free_bytes for index in settings.gpus))} free there"
    )


def make_rung_estimate(
    facts: Facts, choice: Choice, format_: Format, info: ModelInfo, need: Need, rung: Rung
) -> Estimate:
    """Decide about context, slots and GPUs where the layers lie as `rung` says."""
    engine, given = facts.found.engines[choice.engine], facts.settings
    on_gpu = rung.gpu_layers != 0 and bool(facts.platform.accelerators)
    gpus = list_usable(facts.platform) if on_gpu else ()
    reasons = []
    wanted, asked = choose_context(facts, format_, info, need, on_gpu=on_gpu)
    if info.context_length and wanted > info.context_length:
        wanted = info.context_length
        reasons.append(f"context limited to the {wanted} tokens that the model was trained on")
    sensible = (SENSIBLE_CONTEXT, info.context_length, given.context_length)
    least = min(tokens for tokens in sensible if tokens)
    if rung.divided and not asked and wanted > least:
        reasons.append(f"context of {least} tokens, not {wanted}: not enough GPU memory")
        wanted = least
    context = round_up(max(wanted, 4), engine.overhead.context_multiple)
    if given.replicas > 1 and format_ is not Format.REMOTE:
        reasons.append(f"{given.replicas} replicas share the cores and the memory")
    settings, kind = draft_settings(facts, engine, need, context, rung), rung.cache_type or ""
    if kind.startswith(("q", "iq")) and not (settings.flash_attention or engine.tunes):
        # llama.cpp: docs/reference/engines.md#llama-server
        reasons.append(f"KV cache in f16: {kind} needs flash attention, which is off")
        settings = replace(settings, kv_cache_type=None)
    request = TuningRequest(
        settings=settings,
        platform=facts.platform,
        info=info,
        installation=choice.installation,
        context_asked=asked,
        on_gpu=on_gpu,
        reserve_bytes=facts.reserve_of(name_pool(gpus[0].index) if gpus else RAM),
        at_most=facts.relief.max_parallel,
        all_gpus=facts.gpus is not None,
        eager=facts.relief.eager,
    )
    if engine.tunes:
        tuning, most = engine.tune(request), None
        gpus = tuple(gpu for gpu in gpus if gpu.index in tuning.settings.gpus) or gpus
        totals = {name_pool(gpu.index): gpu.total_bytes for gpu in gpus}  # its models may be ours
        rooms = find_rooms(replace(facts, ours=totals), gpus)
        usable_bytes = sum(rooms[pool] for pool in totals) if on_gpu else rooms[RAM]
        placed = Placement(
            settings=tuning.settings, memory=tuning.memory, usable_bytes=usable_bytes
        )
        reasons += tuning.reasons
    else:
        least_here = min(context, MIN_AUTO_CONTEXT if rung.last else least)
        placed, most, why = tune_by_overhead(facts, engine, need, request, least_here)
        reasons += why
    return Estimate(
        settings=placed.settings,
        memory=placed.memory,
        usable_bytes=placed.usable_bytes,
        lacking=placed.lacking,
        is_whole=not (rung.divided or (on_gpu and is_divided(info, placed.settings))),
        least_context=least,
        most_parallel=most,
        reasons=(*reasons, placed.reason) if placed.reason else tuple(reasons),
        context_asked=asked,
    )


def tune_by_overhead(
    facts: Facts, engine: Engine, need: Need, request: TuningRequest, least: int
) -> tuple[Placement, int | None, list[str]]:
    """Decide for an engine that has no `tune`: about its slots, then about the context.

    Returns also how many slots it gets if so many requests come (None: it has one cache for all),
    and reasons. An automatic context is not lowered below `least`.
    """
    settings, reasons = request.settings, list[str]()

    def attempt(length: int, slots: int) -> Placement:
        longer = replace(settings, context_length=length)
        return place(facts, engine, request.info, longer, slots, on_gpu=request.on_gpu)

    most = engine.slots(at_once(facts))
    while most and most > 1 and not facts.settings.num_parallel:
        if not attempt(settings.context_length, most).lacking:  # the whole context in each
            break
        most //= 2
    parallel, slots = at_once(facts), 1
    if most is not None:
        parallel = slots = most if starts_with_all(facts, need) else 1
        if slots > 1:
            reasons.append(f"{slots} parallel requests, each with its own context")
        elif most > 1:
            reasons.append(f"1 parallel request; reloads with {most} slots under concurrent load")
    settings = replace(settings, parallel=parallel)
    context = settings.context_length
    if not request.context_asked:
        multiple = engine.overhead.context_multiple
        fitting = find_largest_context(
            context, multiple, least, lambda length: not attempt(length, slots).lacking
        )
        if fitting is not None and fitting < context:
            reasons.append(f"context reduced from {context} to {fitting} tokens to fit into memory")
            context = fitting
    return attempt(context, slots), most, reasons


def at_once(facts: Facts) -> int | None:
    """Return the requested number of simultaneous requests, or the limit learned from failures."""
    return facts.settings.num_parallel or facts.relief.max_parallel


def draft_settings(facts: Facts, engine: Engine, need: Need, context: int, rung: Rung) -> Settings:
    """Return the plan's parts that decide about memory; `choose.draft_plan` adds the rest."""
    return Settings(
        mode=need.mode,
        alias="",
        context_length=context,
        gpu_layers=rung.gpu_layers,
        cpu_moe=rung.cpu_moe,
        # attention is computed without its whole matrix of scores
        flash_attention=facts.settings.flash_attention is not False and need.mode is Mode.CHAT,
        kv_cache_type=rung.cache_type,
        parallel=facts.settings.num_parallel,
        inspect=facts.settings.inspect and engine.inspects,
        logprobs=need.logprobs or not engine.overhead.logprobs_take_memory,
        extra_args=facts.settings.engine_args,
    )


def starts_with_all(facts: Facts, need: Need) -> bool:
    """Tell whether an engine is started with all its slots, not with one until more are needed.

    Every slot costs the memory of a whole context, and time at the start. One person who chats
    needs one, as Ollama gives.
    """
    settings = facts.settings
    return need.concurrent or settings.num_parallel is not None or settings.replicas > 1


def find_fitting_context(
    facts: Facts, choice: Choice, format_: Format, info: ModelInfo, need: Need, failed: Estimate
) -> int | None:
    """Return the largest context, by halves of the one that failed, with which a model fits."""
    context = failed.context_length // 2
    while context >= LEAST_CONTEXT:
        settings = replace(facts.settings, context_length=context)
        smaller = msgspec.structs.replace(
            need, load=msgspec.structs.replace(need.load, num_ctx=None)
        )
        facts = replace(facts, settings=settings)
        if (estimate := make_estimate(facts, choice, format_, info, smaller)).fits:
            return estimate.context_length
        context //= 2
    return None


def layers(
    facts: Facts, choice: Choice, format_: Format, info: ModelInfo, need: Need
) -> tuple[int, str | None]:
    """Return how many layers go to the GPU (-1: all) and why; None if there was no choice.

    A number that was asked for is passed on also where no GPU was found, as long as the build of
    the engine could use one: there are GPUs that only an engine knows.
    """
    if format_ is Format.REMOTE:
        return 0, None
    asked = need.load.num_gpu
    if asked is None or asked < 0:
        asked = facts.settings.gpu_layers
    gpus, offloads = facts.platform.accelerators, choice.installation.offloads
    if asked == 0:
        return 0, "all layers on the CPU, as requested" if gpus else None
    wanted = f"although {asked} on a GPU were requested" if asked and asked > 0 else ""
    if not gpus and not wanted:
        return 0, None
    if not offloads:
        lacking = "this build of the engine has no GPU support"
        why = lacking if gpus else f"no GPU was found, and {lacking}"
        return 0, f"all layers on the CPU{', ' if wanted else ''}{wanted}: {why}"
    if not gpus:
        assert asked is not None
        return asked, f"no GPU was found, {wanted}: the engine decides where to place the layers"
    backend = choice.installation.backend
    where = f"the GPU ({backend})" if backend else "the GPU"
    if facts.platform.of(Vendor.APPLE):
        where = "Metal"
    engine = facts.found.engines[choice.engine]
    if not wanted:
        return -1, f"all layers on {where}"
    if not engine.splits_layers:
        return -1, f"all layers on {where}: {engine.title} does not split models"
    assert asked is not None
    if info.block_count and asked > info.block_count:
        return asked, f"all {info.block_count} layers on {where}, as requested"
    return asked, f"{asked} layers on {where}, as requested"


def choose_context(
    facts: Facts, format_: Format, info: ModelInfo, need: Need, *, on_gpu: bool
) -> tuple[int, bool]:
    """Return the context to load with, and whether somebody asked for that much.

    A request can only raise it: one that wants less is served by more, and a model loaded with
    a tiny context would be loaded again for everybody else.
    """
    own, num_ctx = facts.settings.context_length, need.load.num_ctx
    automatic = choose_default_context(gpu_bytes(facts.platform) if on_gpu else 0)
    if format_ is Format.REMOTE:  # it runs already, with the context it has
        wanted, asked = info.context_length or UNKNOWN_CONTEXT, False
    elif num_ctx is not None:
        floor = own or min(automatic, choose_default_context(0))
        wanted, asked = max(num_ctx, floor), bool(own) or num_ctx >= floor
    else:
        wanted, asked = own or automatic, bool(own)
    if not asked and facts.relief.max_context:
        wanted = min(wanted, facts.relief.max_context)
    return wanted, asked


def gpu_bytes(platform: Platform) -> int:
    """Return the total memory of all accelerators."""
    return sum(accelerator.total_bytes for accelerator in platform.accelerators)
