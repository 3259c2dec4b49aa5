"""The handlers that say how a model would be served, and by which engines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from vllama.accounts.keys.ring import may_use
from vllama.base import executors
from vllama.base.errors import (
    BadRequest,
    InvalidModelRef,
    ModelNotFound,
    NoPlan,
    NotFound,
    VllamaError,
)
from vllama.base.meaning import TEXT, make_integer, says
from vllama.dialects.ollama.options import resolve_options
from vllama.dialects.ollama.read import decode_request
from vllama.dialects.ollama.request_types import LEAST, PlanBody
from vllama.machine.detect import with_free_memory
from vllama.models.names.ref import Kind, ModelRef
from vllama.net.http.request import Request
from vllama.plan.engine_report import Engines, report_engines
from vllama.plan.preview import Fit, preview_fit, preview_plan
from vllama.plan.quant_fallback import Form, list_other_forms
from vllama.plan.recommend import Recommendation, list_recommendations
from vllama.plan.types import DEFAULT_NEED, Facts, Need
from vllama.routes.ollama.models import describe_plan, need_name
from vllama.routes.route import Parameter, Route, RouteKind, server_route
from vllama.scheduler.room import Room, add_room, find_free

if TYPE_CHECKING:
    from vllama.models.types import Bundle
    from vllama.routes.context import Gateway

PREFERENCES = ("engine", "context_length", "gpu_layers", "strict")
"""The settings that a request may name, as the flags of `vllama plan`."""


class PlanDevice(Struct):
    """Memory of one device, in bytes."""

    device: Annotated[str, says("device name")]
    pool: Annotated[str, says("`ram`, `gpu0`, `gpu1`, etc.")]
    total_bytes: Annotated[int, says("total memory")]
    usable_bytes: Annotated[int, says("total memory without the reserve")]
    takes_bytes: Annotated[int, says("memory that the model needs")]
    free_bytes: Annotated[int, says("free memory after unloading the models in `unloads`")]


class PlanNow(Struct):
    """Fit of a model into the free memory."""

    fits: Annotated[bool, says("true if the model fits now")]
    missing_bytes: Annotated[int, says("needed memory that other programs use")]
    unloads: Annotated[list[str], says("models to unload first")]
    summary: Annotated[str, says("summary sentence")]
    hint: str | None


class PlanAnswer(Struct):
    """Plan of a model, with reasons.

    `error` and `hint` replace the plan if the model cannot be served. `now` is null if
    the model does not fit this machine, is loaded, or is on another server. Sizes are in bytes.
    """

    model: str
    platform: Annotated[str | UnsetType, says("description of the machine")] = UNSET
    platform_notes: Annotated[
        list[str] | UnsetType, says("hardware that is unused or unknown, with reasons")
    ] = UNSET
    engines: Annotated[list[dict[str, Any]] | UnsetType, says("considered engines")] = UNSET
    files: Annotated[list[dict[str, Any]] | UnsetType, says("model files")] = UNSET
    format: Annotated[str | UnsetType, says("file format")] = UNSET
    quantization: Annotated[str | UnsetType | None, says("quantization")] = UNSET
    download_bytes: int | UnsetType = UNSET
    candidates: Annotated[list[dict[str, Any]] | UnsetType, says("available quantizations")] = UNSET
    parameters: Annotated[
        list[str] | UnsetType, says("parameters of the model, as in a Modelfile")
    ] = UNSET
    notes: Annotated[list[str] | UnsetType, says("other notes")] = UNSET
    error: Annotated[str | UnsetType, says("reason why the model cannot be served")] = UNSET
    hint: str | UnsetType | None = UNSET
    context_length: int | UnsetType = UNSET
    max_context_length: Annotated[
        int | UnsetType | None, says("context length used in training")
    ] = UNSET
    memory: Annotated[
        dict[str, Any] | UnsetType, says("bytes by part; the total excludes optional parts")
    ] = UNSET
    devices: Annotated[list[PlanDevice] | UnsetType, says("memory by device")] = UNSET
    engine: str | UnsetType = UNSET
    gpu_layers: Annotated[int | UnsetType, says("number of layers on the GPU")] = UNSET
    reasons: Annotated[list[str] | UnsetType, says("reasons for the plan")] = UNSET
    strict: Annotated[bool | UnsetType, says("true if no other plan would be tried")] = UNSET
    if_it_fails: Annotated[dict[str, Any] | UnsetType, says("next plan to try")] = UNSET
    command: Annotated[list[str] | UnsetType, says("engine command line")] = UNSET
    loaded: Annotated[bool | UnsetType, says("true if the model is loaded with this plan")] = UNSET
    placement: Annotated[str | UnsetType, says("placement reported by the engine")] = UNSET
    template: Annotated[str | UnsetType, says("chat template and its source")] = UNSET
    now: Annotated[PlanNow | UnsetType | None, says("fit into the free memory")] = UNSET


class ModelFit(Struct):
    """Fit of an installed model, by its plan."""

    model: str
    fit: Annotated[Fit, says("device, and whether the model fits into the free memory")]
    summary: Annotated[str, says("summary sentence")]


class ModelFits(Struct):
    """Fit of installed and well-known models, largest fitting first."""

    models: Annotated[list[ModelFit], says("installed models")]
    recommended: Annotated[list[Recommendation], says("well-known models, by typical size")]


class Preview(Struct):
    """Plan of a model with one engine."""

    model_id: Annotated[str, says("model name")]
    engine: str | None
    chosen: Annotated[bool, says("true for the chosen engine")]
    memory_bytes: Annotated[int | None, says("required memory")]
    error: Annotated[str | None, says("reason why the model cannot be served")]
    plan: Annotated[PlanAnswer, says("response of `/api/plan`")]


class Previews(Struct):
    """Plans of a model with each installed engine, chosen one first."""

    previews: Annotated[list[Preview], says("plans, chosen one first")]


async def plan(gateway: Gateway, request: Request) -> None:
    """Plan a model: how it would be served, and why.

    Only the header of the model file is downloaded. If the model does not fit, the response
    has an `error` and a `hint` instead of the plan.
    """
    body = decode_request(await request.body(), PlanBody)
    name = need_name(body.model or body.name)
    request.json(200, await preview(gateway, name, msgspec.structs.asdict(body)))


async def get_plan(gateway: Gateway, request: Request) -> None:
    """Plan a model: how it would be served, and why.

    Same as POST, with the model and the settings in the query string.
    """
    query = {
        name: text if name in ("model", "name", "engine") else read_word(text)
        for name, text in request.read_query().items()
    }
    body = decode_request(json.dumps(query).encode(), PlanBody)
    name = need_name(body.model or body.name)
    request.json(200, await preview(gateway, name, msgspec.structs.asdict(body)))


def read_word(text: str) -> object:
    """Return a number or a boolean in a query, other texts as they are."""
    try:
        return json.loads(text)
    except ValueError:
        return text


async def list_previews(gateway: Gateway, request: Request) -> None:
    """Plan a model with each installed engine, chosen one first.

    `model_id` is an alias for `model`.
    """
    query = request.read_query()
    name = need_name(query.get("model") or query.get("model_id"))
    chosen = await preview(gateway, name, {})
    known = gateway.facts.found.engines
    others = [
        row["engine"]
        for row in chosen.engines or ()
        if row["version"] and not row["taken"] and chosen.format in known[row["engine"]].formats
    ]
    plans = [chosen, *[await preview(gateway, name, {"engine": engine}) for engine in others]]
    rows = [make_preview(engine, told) for engine, told in zip((None, *others), plans, strict=True)]
    request.json(200, Previews(rows))


async def list_fits(gateway: Gateway, request: Request) -> None:
    """List which models fit this machine and its free memory.

    Computed from the headers read by `/api/tags`. `fit` is "partly" if the machine has a GPU but
    part or all of the model is in RAM, and "later" if other programs use the memory.
    """
    facts = gateway.facts
    platform = await executors.disk.run(with_free_memory, facts.platform)
    facts = replace(facts, platform=platform)
    rows = [row for row in await gateway.catalog.all() if gateway.offers(row[0])]
    room = hide_names(await gateway.scheduler.find_room(find_free(facts)))
    known = {one.name: (one, info) for one, info, _ in rows if info and may_use(one.name)}
    request.json(200, await executors.disk.run(judge_all, facts, known, room))


def judge_all(facts: Facts, known: Mapping[str, Form], room: Room) -> ModelFits:
    """Return the fit of the models that are here, and of those that may be fetched."""
    fits = []
    for bundle, info in known.values():
        told = preview_fit(facts, bundle, info, partial(find_forms, bundle, known))
        now = add_room(told, room)["now"] if "error" not in told else None
        fit: Fit = "later" if now and not now["fits"] else told["fit"]
        summary = now["summary"] if now else told.get("error", "The model is on another server")
        fits.append(ModelFit(bundle.name, fit, summary))
    try:
        return ModelFits(fits, list_recommendations(facts))
    except NoPlan:  # a server that only forwards
        return ModelFits(fits, [])


def find_forms(bundle: Bundle, known: Mapping[str, Form]) -> list[Form]:
    """Return the other quantizations of a model among those that are known."""
    others = list_other_forms(bundle, [one for one, _ in known.values()])
    return [known[one.name] for one in others]


async def list_engines(gateway: Gateway, request: Request) -> None:
    """List installed, suitable and available engines."""
    request.json(200, await executors.disk.run(report_engines, gateway.facts))


async def preview(gateway: Gateway, name: str, wanted: Mapping[str, Any]) -> PlanAnswer:
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
        return PlanAnswer(**told)
    room = hide_names(await gateway.scheduler.find_room(find_free(facts)))
    return PlanAnswer(**add_room(told, room, is_loaded=is_loaded))


def hide_names(room: Room) -> Room:
    """Return the room without the names of models that the key may not use."""
    names = {key: one if may_use(one) else "another model" for key, one in room.names.items()}
    return replace(room, names=names)


async def _preview(
    gateway: Gateway, name: str, wanted: Mapping[str, Any]
) -> tuple[dict[str, Any], Facts, bool]:
    """Return the report, the facts that it was made with, and whether the model runs so."""
    given = {key: wanted[key] for key in PREFERENCES if wanted.get(key) not in (None, "")}
    options = wanted.get("options") or {}
    resolve_options({}, options)  # their types, also for a model that is not here
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
            if error.status < 500:
                raise
            told = {"model": name, "error": error.message, "hint": error.hint}
        return told, facts, False
    need = Need(load=entry.options(options)[1]) if options else DEFAULT_NEED
    as_it_runs = not (given or options)
    describe = partial(describe_plan, facts=facts, as_it_runs=as_it_runs, need=need)
    told = await executors.disk.run(describe, gateway, entry.bundle, entry.info)
    return told, facts, as_it_runs and told["loaded"]


def check_preferences(given: Mapping[str, Any], facts: Facts) -> None:
    """Raise NotFound or BadRequest for settings that mean nothing."""
    engine, known = given.get("engine"), facts.found.engines
    if engine is not None and engine not in known:
        raise NotFound(
            f"cannot plan with engine '{engine}': unknown engine",
            hint=f"choose from {', '.join(known)}",
        )
    for name, least in LEAST.items():
        if (number := given.get(name)) is not None and number < least:
            raise BadRequest(f"cannot plan with {name} {number}: the minimum is {least}")


def make_preview(engine: str | None, told: PlanAnswer) -> Preview:
    """Return one row of the previews; without `engine` that of the plan that would be taken."""
    return Preview(
        model_id=told.model,
        engine=told.engine or engine,
        chosen=engine is None,
        memory_bytes=told.memory["total_bytes"] if told.memory else None,
        error=told.error or None,
        plan=told,
    )


class NothingToPlan(BadRequest):
    """A name stands for no model; with the hint of the error that said so."""

    def __init__(self, error: VllamaError) -> None:
        super().__init__(error.message, hint=error.hint)
        self.status = error.status


_CONTEXT, _LAYERS = (make_integer(least) for least in LEAST.values())
_MODEL = Parameter("model", "model name", TEXT | {"format": "model"}, required=True)


_kind: dict[str, Any] = {"kind": RouteKind.OBSERVES, "tells": True}
_plans = partial(server_route, **_kind, answer=PlanAnswer, errors=(404, 502))
ROUTES = (
    server_route("GET /api/engines", list_engines, **_kind, answer=Engines),
    server_route("GET /api/fits", list_fits, **_kind, answer=ModelFits),
    _plans(
        "GET /api/plan",
        get_plan,
        parameters=(
            _MODEL,
            Parameter("engine", "engine to plan with", TEXT),
            Parameter("context_length", "context length, in tokens", _CONTEXT),
            Parameter("gpu_layers", "layers on the GPU; -1 for all", _LAYERS),
            Parameter("strict", "true to try no other plan", {"type": "boolean"}),
        ),
    ),
    _plans(
        "POST /api/plan",
        plan,
        on_nodes=True,
        body=PlanBody,
    ),
    Route(
        "GET /instance/previews",
        list_previews,
        **_kind,
        parameters=(_MODEL,),
        answer=Previews,
        errors=(404, 502),
    ),
)
