"""Refusals to serve a model here, with numbers and remedies. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vllama.base.errors import (
    BadModelFile,
    ConfigError,
    EngineMissing,
    InvalidModelRef,
    NoPlan,
    NotEnoughMemory,
)
from vllama.engines.argv import has_flag
from vllama.engines.base import Engine, Installation, Mode
from vllama.engines.registry import ask_preference, ask_refusal
from vllama.models.aliases import find_hub_alias
from vllama.models.names.ref import ModelRef
from vllama.models.names.variants import CONFIG_FILES, has_tokenizer
from vllama.models.resolve.candidates import suggest_conversion_of
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.plan.estimate import find_fitting_context, make_estimate
from vllama.plan.types import RAM, Choice, Estimate, Facts, Need


def find_refusal(engine: Engine, facts: Facts, info: ModelInfo | None, mode: Mode) -> str | None:
    """Return why an engine cannot serve a model at all, None if it can, or it is not known."""
    if mode not in engine.modes:
        return "it makes no embeddings" if mode is Mode.EMBED else "it makes embeddings only"
    here, seen = facts.found.installations.get(engine.name), facts.restrict_to(engine).platform
    lost_all = not seen.accelerators and facts.platform.accelerators
    if here and here.offloads and engine.install.needs.vendor and lost_all:
        return f"this build is for GPUs, and {engine.install.needs.see(facts.platform)[1]}"
    return ask_refusal(engine, seen, info) if info else None


def refuse_by_engine(
    facts: Facts, bundle: Bundle, engine: Engine, info: ModelInfo, need: Need
) -> None:
    """Raise BadModelFile or NoPlan if the engine cannot serve the model."""
    if reason := find_refusal(engine, facts, info, need.mode):
        said = f"cannot serve '{bundle.name}' with {engine.title}: {reason}"
        if need.mode not in engine.modes:
            raise NoPlan(said, hint="use another engine (docs/guide/engines.md says which can)")
        raise BadModelFile(said, hint=instead(facts, bundle, info, need.mode))
    names = [path.name for path in bundle.files]
    # other bundles hold all that their engine needs
    is_folder = any(name in CONFIG_FILES for name in names)
    if is_folder and (why := explain_no_tokenizer(facts, bundle.format, names)):
        raise BadModelFile(
            f"cannot serve '{bundle.name}' with {engine.title}: {why}",
            hint="add the tokenizer's files of the model that it was made from, or name one: "
            "-- --tokenizer ORG/REPO",
        )
    refuse_adapters(bundle, engine)
    refuse_inspection(facts, bundle, engine)
    refuse_port(facts)


def refuse_inspection(facts: Facts, bundle: Bundle, engine: Engine) -> None:
    """Raise EngineMissing if the engine could look inside the model, but for what is missing."""
    if not (facts.settings.inspect and engine.inspects):
        return
    if lacking := engine.lacks_for_inspection(facts.found.installations[engine.name]):
        raise EngineMissing(
            f"cannot serve '{bundle.name}' with --inspect: {engine.title} needs {lacking}",
            hint="or leave out --inspect",
        )


def explain_no_tokenizer(facts: Facts, format_: Format, paths: Sequence[str]) -> str | None:
    """Return why files without a tokenizer cannot be served; a GGUF has its own inside."""
    if format_ is not Format.SAFETENSORS or has_tokenizer(paths):
        return None
    if has_flag(facts.settings.engine_args, "--tokenizer"):
        return None
    return "there is no tokenizer among its files (tokenizer.json, tokenizer.model …)"


def instead(facts: Facts, bundle: Bundle, info: ModelInfo, mode: Mode) -> str:
    """Return the remedy if an engine refuses a model: another engine, else other files of it."""
    found, platform = facts.found, facts.platform
    able = [
        engine
        for engine in found.engines.values()
        if bundle.format in engine.formats
        and ask_preference(engine, platform)[0] > 0
        and find_refusal(engine, facts, info, mode) is None
    ]
    here = [engine for engine in able if engine.name in found.installations]
    best = max(here or able, key=lambda engine: ask_preference(engine, platform)[0], default=None)
    if best is None:
        if bundle.format is Format.GGUF:
            return from_the_hub(bundle)
        return "choose another model, or a GGUF of this one (hf.co/org/repo-GGUF)"
    if best.name in found.installations:
        return f"choose an engine that can: --engine {best.name}"
    get = best.install.advise(best.name, platform, found.missing[best.name].hint)
    on_cpu = platform.accelerators and not facts.restrict_to(best).platform.accelerators
    offered = suggest_conversion_of(bundle) if on_cpu else None
    return f"choose {best.title}, which can: {get}" + (f"; or {offered}" if offered else "")


def from_the_hub(bundle: Bundle) -> str:
    """Return the hint to take the same model from the hub, by its name there if it is known."""
    try:
        alias = find_hub_alias(ModelRef.parse(bundle.base or bundle.name))
    except InvalidModelRef:  # a server elsewhere may use any name
        alias = None
    name = f"hf.co/{alias.hub_id}" if alias else "hf.co/org/repo"
    return f"pull the same model from the hub: vllama pull {name}"


def refuse_adapters(bundle: Bundle, engine: Engine) -> None:
    """Raise NoPlan if the engine cannot be started with all the model's LoRA adapters."""
    most = engine.max_adapters
    if len(bundle.adapters) > most:
        takes = f"{most} only" if most else "none"
        raise NoPlan(
            f"cannot serve '{bundle.name}' with {engine.title}: it has {len(bundle.adapters)} "
            f"adapters, and the engine takes {takes}",
            hint="merge them into the model first: llama-export-lora",
        )


def refuse_port(facts: Facts) -> None:
    """Raise ConfigError if arguments set the engine's port: vllama would wait on another one."""
    if has_flag(facts.settings.engine_args, "--port"):
        raise ConfigError(
            "cannot give the engine a --port: vllama chooses a free one for it",
            hint="put --port before '--' for the port of vllama itself",
        )


def refuse_if_too_large(
    bundle: Bundle, estimate: Estimate, facts: Facts, choice: Choice, info: ModelInfo, need: Need
) -> None:
    """Raise NotEnoughMemory, with the numbers and what would fit, if it does not."""
    if estimate.fits:
        return
    context = find_fitting_context(facts, choice, bundle.format, info, need, estimate)
    smaller = f"--context-length {context}" if context else "a smaller model"
    if estimate.settings.gpu_layers and RAM not in (estimate.lacking or {RAM}):
        asked = "--strict" if facts.settings.strict else "--gpu-layers"
        smaller = f"fewer layers on the GPU (without {asked}: as many as fit)"
    raise NotEnoughMemory(
        f"cannot load '{bundle.name}': model requires more {estimate.kind} "
        f"({estimate.numbers}) than is available ({estimate.usable})"
        + "".join(f"; {sentence}" for sentence in facts.left_out),
        hint=f"use {smaller} or a smaller quantization",
    )


def explain_memory(
    error: EngineMissing, facts: Facts, bundle: Bundle, info: ModelInfo, need: Need
) -> NoPlan:
    """Return the error with what the first of the offered engines would take of the memory.

    It is another error if the model does not fit here: then no engine is worth installing for it.
    """
    engines = (facts.found.engines[name] for name in error.engines)
    able = (one for one in engines if find_refusal(one, facts, info, need.mode) is None)
    engine = next(able, None)
    if engine is None or not info.weights_bytes:
        return error
    installation = Installation(
        engine=engine.name,
        version="",
        executable=Path(engine.name),
        offloads=bool(facts.restrict_to(engine).platform.accelerators),
    )
    choice = Choice(engine=engine.name, installation=installation, reason="")
    estimate = make_estimate(facts, choice, bundle.format, info, need)
    if estimate.fits:
        message = (
            f"{error.message}; with {engine.title} it would fit: {estimate.numbers} of "
            f"{estimate.kind}, {estimate.usable} usable"
        )
        return EngineMissing(message, hint=error.hint, engines=error.engines)
    return NotEnoughMemory(
        f"{error.message}; and with {engine.title} it would require more {estimate.kind} "
        f"({estimate.numbers}) than is available ({estimate.usable})",
        hint="choose a smaller model or a smaller quantization",
    )
