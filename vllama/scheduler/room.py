"""Fit of a planned model into the free memory, and the remedies otherwise. Pure.

A plan says whether a model fits this machine (`plan.report`). This adds to its report what the load
would meet at this moment, by the decision that the scheduler would take (`policy`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllama.base.units import format_amount
from vllama.machine.types import name_pool
from vllama.plan.distribution import list_usable
from vllama.plan.fit import MIN_AUTO_CONTEXT
from vllama.plan.types import RAM, Facts
from vllama.scheduler.policy import Action, Decision, PendingLoad, Pools, Resident, decide_loads


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Memory that is free now, less the reserve, and the loaded models with names for people."""

    free: Pools
    models: Sequence[Resident] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    max_loaded: int = 1


def find_free(facts: Facts) -> dict[str, int]:
    """Return the memory that is free now by pool, less the reserve."""
    gpus = {name_pool(gpu.index): gpu.free_bytes for gpu in list_usable(facts.platform)}
    free = {RAM: facts.platform.ram_available_bytes, **gpus}
    return {pool: max(0, size - facts.reserve_of(pool)) for pool, size in free.items()}


def add_room(report: Mapping[str, Any], room: Room, *, is_loaded: bool = False) -> dict[str, Any]:
    """Return the report of a plan with `now`, and with what is free now on each of its devices.

    `now` is None for a model that does not fit this machine, is loaded, or lies elsewhere.
    """
    remote = {r["pool"]: r["usable_bytes"] for r in report.get("devices", ()) if "rpc" in r["pool"]}
    room = replace(room, free={**room.free, **remote})  # which the plan has asked for
    needs, claims = _list_claims(report)
    free, now = {pool: max(0, room.free.get(pool, 0)) for pool in needs}, None
    if is_loaded:  # what it has taken is free for it
        free = {pool: size + needs[pool] for pool, size in free.items()}
    elif "error" not in report and report["format"] != "remote":
        load = PendingLoad(key="", needs=claims, since_s=0.0)
        (decision,) = decide_loads(
            room.free, room.models, [load], max_loaded=room.max_loaded, now_s=0.0
        )
        is_refused = decision.action is Action.REFUSE
        gone = {*decision.sleep, *decision.evict, *decision.waits_for}
        ending = [model for model in room.models if is_refused or model.key in gone]
        for model in ending:
            free = {pool: size + model.frees.get(pool, 0) for pool, size in free.items()}
        missing = {p: claims[p] - free[p] for p in claims if is_refused and claims[p] > free[p]}
        unloads = sorted({room.names[model.key] for model in ending})
        now = {
            "fits": not missing,
            "missing_bytes": sum(missing.values()),
            "unloads": unloads,
            "summary": _describe(decision, needs, free, missing, unloads),
            "hint": _find_help(report, sum(missing.values())) if missing else None,
        }
    rows = [row | {"free_bytes": free[row["pool"]]} for row in report.get("devices", ())]
    return {**report, "now": now} | ({"devices": rows} if rows else {})


def plan_together(reports: Sequence[Mapping[str, Any]], room: Room) -> dict[str, Any]:
    """Return the reports as `models`, and what becomes of them all as `together`.

    They are loaded in their order, and each is idle when the next one comes. `now` of a report says
    what its load meets; of `together`, `fits` says whether all can be loaded at once.
    """
    free, loaded = dict(room.free), list(room.models)
    names, told, swaps = dict(room.names), [], []
    for number, report in enumerate({report["model"]: report for report in reports}.values()):
        told.append(add_room(report, replace(room, free=free, models=loaded, names=names)))
        if not (now := told[-1]["now"]) or not now["fits"]:
            continue
        name = report["model"]
        _, claims = _list_claims(report)
        for model in [one for one in loaded if names[one.key] in now["unloads"]]:
            loaded.remove(model)
            free = {pool: size + model.frees.get(pool, 0) for pool, size in free.items()}
        if now["unloads"]:
            swaps.append(f"{', '.join(now['unloads'])} for {name}")
        free = {pool: size - claims.get(pool, 0) for pool, size in free.items()}
        names[name] = name
        loaded.append(Resident(key=name, holds=claims, claims=claims, last_used_s=float(number)))
    fails = [
        one["model"] for one in told if "error" in one or (one["now"] and not one["now"]["fits"])
    ]
    return {"models": told, "together": _sum_up(told, room, swaps, fails)}


def _list_claims(report: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the need of a planned model by pool, and the memory that its load reserves."""
    needs = {row["pool"]: row["takes_bytes"] for row in report.get("devices", ())}
    memory = report.get("memory", {})
    cache_bytes = memory["prompt_cache_bytes"] if memory.get("device") == "ram" else 0
    return needs, needs | {pool: needs[pool] + cache_bytes for pool in (RAM,) if pool in needs}


def _sum_up(
    told: Sequence[Mapping[str, Any]], room: Room, swaps: Sequence[str], fails: Sequence[str]
) -> dict[str, Any]:
    devices: dict[str, dict[str, Any]] = {}
    for row in (row for report in told for row in report.get("devices", ())):
        before = devices.get(row["pool"], {"takes_bytes": 0})
        takes = before["takes_bytes"] + row["takes_bytes"]
        free = max(0, room.free.get(row["pool"], 0))
        devices[row["pool"]] = {**row, "takes_bytes": takes, "free_bytes": free}
    parts = [f"{', '.join(fails)} cannot be loaded"] if fails else []
    others = "the others" if fails else "They"
    if swaps:
        parts.append(
            f"{others} do not fit together: serve unloads {', then '.join(swaps)}, and loads a "
            f"model again when a request asks for it (at most {room.max_loaded} at once)"
        )
    elif len(fails) < len(told):
        parts.append(f"{others} fit together")
    fits = not (fails or swaps)
    return {"fits": fits, "summary": "; ".join(parts), "devices": list(devices.values())}


def _describe(
    decision: Decision, needs: Pools, free: Pools, missing: Pools, unloads: Sequence[str]
) -> str:
    names = f"{', '.join(unloads)} {'is' if len(unloads) == 1 else 'are'} unloaded"
    if missing:
        amounts = (
            f"{format_amount(size)} more memory{'' if pool == RAM else f' on {_name(pool)}'}"
            for pool, size in missing.items()
        )
        after = f", even after {names}" if unloads else ""
        return f"Fits this machine, but not now: {' and '.join(amounts)} must be free{after}"
    if decision.action is Action.EVICT:
        return f"Fits this machine; {names} for it"
    if decision.action is Action.WAIT:
        return f"Fits this machine; it is loaded when requests have ended and {names}"
    rows = [
        f"{format_amount(size)} {'in RAM' if pool == RAM else f'on {_name(pool)}'}, "
        f"{format_amount(free[pool])} free{' there' if len(needs) > 1 else ''}"
        for pool, size in needs.items()
    ]
    return f"Fits now: needs {'; '.join(rows)}"


def _name(pool: str) -> str:
    return pool.upper() if pool.startswith("rpc") else f"GPU {pool.removeprefix('gpu')}"


def _find_help(report: Mapping[str, Any], missing_bytes: int) -> str:
    """Return the hint about memory that other programs hold."""
    ways = ["close other programs"]
    most_bytes = sum(row["size_bytes"] for row in report["files"]) - missing_bytes
    smaller = [row for row in report["candidates"] if 0 < (row["size_bytes"] or 0) <= most_bytes]
    if smaller:
        ways.append(f"choose {max(smaller, key=lambda row: row['size_bytes'])['quantization']}")
    context, cache_bytes = report["context_length"], report["memory"]["kv_cache_bytes"]
    less = context // 2
    while less >= MIN_AUTO_CONTEXT and cache_bytes * (1 - less / context) < missing_bytes:
        less //= 2
    if less >= MIN_AUTO_CONTEXT:
        ways.append(f"use a context of {less} tokens")
    return ", or ".join(ways)
