"""The engines as plain values: which are installed, which suit, and how to get the others.

The same for `vllama engines` and `/api/engines`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Struct, UnsetType

from vllama.base.errors import NoPlan
from vllama.base.meaning import says
from vllama.engines.base import Engine, Origin
from vllama.engines.registry import ask_preference
from vllama.machine.detect import describe
from vllama.machine.environments.layout import list_requirements
from vllama.plan.choose import choose_engine, write_advice
from vllama.plan.types import Facts


class EngineRow(Struct, frozen=True, kw_only=True):
    """An engine."""

    name: str
    title: Annotated[str, says("display name")]
    aliases: Annotated[list[str], says("other names accepted by `--engine`")]
    formats: Annotated[list[str], says("supported model formats")]
    modes: Annotated[list[str], says("capabilities")]
    installed: Annotated[bool, says("true if installed")]
    version: Annotated[str | None, says("installed version")]
    where: Annotated[str | None, says("environment of the engine")]
    path: Annotated[str | None, says("path of the program")]
    offloads: Annotated[bool | None, says("true if this build supports a GPU")]
    preference: Annotated[int, says("preference on this machine; the highest is chosen")]
    suits: Annotated[bool, says("true if it can be chosen automatically")]
    reason: Annotated[str, says("reason for or against it")]
    missing: Annotated[str | None, says("reason why it is not installed")]
    hint: str | None
    requirements: Annotated[list[str], says("packages that an installation adds")]
    download_bytes: int | None
    by_hand: Annotated[str | None, says("installation commands")]
    chosen: Annotated[bool, says("true for the default engine")]


class Engines(Struct, frozen=True, kw_only=True):
    """The machine and its engines."""

    platform: Annotated[str, says("description of the machine")]
    chosen: Annotated[str | None, says("default engine")]
    error: Annotated[str | UnsetType, says("reason why there is no default engine")] = UNSET
    hint: str | UnsetType | None = UNSET
    engines: Annotated[list[EngineRow], says("engines, installed ones first")]


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
    """Return the facts about one engine; sizes in bytes."""
    found = facts.found.installations.get(engine.name)
    missing = facts.found.missing.get(engine.name)
    score, reason = ask_preference(engine, facts.platform)
    recipe = engine.install
    suiting = recipe.wheels_for(facts.platform)
    where = None
    if found:
        where = "elsewhere" if engine.attaches else str(found.origin)
        where += f" ({found.executable})" if found.origin is Origin.PATH else ""
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
        requirements=list_requirements(suiting[0].contents) if suiting else [],
        download_bytes=suiting[0].download_bytes if suiting else None,
        by_hand=recipe.by_hand or None,
        chosen=engine.name == chosen,
    )
