"""The handler that finds models to pull by a part of their names."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from vllama.base import executors
from vllama.base.errors import VllamaError
from vllama.base.meaning import TEXT, says
from vllama.models.aliases import list_families, list_tags
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import Request
from vllama.routes.route import Parameter, RouteKind, server_route

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

MOST_FOUND = 20


class FoundNames(Struct):
    """Names of models that can be planned and pulled."""

    library: Annotated[list[str], says("Ollama models, with tags")]
    hub: Annotated[list[str], says("Hugging Face repositories, most downloaded first")]
    problem: Annotated[str | None, says("reason why the Hugging Face hub could not be searched")]


async def search(gateway: Gateway, request: Request) -> None:
    """Search for models by part of their name."""
    words = request.read_query().get("q", "").strip().lower()
    family = words.partition(":")[0]
    families = sorted(list_families(), key=lambda name: (name != family, name.find(family)))
    names = (f"{name}:{tag}" for name in families for tag in list_tags(name))
    found = FoundNames([*islice((one for one in names if words in one), MOST_FOUND)], [], None)
    try:
        remote = gateway.catalog.library.remote
        asking = executors.web.run(remote.search, words, MOST_FOUND)
        found.hub = [*await unless_gone(request, asking)]
    except VllamaError as error:
        found.problem = error.message
    request.json(200, found)


_given = (Parameter("q", "part of the model name", TEXT, required=True),)
_kind = RouteKind.OBSERVES
ROUTES = (
    server_route(
        "GET /api/search", search, _kind, tells=True, parameters=_given, answer=FoundNames
    ),
)
