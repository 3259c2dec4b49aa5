"""The handlers that list the running requests, and that end one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllama.errors import BadRequest, Forbidden
from vllama.http.request import Request
from vllama.keys.key import Scope

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

PREFIX = "/api/requests/"
NEEDS_ADMIN = "use a key with the scope admin"


async def list_requests(gateway: Gateway, request: Request) -> None:
    """List the requests to models that wait or run; for a key that may not read, its own."""
    access = gateway.running.of(request).access
    own = access is not None and not access.allows(Scope.READ)
    places = gateway.scheduler.list_queue_places()
    rows = gateway.running.list_rows(places, access.name if access is not None and own else None)
    request.json(200, {"requests": rows})


async def end_request(gateway: Gateway, request: Request) -> None:
    """End a request; its client gets an error in the dialect of its route.

    A key may end its own requests, those of others need the scope admin.
    """
    id_ = request.path.removeprefix(PREFIX)
    running, access = gateway.running.find(id_), gateway.running.of(request).access
    is_own = running is None or access is None or running.key == access.name
    if running is None or not (is_own or access is None or access.allows(Scope.READ)):
        raise UnknownRequest(
            f"no request '{id_}' is running", hint="see what runs: vllama ps --requests"
        )
    if not (is_own or access is None or access.allows(Scope.ADMIN)):
        raise Forbidden(f"cannot end request '{id_}': it is another key's", hint=NEEDS_ADMIN)
    running.end()
    request.respond(200, b"")


class UnknownRequest(BadRequest):
    """There is no such request, or its answer has ended."""

    status = 404
