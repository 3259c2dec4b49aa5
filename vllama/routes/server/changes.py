"""Changes of models on the disk by commands, which ask before, and report after."""

from __future__ import annotations

from hmac import compare_digest
from typing import TYPE_CHECKING, Any

from vllama.base.errors import Forbidden, NotFound
from vllama.base.servers import CHANGES
from vllama.chat.bodies import decode_as
from vllama.routes.inference.adapters import see_changes
from vllama.routes.route import RouteKind, server_route

if TYPE_CHECKING:
    from vllama.net.http.request import Request
    from vllama.routes.context import Gateway, Starting


async def note_changes(gateway: Gateway, request: Request) -> None:
    """Allow a command to change models, and pick up its changes (`removed`)."""
    removed = await read_removed(gateway, request)
    if removed is not None:
        await see_changes(gateway, removed)
    request.respond(200, b"", b"")


async def note_early(starting: Starting, request: Request) -> None:
    """Allow it while nothing is in memory that could be out of date."""
    await read_removed(starting, request)
    request.respond(200, b"", b"")


def is_owner(starting: Starting, request: Request) -> bool:
    """Tell whether this is a command of the data folder's owner."""
    shown = request.header(b"authorization").encode(errors="replace")
    return compare_digest(shown, f"Bearer {starting.owner_secret}".encode())


async def read_removed(starting: Starting, request: Request) -> list[str] | None:
    """Return the names of removed models; None before the change. Raises NotFound, Forbidden."""
    if not is_owner(starting, request):
        raise NotFound("cannot record changes: this server uses another data folder")
    removed: list[str] | None = decode_as(await request.body(), dict[str, list[str]]).get("removed")
    if removed is None and starting.guards.read_only:
        raise Forbidden(
            f"cannot change models: the server at {request.header(b'host')} is read-only",
            hint="restart it without --read-only",
        )
    return removed


# the secret stands for a key
OWN: dict[str, Any] = {"keyless": True, "described": False}
ROUTES = (
    server_route(f"POST {CHANGES}", note_changes, RouteKind.OPEN, starting=note_early, **OWN),
)
