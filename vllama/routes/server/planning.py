"""The handlers that say how a model would be served, and by which engines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from vllama.accounts.keys.current import may_use
from vllama.base import executors
from vllama.base.errors import BadRequest, InvalidModelRef, ModelNotFound, VllamaError
from vllama.dialects.go_structs import decode_request
from vllama.dialects.go_values import string
from vllama.dialects.ollama.request_types import PLAN
from vllama.machine.detect import with_free_memory
from vllama.models.names.ref import Kind, ModelRef
from vllama.net.http.request import Request
from vllama.plan.engine_report import report_engines
from vllama.plan.preview import preview_plan
from vllama.plan.types import Facts
from vllama.routes.ollama.models import describe_plan, need_name
from vllama.routes.route import Dialect, Route, RouteKind
from vllama.scheduler.room import add_room, find_free

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

PREFERENCES = ("engine", "context_length", "gpu_layers", "strict")
"""The settings that a request may name, as the flags of `vllama plan`."""

SERVER_ERROR = 500
LEAST = {"context_length": 1, "gpu_layers": -1}


async def plan(gateway: Gateway, request: Request) -> None:
    """Say how a model would be served, and why, before anything is downloaded."""
    body = decode_request(await request.body(), PLAN)
    name = need_name(body.model or body.name)
    request.json(200, await preview(gateway, name, msgspec.structs.asdict(body)))


async def get_plan(gateway: Gateway, request: Request) -> None:
    """Say the same for a model and settings in the query."""
    query = {
        name: text if PLAN.fields.get(name) is string else read_word(text)
        for name, text in request.read_query().items()
    }
    body = decode_request(json.dumps(query).encode(), PLAN)
    name = need_name(body.model or body.name)
    request.json(200, await preview(gateway, name, msgspec.structs.asdict(body)))


def read_word(text: str) -> object:
    """Return a number or a boolean in a query, other texts as they are."""
    try:
        return json.loads(text)
    except ValueError:
        return text


async def list_previews(gateway: Gateway, request: Request) -> None:
    """Say how each installed engine would serve a model, the chosen one first."""
    query = request.read_query()
    name = need_name(query.get("model") or query.get("model_id"))
    chosen = await preview(gateway, name, {})
    others = [
        row["engine"]
        for row in chosen.get("engines", ())
        if row["version"] and not row["taken"] and reads(gateway, row["engine"], chosen["format"])
    ]
    plans = [chosen, *[await preview(gateway, name, {"engine": engine}) for engine in others]]
    rows = [make_preview(engine, told) for engine, told in zip((None, *others), plans, strict=True)]
    request.json(200, {"previews": rows})


async def list_engines(gateway: Gateway, request: Request) -> None:
    """List the engines: which are installed, which suit, and how to get the others."""
    request.json(200, await executors.disk.run(report_engines, gateway.facts))


async def preview(gateway: Gateway, name: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report of `vllama plan` for a name.

    A model that is loaded is told as it runs, unless `wanted` names settings. What keeps a model
    from being served is a field of the report; a name that means nothing raises what a pull raises.
    """
    try:
        told, facts, is_loaded = await _preview(gateway, name, wanted)
    except (ModelNotFound, InvalidModelRef) as error:
        # elsewhere Ollama's clients match the texts of these, which therefore have no hints
        raise NothingToPlan(error) from None
    if "format" not in told:
        return told
    room = await gateway.scheduler.find_room(find_free(facts.platform, facts.reserve_bytes))
    names = {key: one if may_use(one) else "another model" for key, one in room.names.items()}
    return add_room(told, replace(room, names=names), is_loaded=is_loaded)


async def _preview(
    gateway: Gateway, name: str, wanted: Mapping[str, Any]
) -> tuple[dict[str, Any], Facts, bool]:
    """Return the report, the facts that it was made with, and whether the model runs so."""
    given = {key: wanted[key] for key in PREFERENCES if wanted.get(key) not in (None, "")}
    facts = gateway.facts
    check_preferences(given, facts)
    facts = replace(facts, settings=replace(facts.settings, **given))
    platform = await executors.disk.run(with_free_memory, facts.platform)
    facts = replace(facts, platform=platform)
    try:
        entry = await gateway.catalog.find(name)
    except ModelNotFound:
        if ModelRef.parse(name).kind is Kind.PATH:
            raise
        library = gateway.catalog.library
        try:
            told = await executors.web.run(preview_plan, library, facts, gateway.environ, name)
        except VllamaError as error:
            if error.status < SERVER_ERROR:
                raise
            told = {"model": name, "error": error.message, "hint": error.hint}
        return told, facts, False
    told = await executors.disk.run(
        describe_plan, gateway, entry.bundle, entry.info, facts=facts, as_it_runs=not given
    )
    return told, facts, not given and told["loaded"]


def check_preferences(given: Mapping[str, Any], facts: Facts) -> None:
    """Raise UnknownEngine or BadRequest for settings that mean nothing."""
    engine, known = given.get("engine"), facts.found.engines
    if engine is not None and engine not in known:
        raise UnknownEngine(
            f"cannot plan with engine '{engine}': it is not known",
            hint=f"choose from {', '.join(known)}",
        )
    for name, least in LEAST.items():
        if (number := given.get(name)) is not None and number < least:
            raise BadRequest(f"cannot plan with {name} {number}: it must be at least {least}")


def reads(gateway: Gateway, engine: str, format_: str) -> bool:
    """Tell whether an engine reads a format."""
    return format_ in map(str, gateway.facts.found.engines[engine].formats)


def make_preview(engine: str | None, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return one row of the previews; without `engine` that of the plan that would be taken."""
    memory = told.get("memory")
    return {
        "model_id": told["model"],
        "engine": told.get("engine") or engine,
        "chosen": engine is None,
        "memory_bytes": memory["total_bytes"] if memory else None,
        "error": told.get("error"),
        "plan": told,
    }


class NothingToPlan(BadRequest):
    """A name stands for no model; with the hint of the error that said so."""

    def __init__(self, error: VllamaError) -> None:
        super().__init__(error.message, hint=error.hint)
        self.status = error.status


class UnknownEngine(BadRequest):
    """There is no engine of this name."""

    status = 404


_plans = partial(Route, kind=RouteKind.OBSERVES, tells=True)
ROUTES = (
    _plans("GET /api/engines", list_engines, dialect=Dialect.OLLAMA),
    _plans("GET /api/plan", get_plan, dialect=Dialect.OLLAMA),
    _plans("POST /api/plan", plan, dialect=Dialect.OLLAMA),
    _plans("GET /instance/previews", list_previews),
)
