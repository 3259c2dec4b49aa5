"""The handlers that list the running requests, and that end one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllama.errors import BadRequest
from vllama.http.request import Request

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

PREFIX = "/api/requests/"


async def list_requests(gateway: Gateway, request: Request) -> None:
    """List the requests to models that wait or run."""
    rows = gateway.running.list_rows(gateway.scheduler.list_queue_places())
    request.json(200, {"requests": rows})


async def end_request(gateway: Gateway, request: Request) -> None:
    """End a request; its client gets an error in the dialect of its route."""
    id_ = request.path.removeprefix(PREFIX)
    running = gateway.running.find(id_)
    if running is None:
        raise UnknownRequest(
            f"no request '{id_}' is running", hint="see what runs: vllama ps --requests"
        )
    running.end()
    request.respond(200, b"")


class UnknownRequest(BadRequest):
    """There is no such request, or its answer has ended."""

    status = 404
