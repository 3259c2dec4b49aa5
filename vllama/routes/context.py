"""What all handlers are given: the parts of the running server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllama.accounts.keys.ring import KeyRing
from vllama.base.clock import RealClock
from vllama.base.errors import VllamaError
from vllama.observe.metrics.server_metrics import Metrics
from vllama.routes.batches.lane import Lane
from vllama.routes.engine_metrics import EngineMetrics
from vllama.routes.events.activity import Activity
from vllama.routes.guards import Guards
from vllama.routes.in_use import InUse
from vllama.routes.recording.running import RunningRequests
from vllama.targets.choice import Breakers

if TYPE_CHECKING:
    from vllama.accounts.keys.key import Key
    from vllama.chat.templates.jinja.renderer import Renderer
    from vllama.models.types import Bundle
    from vllama.net.http.request import Request
    from vllama.net.upstream.pool import Upstreams
    from vllama.observe.tracing.setup import Tracing
    from vllama.plan.types import Facts
    from vllama.routes.batches.runner import Batches
    from vllama.routes.catalog import Catalog
    from vllama.routes.events.hub import Hub
    from vllama.routes.pulls import Pulls
    from vllama.routes.recording.capture_writer import Captures
    from vllama.routes.recording.metering import Meter
    from vllama.routes.response_store import ResponseStore
    from vllama.scheduler.memory import DraftRecords
    from vllama.scheduler.scheduler import Scheduler
    from vllama.scheduler.slot_cache.cache import SlotCache
    from vllama.targets.monitor import UpstreamMonitor
    from vllama.targets.nodes.watch import Nodes


@dataclass(slots=True)
class Preload:
    """The model that the server was started with, and what its name stood for once it had loaded.

    Without a name there is none.
    """

    name: str | None
    bundle: Bundle | None = None


class Gateway:
    """What the handlers work with.

    It begins with settings, keys and metrics alone: all requests but those with a route that is
    `starting` wait until it is complete.
    """

    catalog: Catalog
    scheduler: Scheduler
    upstreams: Upstreams
    renderer: Renderer
    environ: Mapping[str, str]  # what an engine would be started with
    watch: UpstreamMonitor
    preload: Preload
    responses: ResponseStore
    draft_records: DraftRecords
    pulls: Pulls
    batches: Batches
    meter: Meter
    events: Hub
    describe_api: Callable[..., bytes]
    answer: Callable[[Request, Key | None], Awaitable[None]]  # a request of the server's own
    reload: Callable[[], Awaitable[None]]  # reads the settings again

    def __init__(self, in_use: InUse, keys: KeyRing, metrics: Metrics) -> None:
        """To be made in the running loop."""
        self.in_use = in_use
        self.keys = keys
        self.metrics = metrics
        self.engine_metrics = EngineMetrics()
        self.running = RunningRequests()
        self.breakers: Breakers[str] = Breakers(RealClock())  # of links here, by their files
        self.activity = Activity(self.running)
        self.tracing: Tracing | None = None
        self.captures: Captures | None = None
        self.lane = Lane(RealClock())
        self.slot_cache: SlotCache | None = None
        self.nodes: Nodes | None = None  # where this server is the head of a cluster
        self.stopping = False  # a signal has told the server to stop; it may still serve
        self._complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def guards(self) -> Guards:
        """What clients may do."""
        return self.in_use.now.guards

    @property
    def facts(self) -> Facts:
        """What plans are made from."""
        return self.in_use.facts

    def offers(self, bundle: Bundle) -> bool:
        """Return whether this server itself serves a model: not where it only forwards."""
        only_forwards = self.nodes is not None and self.nodes.local is None
        return not only_forwards or bundle.upstream is not None

    def complete(self) -> None:
        """Let the waiting requests go on: all that was missing is set."""
        self._complete.set_result(None)

    def fail(self, error: VllamaError) -> None:
        """Fail all waiting requests, and those that still come, with `error`."""
        self._complete.set_exception(error)
        self._complete.exception()  # else asyncio warns if no request waits for it

    @property
    def is_complete(self) -> bool:
        """Whether everything is there."""
        return self._complete.done() and not self._complete.exception()

    async def completed(self) -> None:
        """Wait for `complete`. Raises the error of `fail`."""
        if not self.is_complete:
            await asyncio.shield(self._complete)  # one cancelled request must not cancel it for all
