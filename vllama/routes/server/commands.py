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
from vllama.config.address import is_loopback, reachable_host
from vllama.dialects.ollama.read import decode_request
from vllama.models.listing import describe_models
from vllama.models.shown import describe_to_owner
from vllama.routes.ollama.models import list_loaded
from vllama.routes.route import RouteKind, server_route
from vllama.routes.server.changes import is_owner

if TYPE_CHECKING:
    from vllama.models.library import Library
    from vllama.net.http.request import Request
    from vllama.routes.context import Gateway

PROCESS = ("HOME", "TZ", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "PYTHONPATH")
"""Variables that a process reads without the settings."""


class CommandBody(msgspec.Struct):
    """A command and the process that it runs in."""

    command: str
    environ: dict[str, str]
    prefix: str
    version: str
    model: str = ""


async def answer_command(gateway: Gateway, request: Request) -> None:
    """Respond with what a command would read by itself, with nothing if it has to do so."""
    if not is_owner(gateway, request):
        raise NotFound("cannot respond to the command: this server uses another data folder")
    body, told = decode_request(await request.body(), CommandBody), None
    with suppress(VllamaError):
        if not await executors.disk.run(sees_the_same, gateway, body):
            pass
        elif body.command == "ps":
            told = msgspec.to_builtins(await list_loaded(gateway))
        else:
            told = await executors.disk.run(describe, gateway.catalog.library, body)
    if told is None:
        request.respond(204, b"")
    else:
        request.respond(200, json.dumps(told).encode())


def sees_the_same(gateway: Gateway, body: CommandBody) -> bool:
    """Tell whether the command has the settings of this server. Raises ConfigError."""
    if (body.version, body.prefix) != (__version__, sys.prefix):
        return False
    if any(body.environ.get(name) != os.environ.get(name) for name in PROCESS):
        return False
    settings, library = config.load({}, body.environ), gateway.catalog.library
    if settings.notes or not is_loopback(reachable_host(settings.host)):  # which is reported
        return False
    if body.command == "ps":
        is_open = settings.key_to_send is None and not gateway.keys.is_required
        return is_open and settings.url == gateway.in_use.config.url
    return not library.reaches_elsewhere and config.models_settings(settings) == library.settings


def describe(library: Library, body: CommandBody) -> dict[str, Any]:
    """Return the models, or the one that is asked for. Raises VllamaError."""
    if body.command == "list":
        return describe_models(library)
    bundle = library.find(body.model).bundle.without_settings()
    return describe_to_owner(library, bundle, verbose=False)


# the secret stands for a key
ROUTES = (
    server_route(f"POST {COMMANDS}", answer_command, RouteKind.OPEN, keyless=True, described=False),
)
