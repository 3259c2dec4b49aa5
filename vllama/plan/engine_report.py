"""The engines as plain values: which are installed, which suit, and how to get the others.

The same for `vllama engines` and `/api/engines`.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from vllama.base.errors import NoPlan
from vllama.engines.base import Engine
from vllama.engines.capabilities import Attachable
from vllama.engines.recipe import get_recipe
from vllama.engines.registry import ask_preference
from vllama.machine.detect import describe
from vllama.machine.environments.layout import list_requirements
from vllama.plan.choose import choose_engine, write_advice
from vllama.plan.types import Facts


class EngineRow(Struct, frozen=True, kw_only=True):
    """What is known of one engine."""

    name: str
    title: str
    aliases: list[str]
    formats: list[str]
    modes: list[str]
    installed: bool
    version: str | None
    where: str | None
    path: str | None
    offloads: bool | None
    preference: int
    suits: bool
    reason: str
    missing: str | None
    hint: str | None
    requirements: list[str]
    download_bytes: int | None
    by_hand: str | None
    chosen: bool


class Engines(Struct, frozen=True, kw_only=True):
    """The machine and its engines, installed ones first; `error` says why none is chosen."""

    platform: str
    chosen: str | None
    error: str | UnsetType = UNSET
    hint: str | UnsetType | None = UNSET
    engines: list[EngineRow]


def report_engines(facts: Facts) -> Engines:
    """Return the machine, its engines, and which is chosen."""
    chosen: str | None = None
    error: str | UnsetType = UNSET
    hint: str | UnsetType | None = UNSET
    try:
        chosen = choose_engine(facts).engine
    except NoPlan as failure:
        error, hint = failure.message, failure.hint
    rows = [describe_engine(facts, engine, chosen) for engine in facts.found.engines.values()]
    rows.sort(key=lambda one: (not one.installed, -one.preference, one.name))
    platform = describe(facts.platform)
    return Engines(platform=platform, chosen=chosen, error=error, hint=hint, engines=rows)


def describe_engine(facts: Facts, engine: Engine, chosen: str | None) -> EngineRow:
    """Return what is known of one engine; sizes in bytes."""
    found = facts.found.installations.get(engine.name)
    missing = facts.found.missing.get(engine.name)
    score, reason = ask_preference(engine, facts.platform)
    recipe = get_recipe(engine)
    suiting = recipe.wheels_for(facts.platform)
    where = None
    if found:
        where = "elsewhere" if isinstance(engine, Attachable) else str(found.origin)
    return EngineRow(
        name=engine.name,
        title=engine.title,
        aliases=list(engine.aliases),
        formats=[str(item) for item in engine.formats],
        modes=[str(item) for item in engine.modes],
        installed=found is not None,
        version=found.version if found else None,
        where=where,
        path=str(found.executable or found.python or "") if found else None,
        offloads=found.offloads if found else None,
        preference=score,
        suits=score > 0,
        reason=reason,
        missing=missing.reason if missing else None,
        hint=write_advice(facts, missing) if missing else None,
        requirements=list_requirements(suiting[0].steps) if suiting else [],
        download_bytes=suiting[0].download_bytes if suiting else None,
        by_hand=recipe.by_hand or None,
        chosen=engine.name == chosen,
    )
