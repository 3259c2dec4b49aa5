"""Fallback chains: a request that its model cannot answer is answered by the next link.

The handler of the route runs again for each link, as if the client had asked for that model, as
long as no byte of an answer has been sent. So every route and dialect falls back in the same way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from vllama.base.errors import (
    BadRequest,
    Busy,
    Forbidden,
    LimitReached,
    ModelNotFound,
    NoPlan,
    QueueFull,
    ShuttingDown,
    VllamaError,
)
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import Request
from vllama.routes.chain import Chain, Skipped, current
from vllama.routes.inference.first_token import TooSlow, first_token_in_time
from vllama.routes.inference.offers import list_servers

if TYPE_CHECKING:
    from vllama.models.types import Bundle
    from vllama.routes.context import Gateway

log = logging.getLogger(__name__)

Handler = Callable[["Gateway", Request], Awaitable[None]]
LATER_FACTOR = 10
"""How much longer each attempt may take once every link has been tried."""
PAUSES_S = (0.1, 0.3, 1.0, 2.0)
"""Before every link is tried once more: one may have come back while the others were tried."""


class ChainFailed(Busy):
    """Neither the model nor any of its fallbacks could answer."""


async def answer_by_chain(gateway: Gateway, request: Request, handle: Handler) -> None:
    """Run a handler for the requested model, then for each of its fallbacks until one answers.

    1. Try all in order, but skip those that have failed lately.
    2. Try those that were skipped: nothing else lives.
    3. Try all again, after pauses, if a failure may have passed.

    Raises what the handler raises if the model has no fallbacks, ChainFailed if all have failed.
    """
    chain = Chain(gateway.breakers, lambda bundle: is_down(gateway, bundle))
    token = current.set(chain)
    try:
        await _Attempts(gateway, request, handle, chain, await request.body()).run()
    finally:
        current.reset(token)


class _Attempts:
    """The attempts to answer one request."""

    def __init__(
        self, gateway: Gateway, request: Request, handle: Handler, chain: Chain, body: bytes
    ) -> None:
        self._gateway = gateway
        self._request = request
        self._handle = handle
        self._chain = chain
        self._body = body
        self._headers = list(request.extra)
        self._failures: dict[str, VllamaError] = {}  # the last one of each link

    async def run(self) -> None:
        """Answer, or raise."""
        # the first attempt also tells which model is meant, and what its chain is
        if await self._try(""):
            return
        chain = self._chain
        links = chain.settings.fallback or ()
        for link in links:
            if await self._try(link):
                return
        chain.skips = False
        for link in ("", *links):
            if link not in self._failures and await self._try(link):
                return
        for pause_s in PAUSES_S:
            again = [
                link
                for link, error in self._failures.items()
                if not isinstance(error, BadRequest | ModelNotFound | NoPlan)
            ]
            if not again:
                break
            await unless_gone(self._request, asyncio.sleep(pause_s))
            for link in again:
                if await self._try(link, LATER_FACTOR):
                    return
        raise make_error(chain.name, self._failures)

    async def _try(self, link: str, patience: float = 1) -> bool:
        """Let `link` answer; return whether it did. Raises what no other link could help with."""
        gateway, request, chain = self._gateway, self._request, self._chain
        chain.link, chain.bundle = link, None
        request.put_back(self._body)
        request.extra, request.queue_position = list(self._headers), 0
        running = gateway.running.of(request)
        running.start_over()
        try:
            async with first_token_in_time(running, self._server_fails) as begin:
                chain.on_found = lambda limit_s: begin(patience * limit_s)
                await self._handle(gateway, request)
        except Skipped:
            return False
        except VllamaError as error:
            if not self._may_go_on(error):
                raise
            self._note_failure(link, error)
            return False
        chain.note_success()
        return True

    def _server_fails(self) -> bool:
        """Return whether health checks say that the server which is to answer is down."""
        bundle = self._chain.bundle
        return self._chain.skips and bundle is not None and fails_checks(self._gateway, bundle)

    def _may_go_on(self, error: VllamaError) -> bool:
        """Return whether another link may answer what this one could not."""
        chain = self._chain
        if self._request.status or not chain.settings.fallback:
            return False
        if isinstance(error, Forbidden | LimitReached):
            return False
        if isinstance(error, ShuttingDown) and self._gateway.stopping:
            return False
        if isinstance(error, BadRequest):
            # another server refuses what others may take; or the link names no model
            return chain.is_elsewhere or (chain.link != "" and chain.bundle is None)
        return True

    def _note_failure(self, link: str, error: VllamaError) -> None:
        gateway, chain = self._gateway, self._chain
        self._failures[link] = error
        lease = gateway.running.of(self._request).lease
        if chain.is_elsewhere and lease is not None:
            if isinstance(error, TooSlow):  # all other failures are noted with the lease
                gateway.scheduler.note_failure(lease, error)
        elif not isinstance(error, BadRequest | QueueFull | ModelNotFound):
            chain.note_failure(slow=isinstance(error, TooSlow))
        chain.note_attempt()
        gateway.metrics.fallbacks.add((chain.model, chain.served, error.kind))
        log.warning("%s: %s cannot answer: %s", chain.name, link or "it", error.message)


def is_down(gateway: Gateway, bundle: Bundle) -> bool:
    """Return whether all servers that have a model fail, or their health checks do."""
    return bundle.upstream is not None and (
        fails_checks(gateway, bundle) or gateway.scheduler.is_failing(bundle)
    )


def fails_checks(gateway: Gateway, bundle: Bundle) -> bool:
    """Return whether all servers that have a model fail their health checks."""
    return bundle.upstream is not None and gateway.watch.are_down(list_servers(gateway, bundle))


def make_error(name: str, failures: dict[str, VllamaError]) -> VllamaError:
    """Return the error of a request that nothing has answered."""
    first = next(iter(failures.values()))
    if all(isinstance(error, BadRequest | ModelNotFound) for error in failures.values()):
        return first
    words = [f"{link or 'here'}: {error.message}" for link, error in failures.items()]
    return ChainFailed(
        f"cannot answer as '{name}', nor can its fallbacks: {'; '.join(words)}",
        retry_after_s=getattr(first, "retry_after_s", 1.0),
    )
