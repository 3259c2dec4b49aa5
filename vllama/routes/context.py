"""What all handlers are given: the parts of the running server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllama.clock import RealClock
from vllama.errors import VllamaError
from vllama.keys.ring import KeyRing
from vllama.metrics.server_metrics import Metrics
from vllama.routes.chain import Breakers
from vllama.routes.engine_metrics import EngineMetrics
from vllama.routes.events.activity import Activity
from vllama.routes.guards import Guards
from vllama.routes.running import RunningRequests

if TYPE_CHECKING:
    from vllama.models.types import Bundle
    from vllama.plan.types import Facts
    from vllama.rendering.renderer import Renderer
    from vllama.routes.capture_writer import Captures
    from vllama.routes.catalog import Catalog
    from vllama.routes.events.hub import Hub
    from vllama.routes.metering import Meter
    from vllama.routes.pulls import Pulls
    from vllama.routes.request_log import RequestLog
    from vllama.routes.response_store import ResponseStore
    from vllama.scheduler.draft_records import DraftRecords
    from vllama.scheduler.scheduler import Scheduler
    from vllama.supervise.external import UpstreamMonitor
    from vllama.tracing.setup import Tracing
    from vllama.upstream.pool import Upstreams


@dataclass(slots=True)
class Preload:
    """The model that the server was started with, and what its name stood for once it had loaded.

    Without a name there is none.
    """

    name: str | None
    bundle: Bundle | None = None


class Gateway:
    """What the handlers work with; `environ` is what an engine would be started with.

    `settings` are those in effect, without secrets.

    It begins with guards, keys and metrics alone: all requests but those for `WHILE_STARTING` wait
    until it is complete.
    """

    catalog: Catalog
    scheduler: Scheduler
    upstreams: Upstreams
    renderer: Renderer
    facts: Facts
    environ: Mapping[str, str]
    watch: UpstreamMonitor
    preload: Preload
    searxng: str | None
    responses: ResponseStore
    draft_records: DraftRecords
    pulls: Pulls
    meter: Meter
    events: Hub
    log_dir: Path
    settings: Mapping[str, Any]

    def __init__(self, guards: Guards, keys: KeyRing, metrics: Metrics) -> None:
        """To be made in the running loop."""
        self.guards = guards
        self.keys = keys
        self.metrics = metrics
        self.engine_metrics = EngineMetrics()
        self.running = RunningRequests()
        self.breakers = Breakers(RealClock())
        self.activity = Activity(self.running)
        self.request_log: RequestLog | None = None
        self.tracing: Tracing | None = None
        self.captures: Captures | None = None
        self.stopping = False  # a signal has told the server to stop; it may still serve
        self._complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def complete(
        self,
        *,
        catalog: Catalog,
        scheduler: Scheduler,
        upstreams: Upstreams,
        renderer: Renderer,
        facts: Facts,
        environ: Mapping[str, str],
        watch: UpstreamMonitor,
        preload: Preload,
        responses: ResponseStore,
        draft_records: DraftRecords,
        pulls: Pulls,
        meter: Meter,
        events: Hub,
        log_dir: Path,
        settings: Mapping[str, Any],
        searxng: str | None = None,
        request_log: RequestLog | None = None,
        captures: Captures | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Take what was still missing, and let the waiting requests go on."""
        self.catalog, self.scheduler, self.upstreams = catalog, scheduler, upstreams
        self.renderer, self.facts, self.environ = renderer, facts, environ
        self.watch, self.preload, self.searxng = watch, preload, searxng
        self.responses, self.pulls, self.events = responses, pulls, events
        self.meter = meter
        self.log_dir, self.settings = log_dir, settings
        self.request_log, self.captures = request_log, captures
        self.draft_records = draft_records
        self.tracing = tracing
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
