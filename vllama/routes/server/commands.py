"""What `list`, `show` and `ps` print, for commands that find this server in their data folder."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from vllama import __version__, config
from vllama.base import executors
from vllama.base.errors import NotFound, VllamaError
from vllama.base.servers import COMMANDS
from vllama.chat.bodies import Body
from vllama.config.address import is_loopback, reachable_host
from vllama.dialects.ollama.read import decode_request
from vllama.models.library import describe_models
from vllama.models.shown import describe_to_owner
from vllama.routes.ollama.models import list_loaded
from vllama.routes.route import RouteKind, server_route
from vllama.routes.server.changes import OWN, is_owner

if TYPE_CHECKING:
    from vllama.net.http.request import Request
    from vllama.routes.context import Gateway

PROCESS = ("HOME", "TZ", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "PYTHONPATH")
"""Variables that a process reads without the settings."""


class CommandBody(Body):
    """A command, and what its process has of the environment."""

    command: str
    model: str
    environ: dict[str, str]
    prefix: str
    version: str


async def answer_command(gateway: Gateway, request: Request) -> None:
    """Respond with what a command would read by itself, with nothing if it has to do so."""
    if not is_owner(gateway, request):
        raise NotFound("cannot respond to the command: this server uses another data folder")
    body, told = decode_request(await request.body(), CommandBody), None
    with suppress(VllamaError):
        told = await executors.disk.run(read, gateway, body)
        if told is not None and body.command == "ps":
            told = msgspec.to_builtins(await list_loaded(gateway))
    request.respond(
        204 if told is None else 200, b"" if told is None else json.dumps(told).encode()
    )


def read(gateway: Gateway, body: CommandBody) -> dict[str, Any] | None:
    """Return what the models' files tell; None if the command may see others than this server."""
    settings, library = config.load({}, body.environ), gateway.catalog.library
    is_same = (body.version, body.prefix) == (__version__, sys.prefix) and all(
        body.environ.get(name) == os.environ.get(name) for name in PROCESS
    )
    # the command itself reports both
    if not is_same or settings.notes or not is_loopback(reachable_host(settings.host)):
        return None
    if body.command == "ps":
        needs_key = settings.key_to_send is not None or gateway.keys.is_required
        return None if needs_key or settings.url != gateway.in_use.config.url else {}
    if library.reaches_elsewhere or config.models_settings(settings) != library.settings:
        return None
    if body.command == "list":
        return describe_models(library)
    bundle = library.find(body.model).bundle.without_settings()
    return describe_to_owner(library, bundle, verbose=False)


ROUTES = (server_route(f"POST {COMMANDS}", answer_command, RouteKind.OPEN, **OWN),)
