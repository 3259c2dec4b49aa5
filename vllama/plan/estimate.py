"""What a model takes on this machine, and with which context. Pure: facts in, numbers out."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from vllama.engines.base import Engine, Memory, Mode, Settings, Tuning, TuningRequest
from vllama.machine.types import Platform, Vendor
from vllama.models.types import Format, ModelInfo
from vllama.plan.fit import (
    choose_default_context,
    count_second_copy,
    estimate_model_memory,
    find_largest_context,
    round_up,
)
from vllama.plan.types import Choice, Estimate, Facts, Need

UNKNOWN_CONTEXT = 131_072
LEAST_CONTEXT = 512
SENSIBLE_CONTEXT = 4096
"""Tokens that a quantisation leaves room for before the context is shrunk instead."""


def make_estimate(
    facts: Facts, choice: Choice, format_: Format, info: ModelInfo, need: Need
) -> Estimate:
    """Decide about layers, context and memory; whether it fits is for the caller to judge.

    An automatic context shrinks until it fits, and stays as it is if even the least does not.
    """
    engine, given = facts.found.engines[choice.engine], facts.settings
    gpu_layers, why = layers(facts, choice, format_, info, need)
    on_gpu = gpu_layers != 0 and bool(facts.platform.accelerators)
    reasons = [why] if why else []
    wanted, asked = wanted_context(facts, format_, info, need, on_gpu=on_gpu)
    if info.context_length and wanted > info.context_length:
        wanted = info.context_length
        reasons.append(f"context limited to the {wanted} tokens that the model was trained for")
    context = round_up(max(wanted, 4), engine.overhead.context_multiple)
    if given.replicas > 1 and format_ is not Format.REMOTE:
        reasons.append(f"{given.replicas} replicas share the cores and the memory")
    request = TuningRequest(
        settings=draft_settings(facts, engine, need, context, gpu_layers),
        platform=facts.platform,
        info=info,
        installation=choice.installation,
        context_asked=asked,
        on_gpu=on_gpu,
        reserve_bytes=facts.reserve_bytes,
        at_most=facts.relief.max_parallel,
        all_gpus=facts.gpus is not None,
        eager=facts.relief.eager,
    )
    if engine.tunes:
        tuning, most = engine.tune(request), None
    else:
        tuning, most = tune_by_overhead(facts, engine, need, request)
    sensible = (SENSIBLE_CONTEXT, info.context_length, given.context_length)
    return Estimate(
        settings=tuning.settings,
        memory=tuning.memory,
        usable_bytes=share_bytes(facts, on_gpu=on_gpu),
        least_context=min(tokens for tokens in sensible if tokens),
        most_parallel=most,
        reasons=(*reasons, *tuning.reasons),
        context_asked=asked,
    )


def tune_by_overhead(
    facts: Facts, engine: Engine, need: Need, request: TuningRequest
) -> tuple[Tuning, int | None]:
    """Decide for an engine that has no `tune`: about its slots, then about the context.

    Returns also how many slots it gets if so many requests come; None: it has one cache for all.
    """
    settings, info, on_gpu = request.settings, request.info, request.on_gpu
    context, reasons = settings.context_length, []
    most = count_most_slots(facts, engine, info, settings, on_gpu=on_gpu)
    parallel, slots = at_once(facts), 1
    if most is not None:
        parallel = slots = most if starts_with_all(facts, need) else 1
        if slots > 1:
            reasons.append(f"{slots} requests at once, each with a context of its own")
        elif most > 1:
            reasons.append(f"one request at a time; reloaded for {most} if several arrive")
    if not request.context_asked:
        usable = share_bytes(facts, on_gpu=on_gpu)

        def fits(length: int) -> bool:
            memory = estimate_model_memory(
                info,
                length,
                engine.overhead,
                every_row=False,
                on_gpu=on_gpu,
                cache_type=settings.kv_cache_type,
                flash=settings.flash_attention,
                slots=slots,
            )
            return memory.total_bytes <= usable

        fitting = find_largest_context(context, engine.overhead.context_multiple, fits)
        if fitting is not None and fitting < context:
            reasons.append(f"context lowered from {context} to {fitting} tokens to fit into memory")
            context = fitting
    settings = replace(settings, context_length=context, parallel=parallel)
    memory = estimate_memory(engine, info, settings, on_gpu=on_gpu, slots=slots)
    if engine.overhead.repacks and not on_gpu:
        memory = replace(memory, copied_bytes=count_second_copy(info, facts.platform))
    return Tuning(settings=settings, memory=memory, reasons=tuple(reasons)), most


def at_once(facts: Facts) -> int | None:
    """Return the requested number of simultaneous requests, or the limit learnt from failures."""
    return facts.settings.num_parallel or facts.relief.max_parallel


def draft_settings(
    facts: Facts, engine: Engine, need: Need, context: int, gpu_layers: int
) -> Settings:
    """Return what decides about memory; `choose.draft_plan` adds the rest, such as the name."""
    return Settings(
        mode=need.mode,
        alias="",
        context_length=context,
        gpu_layers=gpu_layers,
        # attention is computed without its whole matrix of scores
        flash_attention=facts.settings.flash_attention is not False and need.mode is Mode.CHAT,
        kv_cache_type=facts.settings.kv_cache_type,
        parallel=facts.settings.num_parallel,
        inspect=facts.settings.inspect and engine.inspects,
        logprobs=need.logprobs or not engine.overhead.logprobs_take_memory,
        extra_args=facts.settings.engine_args,
    )


def estimate_memory(
    engine: Engine, info: ModelInfo, settings: Settings, *, on_gpu: bool, slots: int
) -> Memory:
    """Estimate what one process of an engine takes that is launched with `settings`."""
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


def count_most_slots(
    facts: Facts, engine: Engine, info: ModelInfo, settings: Settings, *, on_gpu: bool
) -> int | None:
    """Return how many requests may be answered at once, each with a cache of its own.

    As many as are asked for. The engine's own number has to fit beside the whole context. None: an
    engine that has one cache for all.
    """
    slots = engine.slots(at_once(facts))
    if slots is None:
        return None
    usable = share_bytes(facts, on_gpu=on_gpu)
    while not facts.settings.num_parallel and slots > 1:
        memory = estimate_memory(engine, info, settings, on_gpu=on_gpu, slots=slots)
        if memory.total_bytes <= usable:
            break
        slots //= 2
    return slots


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
        return 0, "all layers on the CPU, as asked for" if gpus else None
    wanted = f"though {asked} on a GPU were asked for" if asked and asked > 0 else ""
    if not gpus and not wanted:
        return 0, None
    if not offloads:
        lacking = "this build of the engine has no GPU support"
        why = lacking if gpus else f"no GPU was found, and {lacking}"
        return 0, f"all layers on the CPU{', ' if wanted else ''}{wanted}: {why}"
    if not gpus:
        assert asked is not None
        return asked, f"no GPU was found, {wanted}: where the layers go is up to the engine"
    backend = choice.installation.backend
    where = f"the GPU ({backend})" if backend else "the GPU"
    if facts.platform.of(Vendor.APPLE):
        where = "Metal"
    engine = facts.found.engines[choice.engine]
    if not wanted:
        return -1, f"all layers on {where}"
    if not engine.splits_layers:
        return -1, f"all layers on {where}: {engine.title} does not split a model"
    assert asked is not None
    if info.block_count and asked > info.block_count:
        return asked, f"all {info.block_count} layers on {where}, as asked for"
    return asked, f"{asked} layers on {where}, as asked for"


def wanted_context(
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


def available_bytes(facts: Facts, *, on_gpu: bool) -> int:
    """Return what a new engine could have if everything of ours were unloaded.

    Total memory less the reserve: whether it is free *now* is the scheduler's question.
    """
    platform = facts.platform
    total = gpu_bytes(platform) if on_gpu else platform.ram_total_bytes
    return max(0, total - facts.reserve_bytes)


def share_bytes(facts: Facts, *, on_gpu: bool) -> int:
    """Return what each of a model's replicas could have of that."""
    return available_bytes(facts, on_gpu=on_gpu) // facts.settings.replicas


def gpu_bytes(platform: Platform) -> int:
    """Return the total memory of all accelerators."""
    return sum(accelerator.total_bytes for accelerator in platform.accelerators)
