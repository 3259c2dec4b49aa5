"""The running server: what it is made of, how it reads its settings again, and how it ends.

On the first signal /readyz says no; after `shutdown_delay` the server accepts no connections, lets
all requests finish, those that wait too, stops the engines and closes connections, each step with a
limit. A second signal skips the wait for requests. A third ends the process at once; the engines'
guards then clear up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vllama import log_context
from vllama.clock import RealClock
from vllama.config import (
    Config,
    describe_answering,
    environ,
    guards,
    list_upstreams,
    models_settings,
    named_file,
    places,
    preferences,
)
from vllama.config.address import is_loopback, reachable_host, url
from vllama.config.changes import compare_settings
from vllama.config.report import report_settings
from vllama.engines.capabilities import Attachable
from vllama.engines.registry import reconfigure
from vllama.errors import (
    ConfigError,
    NoPlan,
    VllamaError,
)
from vllama.hardware.detect import describe
from vllama.http.server import Server
from vllama.metrics.server_metrics import Metrics
from vllama.models.library import Library, open_library
from vllama.plan.choose import choose_engine
from vllama.plan.types import Facts
from vllama.rendering.renderer import Renderer
from vllama.routes.catalog import Catalog
from vllama.routes.context import Gateway, Preload
from vllama.routes.events.changes import Changes
from vllama.routes.events.disk import Disk
from vllama.routes.events.history import History
from vllama.routes.events.hub import Hub
from vllama.routes.pulls import Pulls
from vllama.routes.request_log import RequestLog
from vllama.routes.response_store import ResponseStore
from vllama.scheduler.hooks import Limits
from vllama.scheduler.scheduler import Scheduler
from vllama.server.engine_hooks import EngineHooks
from vllama.server.file_watch import FileWatch
from vllama.server.planner import Planner
from vllama.server.preflight import (
    check_engine,
    check_upstreams,
    list_unknown_links,
    with_preload,
)
from vllama.server.preload import Preloader
from vllama.server.records import open_captures, open_draft_records, open_meter
from vllama.server.reporter import Reporter
from vllama.server.service_notice import ServiceNotice
from vllama.server.signals import Stop
from vllama.supervise.external import UpstreamMonitor
from vllama.supervise.spec import Endpoint
from vllama.tracing.setup import Tracing
from vllama.upstream.pool import Upstreams

log = logging.getLogger(__name__)

STOP_LIMIT_S = 20.0
LOADED_PER_GPU = 3


class Daemon:
    """Everything that lives while the server runs."""

    def __init__(
        self,
        config: Config,
        facts: Facts,
        library: Library,
        reporter: Reporter,
        load: Callable[[], Config],
        metrics: Metrics,
        tracing: Tracing | None,
    ) -> None:
        self._config = config
        self._tracing = tracing
        self._read_settings = load
        self._facts = facts
        self._library = library
        self._reporter = reporter
        self._environ = environ()
        self._renderer = Renderer(self._environ)
        self._service = ServiceNotice(self._environ)
        self._draft_records = open_draft_records(config)
        self._planner = Planner(facts, library, self._renderer, reporter, self._draft_records)
        self._engines = EngineHooks(config, facts, self._environ, reporter)
        clock = RealClock()
        self._meter = open_meter(config.data_dir, metrics, clock)
        self._catalog = Catalog(
            library,
            clock,
            paths=is_loopback(config.host),
            go_templates=config.go_template,
        )
        self._upstreams = Upstreams()
        self._watch = UpstreamMonitor(*list_attached(facts))
        self._preloaded = Preload(config.model)
        self._pulls = Pulls(metrics)
        hooks = self._engines.make_hooks(self._planner, self._upstreams)
        self.scheduler = Scheduler(hooks, scheduler_limits(config, facts), clock)
        self.scheduler.marks.on_mark = lambda mark: metrics.count_model(
            mark.kind, mark.model, seconds=mark.seconds, cause=mark.cause
        )

    async def run(
        self,
        gateway: Gateway,
        listener: socket.socket,
        server: Server,
        http: asyncio.Task[None],
        stop: Stop,
        reload: asyncio.Event,
    ) -> None:
        """Complete `gateway`, and serve until a signal or a failed preload sets `stop`.

        `server` listens on `listener` and runs in `http`; both have ended when this returns.
        """
        async with asyncio.TaskGroup() as group:
            keeper = group.create_task(self.scheduler.run(), name="scheduler")
            captures = open_captures(self._config)
            if captures is not None:
                group.create_task(captures.run(), name="captures")
            if (recorder := self._meter.recorder) is not None:
                group.create_task(recorder.run(), name="usage")
            events = self._make_hub(gateway)
            gateway.complete(
                catalog=self._catalog,
                scheduler=self.scheduler,
                upstreams=self._upstreams,
                renderer=self._renderer,
                facts=self._facts,
                environ=self._environ,
                watch=self._watch,
                preload=self._preloaded,
                responses=ResponseStore(self._config.data_dir / "responses"),
                draft_records=self._draft_records,
                pulls=self._pulls,
                meter=self._meter,
                events=events,
                log_dir=self._config.log_dir,
                settings=report_settings(self._config),
                searxng=self._config.searxng,
                tracing=self._tracing,
                request_log=RequestLog(self._config.log_dir / "requests")
                if self._config.debug_log_requests
                else None,
                captures=captures,
            )
            address = self._address(listener)
            self._service.ready(f"listening on {address}")
            for line in self._describe_start(address):
                self._reporter.note(line)
            self._warn_of_exposure()
            watching = group.create_task(self._watch.run(), name="watch")
            preload = group.create_task(self._complete_start(stop, address), name="preload")
            publishing = group.create_task(events.run(), name="events")
            reloading = group.create_task(self._reload_when(reload, gateway, server), name="reload")
            helpers = [watching, publishing, reloading]
            if self._config.watch:
                files = FileWatch(self._list_files)
                helpers.append(group.create_task(files.run(reload.set), name="files"))
            await stop.asked.wait()
            preload.cancel()
            gateway.stopping = True
            await self._drain(gateway, server, stop)
            for task in helpers:
                task.cancel()
            await self._end(server, http, keeper)
            if captures is not None:
                captures.close()
            if recorder is not None:
                recorder.close()

    def _make_hub(self, gateway: Gateway) -> Hub:
        """Return the source of `/api/events`."""
        history = History(self.scheduler, gateway.activity, self._facts.platform)
        disk = Disk(self._catalog)
        changes = Changes(
            self.scheduler, gateway.running, gateway.activity, self._pulls, history, disk
        )
        return Hub(changes, history, disk)

    async def _drain(self, gateway: Gateway, server: Server, stop: Stop) -> None:
        """Let load balancers notice, then end what is endless and wait for all other requests."""
        server.drain()
        hurried = asyncio.ensure_future(stop.hurry.wait())
        if delay_s := self._config.shutdown_delay_s:
            self._report_stop(f"stopping: requests are accepted for another {delay_s:g} s")
            await asyncio.wait({hurried}, timeout=delay_s)
        self._report_stop(self._describe_stop(len(gateway.running.list_requests())))
        server.stop()
        gateway.events.close()
        self._pulls.cancel_all()
        drained = asyncio.ensure_future(server.drained.wait())
        await asyncio.wait(
            {drained, hurried},
            timeout=self._config.drain_timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if gateway.running.list_requests():
            self._reporter.note("ending the answers that are still running")
        drained.cancel()
        hurried.cancel()

    async def _end(
        self, server: Server, http: asyncio.Task[None], keeper: asyncio.Task[None]
    ) -> None:
        """Stop in reverse order: the queue, engines, connections."""
        self.scheduler.close_queue()
        self._upstreams.mark_stopping()
        keeper.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_LIMIT_S):
                await asyncio.wait({keeper})
        self._upstreams.close()
        self._renderer.close()
        server.stop(now=True)
        await asyncio.wait({http})
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    def _list_files(self) -> list[Path]:
        """Return the files that are read again with the settings."""
        config = self._config
        keys = (each.key_file for each in config.upstreams)
        named = (config.api_key_file, config.tls_cert, config.tls_key, *keys)
        own = config.config_file or named_file(self._environ)
        return [own, *(path for path in named if path is not None)]

    async def _reload_when(self, wanted: asyncio.Event, gateway: Gateway, server: Server) -> None:
        """Read settings and certificate again whenever `wanted` is set, until cancelled."""
        while True:
            await wanted.wait()
            wanted.clear()
            self._service.reloading()
            if server.certificate is not None:
                try:
                    await asyncio.to_thread(server.certificate.reload)
                    log.info("certificate read again, for new connections")
                except ConfigError as error:
                    log.error("the certificate stays as it was: %s", error.sentence())
            try:
                await self._reload(gateway)
                await self._warn_of_links()
            except VllamaError as error:
                log.error("the settings stay as they were: %s", error.sentence())
                gateway.settings = {**gateway.settings, "refused": error.sentence()}
            except Exception:
                # boundary: nothing in a file may end a running server
                log.exception("the settings stay as they were: unexpected error")
            self._service.ready("settings read again")

    async def _reload(self, gateway: Gateway) -> None:
        """Swap the settings in use for those of now, all or none. Raises VllamaError.

        Running requests and loaded models stay as they are; see `config.changes`.
        """
        exposed = self._config.exposure
        new = await asyncio.to_thread(self._read_settings)
        found = compare_settings(self._config, new, named_keys=gateway.keys.has_named)
        upstreams = list_upstreams(found.config)
        engines = self._facts.found
        if moved := upstreams != list_upstreams(self._config):
            engines = reconfigure(engines, {"upstreams": upstreams}, places(found.config))
            check_upstreams(found.config)
        facts = replace(self._facts, found=engines, preferences=preferences(found.config))
        check_engine(facts)
        settings = models_settings(found.config)
        library = self._library
        if settings != models_settings(self._config):
            library = open_library(with_preload(settings, found.config.model))
        # nothing is awaited, nothing fails from here on
        self._config, self._facts, self._library = found.config, facts, library
        gateway.facts, gateway.guards = facts, guards(found.config)
        gateway.keys.use_plain(found.config.api_key)
        gateway.settings = report_settings(found.config)
        self._catalog.library = library
        self._catalog.forget()
        self.scheduler.set_limits(scheduler_limits(found.config, facts), library.renew)
        if moved:
            self._watch.use(*list_attached(facts))
            for instance in self.scheduler.list_instances():
                if instance.bundle.upstream is not None:
                    self.scheduler.unload(instance.bundle, "the upstreams have changed")
        self._planner.use(facts, library)
        self._engines.use(found.config, facts)
        if gateway.captures is not None:
            gateway.captures.settings = describe_answering(found.config)
        log_context.set_level(debug=found.config.debug)
        for line in new.notes:
            log.warning("%s", line)
        for line in found.kept:
            log.warning("%s: needs a restart, the old one stays", line)
        if self._config.exposure != exposed:
            self._warn_of_exposure()
        log.info("settings read again: %s", "; ".join(found.taken) or "nothing new")

    def _report_stop(self, text: str) -> None:
        self._reporter.note(text)
        self._service.stopping(text)

    def _describe_stop(self, running: int) -> str:
        """Say what a stop waits for: `running` requests to models."""
        if not running:
            return "stopping"
        limit_s = self._config.drain_timeout_s
        answers = f"{running} answer{'s' if running > 1 else ''}"
        return f"stopping: {answers} may take up to {limit_s:g} s; Ctrl-C again ends them at once"

    async def _warn_of_links(self) -> None:
        """Warn of fallbacks that cannot answer now."""
        links = list_unknown_links(self._config, self._library)
        for warning in await asyncio.to_thread(list, links):
            log.warning("%s", warning)

    def _warn_of_exposure(self) -> None:
        if warning := self._config.exposure:
            self._reporter.warn(warning)

    async def _complete_start(self, stop: Stop, address: str) -> None:
        """Load the first model if one is named, then report that the server is ready."""
        preloader = Preloader(
            self._config,
            self._facts,
            self._library,
            catalog=self._catalog,
            scheduler=self.scheduler,
            pulls=self._pulls,
            reporter=self._reporter,
            preloaded=self._preloaded,
        )
        await preloader.load(stop)
        if not stop.asked.is_set():
            command = await asyncio.to_thread(preloader.find_command_to_try, address)
            self._reporter.ready(address, command)
            await self._warn_of_links()

    def _address(self, listener: socket.socket) -> str:
        """Return where clients on this machine find the server; the port may have been 0."""
        port = listener.getsockname()[1]
        scheme = "https" if self._config.tls_cert else "http"
        return url(scheme, reachable_host(self._config.host), port)

    def _describe_start(self, address: str) -> list[str]:
        """Return what to report first: the address, the machine, and the engine."""
        lines = [f"listening on {address}", describe(self._facts.platform)]
        if self._config.model:  # its plan will say more in a moment
            return lines
        with contextlib.suppress(NoPlan):
            choice = choose_engine(self._facts)
            title = self._facts.found.engines[choice.engine].title
            lines.append(f"engine: {title} {choice.installation.version}")
        return lines


def list_attached(facts: Facts) -> tuple[tuple[Endpoint, ...], str]:
    """Return the endpoints of the upstreams, of which there may be none, and the path to check."""
    for name in facts.found.installations:
        engine = facts.found.engines[name]
        if isinstance(engine, Attachable):
            return engine.attach()
    return (), ""


def scheduler_limits(config: Config, facts: Facts) -> Limits:
    """Build the settings of the scheduler."""
    gpus = len(facts.platform.accelerators)
    return Limits(
        keep_alive_s=config.keep_alive_s,
        max_loaded=config.max_loaded_models or LOADED_PER_GPU * max(1, gpus),
        max_queue=config.max_queue,
        hang_s=config.hang_timeout_s or math.inf,
    )
