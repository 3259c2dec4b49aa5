"""The handlers that say whether the server lives, and which one it is.

Apart from the rest, because whoever starts a server asks here first: this imports next to nothing.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Struct

from vllama import __version__
from vllama.accounts.keys.key import Scope
from vllama.base import executors
from vllama.base.errors import QueueFull
from vllama.base.meaning import make_word, says
from vllama.routes.route import Route, RouteKind, ollama_route
from vllama.targets.monitor import NOT_YET

if TYPE_CHECKING:
    from vllama.models.library import Library
    from vllama.net.http.request import Request
    from vllama.routes.context import Gateway, Starting
    from vllama.targets.monitor import UpstreamMonitor


# what clients compare: as new as the contract that is implemented here
OLLAMA_VERSION = "0.34.0"
DISK_LIMIT_S = 2.0


class Version(Struct, omit_defaults=True):
    """The versions of the Ollama API and of vllama."""

    version: Annotated[str, says("version of the Ollama API")]
    vllama: Annotated[str, says("version of vllama")] = ""


class Liveness(Struct):
    """Liveness."""

    status: Annotated[Literal["ok"], says("always `ok`")]


class Obstacle(Struct, frozen=True):
    """An obstacle to serving or a defect, with its reason."""

    what: Annotated[str, says("affected component")]
    why: Annotated[str, says("reason, as a sentence")]


class Passing(Obstacle, frozen=True):
    """An obstacle that goes away by itself, such as a start."""


class Readiness(Struct, omit_defaults=True):
    """Readiness, with the obstacles."""

    status: Annotated[Literal["ready", "not ready"], says("`ready` if requests can be served")]
    reasons: Annotated[list[Obstacle], says("obstacles to serving")] = []


class Health(Struct, omit_defaults=True):
    """Health, with obstacles and warnings."""

    status: Annotated[Literal["ok", "error"], says("`ok` unless there are obstacles")]
    reasons: Annotated[list[Obstacle], says("obstacles to serving")] = []
    warnings: Annotated[list[Obstacle], says("unavailable features of a running server")] = []


async def get_root(starting: Starting, request: Request) -> None:
    """Report that the server is running.

    Many clients call this first. Browsers are redirected to the web UI.
    """
    if starting.guards.ui and request.method == "GET" and accepts_html(request.header(b"accept")):
        # relative, so that it is right behind a proxy that adds a path
        request.respond(307, b"", b"", {"location": "ui/", "vary": "Accept"})
    else:
        request.text(200, "Ollama is running")


def accepts_html(accept: str) -> bool:
    """Tell whether an `Accept` header names HTML, as browsers do and API clients do not."""
    ranges = (one.lower().replace(" ", "").split(";") for one in accept.split(","))
    return any(kind == "text/html" and "q=0" not in parameters for kind, *parameters in ranges)


async def get_version(starting: Starting, request: Request) -> None:
    """Return the versions of the API and of vllama."""
    request.json(200, Version(OLLAMA_VERSION, __version__))


async def get_live(starting: Starting, request: Request) -> None:
    """Report that the process is alive."""
    request.json(200, Liveness("ok"))


async def lacks_upstream(watch: UpstreamMonitor, library: Library) -> bool:
    """Tell whether clients rely on upstreams of which none can serve."""
    return watch.all_down or (
        watch.none_answers and not await executors.disk.run(library.has_models_here)
    )


async def list_obstacles(gateway: Gateway) -> list[Obstacle]:
    """Return the known obstacles of a complete gateway."""
    found: list[Obstacle] = []
    if gateway.stopping:
        found.append(Obstacle("server", "it is stopping"))
    if not await answers_disk(gateway):
        found.append(Obstacle("disk", f"no response within {DISK_LIMIT_S:g} s"))
        return found  # what follows asks it, too
    if await lacks_upstream(gateway.watch, gateway.catalog.library):
        troubles = gateway.watch.troubles.items()
        found += [
            (Passing if why == NOT_YET else Obstacle)(f"upstream {url}", why)
            for url, why in troubles
        ]
    nodes = gateway.nodes
    if nodes is not None and nodes.local is None and not any(nodes.list_up()):
        found += list_lost_nodes(gateway)
    if gateway.preload.name and gateway.preload.bundle is None:
        found.append(Passing(f"model {gateway.preload.name}", "not loaded yet"))
    return found


def list_lost_nodes(gateway: Gateway) -> list[Obstacle]:
    """Return the nodes of a cluster that cannot be used, and why."""
    if gateway.nodes is None:
        return []
    nodes, names = gateway.nodes.nodes.values(), gateway.nodes.name_troubles.items()
    lost = [Obstacle(f"node {node.name}", node.trouble) for node in nodes if not node.is_up]
    return lost + [Obstacle(f"nodes {url}", why) for url, why in names if why]


async def answers_disk(gateway: Gateway) -> bool:
    """Tell whether models can be looked up: a thread is free, and the disk answers it."""
    try:
        async with asyncio.timeout(DISK_LIMIT_S):
            await executors.disk.run(gateway.catalog.library.settings.hf_cache_dir.exists)
    except (TimeoutError, QueueFull):
        return False
    except OSError:  # an answer, too
        pass
    return True


async def get_health(gateway: Gateway, request: Request) -> None:
    """Report the health of the server; a loading model is not a defect."""
    found = [one for one in await list_obstacles(gateway) if not isinstance(one, Passing)]
    if (bundle := gateway.preload.bundle) is not None:
        why, passing = gateway.scheduler.find_obstacle(bundle)
        found += [Obstacle(f"model {gateway.preload.name}", why)] if why and not passing else []
    failure = gateway.meter.recorder.failure
    warnings = [Obstacle("usage", f"cannot write to it: {failure}")] if failure else []
    if not found:
        warnings += list_lost_nodes(gateway)
    tell(gateway, request, Health("error" if found else "ok", found, warnings))


async def get_ready(gateway: Gateway, request: Request) -> None:
    """Report whether the server is ready for requests."""
    found = await list_obstacles(gateway)
    tell(gateway, request, Readiness("not ready" if found else "ready", found))


async def get_starting(starting: Starting, request: Request) -> None:
    """Report that the server is not ready yet."""
    tell(starting, request, Readiness("not ready", [Passing("server", "it is starting")]))


def tell(starting: Starting, request: Request, answer: Health | Readiness) -> None:
    """Answer 200, or 503 with the reasons, which have addresses and paths.

    If there are keys, reasons and warnings are for those that may read what the server does.
    """
    status = 503 if answer.reasons else 200
    key = starting.running.of(request).access
    if not (starting.keys.admits(key) and (key is None or key.allows(Scope.READ))):
        answer = type(answer)(answer.status)  # type: ignore[arg-type]
    request.json(status, answer)


# `/health` waits until the server has started: a load balancer asks it whether it may send requests
# that need more
_open = partial(Route, kind=RouteKind.OPEN, keyless=True)
_open_status = partial(_open, statuses=(200, 503))
ROUTES = (
    _open(
        "GET HEAD /",
        get_root,
        starting=get_root,
        media={"text/plain": make_word("Ollama is running")},
    ),
    _open_status("GET HEAD /health", get_health, answer=Health),
    _open("GET HEAD /livez", get_live, starting=get_live, answer=Liveness),
    _open_status("GET HEAD /readyz", get_ready, starting=get_starting, answer=Readiness),
    ollama_route(
        "GET HEAD /api/version", get_version, RouteKind.OPEN, starting=get_version, answer=Version
    ),
)
