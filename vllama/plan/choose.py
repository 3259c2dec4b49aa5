"""Choice of engine, context and GPU layers, with reasons. Pure: facts in, plan out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vllama.base.errors import EngineMissing, NoPlan
from vllama.base.units import format_amount, format_bytes_decimal
from vllama.engines.base import Engine, Memory, Missing, Mode
from vllama.engines.devices import NO_DEVICE, name_devices
from vllama.engines.locate import NOT_INSTALLED
from vllama.engines.recipe import format_install_command
from vllama.engines.registry import ask_preference, find_engines
from vllama.machine.types import name_pool
from vllama.models.headers.info import describe_template
from vllama.models.resolve.candidates import suggest_conversion_of
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.plan.draft_model import DraftSpeeds, choose_draft, find_kind, make_key
from vllama.plan.estimate import choose_context, make_estimate
from vllama.plan.refuse import explain_memory, find_refusal, refuse_by_engine, refuse_if_too_large
from vllama.plan.resources import (
    choose_threads,
    keep_conversations,
    keep_named,
    refuse_cpu,
)
from vllama.plan.types import DEFAULT_NEED, RAM, Choice, Estimate, Facts, Need, Plan

FETCHED = (Format.GGUF, Format.SAFETENSORS)
NO_GPU = "does not use the GPU"
OFFERED = 2
"""How many engines are offered where none is installed."""


def rank_engines(facts: Facts) -> list[tuple[Engine, int, str]]:
    """Return the engines that suit the platform, best first, with their reason."""
    here = facts.found.installations
    rows = [
        (engine, *ask_preference(engine, facts.platform, here.get(name)))
        for name, engine in facts.found.engines.items()
    ]
    return sorted((row for row in rows if row[1] > 0), key=lambda row: -row[1])


def choose_engine(
    facts: Facts,
    format_: Format | None = None,
    bundle: Bundle | None = None,
    info: ModelInfo | None = None,
    mode: Mode = Mode.CHAT,
) -> Choice:
    """Choose an installed engine, for a model of `format_`, or for this very model, if given.

    1. An engine named by the user is taken or refused, never replaced. Of a family (`llama.cpp`)
       it is the best that is installed.
    2. Else the best for this platform that is installed, reads the format, uses the GPU if there
       is one, and lacks nothing that the model or the number of requests at once wants; if a
       better one can be installed here, the reason says so and how.
    3. Else the best that lacks something; the reason says what, and which engine would not.
    4. Else the best that is installed though it refuses the model: `make_plan` tells why.

    Raises EngineMissing if none is installed, NoPlan if none reads the format.
    """
    found, wanted = facts.found, facts.settings.engine
    if wanted:
        engine = find_named_engine(facts, wanted)
        if format_ and format_ not in engine.formats:
            raise NoPlan(
                f"cannot serve a {format_} model with {engine.title} : it reads "
                + " and ".join(engine.formats),
                hint="use another engine, or a model in that format",
            )
        if absent := found.missing.get(engine.name):
            raise make_engine_missing_error(facts, absent)
        installation = found.installations[engine.name]
        return Choice(engine=engine.name, installation=installation, reason="requested by name")
    better: list[str] = []  # missing engines that would be taken
    passed: list[tuple[Engine, str, str]] = []  # installed ones that lack something
    unable: list[tuple[Engine, str, str]] = []  # installed ones that cannot serve it at all
    for engine, _, reason in rank_engines(facts):
        if engine.name in facts.relief.without or (format_ and format_ not in engine.formats):
            continue
        lack = find_lack(engine, facts, bundle, info)
        absent = found.missing.get(engine.name)
        if why := find_refusal(engine, facts, info, mode):
            if not absent:
                unable.append((engine, reason, f"cannot: {why}"))
        elif absent and not lack and is_obtainable(facts, absent):
            better.append(
                f"{engine.title} would be preferred here ({reason}), but {absent.reason}: "
                f"{write_advice(facts, absent)}"
            )
        elif lack and not absent:
            passed.append((engine, reason, lack))
        elif not absent:
            others = [f"{other.title} {what}" for other, _, what in (*unable, *passed)]
            return Choice(
                engine=engine.name,
                installation=found.installations[engine.name],
                reason="; ".join([reason, *others, *better]),
            )
    for engine, reason, lack in (*passed, *unable)[:1]:
        better = [f"{one.title} {why}" for one, _, why in unable if one is not engine] + better
        if format_ and lack == NO_GPU:
            better += list_better_for_gpu(facts, format_)
        return Choice(
            engine=engine.name,
            installation=found.installations[engine.name],
            reason="; ".join([reason, f"it {lack}", *better]),
        )
    raise make_nothing_found_error(facts, format_)


def find_named_engine(facts: Facts, wanted: str) -> Engine:
    """Return the engine that the user means; of a family, one that uses the GPU comes first."""
    found = facts.found
    named = find_engines(found.engines.values(), wanted, found.broken)
    ranked = [engine for engine, _, _ in rank_engines(facts) if engine in named]
    here = [engine for engine in ranked if engine.name in found.installations]
    fast = [engine for engine in here if found.installations[engine.name].offloads]
    return (fast if facts.platform.accelerators and fast else here or ranked or named)[0]


def list_better_for_gpu(facts: Facts, format_: Format) -> list[str]:
    """Return the engines that would use the GPU of this machine if the model were fetched anew.

    They can be installed, and read another format than `format_`.
    """
    if not facts.platform.accelerators or facts.settings.gpu_layers == 0:
        return []
    absent = facts.found.missing
    return [
        f"{engine.title} would be preferred here ({reason}), but {absent[engine.name].reason}: "
        f"{write_advice(facts, absent[engine.name])}, then pull the model's {engine.formats[0]}"
        for engine, _, reason in rank_engines(facts)
        if engine.name in absent
        and format_ not in engine.formats
        and is_obtainable(facts, absent[engine.name])
    ][:1]


def describe_settings(bundle: Bundle) -> list[str]:
    """Return the user's settings for this model, one sentence per table."""
    tables: dict[str, list[str]] = {}
    for field in bundle.settings.given:
        tables.setdefault(bundle.settings.origins.get(field, ""), []).append(
            field.removesuffix("_s")
        )
    return [
        f"set {f'in [{table}]' if table else 'by the load options'}: {', '.join(fields)}"
        for table, fields in tables.items()
    ]


def describe_size(facts: Facts, bundle: Bundle, info: ModelInfo, estimate: Estimate) -> str:
    """Return context and memory of a plan in a sentence."""
    if bundle.format is Format.REMOTE:
        if info.context_length:
            return f"context length {info.context_length}, as reported by that server"
        return "that server does not report a context length"
    gpus = estimate.settings.gpus if estimate.memory.on_gpu else ()
    pool = name_pool(gpus[0]) if gpus else RAM
    return (
        f"context length {estimate.context_length}: needs {estimate.needed} of {estimate.kind}, "
        f"{estimate.usable} usable ({format_amount(facts.reserve_of(pool))} reserved)"
    )


def describe_more_memory(memory: Memory) -> Iterator[str]:
    """Yield additions to the memory of a plan, and duplicates in it."""
    if cache_bytes := memory.prompt_cache_bytes:
        yield f"prompt cache: up to {format_amount(cache_bytes)} more"
    if memory.copied_bytes:
        yield (
            f"second copy of the weights: {format_amount(memory.copied_bytes)} more, reordered "
            "for this processor; the original is dropped if memory runs low"
        )


def find_lack(
    engine: Engine, facts: Facts, bundle: Bundle | None, info: ModelInfo | None
) -> str | None:
    """Return an engine's shortcoming for this machine, model or settings; None: none."""
    here = facts.found.installations.get(engine.name)
    wants_gpu = facts.platform.accelerators and facts.settings.gpu_layers != 0
    needs, seen = engine.install.needs, facts.restrict_to(engine).platform.accelerators
    if wants_gpu and (not seen or (here and not here.offloads)):
        return NO_GPU
    judged = seen if wants_gpu and here and needs.covers(here.version) else ()
    if old := next(filter(None, map(needs.find_old_driver, judged)), None):
        return old
    return engine.lacks(bundle, info, facts.settings.num_parallel)


def make_engine_missing_error(facts: Facts, absent: Missing) -> EngineMissing:
    """Return the error for an engine that is not here."""
    title = facts.found.engines[absent.engine].title
    return EngineMissing(
        f"cannot use {title}: {absent.reason}",
        hint=write_advice(facts, absent),
        engines=[absent.engine],
    )


def write_advice(facts: Facts, absent: Missing) -> str:
    """Return how to get an engine that is not here, on this machine."""
    engine = facts.found.engines[absent.engine]
    return engine.install.advise(engine.name, facts.platform, absent.hint)


def is_obtainable(facts: Facts, absent: Missing) -> bool:
    """Tell whether an engine that is not here can be installed on this machine.

    Without a recipe its adapter alone decides, and says how to get it.
    """
    recipe = facts.found.engines[absent.engine].install
    return absent.installable and (not recipe.wheels or bool(recipe.wheels_for(facts.platform)))


def make_nothing_found_error(facts: Facts, format_: Format | None) -> NoPlan:
    """Return the error that says why no engine can be used, and which ones to install."""
    engines = facts.found.engines
    absent = [
        facts.found.missing[engine.name]
        for engine, _, _ in rank_engines(facts)
        if engine.name in facts.found.missing and (not format_ or format_ in engine.formats)
    ]
    # what lacks nothing that was asked for comes first
    offered = sorted(
        (item for item in absent if is_obtainable(facts, item)),
        key=lambda item: find_lack(engines[item.engine], facts, None, None) is not None,
    )[:OFFERED]
    if len(offered) < 2:
        if absent:
            return make_engine_missing_error(facts, (*offered, *absent)[0])
        return NoPlan(
            f"cannot serve a {format_} model on this machine: no engine for it runs here",
            hint="use a GGUF of the model (hf.co/org/repo-GGUF)",
        )
    what = f"a {format_} model: no engine for it" if format_ else "models: no engine"
    reasons = [
        f"{engines[item.engine].title}: {item.reason}"
        for item in offered
        if item.reason != NOT_INSTALLED
    ]
    return EngineMissing(
        "; ".join([f"cannot serve {what} is installed", *reasons]),
        hint="run: " + ", or: ".join(describe_offer(facts, item) for item in offered),
        engines=[item.engine for item in offered],
    )


def describe_offer(facts: Facts, absent: Missing) -> str:
    """Return how to get an engine that is not here, what speaks for it, and what it takes."""
    engine = facts.found.engines[absent.engine]
    _, reason = ask_preference(engine, facts.platform)
    suiting = engine.install.wheels_for(facts.platform)
    if not suiting:
        return f"{engine.title} ({reason}): {absent.hint}"
    takes = (format_bytes_decimal(suiting[0].download_bytes), suiting[0].note)
    return f"{format_install_command(engine.name)} ({reason}; {', '.join(filter(None, takes))})"


def list_loadable_formats(facts: Facts) -> tuple[Format, ...]:
    """Return the formats to download, best first: those that an installed engine reads.

    GGUF if no engine is there at all.
    """
    try:
        choice = choose_engine(facts)
    except NoPlan:
        return (Format.GGUF,)
    first = tuple(facts.found.engines[choice.engine].formats)
    return (*first, *(item for item in FETCHED if item not in first and reads(facts, item)))


def reads(facts: Facts, format_: Format) -> bool:
    """Tell whether an installed engine reads files of that format."""
    found = facts.found
    return any(format_ in found.engines[name].formats for name in found.installations)


def make_plan(facts: Facts, bundle: Bundle, info: ModelInfo, need: Need) -> Plan:
    """Decide how `bundle` is served here.

    1. engine; 2. layers on the GPU; 3. context: asked for by the request, by the user, else
    Ollama's tier, clamped to what the model was trained for; 4. memory: an automatic context
    shrinks until it fits, what still does not fit is refused with the numbers (NotEnoughMemory).
    """
    facts = facts.of(bundle)
    plan, choice, estimate = draft_plan(facts, bundle, info, need)
    refuse_if_too_large(bundle, estimate, facts, choice, info, need)
    return plan


def draft_plan(
    facts: Facts, bundle: Bundle, info: ModelInfo, need: Need
) -> tuple[Plan, Choice, Estimate]:
    """Decide as `make_plan` does, also on what does not fit into memory."""
    all_gpus = facts.platform.accelerators
    facts = keep_named(facts.of(bundle), bundle.name)
    choice = choose_or_explain(facts, bundle, info, need)
    engine = facts.found.engines[choice.engine]
    refuse_by_engine(facts, bundle, engine, info, need)
    estimate = make_estimate(facts, choice, bundle.format, info, need)
    memory = estimate.memory
    if not memory.on_gpu and bundle.format is not Format.REMOTE and need.load.num_gpu != 0:
        refuse_cpu(facts, bundle.name, estimate.reasons)
    kept = keep_conversations(facts, choice, bundle, info, need, estimate)
    memory = replace(memory, prompt_cache_bytes=kept.cache_bytes)
    usual, _ = choose_context(facts, bundle.format, info, DEFAULT_NEED, on_gpu=memory.on_gpu)
    draft_kind, drafting = judge_draft(facts, engine, bundle, info, choice, need)
    work = choose_threads(facts, engine, need, on_gpu=memory.on_gpu and estimate.is_whole)
    here = choice.installation
    used = estimate.settings.gpus
    remote = tuple(gpu for gpu in all_gpus if gpu.is_remote and gpu.index in used)
    local = [gpu for gpu in all_gpus if not gpu.is_remote]
    devices = name_devices(here.devices, local, used[len(remote) :])
    if remote:  # then each has to be named
        names = devices or [one.name for one in here.devices][: len(used) - len(remote)]
        devices = (*(gpu.name.partition(" ")[0] for gpu in remote), *names)
    if not memory.on_gpu and here.devices and here.executable:
        devices = NO_DEVICE
    words = [
        f"{engine.title} {choice.installation.version}: {choice.reason}",
        *describe_settings(bundle),
        *facts.left_out,
        *estimate.reasons,
        describe_size(facts, bundle, info, estimate),
    ]
    reasons = [*filter(None, words)]
    if need.mode is Mode.CHAT and (template := describe_template(bundle, info)):
        reasons.insert(-1, f"template: {template}")
    reasons += filter(None, (drafting, *describe_more_memory(memory), kept.reason, work.reason))
    plan = Plan(
        bundle=bundle,
        info=info,
        engine=engine.name,
        installation=choice.installation,
        settings=replace(
            estimate.settings,
            version=here.version,
            alias=bundle.name,
            threads=work.generate,
            batch_threads=work.batch,
            ranks=info.ranks,
            draft_kind=draft_kind,
            stall_timeout_s=facts.settings.load_timeout_s,
            capabilities=info.capabilities,
            chat_template=info.chat_template,
            template_family=info.template_family,
            turn_end=info.turn_end,
            prompt_cache_bytes=kept.cache_bytes,
            slot_dir=kept.slot_dir,
            keeps_conversations=kept.stays,
            devices=devices,
            rpc=tuple(dict.fromkeys(gpu.bus for gpu in all_gpus if remote and gpu.is_remote)),
        ),
        remote=remote,
        memory=memory,
        reasons=tuple(reasons),
        context_asked=estimate.context_asked,
        usual_context=min(usual, estimate.context_length),
        most_parallel=estimate.most_parallel,
        relief=facts.relief,
    )
    return plan, choice, estimate


def choose_or_explain(facts: Facts, bundle: Bundle, info: ModelInfo, need: Need) -> Choice:
    """Choose an engine as `choose_engine` does; its error also says what else may help."""
    try:
        return choose_engine(facts, bundle.format, bundle, info, need.mode)
    except NoPlan as error:
        if isinstance(error, EngineMissing):
            error = explain_memory(error, facts, bundle, info, need)
        if reads(facts, Format.GGUF) and (offered := suggest_conversion_of(bundle)):
            error.hint = f"{error.hint}; or {offered}" if error.hint else offered
        raise error from None


def judge_draft(
    facts: Facts, engine: Engine, bundle: Bundle, info: ModelInfo, choice: Choice, need: Need
) -> tuple[str | None, str]:
    """Return how drafts are made, None if they are not, and why, "" without a draft model."""
    kind = find_kind(bundle, info)
    if kind is None or not engine.drafts(bundle, need.mode):
        return None, ""
    key = make_key(bundle, choice.installation)
    drafts, reason = choose_draft(facts.draft_speeds.get(key, DraftSpeeds()))
    return (kind if drafts else None), reason
