"""Which engine, which context, how many layers on the GPU, and why. Pure: facts in, plan out."""

from __future__ import annotations

from vllama.engines.base import Adapting, Engine, Mode, Settings
from vllama.engines.registry import engine_named
from vllama.errors import BadModelFile, EngineMissing, InvalidModelRef, NoPlan, NotEnoughMemory
from vllama.hardware.types import Platform, Vendor
from vllama.models.aliases import hub_alias
from vllama.models.ref import ModelRef
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.plan.fit import default_context, estimate, largest_context, round_up
from vllama.plan.types import Choice, Facts, Memory, Need, Plan

GIB = 1024**3
UNKNOWN_CONTEXT = 131_072
FETCHED = (Format.GGUF, Format.SAFETENSORS)


def ranked(facts: Facts) -> list[tuple[Engine, int, str]]:
    """Return the engines that suit the platform, best first, with their reason."""
    rows = [(engine, *engine.preference(facts.platform)) for engine in facts.found.engines.values()]
    return sorted((row for row in rows if row[1] > 0), key=lambda row: -row[1])


def choose_engine(facts: Facts, format_: Format | None = None) -> Choice:
    """Choose an installed engine, for a model of `format_` if given.

    1. An engine named by the user is taken or refused, never replaced.
    2. Else the best for this platform that is installed and reads the format; if a better one
       is missing, the reason says so and how to install it.

    Raises EngineMissing if none is installed, NoPlan if none reads the format.
    """
    found, wanted = facts.found, facts.preferences.engine
    if wanted:
        engine = engine_named(found.engines.values(), wanted)
        if absent := found.missing.get(engine.name):
            raise EngineMissing(f"cannot use {engine.title}: {absent.reason}", hint=absent.hint)
        if format_ and format_ not in engine.formats:
            raise NoPlan(
                f"cannot serve a {format_} model with {engine.title}: it reads "
                + " and ".join(engine.formats),
                hint="choose another engine, or a model in that format",
            )
        installation = found.installations[engine.name]
        return Choice(engine=engine.name, installation=installation, reason="asked for by name")
    better: list[str] = []
    for engine, _, reason in ranked(facts):
        if format_ and format_ not in engine.formats:
            continue
        if absent := found.missing.get(engine.name):
            better.append(
                f"{engine.title} would be the choice here ({reason}), but {absent.reason}: "
                f"{absent.hint}"
            )
            continue
        return Choice(
            engine=engine.name,
            installation=found.installations[engine.name],
            reason="; ".join([reason, *better]),
        )
    raise nothing_found(facts, format_, better)


def nothing_found(facts: Facts, format_: Format | None, better: list[str]) -> NoPlan:
    """Return the error that says why no engine can be used and what to install."""
    first = next(
        (
            facts.found.missing[engine.name]
            for engine, _, _ in ranked(facts)
            if engine.name in facts.found.missing and (not format_ or format_ in engine.formats)
        ),
        None,
    )
    if first is not None:
        title = facts.found.engines[first.engine].title
        return EngineMissing(f"cannot use {title}: {first.reason}", hint=first.hint)
    return NoPlan(
        f"cannot serve a {format_} model on this machine: no engine for it runs here",
        hint="choose a GGUF of the model (hf.co/org/repo-GGUF)",
    )


def preferred_formats(facts: Facts) -> tuple[Format, ...]:
    """Return the formats to download, best first; GGUF if no engine is there at all."""
    try:
        choice = choose_engine(facts)
    except NoPlan:
        return (Format.GGUF,)
    first = facts.found.engines[choice.engine].formats
    return (*first, *(item for item in FETCHED if item not in first))


def gpu_bytes(platform: Platform) -> int:
    """Return the total memory of all accelerators."""
    return sum(accelerator.total_bytes for accelerator in platform.accelerators)


def layers(facts: Facts, choice: Choice, need: Need) -> tuple[int, str | None]:
    """Return how many layers go to the GPU (-1: all) and why."""
    asked = need.gpu_layers if need.gpu_layers is not None else facts.preferences.gpu_layers
    if asked is not None and asked >= 0:
        return asked, f"{asked} layers on the GPU, as asked for"
    if not facts.platform.accelerators:
        return 0, None
    if not choice.installation.offloads:
        return 0, "all layers on the CPU: this build of the engine has no GPU support"
    where = "Metal" if facts.platform.of(Vendor.APPLE) else "the GPU"
    return -1, f"all layers on {where}"


def wanted_context(facts: Facts, need: Need) -> tuple[int, bool]:
    """Return the context to load with, and whether somebody asked for that much.

    A request can only raise it: one that wants less is served by more, and a model loaded with
    a tiny context would be loaded again for everybody else.
    """
    automatic = default_context(gpu_bytes(facts.platform))
    own = facts.preferences.context_length
    if not need.context_length:
        return own or automatic, bool(own)
    floor = own or min(automatic, default_context(0))
    return max(need.context_length, floor), bool(own) or need.context_length >= floor


def make_plan(facts: Facts, bundle: Bundle, info: ModelInfo, need: Need) -> Plan:
    """Decide how `bundle` is served here.

    1. engine; 2. layers on the GPU; 3. context: asked for by the request, by the user, else
    Ollama's tier, clamped to what the model was trained for; 4. memory: an automatic context
    shrinks until it fits, what still does not fit is refused with the numbers.
    """
    choice = choose_engine(facts, bundle.format)
    engine = facts.found.engines[choice.engine]
    if reason := engine.supports(facts.platform, info):
        raise BadModelFile(
            f"cannot serve '{bundle.name}' with {engine.title}: {reason}", hint=from_the_hub(bundle)
        )
    refuse_adapters(bundle, engine)
    if need.mode not in engine.modes:
        raise NoPlan(f"cannot serve '{bundle.name}' for {need.mode}: {engine.title} does not")
    reasons = [f"{engine.title} {choice.installation.version}: {choice.reason}"]
    gpu_layers, why = layers(facts, choice, need)
    on_gpu = gpu_layers != 0 and bool(facts.platform.accelerators)
    if why:
        reasons.append(why)
    flash = facts.preferences.flash_attention is not False and need.mode is Mode.CHAT

    if bundle.format is Format.REMOTE:  # it runs already, with the context it has
        wanted, asked = info.context_length or UNKNOWN_CONTEXT, False
    else:
        wanted, asked = wanted_context(facts, need)
    if info.context_length and wanted > info.context_length:
        wanted = info.context_length
        reasons.append(f"context clamped to the {wanted} tokens the model was trained for")
    context = round_up(max(wanted, 4), engine.overhead.context_multiple)
    available = available_bytes(facts, on_gpu=on_gpu)
    if not asked:
        fitting = largest_context(
            info,
            context,
            available,
            engine.overhead,
            on_gpu=on_gpu,
            cache_type=facts.preferences.kv_cache_type,
            flash=flash,
        )
        if fitting is not None and fitting < context:
            reasons.append(f"context lowered from {context} to {fitting} tokens to fit into memory")
            context = fitting
    # an embedding process evaluates its whole context in one batch
    every = need.logprobs or need.mode is Mode.EMBED
    memory = estimate(
        info,
        context,
        engine.overhead,
        every_row=every,
        on_gpu=on_gpu,
        cache_type=facts.preferences.kv_cache_type,
        flash=flash,
    )
    refuse_if_too_large(bundle, memory, context, available)
    reasons.append(
        f"context {context} tokens; about {memory.total_bytes / GIB:.1f} GiB of "
        f"{'GPU memory' if on_gpu else 'memory'}, {available / GIB:.1f} GiB usable"
    )
    prefs, cores = facts.preferences, facts.platform.cores
    threads = need.threads or prefs.threads
    return Plan(
        bundle=bundle,
        info=info,
        engine=engine.name,
        installation=choice.installation,
        settings=Settings(
            mode=need.mode,
            alias=bundle.name,
            context_length=context,
            gpu_layers=gpu_layers,
            # one core left free: spinning OpenMP threads on every core collapse beside any load
            threads=threads or max(1, cores - 1),
            batch_threads=threads or max(1, cores),
            flash_attention=flash,
            kv_cache_type=prefs.kv_cache_type,
            parallel=prefs.parallel,
            logprobs=need.logprobs,
            stall_timeout_s=prefs.stall_timeout_s,
            extra_args=prefs.extra_args,
        ),
        memory=memory,
        reasons=tuple(reasons),
    )


def from_the_hub(bundle: Bundle) -> str:
    """Return the hint to take the same model from the hub, by its name there if it is known."""
    try:
        alias = hub_alias(ModelRef.parse(bundle.base or bundle.name))
    except InvalidModelRef:  # a server elsewhere may use any name
        alias = None
    name = f"hf.co/{alias.hub_id}" if alias else "hf.co/org/repo"
    return f"pull the same model from the hub: vllama pull {name}"


def refuse_adapters(bundle: Bundle, engine: Engine) -> None:
    """Raise NoPlan if the engine cannot be started with all the model's LoRA adapters."""
    most = engine.max_adapters if isinstance(engine, Adapting) else 0
    if len(bundle.adapters) > most:
        takes = f"{most} only" if most else "none"
        raise NoPlan(
            f"cannot serve '{bundle.name}' with {engine.title}: it has {len(bundle.adapters)} "
            f"adapters, and the engine takes {takes}",
            hint="merge them into the model first: llama-export-lora",
        )


def available_bytes(facts: Facts, *, on_gpu: bool) -> int:
    """Return what a new engine could have if everything of ours were unloaded.

    Total memory less the reserve: whether it is free *now* is the scheduler's question.
    """
    platform = facts.platform
    total = gpu_bytes(platform) if on_gpu else platform.ram_total_bytes
    return max(0, total - facts.preferences.reserve_bytes)


def refuse_if_too_large(bundle: Bundle, memory: Memory, context: int, available: int) -> None:
    """Raise NotEnoughMemory, with the numbers, if the estimate exceeds what there is."""
    if memory.total_bytes <= available:
        return
    raise NotEnoughMemory(
        f"cannot load '{bundle.name}': model requires more system memory "
        f"({memory.total_bytes / GIB:.1f} GiB: weights {memory.weights_bytes / GIB:.1f}, "
        f"context of {context} tokens {memory.kv_bytes / GIB:.1f}, "
        f"buffers {memory.compute_bytes / GIB:.1f}) than is available ({available / GIB:.1f} GiB)",
        hint="use a smaller context (--ctx) or a smaller quantisation",
    )
