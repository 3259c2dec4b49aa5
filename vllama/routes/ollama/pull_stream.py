"""A download that a request waits for: progress on the way, an end when the client leaves."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from vllama.errors import ModelNotFound, NoPlan, SourceError
from vllama.http.request import Request
from vllama.models.ref import DEFAULT_HOST, HUB_HOSTS, ModelRef
from vllama.models.types import Bundle, PullEvent
from vllama.plan.choose import list_loadable_formats
from vllama.plan.fitting import FitsHere
from vllama.routes.inference import unless_gone

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

log = logging.getLogger(__name__)


async def stream_pull(
    gateway: Gateway,
    request: Request,
    name: str,
    tell: Callable[[PullEvent], Awaitable[None]],
    *,
    insecure: bool = False,
) -> Bundle:
    """Download `name`, await `tell` for each step, and return the model.

    `insecure` allows plain http to a registry.

    Raises ClientGone, and what the library raises.
    """
    events: asyncio.Queue[PullEvent | None] = asyncio.Queue()
    loop, cancel = asyncio.get_running_loop(), threading.Event()

    def report(event: PullEvent) -> None:
        loop.call_soon_threadsafe(events.put_nowait, event)

    def ended(done: asyncio.Future[Bundle]) -> None:
        if not done.cancelled():
            done.exception()  # the client may have left: then nobody else looks at it
        events.put_nowait(None)

    async def tell_all() -> None:
        while (event := await events.get()) is not None:
            await tell(event)

    download = asyncio.ensure_future(
        asyncio.to_thread(
            gateway.catalog.library.pull,
            name,
            formats=list_loadable_formats(gateway.facts),
            progress=report,
            cancel=cancel,
            insecure=insecure,
            fits=FitsHere(gateway.facts),
        )
    )
    download.add_done_callback(ended)
    try:
        await unless_gone(request, tell_all())
        return download.result()
    except (SourceError, ModelNotFound, NoPlan) as error:
        if gateway.guards.loopback or _is_known(ModelRef.parse(name).host):
            raise
        # whoever may pull from any address must not learn who listens inside this network
        log.warning("pull of %r failed: %s", name, error.sentence())
        raise SourceError(
            f"cannot pull '{name}': its host has no such model, or is no registry",
            hint="the server's log says what went wrong",
        ) from error
    finally:
        cancel.set()
        await asyncio.wait({download})
        gateway.catalog.forget()


def _is_known(host: str | None) -> bool:
    """Tell whether a registry is one of those that names mean if they name none."""
    return host is None or host.lower() in (DEFAULT_HOST, *HUB_HOSTS)
