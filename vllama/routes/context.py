"""The parts of the running server, which all handlers are given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllama.accounts.keys.key import make_secret
from vllama.accounts.keys.ring import KeyRing
from vllama.base import audit, executors
from vllama.base.audit import Row
from vllama.base.clock import RealClock
from vllama.base.errors import VllamaError
from vllama.observe.metrics.server_metrics import Metrics
from vllama.routes.engine_metrics import EngineMetrics
from vllama.routes.events.activity import Activity
from vllama.routes.guards import Guards
from vllama.routes.in_use import InUse
from vllama.routes.recording.running import RunningRequests
from vllama.routes.recording.stage import Stages
from vllama.targets.choice import Breakers

if TYPE_CHECKING:
    from vllama.chat.templates.jinja.renderer import Renderer
    from vllama.models.types import Bundle
    from vllama.net.http.listener import Certificate
    from vllama.net.upstream.pool import Upstreams
    from vllama.observe.tracing.setup import Tracing
    from vllama.plan.types import Facts
    from vllama.routes.batches.lane import Lane
    from vllama.routes.batches.runner import Batches
    from vllama.routes.catalog import Catalog
    from vllama.routes.events.hub import Hub
    from vllama.routes.pulls import Pulls
    from vllama.routes.recording.capture_writer import Captures
    from vllama.routes.recording.detached import DetachedStreams
    from vllama.routes.recording.metering import Meter
    from vllama.routes.response_store import ResponseStore
    from vllama.routes.route import Route
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Starting:
    """The parts that exist before the machine is detected; they serve the routes `starting`."""

    in_use: InUse
    keys: KeyRing
    metrics: Metrics
    routes: tuple[Route, ...]
    owner_secret: str = field(default_factory=make_secret)  # of the data folder owner's commands
    running: RunningRequests = field(default_factory=RunningRequests)
    activity: Activity = field(default_factory=Activity)

    @property
    def guards(self) -> Guards:
        """The rights of clients."""
        return self.in_use.now.guards


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gateway(Starting):
    """All parts that handlers work with, made once from finished ones."""

    catalog: Catalog
    scheduler: Scheduler
    upstreams: Upstreams
    renderer: Renderer
    environ: Mapping[str, str]  # what an engine would be started with
    watch: UpstreamMonitor
    preload: Preload
    responses: ResponseStore
    pulls: Pulls
    batches: Batches
    lane: Lane
    meter: Meter
    stages: Stages  # all that takes part in requests, of the parts here and others
    events: Hub
    tracing: Tracing | None
    captures: Captures | None
    detached: DetachedStreams
    slot_cache: SlotCache | None
    reload: Callable[[], Awaitable[None]]  # reads the settings again
    certificate: Certificate | None
    stop: asyncio.Event  # set by a signal; the server may still serve
    engine_metrics: EngineMetrics = field(default_factory=EngineMetrics)
    # of links here, by their files
    breakers: Breakers[str] = field(default_factory=lambda: Breakers(RealClock()))

    async def record_act(self, act: str, subject: str, old: Row = None, new: Row = None) -> None:
        """Record an administrative act in the audit log."""
        folder = self.in_use.config.data_dir
        await executors.storage.run(audit.record, folder, act, subject, old, new)

    async def describe_model(self, name: str) -> dict[str, Any]:
        """Return a model for the audit log; nothing if there is none."""
        with suppress(VllamaError):  # by `search`: a missing one needs no hint
            found = await executors.disk.run(self.catalog.library.search, name)
            return {"digest": found.digest} if found else {}
        return {}

    @property
    def nodes(self) -> Nodes | None:
        """The other machines, where this server is the head of a cluster."""
        return self.in_use.nodes

    @property
    def stopping(self) -> bool:
        """True once a signal has told the server to stop."""
        return self.stop.is_set()

    @property
    def facts(self) -> Facts:
        """The inputs of plans."""
        return self.in_use.facts

    def offers(self, bundle: Bundle) -> bool:
        """Return whether this server itself serves a model: not where it only forwards."""
        only_forwards = self.nodes is not None and self.nodes.local is None
        return not only_forwards or bundle.upstream is not None
