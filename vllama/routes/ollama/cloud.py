"""Routes that only ollama.com fills, answered as by a signed-out Ollama.

See docs/reference/ollama-api.md#routes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllama.base.errors import ModelNotFound, VllamaError
from vllama.dialects.go_structs import decode_request
from vllama.dialects.ollama.request_types import PUSH
from vllama.models.names.ref import ModelRef
from vllama.net.http.request import Request
from vllama.routes.ollama.models import need_name, send_error, send_line
from vllama.routes.route import RouteKind, ollama_route

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

SIGN_IN = "https://ollama.com/connect"


class SignedOut(VllamaError):
    """An account at ollama.com would be needed."""

    status = 401


async def status(gateway: Gateway, request: Request) -> None:
    """Serve `GET /api/status`: tell that the cloud is disabled."""
    request.json(200, {"cloud": {"disabled": True, "source": "config"}})


async def me(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/me`: answer as a signed-out Ollama does."""
    request.json(401, {"error": "unauthorized", "signin_url": SIGN_IN})


async def sign_out(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/signout`: nobody is signed in."""
    raise SignedOut("you are not currently signed in")


async def remove_key(gateway: Gateway, request: Request) -> None:
    """Serve `DELETE /api/user/keys/{key}`: nobody is signed in."""
    raise SignedOut("you are not currently signed in")


async def recommendations(gateway: Gateway, request: Request) -> None:
    """Serve `GET /api/experimental/model-recommendations`: recommend no models."""
    request.json(200, {"recommendations": []})


async def push(gateway: Gateway, request: Request) -> None:
    """Serve `POST /api/push`: refuse it, since there is no registry to push to."""
    body = decode_request(await request.body(), PUSH)
    name = need_name(body.model or body.name)
    ModelRef.parse(name)
    try:
        await gateway.catalog.bundle(name)
    except ModelNotFound as error:
        raise ModelNotFound(name, message=f"model '{name}' not found") from error
    refusal = SignedOut(
        f"cannot push '{name}': you are not signed in to ollama.com, and vllama cannot sign in",
        hint="upload the file to the hub: hf upload",
    )
    if not body.stream:
        raise refusal
    await send_line(request, {"status": "retrieving manifest"})
    await send_error(request, refusal)
    request.end()


ROUTES = (
    ollama_route("POST /api/push", push, RouteKind.WRITES),
    ollama_route("GET /api/status", status, RouteKind.OPEN),
    ollama_route("POST /api/me", me, RouteKind.OPEN),
    ollama_route("POST /api/signout", sign_out, RouteKind.OPEN),
    ollama_route("DELETE /api/user/keys/{key}", remove_key, RouteKind.OPEN),
    ollama_route("GET /api/experimental/model-recommendations", recommendations, RouteKind.OWN),
)
