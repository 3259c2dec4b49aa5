"""The handlers that list captures, and that show one with its bodies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from vllama.captures.folder import find_capture, list_summaries
from vllama.captures.reading import read_texts
from vllama.errors import BadRequest, Forbidden
from vllama.http.request import JSON, Request

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

PREFIX = "/api/captures/"
MAX_LISTED = 200


async def list_captures(gateway: Gateway, request: Request) -> None:
    """List the newest captures without their bodies, the newest first."""
    check_access(gateway)
    captures = gateway.captures
    if captures is None:
        request.json(200, {"enabled": False, "captures": []})
        return
    folder = captures.folder
    found = await asyncio.to_thread(lambda: list(list_summaries(folder, MAX_LISTED)))
    request.json(200, {"enabled": True, "captures": found})


async def get_capture(gateway: Gateway, request: Request) -> None:
    """Show one capture with its bodies and the texts of its answer.

    It is found by its own id, or by the client's id of the request.
    """
    check_access(gateway)
    id_ = request.path.removeprefix(PREFIX)
    captures = gateway.captures
    if captures is None:
        raise UnknownCapture(
            f"there is no capture '{id_}': requests are not captured",
            hint="start the server with --capture 100",
        )
    capture = await asyncio.to_thread(find_capture, captures.folder, id_)
    if capture is None:
        raise UnknownCapture(
            f"there is no capture '{id_}'", hint="list those that are kept: vllama requests"
        )
    content = await asyncio.to_thread(lambda: msgspec.json.encode(read_texts(capture)))
    request.respond(200, content, JSON)


def check_access(gateway: Gateway) -> None:
    """Raise Forbidden where anybody on the network could read what others have written."""
    if not gateway.guards.loopback and not gateway.keys.is_required:
        raise Forbidden(
            "cannot show captures: this server listens for other machines and wants no key",
            hint="add a key: vllama keys add NAME, or use 'vllama requests' on its machine",
        )


class UnknownCapture(BadRequest):
    """There is no such capture, or it was removed to make room for newer ones."""

    status = 404
