"""Chain of a request's targets: its model, then each of its fallbacks, until one responds.

The handler of the route runs for each, as if the client had asked for that model, as long as no
byte of an answer has been sent. So every route and dialect falls back in the same way, and no
handler knows of it: `find_model` asks the chain of the running request. Which of several equal
servers answers for a link is decided by its lease (`inference.lease`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from vllama.accounts.keys.ring import check_model
from vllama.base import log_context
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
from vllama.models.settings import ModelSettings
from vllama.net.http.departure import unless_gone
from vllama.routes.first_token import TooSlow, first_token_in_time
from vllama.routes.route import Handler

if TYPE_CHECKING:
    from vllama.models.lookup import Entry
    from vllama.models.types import Bundle
    from vllama.net.http.request import Request
    from vllama.routes.catalog import Catalog
    from vllama.routes.context import Gateway

log = logging.getLogger(__name__)

MISSING = ModelNotFound.status  # here, or at the server of a link
FIRST_TOKEN_S = 30.0
LATER_FACTOR = 10
"""How much longer each attempt may take once every link has been tried."""
PAUSES_S = (0.1, 0.3, 1.0, 2.0)
"""Before every link is tried once more: one may have come back while the others were tried."""


class PassedOver(VllamaError):
    """A model has failed lately, and others may answer for it."""

    def __init__(self) -> None:
        super().__init__("it failed recently")


class ChainFailed(Busy):
    """Neither the model nor any of its fallbacks could answer."""


async def answer_by_chain(gateway: Gateway, request: Request, handle: Handler) -> None:
    """Run a handler for the requested model, then for each of its fallbacks until one answers.

    Raises what the handler raises if the model has no fallbacks, ChainFailed if all have failed.
    """
    chain = Chain(gateway, request, handle, await request.body())
    token = current.set(chain)
    try:
        await chain.run()
    finally:
        current.reset(token)


class Chain:
    """The chain of one request; `link` is what is to answer now, "" for the requested model."""

    def __init__(self, gateway: Gateway, request: Request, handle: Handler, body: bytes) -> None:
        self._gateway = gateway
        self._request = request
        self._handle = handle
        self._body = body
        self._headers = list(request.extra)
        self._running = gateway.running.of(request)
        self._skips = True  # models that have failed lately
        self._failures: dict[str, VllamaError] = {}  # the last one of each link
        self._failed: set[str] = set()  # the keys of models that have failed for this request
        self._begin_time: Callable[[float], object] = bool  # called with the limit for a token
        self.link = ""
        self.name = ""  # of the requested model, once the handler has looked for it
        self.model = ""  # the requested model, "" if there is none of that name here
        self.bundle: Bundle | None = None  # what is to answer
        self.settings = ModelSettings()  # those of the requested model

    async def run(self) -> None:
        """Answer, or raise.

        1. Try all in order, but skip those that have failed lately.
        2. Try those that were skipped: nothing else lives.
        3. Try all again, after pauses, if a failure may have passed.
        """
        # the first attempt also tells which model is meant, and what its chain is
        if await self._try(""):
            return
        links = self.settings.fallback or ()
        for link in links:
            if await self._try(link):
                return
        self._skips = False
        for link in ("", *links):
            if link not in self._failures and await self._try(link):
                return
        for pause_s in PAUSES_S:
            again = [
                link
                for link, error in self._failures.items()
                if not (isinstance(error, BadRequest | NoPlan) or error.status == MISSING)
            ]
            if not again:
                break
            await unless_gone(self._request, asyncio.sleep(pause_s))
            for link in again:
                if await self._try(link, LATER_FACTOR):
                    return
        raise make_error(self.name, self._failures)

    async def _try(self, link: str, patience: float = 1) -> bool:
        """Try `link`; return whether it responded. Raises what no other link could help with."""
        self._begin(link)
        try:
            async with first_token_in_time(self._running, self._server_fails) as begin:
                self._begin_time = lambda limit_s: begin(patience * limit_s)
                await self._handle(self._gateway, self._request)
        except PassedOver:
            return False
        except VllamaError as error:
            if not self._may_go_on(error):
                raise
            self._note_failure(error)
            return False
        if self.bundle is not None:
            self._gateway.breakers.note_success(self.bundle.key)
        return True

    def _begin(self, link: str) -> None:
        """Put everything back as it was before the first attempt; `link` is to answer."""
        request = self._request
        self.link, self.bundle = link, None
        request.put_back(self._body)
        request.extra, request.queue_position = list(self._headers), 0
        self._running.start_over()

    async def find(self, name: str) -> Entry:
        """Return the current target for the model `name`. Raises as `Catalog.find`.

        Raises Skipped for a model whose server is down, or that has failed lately or for this very
        request. What was set for the requested model's answers also holds for its fallbacks.
        """
        catalog = self._gateway.catalog
        if self.link:
            entry = (await catalog.find(self.link, trusted=True)).answer_as(self.settings)
        else:
            self.name, self.settings = name, catalog.library.find_settings(name)
            entry = await catalog.find(name)
            self.settings, self.model = entry.bundle.settings, entry.bundle.name
        bundle = self.bundle = entry.bundle
        if self.settings.fallback:
            if self._skips and (
                bundle.key in self._failed
                or self._is_down(bundle)
                or not self._gateway.breakers.admit(bundle.key)
            ):
                raise PassedOver
            self._begin_time(self.settings.fallback_after_s or FIRST_TOKEN_S)
        return entry

    @property
    def may_pass_on(self) -> bool:
        """True if another server is to respond, and links are left that have not been tried."""
        return self._is_elsewhere and self._skips and bool(self.settings.fallback)

    # -- failures -------------------------------------------------------------------------------

    @property
    def _is_elsewhere(self) -> bool:
        return self.bundle is not None and self.bundle.upstream is not None

    def _is_down(self, bundle: Bundle) -> bool:
        """Return whether all servers that have a model fail, or their health checks do."""
        return self._is_elsewhere and (
            self._fails_checks(bundle) or self._gateway.scheduler.is_failing(bundle)
        )

    def _fails_checks(self, bundle: Bundle) -> bool:
        servers, _ = self._gateway.facts.found.find_servers(bundle)
        return self._gateway.watch.are_down(servers)

    def _server_fails(self) -> bool:
        """Return whether a server is found to be down while a token of it is waited for."""
        bundle = self.bundle
        return (
            self._skips and bundle is not None and self._is_elsewhere and self._fails_checks(bundle)
        )

    def _may_go_on(self, error: VllamaError) -> bool:
        """Return whether another link may answer what this one could not."""
        if self._request.status or not self.settings.fallback:
            return False
        if isinstance(error, Forbidden | LimitReached):
            return False
        if isinstance(error, ShuttingDown) and self._gateway.stopping:
            return False
        if isinstance(error, BadRequest):
            # another server refuses what others may take; or the link names no model
            return self._is_elsewhere or (self.link != "" and self.bundle is None)
        return True

    def _note_failure(self, error: VllamaError) -> None:
        """Make requests skip a failed link for a while, whatever name they use for it."""
        gateway, lease, bundle = self._gateway, self._running.lease, self.bundle
        self._failures[self.link] = error
        if self._is_elsewhere and lease is not None:
            if isinstance(error, TooSlow):  # all other failures are noted with the lease
                gateway.scheduler.note_failure(lease, error)
        elif bundle and not isinstance(error, BadRequest | QueueFull | ModelNotFound):
            gateway.breakers.note_failure(bundle.key, slow=isinstance(error, TooSlow))
        if bundle is not None:
            self._failed.add(bundle.key)
        gateway.metrics.fallbacks.add((self.model, self.link or self.model, error.kind))
        log.warning("%s: %s failed: %s", self.name, self.link or "it", error.message)


current: ContextVar[Chain | None] = ContextVar("chain", default=None)
"""The chain of the request that the running task answers; None: it has none."""


async def find_model(catalog: Catalog, name: str, text: str = "model '{}' not found") -> Entry:
    """Return the model, or raise ModelNotFound in the words of the route.

    Raises Forbidden if the key of the request does not allow the model.
    """
    chain = current.get()
    log_context.requested.set(name)
    try:
        entry = await (catalog.find(name) if chain is None else chain.find(name))
    except ModelNotFound as error:
        if chain is not None and chain.link:
            raise
        raise ModelNotFound(name, message=text.format(name)) from error
    # a key that allows a model allows its fallbacks
    check_model(name, chain.model if chain is not None else entry.bundle.name)
    log_context.model.set(entry.bundle.name)
    return entry


def make_error(name: str, failures: dict[str, VllamaError]) -> VllamaError:
    """Return the error of a request that nothing has answered."""
    first = next(iter(failures.values()))
    if all(isinstance(x, BadRequest) or x.status == MISSING for x in failures.values()):
        return first
    words = [f"{link or 'here'}: {error.message}" for link, error in failures.items()]
    return ChainFailed(
        f"cannot respond as '{name}', and its fallbacks failed too: {'; '.join(words)}",
        retry_after_s=getattr(first, "retry_after_s", 1.0),
    )
