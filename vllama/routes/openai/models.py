"""OpenAI's list of models, with what clients of other servers look for in it.

Beside OpenAI's four fields: `context_length` (OpenRouter's name) is what the model was made for,
`max_model_len` (vLLM's) what a request may use now, `state` and `loaded_context_length` are those
of LM Studio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from msgspec.structs import replace

from vllama.accounts.keys.ring import may_use
from vllama.base.errors import ModelNotFound
from vllama.base.meaning import TEXT
from vllama.base.units import parse_rfc3339
from vllama.dialects.openai.answer_types import OpenAIModel, OpenAIModels
from vllama.engines.base import Mode
from vllama.models.names.ref import add_default_tag
from vllama.models.shown import list_capabilities
from vllama.models.types import Bundle, ModelInfo
from vllama.net.http.request import Request
from vllama.routes.describe.examples import MODEL
from vllama.routes.events.rows import get_known_context
from vllama.routes.openai.common import find_v1_model
from vllama.routes.route import Parameter, RouteKind, openai_route
from vllama.scheduler.views import Phase, View

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


def make_row(bundle: Bundle, info: ModelInfo | None, view: View | None) -> OpenAIModel:
    """Return a model as it is listed; `view` is that of its instance, None if there is none."""
    made_for = info.context_length or 0 if info is not None else 0
    loaded = get_known_context(view.plan) if view is not None else 0
    return OpenAIModel(
        id=bundle.name,
        object="model",
        created=int(bundle.modified_s),
        owned_by=find_owner(bundle.name),
        state=name_state(view.state if view is not None else None),
        capabilities=list_capabilities(info),
        context_length=made_for,
        loaded_context_length=loaded,
        max_model_len=loaded or made_for,
    )


def name_state(state: object) -> str:
    """Return the state of a model, None without an instance, as LM Studio names it."""
    return "not-loaded" if state is None else "loaded" if state == Phase.READY else str(state)


def find_owner(name: str) -> str:
    """Return the namespace of a model's name."""
    return ("library", *name.split("/"))[-2]


def find_views(gateway: Gateway) -> dict[str, View]:
    """Return the instance of each model that has one; that for chats, where it has two."""
    views = gateway.scheduler.list_views()
    views.sort(key=lambda view: view.plan.settings.mode is Mode.CHAT)
    return {name: view for view in views for name in (view.name, *view.other_names)}


def list_rows_elsewhere(gateway: Gateway, here: set[str]) -> list[OpenAIModel]:
    """Return the models that only other nodes of a cluster have."""
    if gateway.nodes is None:
        return []
    from vllama.routes.nodes import list_elsewhere, list_loaded_elsewhere

    loaded = sorted(list_loaded_elsewhere(gateway), key=lambda row: row.state == Phase.READY)
    by_name = {name: row for row in loaded for name in (row.name, *row.other_names)}
    return [
        OpenAIModel(
            id=model.name,
            object="model",
            created=int(parse_rfc3339(model.modified_at)),
            owned_by=find_owner(model.name),
            state=name_state(row.state if row is not None else None),
            capabilities=model.capabilities,
            context_length=model.details.context_length,
            loaded_context_length=(now := row.context_length if row is not None else 0),
            max_model_len=now or model.details.context_length,
        )
        for model in list_elsewhere(gateway, here)
        for row in (by_name.get(model.name),)
    ]


async def models(gateway: Gateway, request: Request) -> None:
    """List the models of this server and of its cluster nodes."""
    found, views = await gateway.catalog.all(), find_views(gateway)
    rows = [
        make_row(bundle, info, views.get(bundle.name))
        for bundle, info, _ in found
        if may_use(bundle.name) and gateway.offers(bundle)
    ]
    rows += list_rows_elsewhere(gateway, {row.id for row in rows})
    request.json(200, OpenAIModels("list", rows))


async def model(gateway: Gateway, request: Request) -> None:
    """Describe a model."""
    name = unquote(request.path.removeprefix("/v1/models/"))
    try:
        entry = await find_v1_model(gateway, name)
    except ModelNotFound as error:
        for row in list_rows_elsewhere(gateway, set()):
            if row.id.lower() == add_default_tag(name).lower():
                request.json(200, replace(row, id=name))
                return
        raise ModelNotFound(name, message=f"model '{add_default_tag(name)}' not found") from error
    view = find_views(gateway).get(entry.bundle.name)
    request.json(200, replace(make_row(entry.bundle, entry.info, view), id=name))


ROUTES = (
    openai_route("GET /v1/models", models, RouteKind.LISTS, answer=OpenAIModels),
    openai_route(
        "GET /v1/models/{model}",
        model,
        RouteKind.LISTS,
        parameters=(
            Parameter(
                "model",
                "model name, which may contain slashes",
                TEXT | {"format": "model"},
                example=MODEL,
            ),
        ),
        answer=OpenAIModel,
    ),
)
