"""A download that a request waits for: progress on the way, an end when the client leaves."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from vllama.base.errors import ModelNotFound, NoPlan, SourceError, VllamaError
from vllama.models.names.ref import DEFAULT_HOST, HUB_HOSTS, ModelRef
from vllama.models.types import Bundle, Progress, PullEvent
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import Request
from vllama.plan.choose import list_loadable_formats
from vllama.plan.preview import FitsHere
from vllama.routes.pulls import Pull

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

    A download that is under way is joined; it ends with the last client that waits for it.

    `insecure` allows plain http to a registry.

    Raises ClientGone, and what the library raises.
    """
    pull = join_pull(gateway, name, insecure=insecure)
    return await unless_gone(request, pull.follow(tell))


def join_pull(gateway: Gateway, name: str, *, insecure: bool = False) -> Pull:
    """Return the download of `name`, which is started unless it is under way already."""

    def download(progress: Progress, cancel: threading.Event) -> Bundle:
        try:
            return gateway.catalog.library.remote.pull(
                name,
                formats=list_loadable_formats(gateway.facts),
                progress=progress,
                cancel=cancel,
                insecure=insecure,
                fits=FitsHere(gateway.facts),
            )
        except VllamaError as error:
            if not cancel.is_set():
                log.warning("pull of %r failed: %s", name, error.sentence())
            tells_network = isinstance(error, SourceError | ModelNotFound | NoPlan)
            is_known = gateway.guards.loopback or _is_known(ModelRef.parse(name).host)
            if is_known or not tells_network:
                raise
            # whoever may pull from any address must not learn who listens inside this network
            raise SourceError(
                f"cannot pull '{name}': its host has no such model, or is no registry",
                hint="the server's log says what went wrong",
            ) from error
        finally:
            loop.call_soon_threadsafe(gateway.catalog.forget)

    loop = asyncio.get_running_loop()
    return gateway.pulls.join(name, download, insecure=insecure)


def _is_known(host: str | None) -> bool:
    """Tell whether a registry is one of those that names mean if they name none."""
    return host is None or host.lower() in (DEFAULT_HOST, *HUB_HOSTS)
