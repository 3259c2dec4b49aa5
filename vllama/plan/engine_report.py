"""The engines as plain values: which are installed, which suit, and how to get the others.

The same for `vllama engines` and `/api/engines`.
"""

from __future__ import annotations

from typing import Any

from vllama.base.errors import NoPlan
from vllama.engines.base import Engine
from vllama.engines.capabilities import Attachable
from vllama.engines.recipe import get_recipe
from vllama.engines.registry import ask_preference
from vllama.machine.detect import describe
from vllama.machine.environments.layout import list_requirements
from vllama.plan.choose import choose_engine, write_advice
from vllama.plan.types import Facts


def report_engines(facts: Facts) -> dict[str, Any]:
    """Return the machine, its engines (installed ones first), and which is chosen.

    `error` and `hint` say why none is chosen; otherwise they are absent.
    """
    told: dict[str, Any] = {"platform": describe(facts.platform), "chosen": None}
    try:
        told["chosen"] = choose_engine(facts).engine
    except NoPlan as error:
        told |= {"error": error.message, "hint": error.hint}
    rows = [
        describe_engine(facts, engine) | {"chosen": engine.name == told["chosen"]}
        for engine in facts.found.engines.values()
    ]
    rows.sort(key=lambda one: (not one["installed"], -one["preference"], one["name"]))
    return told | {"engines": rows}


def describe_engine(facts: Facts, engine: Engine) -> dict[str, Any]:
    """Return what is known of one engine; sizes in bytes."""
    found = facts.found.installations.get(engine.name)
    missing = facts.found.missing.get(engine.name)
    score, reason = ask_preference(engine, facts.platform)
    recipe = get_recipe(engine)
    suiting = recipe.wheels_for(facts.platform)
    where = None
    if found:
        where = "elsewhere" if isinstance(engine, Attachable) else str(found.origin)
    return {
        "name": engine.name,
        "title": engine.title,
        "aliases": list(engine.aliases),
        "formats": [str(item) for item in engine.formats],
        "modes": [str(item) for item in engine.modes],
        "installed": found is not None,
        "version": found.version if found else None,
        "where": where,
        "path": str(found.executable or found.python or "") if found else None,
        "offloads": found.offloads if found else None,
        "preference": score,
        "suits": score > 0,
        "reason": reason,
        "missing": missing.reason if missing else None,
        "hint": write_advice(facts, missing) if missing else None,
        "requirements": list_requirements(suiting[0].steps) if suiting else [],
        "download_bytes": suiting[0].download_bytes if suiting else None,
        "by_hand": recipe.by_hand or None,
    }
