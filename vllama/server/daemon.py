"""The running server: its parts and its shutdown.

On the first signal /readyz says no; after `shutdown_delay` the server accepts no connections, lets
all requests finish, those that wait too, stops the engines and closes connections, each step with a
limit. A second signal skips the wait for requests. A third ends the process at once; the engines'
guards then clear up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vllama.accounts.keys.key import FORWARDED
from vllama.accounts.keys.limits import KeyLimits
from vllama.accounts.usage.recorder import UsageRecorder
from vllama.base import audit, executors
from vllama.base.clock import Clock, RealClock
from vllama.base.errors import NoPlan
from vllama.chat.templates.jinja.renderer import Renderer
from vllama.config import Config, environ, find_config_file, read_node_key
from vllama.config.address import reachable_host
from vllama.machine.detect import describe
from vllama.net.http.listener import Certificate, bind
from vllama.net.http.server import HttpServer
from vllama.net.upstream.pool import Upstreams
from vllama.observe.captures.folder import CaptureFolder
from vllama.observe.metrics.server_metrics import Metrics
from vllama.observe.tracing.setup import Tracing
from vllama.plan.choose import choose_engine
from vllama.routes.app import App
from vllama.routes.batches.lane import Lane
from vllama.routes.batches.runner import Batches, Host
from vllama.routes.batches.store import BatchStore
from vllama.routes.catalog import Catalog
from vllama.routes.context import Gateway, Preload
from vllama.routes.events.activity import History
from vllama.routes.events.hub import Hub, RowChanges
from vllama.routes.in_use import InUse
from vllama.routes.inference.adapters import keep_names
from vllama.routes.inference.kept_prompts import KeptPrompts
from vllama.routes.inference.served_by import ServedBy
from vllama.routes.inference.shared_prefixes import SharedPrefixes
from vllama.routes.pulls import Pulls
from vllama.routes.recording.capture_writer import Captures
from vllama.routes.recording.detached import DetachedStreams
from vllama.routes.recording.draft_speeds import DraftTimer
from vllama.routes.recording.metering import Meter
from vllama.routes.recording.stage import Stages
from vllama.routes.recording.traces import Traces
from vllama.routes.response_store import ResponseStore
from vllama.scheduler.memory import open_draft_records
from vllama.scheduler.scheduler import Scheduler
from vllama.server.engine_hooks import EngineHooks, Planner
from vllama.server.picker import serve_picker
from vllama.server.preload import Preloader
from vllama.server.reload import FileWatch, Reloader, make_limits, warn_of_exposure
from vllama.server.reporter import Reporter, ServiceNotice
from vllama.server.signals import Stop
from vllama.supervise.aio import keep_running
from vllama.targets.monitor import UpstreamMonitor

if TYPE_CHECKING:
    from vllama.scheduler.slot_cache.cache import SlotCache
    from vllama.targets.nodes.watch import Nodes

log = logging.getLogger(__name__)

STOP_LIMIT_S = 20.0


class Daemon:
    """Everything that lives while the server runs."""

    def __init__(
        self,
        app: App,
        certificate: Certificate | None,
        stop: asyncio.Event,
        reporter: Reporter,
        load: Callable[[], Config],
        tracing: Tracing | None,
    ) -> None:
        """Make all parts, and of them the `gateway`; `stop` will be set to end the server."""
        starting, clock = app.starting, RealClock()
        in_use, metrics = starting.in_use, starting.metrics
        config, facts, env = in_use.config, in_use.facts, environ()
        self._in_use = in_use
        self._reporter = reporter
        self._service = ServiceNotice(env)
        self._picker = bind(config.host, config.picker_port) if config.picker_port else None
        renderer = Renderer(env)
        draft_records = open_draft_records(config.data_dir)
        catalog, pulls = Catalog(in_use, clock), Pulls(metrics)
        upstreams = Upstreams()
        watch = UpstreamMonitor(*facts.found.find_servers(), upstreams)
        slot_cache = open_slot_cache(config, upstreams, metrics, clock)
        planner = Planner(in_use, renderer, reporter, draft_records)
        hooks = EngineHooks(in_use, env, upstreams, watch, slot_cache, reporter)
        scheduler = Scheduler(hooks.make_hooks(planner), make_limits(facts), clock)
        scheduler.marks.on_mark = lambda mark: metrics.count_model(
            mark.kind, mark.model, seconds=mark.seconds, cause=mark.cause
        )
        running, activity = starting.running, starting.activity
        lane, meter = Lane(clock, scheduler), open_meter(in_use, metrics, clock)
        captures, detached = open_captures(in_use), DetachedStreams(in_use, starting.keys)
        history = History(scheduler, running, activity, facts.platform)
        changes = RowChanges(scheduler, running, activity, pulls, history, catalog, slot_cache)
        host = Host(answer=app.answer, keys=starting.keys, lane=lane, catalog=catalog)
        self._reloader = Reloader(
            in_use=in_use,
            read=load,
            keys=starting.keys,
            catalog=catalog,
            scheduler=scheduler,
            watch=watch,
            certificate=certificate,
            planner=planner,
            reporter=reporter,
            service=self._service,
        )
        self.gateway = Gateway(
            in_use=in_use,
            keys=starting.keys,
            metrics=metrics,
            routes=starting.routes,
            owner_secret=starting.owner_secret,
            running=running,
            activity=activity,
            catalog=catalog,
            scheduler=scheduler,
            upstreams=upstreams,
            renderer=renderer,
            environ=env,
            watch=watch,
            preload=Preload(config.model),
            responses=ResponseStore(config.data_dir / "responses"),
            pulls=pulls,
            batches=Batches(open_batches(config), host),
            lane=lane,
            meter=meter,
            stages=Stages(
                lane,
                meter,
                detached,
                captures,
                KeptPrompts(slot_cache) if slot_cache is not None else None,
                SharedPrefixes(config.run_dir / "slots"),
                ServedBy(),
                DraftTimer(draft_records),
                activity,
                Traces(tracing) if tracing is not None else None,
            ),
            events=Hub(changes, history, catalog),
            tracing=tracing,
            captures=captures,
            detached=detached,
            slot_cache=slot_cache,
            reload=self._reloader.reload,
            certificate=certificate,
            stop=stop,
        )

    async def run(
        self,
        server: HttpServer,
        http: asyncio.Task[None],
        stop: Stop,
        reload: asyncio.Event,
    ) -> None:
        """Serve until a signal or a failed preload sets `stop`.

        `server` runs in `http`; both have ended when this returns.
        """
        audit.actor.set(audit.OWNER)
        gateway, captures = self.gateway, self.gateway.captures
        async with asyncio.TaskGroup() as group:

            def keep(name: str, run: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
                work = keep_running(name, run, stop.asked.is_set)
                return group.create_task(work, name=name)

            keeper = group.create_task(gateway.scheduler.run(), name="scheduler")
            if captures is not None:
                keep("captures", captures.run)
            keep("usage", gateway.meter.recorder.run)
            address = self._in_use.config.url
            self._service.ready(f"listening on {address}")
            for line in self._describe_start(address):
                self._reporter.note(line)
            warn_of_exposure(self._in_use.config, self._reporter)
            watching = keep("watch", gateway.watch.run)
            preloader = Preloader(gateway, self._reporter)
            preload = group.create_task(preloader.run(stop, address), name="preload")
            publishing = keep("events", gateway.events.run)
            reloading = group.create_task(self._reloader.run(reload), name="reload")
            helpers = [watching, publishing, reloading, keep("names", partial(keep_names, gateway))]
            batching = keep("batches", gateway.batches.run)
            if gateway.slot_cache is not None:
                helpers.append(keep("conversations", gateway.slot_cache.run))
            if gateway.certificate is not None:
                helpers.append(keep("certificate", gateway.certificate.watch))

            helpers.append(keep("models", preloader.keep_listed))
            if self._picker is not None:
                helpers.append(keep("picker", partial(serve_picker, gateway, self._picker)))

            def use_lists() -> None:
                """Use the nodes and models that the settings list now."""
                nodes, config = self._in_use.nodes, self._in_use.config
                if nodes is None and config.is_head:
                    nodes = self._in_use.nodes = make_nodes(config, gateway.upstreams)
                    helpers.append(keep("nodes", nodes.run))
                if nodes is not None:
                    nodes.use(config.nodes)
                preloader.listed.set()

            use_lists()
            self._reloader.on_reload = use_lists
            if self._in_use.config.watch:
                files = FileWatch(self._list_files)
                helpers.append(keep("files", partial(files.run, reload.set)))
            await stop.asked.wait()
            preload.cancel()
            batching.cancel()  # a stop does not wait for rows
            await self._drain(gateway, server, stop)
            for task in helpers:
                task.cancel()
            await self._end(server, http, keeper)
            if captures is not None:
                captures.close()
            gateway.meter.recorder.close()

    async def _drain(self, gateway: Gateway, server: HttpServer, stop: Stop) -> None:
        """Let load balancers notice, then end what is endless and wait for all other requests."""
        server.drain()
        hurried = asyncio.ensure_future(stop.hurry.wait())
        if delay_s := self._in_use.config.shutdown_delay_s:
            self._report_stop(f"stopping: accepting requests for another {delay_s:g} s")
            await asyncio.wait({hurried}, timeout=delay_s)
        self._report_stop(self._describe_stop(len(gateway.running.list_requests())))
        server.stop()
        gateway.events.close()
        gateway.pulls.cancel_all()
        drained = asyncio.ensure_future(server.drained.wait())
        await asyncio.wait(
            {drained, hurried},
            timeout=self._in_use.config.drain_timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if unfinished := gateway.running.list_requests():
            self._reporter.note("stopping unfinished responses")
        for request in (running.request for running in unfinished):
            if request.status and not request.done and request.header(FORWARDED):
                request.fail()  # a head resumes it on another node
        drained.cancel()
        hurried.cancel()

    async def _end(
        self, server: HttpServer, http: asyncio.Task[None], keeper: asyncio.Task[None]
    ) -> None:
        """Stop in reverse order: the queue, engines, connections."""
        self.gateway.scheduler.close_queue()
        self.gateway.upstreams.mark_stopping()
        keeper.cancel()
        await asyncio.wait({keeper}, timeout=STOP_LIMIT_S)
        if self.gateway.slot_cache is not None:
            self.gateway.slot_cache.store.close()
        self.gateway.upstreams.close()
        self.gateway.renderer.close()
        server.stop(now=True)
        await asyncio.wait({http})
        self.gateway.batches.store.close()
        if self.gateway.tracing is not None:
            await executors.upkeep.run(self.gateway.tracing.close)

    def _list_files(self) -> list[Path]:
        """Return the files that are read again with the settings."""
        config = self._in_use.config
        keys = (each.key_file for each in config.upstreams)
        named = (config.api_key_file, config.tls_cert, config.tls_key, config.models_file, *keys)
        own = config.config_file or find_config_file(self.gateway.environ)
        return [own, *(path for path in named if path is not None)]

    def _report_stop(self, text: str) -> None:
        self._reporter.note(text)
        self._service.stopping(text)

    def _describe_stop(self, running: int) -> str:
        """Say what a stop waits for: `running` requests to models."""
        if not running:
            return "stopping"
        limit_s = self._in_use.config.drain_timeout_s
        responses = f"{running} response{'s' if running > 1 else ''}"
        return f"waiting up to {limit_s:g} s for {responses}; press Ctrl-C again to stop now"

    def _describe_start(self, address: str) -> list[str]:
        """Return the first report: the address, the machine, and the engine."""
        host = self._in_use.config.host
        others = "" if reachable_host(host) == host else ", and on all other addresses"
        lines = [f"listening on {address}{others}", describe(self._in_use.facts.platform)]
        if self._in_use.config.model:  # its plan will say more in a moment
            return lines
        with contextlib.suppress(NoPlan):
            choice = choose_engine(self._in_use.facts)
            engine = self._in_use.facts.found.engines[choice.engine]
            if not engine.attaches:  # whether it answers is not known yet
                lines.append(f"engine: {engine.title} {choice.installation.version}")
        return lines


def open_captures(in_use: InUse) -> Captures | None:
    """Return the recorder of requests, None if the settings want none recorded."""
    config = in_use.config
    if not config.capture:
        return None
    most = config.capture if isinstance(config.capture, int) else None
    return Captures(CaptureFolder(config.capture_dir, most=most), in_use)


def make_nodes(config: Config, upstreams: Upstreams) -> Nodes:
    """Return the watch of a cluster's other machines, where this server is its head."""
    from vllama.targets.nodes.watch import HERE, Nodes  # only where there are nodes

    return Nodes(
        upstreams,
        local=None if config.no_local else HERE,
        key=read_node_key(config),
        certificates=str(config.node_certs) if config.node_certs else "",
        file=config.data_dir / "nodes.json",
    )


def open_batches(config: Config) -> BatchStore:
    """Return the store of batches; those of the server before this one go on."""
    store = BatchStore(config.data_dir / "batches", config.batch_files_bytes)
    if not store.open():
        log.warning("Files and batches are unavailable (503): %s", store.obstacle)
    return store


def open_slot_cache(
    config: Config, upstreams: Upstreams, metrics: Metrics, clock: Clock
) -> SlotCache | None:
    """Return the store of conversations on disk, None if the settings want none kept.

    Raises ConfigError if there is no room for them, or another server has the folder.
    """
    if not config.cache_disk_bytes:
        for name, settings in config.models:
            if settings.cache_disk:
                log.warning("cache_disk of %s has no effect without --cache-disk", name)
        return None
    from vllama.scheduler.slot_cache.cache import SlotCache
    from vllama.scheduler.slot_cache.store import SlotStore

    store = SlotStore(config.slot_dir, config.cache_disk_bytes, clock.time)
    store.open()
    return SlotCache(store, upstreams, metrics, clock)


def open_meter(in_use: InUse, metrics: Metrics, clock: Clock) -> Meter:
    """Return the request counter, restored from the last run."""
    limits = KeyLimits(clock, lambda: in_use.config.groups)
    recorder = UsageRecorder(in_use.config.data_dir / "usage", limits.restore)
    return Meter(in_use, limits, recorder, metrics)
