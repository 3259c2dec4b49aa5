"""The handlers that say whether this server can serve: for load balancers and orchestrators.

They look only at what is known already. Nothing is asked, so that they may be asked often.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from vllama.supervise.watch import NOT_YET

if TYPE_CHECKING:
    from vllama.gateway.app import Gateway
    from vllama.gateway.http import Request
    from vllama.models.types import Bundle


@dataclass(slots=True)
class Preload:
    """The model that the server was started with, and what its name stood for once it had loaded.

    Without a name there is none.
    """

    name: str | None
    bundle: Bundle | None = None


class Obstacle(msgspec.Struct, frozen=True):
    """What cannot serve, and why; `passing`: it is on its way by itself."""

    what: str
    why: str
    passing: bool = False


def obstacles(gateway: Gateway) -> list[Obstacle]:
    """Return what keeps a complete gateway from serving, as far as it is known."""
    found = []
    if gateway.scheduler.closing:
        found.append(Obstacle("server", "it is stopping"))
    if gateway.watch.all_down:
        troubles = gateway.watch.troubles.items()
        found += [Obstacle(f"upstream {url}", why, passing=why == NOT_YET) for url, why in troubles]
    preload = gateway.preload
    if preload.name and preload.bundle is None:
        found.append(Obstacle(f"model {preload.name}", "it has not been loaded yet", passing=True))
    elif preload.bundle is not None:
        why, passing = gateway.scheduler.obstacle(preload.bundle)
        if why:
            found.append(Obstacle(f"model {preload.name}", why, passing))
    return found


async def health(gateway: Gateway, request: Request) -> None:
    """Say whether all is well; what is only on its way is."""
    tell(gateway, request, [one for one in obstacles(gateway) if not one.passing], "ok", "error")


async def ready(gateway: Gateway, request: Request) -> None:
    """Say whether a request would be served now."""
    if not gateway.is_complete:
        found = [Obstacle("server", "it is starting", passing=True)]
    else:
        found = obstacles(gateway)
        preload = gateway.preload
        if not found and preload.bundle and not gateway.scheduler.has(preload.bundle):
            files = preload.bundle.files
            gone = await asyncio.to_thread(lambda: [one for one in files if not one.exists()])
            found = [Obstacle(f"model {preload.name}", f"'{one}' is gone") for one in gone]
    tell(gateway, request, found, "ready", "not ready")


def tell(gateway: Gateway, request: Request, found: list[Obstacle], good: str, bad: str) -> None:
    """Answer 200, or 503 with the reasons; those are for whoever has a key, if there are keys."""
    status, body = (503, {"status": bad}) if found else (200, {"status": good})
    authorization, api_key = request.header(b"authorization"), request.header(b"x-api-key")
    reply: dict[str, object] = dict(body)
    if found and gateway.guards.shows_key(authorization, api_key):
        reply["reasons"] = [{"what": one.what, "why": one.why} for one in found]
    request.json(status, reply)
