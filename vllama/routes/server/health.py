"""The handlers that say whether the server lives, and which one it is.

Apart from the rest, because whoever starts a server asks here first: this imports next to nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from vllama import __version__
from vllama.accounts.keys.key import Scope
from vllama.base import executors
from vllama.base.errors import QueueFull
from vllama.net.upstream.monitor import NOT_YET
from vllama.routes.route import Route, RouteKind, ollama_route

if TYPE_CHECKING:
    from vllama.models.library import Library
    from vllama.net.http.request import Request
    from vllama.net.upstream.monitor import UpstreamMonitor
    from vllama.routes.context import Gateway


# what clients compare: as new as the contract that is implemented here
OLLAMA_VERSION = "0.34.0"
DISK_LIMIT_S = 2.0


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


async def lacks_upstream(watch: UpstreamMonitor, library: Library) -> bool:
    """Tell whether clients rely on upstreams of which none can serve."""
    return watch.all_down or (
        watch.none_answers and not await executors.disk.run(library.stored.has_models_here)
    )


async def list_obstacles(gateway: Gateway) -> list[Obstacle]:
    """Return what keeps a complete gateway from serving, as far as it is known."""
    found = []
    if gateway.stopping:
        found.append(Obstacle("server", "it is stopping"))
    if not await answers_disk(gateway):
        found.append(Obstacle("disk", f"it does not answer within {DISK_LIMIT_S:g} s"))
        return found  # what follows asks it, too
    if await lacks_upstream(gateway.watch, gateway.catalog.library):
        troubles = gateway.watch.troubles.items()
        found += [Obstacle(f"upstream {url}", why, passing=why == NOT_YET) for url, why in troubles]
    preload = gateway.preload
    if preload.name and preload.bundle is None:
        found.append(Obstacle(f"model {preload.name}", "it has not been loaded yet", passing=True))
    elif preload.bundle is not None:
        why, passing = gateway.scheduler.find_obstacle(preload.bundle)
        if why:
            found.append(Obstacle(f"model {preload.name}", why, passing))
    return found


async def answers_disk(gateway: Gateway) -> bool:
    """Tell whether models can be looked up: a thread is free, and the disk answers it."""
    try:
        async with asyncio.timeout(DISK_LIMIT_S):
            await executors.disk.run(gateway.catalog.library.hf_cache_dir.exists)
    except (TimeoutError, QueueFull):
        return False
    except OSError:  # an answer, too
        pass
    return True


async def get_health(gateway: Gateway, request: Request) -> None:
    """Say whether all is well; loading counts as well."""
    found = [one for one in await list_obstacles(gateway) if not one.passing]
    failure = gateway.meter.recorder.failure
    warnings = [Obstacle("usage", f"it cannot be written: {failure}")] if failure else []
    tell(gateway, request, found, "ok", "error", warnings)


async def get_ready(gateway: Gateway, request: Request) -> None:
    """Say whether a request would be served now."""
    if not gateway.is_complete:
        found = [Obstacle("server", "it is starting", passing=True)]
    else:
        found = await list_obstacles(gateway)
        preload = gateway.preload
        if not found and preload.bundle and not gateway.scheduler.is_loaded(preload.bundle):
            files = preload.bundle.files
            gone = await executors.disk.run(lambda: [one for one in files if not one.exists()])
            found = [Obstacle(f"model {preload.name}", f"'{one}' is gone") for one in gone]
    tell(gateway, request, found, "ready", "not ready")


def tell(
    gateway: Gateway,
    request: Request,
    found: list[Obstacle],
    good: str,
    bad: str,
    warnings: Sequence[Obstacle] = (),
) -> None:
    """Answer 200, or 503 with the reasons, which have addresses and paths.

    If there are keys, reasons and warnings are for those that may read what the server does.
    """
    status, body = (503, {"status": bad}) if found else (200, {"status": good})
    reply: dict[str, object] = dict(body)
    key = gateway.running.of(request).access
    if gateway.keys.admits(key) and (key is None or key.allows(Scope.READ)):
        for name, told in (("reasons", found), ("warnings", warnings)):
            if told:
                reply[name] = [{"what": one.what, "why": one.why} for one in told]
    request.json(status, reply)


# `/health` waits until the server has started: a load balancer asks it whether it may send requests
# that need more
ROUTES = (
    Route("GET HEAD /", get_root, RouteKind.OPEN, keyless=True, starting=True),
    Route("GET HEAD /health", get_health, RouteKind.OPEN, keyless=True),
    Route("GET HEAD /livez", get_live, RouteKind.OPEN, keyless=True, starting=True),
    Route("GET HEAD /readyz", get_ready, RouteKind.OPEN, keyless=True, starting=True),
    ollama_route("GET HEAD /api/version", get_version, RouteKind.OPEN, starting=True),
)
