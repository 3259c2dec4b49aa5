"""What `vllama plan` tells: the decision, what else there was, and the command, as plain values.

Pure: facts in, a tree of text, numbers and lists out, for a person's table or a program's JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllama.engines.base import Engine
from vllama.errors import NoPlan, VllamaError
from vllama.models.types import Bundle
from vllama.plan.choose import ranked
from vllama.plan.types import Facts, Plan
from vllama.supervise.spec import Endpoint

PORT = "PORT"
"""What stands in the command for the port, which is chosen at the start."""


def engine_rows(facts: Facts, bundle: Bundle, chosen: str | None) -> list[dict[str, Any]]:
    """Return every engine, best first, whether it is taken, and why or why not."""
    suited = {engine.name: reason for engine, _, reason in ranked(facts)}
    order = list(suited)
    rows = []
    for engine in sorted(
        facts.found.engines.values(), key=lambda e: order.index(e.name) if e.name in order else 99
    ):
        if engine.name == chosen:
            reason = suited.get(engine.name, "asked for by name")
        elif bundle.format not in engine.formats:
            reason = f"it does not read {bundle.format}"
        elif engine.name not in suited:
            reason = engine.preference(facts.platform)[1] or "not for this machine"
        elif absent := facts.found.missing.get(engine.name):
            reason = f"{absent.reason}; {absent.hint}" if absent.hint else absent.reason
        else:
            reason = "another is better here"
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


def command(plan: Plan, engine: Engine, environ: Mapping[str, str]) -> list[str]:
    """Return the engine's command line; the port stands as PORT."""
    spec = engine.launch(plan.bundle, plan.settings, plan.installation, Endpoint(port=0), environ)
    words = list(spec.argv)
    return [
        PORT if word == "0" and before.lstrip("-") == "port" else word
        for before, word in zip(["", *words], words, strict=False)
    ]


def report(
    facts: Facts,
    bundle: Bundle,
    outcome: Plan | VllamaError,
    *,
    platform: str,
    environ: Mapping[str, str],
    files: list[dict[str, Any]],
    candidates: list[dict[str, Any]],
) -> dict[str, Any]:
    """Put everything together; `outcome` is the plan, or why there is none.

    `files` (name, size_bytes, here) are those of the model; `candidates` what was looked at on the
    hub. Sizes are bytes.
    """
    plan = outcome if isinstance(outcome, Plan) else None
    told: dict[str, Any] = {
        "model": bundle.name,
        "platform": platform,
        "engines": engine_rows(facts, bundle, plan.engine if plan else None),
        "files": files,
        "format": str(bundle.format),
        "quantization": bundle.quant,
        "download_bytes": sum(file["size_bytes"] for file in files if not file["here"]),
        "candidates": candidates,
    }
    if plan is None:
        assert isinstance(outcome, VllamaError)
        return told | {"error": outcome.message, "hint": outcome.hint}
    memory = plan.memory
    return told | {
        "engine": plan.engine,
        "context_length": plan.settings.context_length,
        "gpu_layers": plan.settings.gpu_layers,
        "memory": {
            "weights_bytes": memory.weights_bytes,
            "kv_cache_bytes": memory.kv_bytes,
            "compute_bytes": memory.compute_bytes,
            "process_bytes": memory.fixed_bytes,
            "total_bytes": memory.total_bytes,
            "device": "gpu" if memory.on_gpu else "ram",
        },
        "reasons": list(plan.reasons),
        "command": []
        if _runs_already(plan, facts)
        else command(plan, _engine(plan, facts), environ),
    }


def _engine(plan: Plan, facts: Facts) -> Engine:
    engine = facts.found.engines.get(plan.engine)
    if engine is None:
        raise NoPlan(f"cannot use engine '{plan.engine}': it is not known")
    return engine


def _runs_already(plan: Plan, facts: Facts) -> bool:
    return not hasattr(_engine(plan, facts), "launch") or not plan.bundle.files
