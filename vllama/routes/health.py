"""The handlers that say whether the server lives, and which one it is.

Apart from the rest, because whoever starts a server asks here first: this imports next to nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from vllama import __version__
from vllama.keys.key import Scope
from vllama.supervise.external import NOT_YET

if TYPE_CHECKING:
    from vllama.http.request import Request
    from vllama.routes.context import Gateway


# what clients compare: as new as the contract that is implemented here
OLLAMA_VERSION = "0.34.0"


async def get_root(gateway: Gateway, request: Request) -> None:
    """Answer the health probe of many clients; send a browser to the page."""
    if gateway.guards.ui and request.method == "GET" and accepts_html(request.header(b"accept")):
        # relative, so that it is right behind a proxy that adds a path
        request.respond(307, b"", b"", {"location": "ui/", "vary": "Accept"})
    else:
        request.text(200, "Ollama is running")


def accepts_html(accept: str) -> bool:
    """Tell whether an `Accept` header names HTML, as browsers do and API clients do not."""
    ranges = (one.lower().replace(" ", "").split(";") for one in accept.split(","))
    return any(kind == "text/html" and "q=0" not in parameters for kind, *parameters in ranges)


async def get_version(gateway: Gateway, request: Request) -> None:
    """Report the version of the Ollama API that is spoken, and our own beside it."""
    request.json(200, {"version": OLLAMA_VERSION, "vllama": __version__})


async def get_live(gateway: Gateway, request: Request) -> None:
    """Say that the process answers, and need not be restarted."""
    request.json(200, {"status": "ok"})


class Obstacle(msgspec.Struct, frozen=True):
    """What cannot serve, and why; `passing`: it is on its way by itself."""

    what: str
    why: str
    passing: bool = False


async def list_obstacles(gateway: Gateway) -> list[Obstacle]:
    """Return what keeps a complete gateway from serving, as far as it is known."""
    found = []
    if gateway.stopping:
        found.append(Obstacle("server", "it is stopping"))
    watch = gateway.watch
    if watch.all_down or (
        watch.none_answers
        and not await asyncio.to_thread(gateway.catalog.library.stored.has_models_here)
    ):
        troubles = watch.troubles.items()
        found += [Obstacle(f"upstream {url}", why, passing=why == NOT_YET) for url, why in troubles]
    preload = gateway.preload
    if preload.name and preload.bundle is None:
        found.append(Obstacle(f"model {preload.name}", "it has not been loaded yet", passing=True))
    elif preload.bundle is not None:
        why, passing = gateway.scheduler.find_obstacle(preload.bundle)
        if why:
            found.append(Obstacle(f"model {preload.name}", why, passing))
    return found


async def get_health(gateway: Gateway, request: Request) -> None:
    """Say whether all is well; loading counts as well."""
    found = [one for one in await list_obstacles(gateway) if not one.passing]
    tell(gateway, request, found, "ok", "error")


async def get_ready(gateway: Gateway, request: Request) -> None:
    """Say whether a request would be served now."""
    if not gateway.is_complete:
        found = [Obstacle("server", "it is starting", passing=True)]
    else:
        found = await list_obstacles(gateway)
        preload = gateway.preload
        if not found and preload.bundle and not gateway.scheduler.is_loaded(preload.bundle):
            files = preload.bundle.files
            gone = await asyncio.to_thread(lambda: [one for one in files if not one.exists()])
            found = [Obstacle(f"model {preload.name}", f"'{one}' is gone") for one in gone]
    tell(gateway, request, found, "ready", "not ready")


def tell(gateway: Gateway, request: Request, found: list[Obstacle], good: str, bad: str) -> None:
    """Answer 200, or 503 with the reasons, which have addresses and paths.

    If there are keys, the reasons are for those that may read what the server does.
    """
    status, body = (503, {"status": bad}) if found else (200, {"status": good})
    reply: dict[str, object] = dict(body)
    key = gateway.running.of(request).access
    if found and gateway.keys.admits(key) and (key is None or key.allows(Scope.READ)):
        reply["reasons"] = [{"what": one.what, "why": one.why} for one in found]
    request.json(status, reply)
