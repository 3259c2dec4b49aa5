"""The composed running program: builds everything, owns its task group and the end.

`opening` answers already. In order: 1. look at hardware and engines; 2. end the engines of a dead
predecessor; 3. build library and scheduler; 4. complete the gateway, import what only requests
need, load the model that was asked for; 5. on a signal stop in reverse, each step with its limit. A
second signal skips the wait for running requests, a third ends at once (the guards of the engines
then clear up). SIGHUP: see `signals`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import socket
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial

from vllama import log_context
from vllama.beside import beside
from vllama.chat.engine.traits import Traits
from vllama.clock import RealClock
from vllama.config import Config, environ, guards, models_settings, preferences
from vllama.config.address import is_loopback
from vllama.config.changes import compare_settings
from vllama.engines.base import Engine
from vllama.engines.capabilities import Attachable, Sleeping
from vllama.errors import (
    ConfigError,
    EngineMissing,
    ModelNotFound,
    NoPlan,
    VllamaError,
)
from vllama.hardware.cpu_time import cpu_time
from vllama.hardware.detect import describe
from vllama.http.server import Server
from vllama.models.library import Library, open_library
from vllama.models.types import Bundle
from vllama.plan.choose import choose_engine, loadable_formats
from vllama.plan.fitting import FitsHere
from vllama.plan.types import Facts, Need, Plan
from vllama.rendering.renderer import Renderer
from vllama.routes.app import Gateway
from vllama.routes.catalog import Catalog
from vllama.routes.health import Preload
from vllama.routes.route_table import import_handlers
from vllama.scheduler.instance import Process, Sleeper
from vllama.scheduler.lifecycle import EngineSleeper
from vllama.scheduler.memory import Measurable, Measured, Meter, Remembered
from vllama.scheduler.policy import Pools
from vllama.scheduler.replicas import Replicas
from vllama.scheduler.scheduler import Scheduler
from vllama.scheduler.state import Limits, Ports
from vllama.server.planner import Planner
from vllama.server.preflight import (
    check_engine,
    check_model,
    close_folders,
    gather_facts,
    with_preload,
)
from vllama.server.reporter import Reporter
from vllama.server.signals import Stop
from vllama.supervise.external import Watch
from vllama.supervise.leftovers import sweep
from vllama.supervise.spec import Endpoint, LaunchSpec, RestartPolicy
from vllama.upstream.pool import Upstreams

log = logging.getLogger(__name__)

STOP_LIMIT_S = 20.0
GC_THRESHOLDS = (50_000, 20, 20)
LOADED_PER_GPU = 3


def compose(config: Config, reporter: Reporter, load: Callable[[], Config]) -> Daemon:
    """Look around and build a daemon; `load` reads the settings again, it may raise VllamaError.

    Takes its time and needs no loop. Raises VllamaError for everything that is wrong beforehand.
    """
    facts = gather_facts(config)
    check_engine(facts)
    for line in (*sweep(config.run_dir), *close_folders(config)):
        reporter.note(line)
    library = open_library(with_preload(models_settings(config), config.model))
    check_model(library, config.model)
    return Daemon(config, facts, library, reporter, load)


class Daemon:
    """Everything that lives while the server runs."""

    def __init__(
        self,
        config: Config,
        facts: Facts,
        library: Library,
        reporter: Reporter,
        load: Callable[[], Config],
    ) -> None:
        self._config = config
        self._load = load
        self._facts = facts
        self._library = library
        self._reporter = reporter
        self._clock = RealClock()
        self._environ = environ()
        self._renderer = Renderer(self._environ)
        self._planner = Planner(facts, library, self._renderer, reporter)
        self._catalog = Catalog(library, self._clock, paths=is_loopback(config.host))
        self._upstreams = Upstreams()
        self._watch = watch_of(facts)
        self._preloaded = Preload(config.model)
        ports = Ports(
            plan=self._planner.plan,
            another=self._planner.another,
            start=self._start,
            traits=self._traits,
            needs=self._needs,
            measure=self._measure,
            remember=self._remember,
            told=self._told,
            traffic=self._upstreams.traffic,
            cut=self._upstreams.cut,
            sleeper=self._sleeper,
            cpu_time=cpu_time,
            over=gc.collect,  # tasks and errors leave cycles, and it is set to come rarely
        )
        self._meter = Meter(facts.platform, facts.preferences.reserve_bytes)
        self._remembered = Remembered(config.data_dir / "memory.json")
        self.scheduler = Scheduler(ports, limits(config, facts), self._clock)

    # -- life ---------------------------------------------------------------------------------

    async def run(
        self,
        gateway: Gateway,
        listener: socket.socket,
        server: Server,
        http: asyncio.Task[None],
        stop: Stop,
        reload: asyncio.Event,
    ) -> None:
        """Do what `gateway` is asked for, until a signal or a failed preload sets `stop`.

        `server` listens on `listener` and runs in `http`; both have ended when this returns.
        """
        async with asyncio.TaskGroup() as group:
            keeper = group.create_task(self.scheduler.run(), name="scheduler")
            gateway.complete(
                catalog=self._catalog,
                scheduler=self.scheduler,
                upstreams=self._upstreams,
                renderer=self._renderer,
                facts=self._facts,
                environ=self._environ,
                watch=self._watch,
                preload=self._preloaded,
            )
            self._reporter.ready(self._ready_lines(listener))
            self._warn_of_exposure()
            settling = group.create_task(settle(), name="settle")
            watching = group.create_task(self._watch.run(), name="watch")
            preload = group.create_task(self._preload(stop), name="preload")
            reloading = group.create_task(self._reload_when(reload, gateway, server), name="reload")
            await stop.asked.wait()
            reloading.cancel()
            settling.cancel()
            watching.cancel()
            preload.cancel()
            await self._end(server, http, keeper, stop)

    async def _end(
        self, server: Server, http: asyncio.Task[None], keeper: asyncio.Task[None], stop: Stop
    ) -> None:
        """Stop in reverse order: accepting, the queue, running requests, engines, connections."""
        log.info("stopping")
        server.stop()
        self.scheduler.close_queue()
        drained = asyncio.ensure_future(self.scheduler.drained())
        hurried = asyncio.ensure_future(stop.hurry.wait())
        await asyncio.wait(
            {drained, hurried},
            timeout=self._config.drain_timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not drained.done():
            self._reporter.note("stopping with requests still running")
        drained.cancel()
        hurried.cancel()
        self._upstreams.stopping()
        keeper.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_LIMIT_S):
                await asyncio.wait({keeper})
        self._upstreams.close()
        self._renderer.close()
        server.stop(now=True)
        await asyncio.wait({http})

    async def _reload_when(self, wanted: asyncio.Event, gateway: Gateway, server: Server) -> None:
        """Read settings and certificate again whenever that is wanted; until cancelled."""
        while True:
            await wanted.wait()
            wanted.clear()
            if server.certificate is not None:
                try:
                    await asyncio.to_thread(server.certificate.reload)
                    log.info("certificate read again, for new connections")
                except ConfigError as error:
                    log.error("the certificate stays as it was: %s", error.sentence())
            try:
                await self._reload(gateway)
            except VllamaError as error:
                log.error("the settings stay as they were: %s", error.sentence())
            except Exception:
                # boundary: nothing in a file may end a server that runs
                log.exception("the settings stay as they were: unexpected error")

    async def _reload(self, gateway: Gateway) -> None:
        """Go by what the settings are now; all or nothing. Raises VllamaError.

        Running requests and loaded models go on as they are; see `config.changes`.
        """
        exposed = self._config.exposure
        new = await asyncio.to_thread(self._load)
        found = compare_settings(self._config, new)
        facts = replace(self._facts, preferences=preferences(found.config))
        check_engine(facts)
        settings = models_settings(found.config)
        library = self._library
        if settings != models_settings(self._config):
            library = open_library(with_preload(settings, found.config.model))
        # nothing is awaited, nothing fails from here on
        self._config, self._facts, self._library = found.config, facts, library
        gateway.facts, gateway.guards = facts, guards(found.config)
        self._catalog.library = library
        self._catalog.forget()
        self.scheduler.limit(limits(found.config, facts))
        self._planner.go_by(facts, library)
        log_context.set_level(debug=found.config.debug)
        for line in new.notes:
            log.warning("%s", line)
        for line in found.kept:
            log.warning("%s: needs a restart, the old one stays", line)
        if self._config.exposure != exposed:
            self._warn_of_exposure()
        log.info("settings read again: %s", "; ".join(found.taken) or "nothing new")

    def _warn_of_exposure(self) -> None:
        if warning := self._config.exposure:
            log.warning("%s", warning)

    async def _preload(self, stop: Stop) -> None:
        """Get and load the model that was asked for; if that fails, the server ends."""
        if self._config.upstreams:
            await self._catalog.all()  # asks them now: the first client need not wait for that
        name = self._config.model
        if not name:
            return
        try:
            bundle = await self._fetched(name)
            lease = await self.scheduler.acquire(bundle, Need(), None)
            self.scheduler.release(lease)
            self._preloaded.bundle = bundle
        except EngineMissing as error:  # told, or mended, by whoever started the server
            stop.missing = error
            stop.asked.set()
        except VllamaError as error:
            self._reporter.error(error.message, error.hint)
            stop.code = error.exit_code
            stop.asked.set()

    async def _fetched(self, name: str) -> Bundle:
        """Return the bundle of `name`, downloaded if it is not here."""
        try:
            return (await self._catalog.find(name)).bundle
        except ModelNotFound:
            pass
        loop, cancel = asyncio.get_running_loop(), threading.Event()
        try:
            return await asyncio.to_thread(
                self._library.pull,
                name,
                formats=loadable_formats(self._facts),
                fits=FitsHere(self._facts),
                to_load=True,
                progress=lambda event: void(loop.call_soon_threadsafe(self._reporter.pull, event)),
                cancel=cancel,
            )
        finally:
            cancel.set()
            self._catalog.forget()

    def _ready_lines(self, listener: socket.socket) -> list[str]:
        """Say where it listens, on what, with which engine, and why not with another."""
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        scheme = "https" if self._config.tls_cert else "http"
        lines = [f"listening on {scheme}://{shown}:{port}", describe(self._facts.platform)]
        if self._config.model:  # its plan says more, in a moment
            return lines
        with contextlib.suppress(NoPlan):
            choice = choose_engine(self._facts)
            title = self._facts.found.engines[choice.engine].title
            lines.append(f"{title} {choice.installation.version}: {choice.reason}")
        return lines

    # -- what the scheduler asks for ----------------------------------------------------------

    def _engine(self, plan: Plan) -> Engine:
        return self._facts.found.engines[plan.engine]

    def _traits(self, plan: Plan) -> Traits:
        engine = self._engine(plan)
        traits = engine.traits(plan.bundle, plan.settings)
        wanted = plan.settings.parallel or 0
        if wanted > traits.max_concurrency:
            self._reporter.note(
                f"{engine.title} takes {traits.max_concurrency} request at a time, not {wanted}: "
                "the others wait in order"
            )
        return traits

    def _start(self, plan: Plan) -> Process:
        engine = self._engine(plan)
        # not at the top, see `import_the_rest`
        from vllama.supervise.external import AttachedProcess
        from vllama.supervise.supervisor import SupervisedProcess

        if isinstance(engine, Attachable):
            return AttachedProcess(plan.bundle.name, *engine.attach())

        def launch(endpoint: Endpoint) -> LaunchSpec:
            return engine.launch(
                plan.bundle, plan.settings, plan.installation, endpoint, self._environ
            )

        def member(name: str) -> SupervisedProcess:
            return SupervisedProcess(
                name=name,
                launch=launch,
                policy=RestartPolicy(),
                log_dir=self._config.log_dir,
                run_dir=self._config.run_dir,
                clock=self._clock,
                on_progress=lambda line: self._reporter.loading(f"{plan.bundle.name}: {line}"),
            )

        count = self._replicas(plan)
        if count == 1:
            return member(plan.bundle.name)
        names = [f"{plan.bundle.name}-{number}" for number in range(1, count + 1)]
        return Replicas([partial(member, name) for name in names])

    def _told(self, plan: Plan, error: VllamaError | None) -> None:
        """End the display of a load; a failed one has told whoever asked for it."""
        if error is None:
            self._reporter.note(f"{plan.bundle.name} is ready")
        else:
            self._reporter.loading("")

    def _needs(self, plan: Plan) -> Pools:
        """Return what a plan will take, by what it took the last time, else as estimated."""
        single = self._remembered.needs(plan) or self._meter.needs(plan)
        return {pool: size * self._replicas(plan) for pool, size in single.items()}

    async def _remember(self, plan: Plan, held: Pools) -> None:
        count = self._replicas(plan)
        single = {pool: size // count for pool, size in held.items()}
        await asyncio.to_thread(self._remembered.note, plan, single)

    async def _measure(self, processes: Mapping[Hashable, Measurable], gpus: bool) -> Measured:
        return await self._meter.measure(processes, gpus=gpus)

    def _replicas(self, plan: Plan) -> int:
        return 1 if isinstance(self._engine(plan), Attachable) else self._config.replicas

    def _sleeper(self, plan: Plan) -> Sleeper | None:
        engine = self._engine(plan)
        if not isinstance(engine, Sleeping) or not engine.sleeps(plan.settings):
            return None
        if self._replicas(plan) > 1:
            return None  # they share one set of routes, and would have to sleep all together
        return EngineSleeper(engine)


def watch_of(facts: Facts) -> Watch:
    """Return the watch over the servers that run already; there may be none."""
    for name in facts.found.installations:
        engine = facts.found.engines[name]
        if isinstance(engine, Attachable):
            return Watch(*engine.attach())
    return Watch((), "")


def limits(config: Config, facts: Facts) -> Limits:
    """Build the slice of the scheduler."""
    gpus = len(facts.platform.accelerators)
    return Limits(
        keep_alive_s=config.keep_alive_s,
        max_loaded=config.max_loaded_models or LOADED_PER_GPU * max(1, gpus),
        max_queue=config.max_queue,
        hang_s=config.hang_timeout_s or math.inf,
    )


async def settle() -> None:
    """Get ready, while the server answers already, for what comes after a start."""
    await beside(import_the_rest)
    # what is here stays: collecting it again and again costs latency under load
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()  # `vllama.__main__` has turned it off


def import_the_rest() -> None:
    """Import what a server does without until it is asked for more than whether it lives."""
    import vllama.supervise.external
    import vllama.supervise.supervisor  # noqa: F401

    import_handlers()


def void(_: object) -> None:
    """Drop a value."""
