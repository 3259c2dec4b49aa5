"""The Ollama routes about models: tags, show, ps, pull, delete.

See docs/reference/ollama-api.md#model-management, #show.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from vllama.accounts.keys.key import FORWARDED
from vllama.accounts.keys.ring import check_model, may_use
from vllama.base import executors
from vllama.base.errors import BadRequest, Forbidden, InvalidModelRef, ModelNotFound, VllamaError
from vllama.base.meaning import TEXT
from vllama.base.units import rfc3339_local
from vllama.dialects.errors import make_ollama_error
from vllama.dialects.ollama.answer_types import (
    FailedModel,
    LoadedModels,
    LocalModel,
    Progress,
    ShownModel,
    Success,
    Tags,
)
from vllama.dialects.ollama.read import decode_request
from vllama.dialects.ollama.request_types import DeleteBody, PullBody, ShowBody
from vllama.models.headers.info import (
    build_details,
    describe_template,
)
from vllama.models.limits import decode_json
from vllama.models.modelfile import format_parameters, list_parameters
from vllama.models.names.ref import (
    INVALID_NAME,
    CloudDisabled,
    Kind,
    ModelRef,
    add_default_tag,
)
from vllama.models.shown import describe_model, list_capabilities
from vllama.models.types import Bundle, ModelInfo, PullEvent
from vllama.net.http.request import Request
from vllama.plan.quant_fallback import list_forms_here
from vllama.plan.report import report_plan
from vllama.plan.types import DEFAULT_NEED
from vllama.routes.events.rows import add_conversations, make_loaded_row
from vllama.routes.inference.adapters import drop_old_names, see_changes
from vllama.routes.ollama.progress import (
    PROGRESS,
    join_pull,
    make_progress,
    send_error,
    send_line,
    stream_pull,
)
from vllama.routes.route import Parameter, RouteKind, ollama_route

if TYPE_CHECKING:
    from vllama.plan.types import Facts, Need
    from vllama.routes.context import Gateway
    from vllama.scheduler.views import FailureView

ELSEWHERE_S = 1.0
LOADED = ("size", "size_vram", "context_length")
MEASURED_S = 2.0  # memory that was measured so lately is shown as it is
TEXTS = ("license", "template", "system", "renderer", "parser", "requires")


async def tags(gateway: Gateway, request: Request) -> None:
    """List the installed models."""
    rows = [
        LocalModel(
            name=bundle.name,
            model=bundle.name,
            modified_at=rfc3339_local(bundle.modified_s),
            size=bundle.size_bytes,
            digest=bundle.digest,
            details=build_details(bundle, info or ModelInfo(architecture="unknown")),
            capabilities=list_capabilities(info),
            store=bundle.store,
            problem=problem or "",
        )
        for bundle, info, problem in await gateway.catalog.all()
        if may_use(bundle.name) and gateway.offers(bundle)
    ]
    if gateway.nodes is not None and not request.header(FORWARDED):
        from vllama.routes.nodes import list_elsewhere

        rows += list_elsewhere(gateway, {row.name for row in rows})
    request.json(200, Tags(rows))


async def ps(gateway: Gateway, request: Request) -> None:
    """List the loaded models."""
    request.json(200, await list_loaded(gateway))


async def list_loaded(gateway: Gateway) -> LoadedModels:
    """Return the loaded models that the request may use."""
    await drop_old_names(gateway)
    await gateway.scheduler.measure(max_age_s=MEASURED_S)
    views = gateway.scheduler.list_models()
    elsewhere = await asyncio.gather(
        *(read_loaded_elsewhere(gateway, view.bundle) for view in views)
    )
    rows = [
        msgspec.structs.replace(make_loaded_row(view, names), **there)
        for view, there in zip(views, elsewhere, strict=True)
        if (names := [name for name in (view.name, *view.other_names) if may_use(name)])
    ]
    add_conversations(rows, gateway.slot_cache)
    if gateway.nodes is not None:
        from vllama.routes.nodes import list_loaded_elsewhere

        rows += list_loaded_elsewhere(gateway)
    failed = [make_failed_row(o) for o in gateway.scheduler.list_failures() if may_use(o.name)]
    return LoadedModels(rows, failed)


async def read_loaded_elsewhere(gateway: Gateway, bundle: Bundle) -> dict[str, int]:
    """Return the model's row from an upstream Ollama or vllama in its own `/api/ps`."""
    model = bundle.upstream
    if model is None or model.shown is None:
        return {}
    for endpoint in gateway.facts.found.find_servers(bundle)[0]:
        name = endpoint.model or bundle.hub_id
        try:
            async with asyncio.timeout(ELSEWHERE_S):
                with gateway.upstreams.use_pool(endpoint) as upstream:
                    answer = await upstream.get("/api/ps")
            for row in decode_json(answer.body)["models"] if answer.status == 200 else ():
                if name in (row["name"], row["name"].removesuffix(":latest")):
                    return {key: row[key] for key in LOADED if type(row.get(key)) is int}
        except (TimeoutError, VllamaError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return {}


def make_failed_row(failure: FailureView) -> FailedModel:
    """Describe a model that failed; loaded models are listed separately."""
    return FailedModel(
        name=failure.name,
        state="failed",
        cause=failure.cause,
        hint=failure.hint,
        since=rfc3339_local(failure.since_s),
        retry_after=round(failure.retry_s, 3),
    )


def need_name(name: str | None) -> str:
    """Return the name of a request's model. Raises BadRequest if there is none."""
    if not name:
        raise BadRequest("model is required")
    return name


async def show(gateway: Gateway, request: Request) -> None:
    """Describe a model."""
    body = decode_request(await request.body(), ShowBody)
    name, verbose = need_name(body.model or body.name), body.verbose
    try:
        entry = await gateway.catalog.find(name)
    except ModelNotFound as error:
        raise ModelNotFound(name, message=f"model '{add_default_tag(name)}' not found") from error
    except CloudDisabled as error:
        raise CloudDisabled("remote model details are unavailable") from error
    check_model(name, entry.bundle.name)
    own, info = entry.bundle.without_settings(), entry.info
    there = (own.upstream.shown if own.upstream is not None else None) or {}
    texts: dict[str, Any] = {
        name: there[name] for name in TEXTS if name in there and not getattr(own, name)
    }
    bundle = apply_body(replace(own, **texts), body)
    reply = await executors.disk.run(lambda: describe_model(bundle, info, verbose=verbose))
    if request.header(b"user-agent").startswith("GitHubCopilotChat/"):
        reply["model_info"]["general.basename"] = name  # the value that Copilot shows
    reply.pop("parameters", None)  # those that the request names are shown in the Modelfile only
    known = replace(info, sampling={}) if there else info  # what is assumed of another server
    if parameters := format_parameters(list_parameters(own, known)) or there.get("parameters"):
        reply["parameters"] = parameters
    if projector := there.get("projector_info"):
        reply.setdefault("projector_info", projector)
    if body.plan:
        reply["vllama"] = await executors.disk.run(describe_plan, gateway, entry.bundle, info)
    request.json(200, ShownModel(**reply))


def describe_plan(
    gateway: Gateway,
    bundle: Bundle,
    info: ModelInfo,
    *,
    facts: Facts | None = None,
    as_it_runs: bool = True,
    need: Need = DEFAULT_NEED,
) -> dict[str, Any]:
    """Return the plan that a model is loaded by, or would be, as `vllama plan` tells it.

    `facts` stand in for those of the start. Without `as_it_runs` the model is planned anew even if
    it is loaded, for `need`.
    """
    views = gateway.scheduler.list_views()
    # by name too: it may be loaded in another quantization (`plan.quant_fallback`)
    same = (bundle.key, bundle.name)
    running = next((v for v in views if v.bundle.key in same or v.name in same), None)
    told = report_plan(
        facts or gateway.facts,
        bundle,
        info,
        gateway.environ,
        running=running.plan if running and as_it_runs else None,
        forms=list_forms_here(gateway.catalog.library, bundle),
        need=need,
    )
    words = describe_template(bundle, info)
    told["loaded"], told["placement"] = running is not None, running.placed if running else ""
    return told | ({"template": words} if words else {})


def apply_body(bundle: Bundle, body: ShowBody) -> Bundle:
    """Return the model with the system message and the options that a client asks to be shown."""
    system, options = body.system, body.options
    if isinstance(system, str) and system:
        bundle = replace(bundle, system=system)
    if isinstance(options, dict) and options:
        given = {name: value for name, value in options.items() if value is not None}
        bundle = replace(bundle, parameters={**bundle.parameters, **given})
    return bundle


async def delete(gateway: Gateway, request: Request) -> None:
    """Delete a model."""
    body = decode_request(await request.body(), DeleteBody)
    name, force = need_name(body.model or body.name), body.force
    try:
        bundle = await gateway.catalog.bundle(name)
    except InvalidModelRef as error:
        raise BadRequest(f'name "{name}" is invalid') from error
    except ModelNotFound as error:
        raise ModelNotFound(name, message=f"model '{name}' not found") from error
    await executors.storage.run(gateway.catalog.library.remove, name, force=force)
    await gateway.record_act("models delete", bundle.name, {"digest": bundle.digest})
    await see_changes(gateway, [bundle.name])
    request.respond(200, b"", b"")


async def pull(gateway: Gateway, request: Request) -> None:
    """Download a model.

    Clients share a download. It stops when the last one disconnects, and the next resumes it.
    With `background` it needs no client, and the response is immediate.
    """
    body = decode_request(await request.body(), PullBody)
    name = body.model or body.name
    # a bad name is a status, not a line of the stream
    if ModelRef.parse(name).kind is Kind.PATH:
        raise InvalidModelRef(INVALID_NAME, hint="cannot pull a path")
    await gateway.record_act("models pull", name, await gateway.describe_model(name))
    if body.background:
        join_pull(gateway, name, insecure=body.insecure).background = True
        request.json(202, Progress("pulling manifest"))
        return
    stream = body.stream

    async def tell(event: PullEvent) -> None:
        if stream:
            await send_line(request, make_progress(event))

    try:
        await stream_pull(gateway, request, name, tell, insecure=body.insecure)
    except VllamaError as error:
        if isinstance(error, Forbidden) and not request.status:
            raise
        if not stream:
            request.failure = error
            # as Ollama does, except where trying again later may help
            request.json(max(500, error.status), make_ollama_error(error, error.sentence()))
            return
        await send_error(request, error)
    else:
        if not stream:
            request.json(200, Success("success"))
            return
    request.end()


async def stop_pull(gateway: Gateway, request: Request) -> None:
    """Stop a download for all clients.

    vllama extension. The partial download is saved and resumed by the next pull.
    """
    body = decode_request(await request.body(), PullBody)
    name = need_name(body.model or body.name)
    pull = gateway.pulls.find(name)
    if pull is None:
        raise ModelNotFound(
            name, message=f"cannot stop the download of '{name}': no download", hint=None
        )
    await gateway.record_act("models pull stop", name, {"progress": pull.describe().completed})
    pull.cancel()
    request.respond(200, b"", b"")


_writes = partial(ollama_route, kind=RouteKind.WRITES)
_node = (Parameter("node", "name of a cluster node", TEXT),)
ROUTES = (
    ollama_route("GET HEAD /api/tags", tags, RouteKind.LISTS, answer=Tags),
    ollama_route("GET /api/ps", ps, RouteKind.LISTS, answer=LoadedModels),
    ollama_route(
        "POST /api/show",
        show,
        RouteKind.LISTS,
        body=ShowBody,
        on_nodes=True,
        parameters=_node,
        answer=ShownModel,
        errors=(404,),
    ),
    _writes(
        "POST /api/pull",
        pull,
        on_nodes=True,
        parameters=_node,
        body=PullBody,
        answer=(Success, Progress),
        stream=PROGRESS,
        statuses=(200, 202),
        errors=(502, 507),
    ),
    _writes("DELETE /api/pull", stop_pull, body=PullBody, errors=(404,)),
    _writes(
        "DELETE /api/delete",
        delete,
        on_nodes=True,
        parameters=_node,
        body=DeleteBody,
        errors=(404,),
    ),
)
