"""Routes that only ollama.com fills, answered as by a signed-out Ollama, its cloud switched off.

See docs/reference/ollama-api.md#routes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from vllama.base import executors
from vllama.base.errors import ModelNotFound, NoPlan, VllamaError
from vllama.dialects.errors import OllamaError
from vllama.dialects.ollama.answer_types import (
    Cloud,
    CloudStatus,
    Progress,
    Recommendations,
    RecommendedModel,
)
from vllama.dialects.ollama.read import decode_request
from vllama.dialects.ollama.request_types import PushBody
from vllama.models.names.ref import CloudDisabled, ModelRef
from vllama.net.http.request import Request
from vllama.routes.ollama.models import need_name
from vllama.routes.ollama.progress import PROGRESS, send_error, send_line
from vllama.routes.route import Parameter, RouteKind, ollama_route

if TYPE_CHECKING:
    from vllama.routes.context import Gateway


SIGN_IN = "https://ollama.com/connect"


class SignedOut(VllamaError):
    """An account at ollama.com would be needed."""

    status = 401


async def status(gateway: Gateway, request: Request) -> None:
    """Report that cloud features are off."""
    request.json(200, CloudStatus(Cloud(disabled=True, source="config")))


async def me(gateway: Gateway, request: Request) -> None:
    """Report that nobody is signed in."""
    request.json(401, OllamaError("unauthorized", signin_url=SIGN_IN))


async def sign_out(gateway: Gateway, request: Request) -> None:
    """Sign out; rejected, since nobody is signed in."""
    raise SignedOut("you are not currently signed in")


async def remove_key(gateway: Gateway, request: Request) -> None:
    """Remove an account's key; rejected, since nobody is signed in."""
    raise SignedOut("you are not currently signed in")


async def recommendations(gateway: Gateway, request: Request) -> None:
    """Recommend models that run well on this machine."""
    from vllama.plan.recommend import list_recommendations  # few servers are asked

    try:
        rows = await executors.disk.run(list_recommendations, gateway.facts)
    except NoPlan:
        rows = []  # a server that only forwards
    answer = [
        RecommendedModel(
            model=row.model,
            description=f"{', '.join(row.uses)}; runs on: {row.where}",
            context_length=row.max_context_length,
            max_output_tokens=row.max_context_length,
            vram_bytes=row.gpu_bytes,
        )
        for row in rows
        if row.fit == "fits"
    ]
    request.json(200, Recommendations(answer))


async def push(gateway: Gateway, request: Request) -> None:
    """Push a model; rejected, since nobody is signed in."""
    body = decode_request(await request.body(), PushBody)
    name = need_name(body.model or body.name)
    ModelRef.parse(name)
    try:
        await gateway.catalog.bundle(name)
    except ModelNotFound as error:
        raise ModelNotFound(name, message=f"model '{name}' not found") from error
    refusal = SignedOut(
        f"cannot push '{name}': you are not signed in to ollama.com, and vllama cannot sign in",
        hint="upload the file to the Hugging Face hub: hf upload",
    )
    if not body.stream:
        raise refusal
    await send_line(request, Progress("retrieving manifest"))
    await send_error(request, refusal)
    request.end()


async def web_search(gateway: Gateway, request: Request) -> None:
    """Search the web; rejected, since only ollama.com can."""
    raise CloudDisabled("web search is unavailable")


async def web_fetch(gateway: Gateway, request: Request) -> None:
    """Fetch a web page as text; rejected, since only ollama.com can."""
    raise CloudDisabled("web fetch is unavailable")


_search = partial(ollama_route, kind=RouteKind.OWN, statuses=(), errors=(403,))
_open = partial(ollama_route, kind=RouteKind.OPEN)
_refuses = partial(_open, statuses=(), errors=(401,))
ROUTES = (
    _search("POST /api/web_search /api/experimental/web_search", web_search),
    _search("POST /api/web_fetch /api/experimental/web_fetch", web_fetch),
    ollama_route(
        "POST /api/push",
        push,
        RouteKind.WRITES,
        body=PushBody,
        stream=PROGRESS,
        errors=(401, 404),
    ),
    _open("GET /api/status", status, answer=CloudStatus),
    _refuses("POST /api/me", me),
    _refuses("POST /api/signout", sign_out),
    _refuses(
        "DELETE /api/user/keys/{key}", remove_key, parameters=(Parameter("key", "a public key"),)
    ),
    ollama_route(
        "GET /api/experimental/model-recommendations",
        recommendations,
        RouteKind.OWN,
        answer=Recommendations,
    ),
)
