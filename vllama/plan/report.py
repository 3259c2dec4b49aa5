"""The plan as plain values: the decision, what else there was, memory and the command.

The same for `vllama plan`, for `/api/show` and for what `serve` says of a load. Pure: facts in, a
tree of text, numbers and lists out, for a person's table or a program's JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from vllama.base.errors import NoPlan, NotEnoughMemory, VllamaError
from vllama.base.units import format_bytes_decimal
from vllama.config.secrets import mask
from vllama.engines.base import Engine, Mode
from vllama.engines.registry import ask_preference
from vllama.machine.detect import describe
from vllama.machine.types import Accelerator, name_pool
from vllama.models.modelfile import format_parameters, list_parameters
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.plan.choose import choose_engine, draft_plan, find_lack, rank_engines, write_advice
from vllama.plan.distribution import count_ram_beside, find_rooms, list_needs, list_usable
from vllama.plan.ladder import WORDS, list_fallbacks, make_first_plan
from vllama.plan.quant_fallback import Form
from vllama.plan.refuse import find_refusal
from vllama.plan.types import RAM, Facts, Need, Plan
from vllama.supervise.spec import Endpoint

PORT = "PORT"
"""What stands in the command for the port, which is chosen at the start."""


def make_engine_rows(
    facts: Facts,
    bundle: Bundle,
    chosen: str | None,
    info: ModelInfo | None = None,
    given_up: Set[str] = frozenset(),
) -> list[dict[str, Any]]:
    """Return every engine, best first, whether it is taken, and why or why not.

    `given_up` are those with which an earlier plan of the model failed.
    """
    asked = facts.settings.engine
    suited = {engine.name: reason for engine, _, reason in rank_engines(facts)}
    order = list(suited)
    rows = []
    for engine in sorted(
        facts.found.engines.values(), key=lambda e: order.index(e.name) if e.name in order else 99
    ):
        if engine.name == chosen:
            reason = "asked for by name" if asked else suited.get(engine.name, "")
        elif bundle.format not in engine.formats:
            remote = bundle.format is Format.REMOTE
            reason = "the model lies elsewhere" if remote else f"it does not read {bundle.format}"
        elif engine.name not in suited:
            reason = ask_preference(engine, facts.platform)[1] or "not for this machine"
        elif absent := facts.found.missing.get(engine.name):
            reason = "; ".join(filter(None, (absent.reason, write_advice(facts, absent))))
        elif why := find_refusal(engine, facts, info, Mode.CHAT):
            reason = f"it cannot serve this model: {why}"
        elif engine.name in given_up:
            reason = "an earlier plan with it failed"
        elif lack := find_lack(engine, facts, bundle, info):
            reason = f"it {lack}"
        elif asked or chosen is None:
            reason = f"'{asked}' was asked for by name" if asked else "no engine could be chosen"
        else:
            reason = f"{facts.found.engines[chosen].title} comes before it"
        version = facts.found.installations.get(engine.name)
        rows.append(
            {
                "engine": engine.name,
                "title": engine.title,
                "version": version.version if version else None,
                "taken": engine.name == chosen,
                "reason": reason,
            }
        )
    return rows


def make_command(plan: Plan, engine: Engine, environ: Mapping[str, str]) -> list[str]:
    """Return the engine's command line; the port stands as PORT, a secret as ***."""
    spec = engine.launch(plan.bundle, plan.settings, plan.installation, Endpoint(port=0), environ)
    words = mask(spec.argv)
    return [
        PORT if word == "0" and before.lstrip("-") == "port" else word
        for before, word in zip(["", *words], words, strict=False)
    ]


def make_device_rows(facts: Facts, plan: Plan) -> list[dict[str, Any]]:
    """Return each device's memory in bytes: all of it, what is usable, and what the model takes.

    Of the devices only those that hold a part of the model.
    """
    gpus, replicas = (*plan.remote, *list_usable(facts.platform)), facts.settings.replicas
    needs, usable = list_needs(plan, gpus), dict(find_rooms(facts, gpus))
    shared = {name_pool(gpu.index) for gpu in gpus if gpu.shares_ram}
    if held := {pool: size for pool, size in needs.items() if pool in shared}:
        usable[RAM] = count_ram_beside(facts, usable[RAM], held)
    totals = {RAM: ("RAM", facts.platform.ram_total_bytes)} | {
        name_pool(gpu.index): (_name_device(gpu), gpu.total_bytes) for gpu in gpus
    }
    return [
        {
            "device": totals[pool][0],
            "pool": pool,
            "total_bytes": totals[pool][1],
            "usable_bytes": usable[pool] * replicas,
            "takes_bytes": size * replicas,
        }
        for pool, size in needs.items()
    ]


def _name_device(gpu: Accelerator) -> str:
    shares = ", shares the RAM" if gpu.shares_ram else ""
    return gpu.name + shares if gpu.is_remote else f"GPU {gpu.index} ({gpu.name}{shares})"


def shorten(plan: Plan) -> list[str]:
    """Return the plan in a few lines: the model's file and form, then the reasons."""
    bundle = plan.bundle
    if bundle.format is Format.REMOTE:
        return [f"{bundle.name}: on another server", *plan.reasons]
    form = " ".join(part for part in (str(bundle.format), bundle.quant or plan.info.quant) if part)
    more = f" and {len(bundle.files) - 1} more" if len(bundle.files) > 1 else ""
    size = format_bytes_decimal(bundle.size_bytes)
    first = f"{bundle.name}: {bundle.path.name}{more}, {form}, {size}"
    return [first, *_explain_sight(bundle), *plan.reasons]


def _explain_sight(bundle: Bundle) -> list[str]:
    """Return why a model with a projector beside it takes text only; empty for others."""
    other = bundle.unfit_projector
    return [f"takes text only: '{other.name}' beside it is another model's"] if other else []


def make_report(
    facts: Facts,
    bundle: Bundle,
    outcome: Plan | VllamaError,
    *,
    environ: Mapping[str, str],
    files: Sequence[Mapping[str, Any]],
    candidates: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
    forms: Sequence[Form] = (),
    refused: Plan | None = None,
) -> dict[str, Any]:
    """Put everything together; `outcome` is the plan, or why there is none.

    `refused` is the plan that takes too much memory; its memory is reported with the error.
    `files` (name, size_bytes, here) are those of the model; `candidates` what was looked at on the
    hub, `notes` what a pull would say about its choice, `forms` other quantizations that are here.
    `if_it_fails` has what would be tried then, in order, by the kind of failure. Sizes are bytes.
    """
    facts = facts.of(bundle)
    plan = outcome if isinstance(outcome, Plan) else None
    brought = list_parameters(plan.bundle, plan.info) if plan else {}
    told: dict[str, Any] = {
        "model": bundle.name,
        "platform": describe(facts.platform),
        "platform_notes": list(facts.platform.notes),
        "engines": make_engine_rows(
            facts,
            bundle,
            plan.engine if plan else _find_wanted(facts, bundle),
            plan.info if plan else None,
            plan.relief.without if plan else frozenset(),
        ),
        "files": list(files),
        "format": str(bundle.format),
        "quantization": bundle.quant or (plan.info.quant if plan else None),
        "download_bytes": sum(file["size_bytes"] for file in files if not file["here"]),
        "candidates": list(candidates),
        "parameters": [f"PARAMETER {line}" for line in format_parameters(brought).splitlines()],
        "notes": [*notes, *_explain_sight(bundle)],
    }
    if plan is None:
        assert isinstance(outcome, VllamaError)
        error = {"error": outcome.message, "hint": outcome.hint}
        return told | error | (describe_memory(facts, refused) if refused else {})
    engine = facts.found.engines.get(plan.engine)
    if engine is None:
        raise NoPlan(f"cannot use engine '{plan.engine}': it is not known")
    return (
        told
        | describe_memory(facts, plan)
        | {
            "engine": plan.engine,
            "gpu_layers": plan.settings.gpu_layers,
            "reasons": list(plan.reasons),
            "strict": facts.settings.strict,
            "if_it_fails": {
                str(fault): {"when": WORDS[fault], "then": list(steps)}
                for fault, steps in list_fallbacks(facts, Need(), plan, forms).items()
            },
            # without files it runs already
            "command": make_command(plan, engine, environ) if plan.bundle.files else [],
        }
    )


def describe_memory(facts: Facts, plan: Plan) -> dict[str, Any]:
    """Return a plan's bytes by purpose and device, and the context that they are for."""
    memory = plan.memory
    return {
        "context_length": plan.settings.context_length,
        "max_context_length": plan.info.context_length,
        "memory": {
            "weights_bytes": memory.weights_bytes,
            "kv_cache_bytes": memory.kv_bytes,
            "compute_bytes": memory.compute_bytes,
            "process_bytes": memory.fixed_bytes,
            "total_bytes": memory.total_bytes,
            "prompt_cache_bytes": memory.prompt_cache_bytes,
            "second_copy_bytes": memory.copied_bytes,
            "device": "gpu" if memory.on_gpu else "ram",
        },
        "devices": make_device_rows(facts, plan),
    }


def find_refused(facts: Facts, bundle: Bundle, info: ModelInfo) -> Plan | None:
    """Return the plan of a model as if there were memory enough; None if there is none."""
    try:
        return draft_plan(facts, bundle, info, Need())[0]
    except VllamaError:
        return None


def _find_wanted(facts: Facts, bundle: Bundle) -> str | None:
    """Return the engine that would serve the model, were it not for something else."""
    try:
        return choose_engine(facts, bundle.format, bundle).engine
    except NoPlan:
        return None


def report_plan(
    facts: Facts,
    bundle: Bundle,
    info: ModelInfo,
    environ: Mapping[str, str],
    *,
    running: Plan | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Plan for a model and return the report, which also says why there may be no plan.

    `running` is the plan that it is loaded by. `more` goes to `report`; without `files` those on
    this disk are looked at.
    """
    outcome: Plan | VllamaError
    refused = None
    try:
        outcome = running or make_first_plan(
            facts, bundle, info, Need(), lambda: more.get("forms", ())
        )
    except VllamaError as error:
        outcome = error
        if isinstance(error, NotEnoughMemory):
            refused = find_refused(facts, bundle, info)
    if isinstance(outcome, Plan):
        bundle = outcome.bundle  # another quantization of it, where its own does not fit
    more.setdefault("files", list_files_here(bundle))
    return make_report(facts, bundle, outcome, environ=environ, refused=refused, **more)


def list_files_here(bundle: Bundle) -> list[dict[str, Any]]:
    """Return name and size of each file of a model that is here."""
    return [
        {"name": str(file), "size_bytes": file.stat().st_size, "here": True}
        for file in bundle.files
        if file.exists()
    ]
