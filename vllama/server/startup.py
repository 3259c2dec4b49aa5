"""The start of `vllama serve`, in the order in which a user notices its steps.

1. Bind the port: a taken one is reported at once, and clients that come from now on wait.
2. Answer: who only asks whether there is a server, and which one, gets an answer; all other
   requests wait until the gateway is complete.
3. Compose the rest: hardware, engines, models. What is wrong there ends the server with its exit
   code, and the waiting requests are told why.
4. Let the daemon run until a signal ends it.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable

import uvloop

from vllama.clock import RealClock
from vllama.config import Config, environ, guards, keys_file, models_settings, tracing_settings
from vllama.errors import VllamaError
from vllama.http.certificate import Certificate
from vllama.http.server import Server, bind
from vllama.http.watchdog import watch_loop
from vllama.keys.ring import KeyRing
from vllama.metrics.server_metrics import Metrics
from vllama.models.library import open_library
from vllama.routes.app import App
from vllama.routes.context import Gateway
from vllama.server.daemon import Daemon
from vllama.server.preflight import (
    check_engine,
    check_model,
    check_upstreams,
    close_folders,
    gather_facts,
    with_preload,
)
from vllama.server.reporter import Reporter
from vllama.server.signals import Stop, handled_signals
from vllama.supervise.leftovers import sweep
from vllama.tracing.setup import open_tracing

GC_THRESHOLDS = (50_000, 20, 20)


def serve(config: Config, reporter: Reporter, load: Callable[[], Config]) -> int:
    """Run the server until it is told to stop; return the exit code.

    `load` reads the settings again, from where `config` came; it may raise VllamaError.
    Raises VllamaError for everything that is wrong before models are served, and EngineMissing also
    if loading the first model finds that out.
    """
    certificate = Certificate(config.tls_cert, config.tls_key) if config.tls_cert else None
    listener = bind(config.host, config.port)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(listener, certificate, config, reporter, load))
    finally:
        listener.close()


async def _serve(
    listener: socket.socket,
    certificate: Certificate | None,
    config: Config,
    reporter: Reporter,
    load: Callable[[], Config],
) -> int:
    stop, reload = Stop(asyncio.Event(), asyncio.Event()), asyncio.Event()
    metrics = Metrics()
    keys = KeyRing(config.api_key, keys_file(config.data_dir), RealClock())
    gateway = Gateway(guards(config), keys, metrics)
    server = Server(App(gateway), drain_s=config.drain_timeout_s, certificate=certificate)
    failed: VllamaError | None = None
    with handled_signals(stop, reload), watch_loop(metrics):
        async with asyncio.TaskGroup() as group:
            http = group.create_task(server.serve(listener), name="http")
            try:
                daemon = await asyncio.to_thread(compose, config, reporter, load, metrics)
            except VllamaError as error:
                failed = error
                gateway.fail(error)
                server.stop()
            else:
                _collect_garbage_rarely()
                await daemon.run(gateway, listener, server, http, stop, reload)
    if failed is not None:
        raise failed
    if stop.missing is not None:
        raise stop.missing
    return stop.code


def compose(
    config: Config, reporter: Reporter, load: Callable[[], Config], metrics: Metrics
) -> Daemon:
    """Check what can be checked beforehand, and build the daemon; takes seconds, needs no loop.

    Raises VllamaError for everything that is wrong.
    """
    facts = gather_facts(config)
    check_upstreams(config)
    check_engine(facts)
    for line in (*sweep(config.run_dir), *close_folders(config)):
        reporter.note(line)
    library = open_library(with_preload(models_settings(config), config.model))
    check_model(library, config.model)
    tracing = open_tracing(tracing_settings(config, environ()))
    return Daemon(config, facts, library, reporter, load, metrics, tracing)


def _collect_garbage_rarely() -> None:
    """Spare requests the collector's pauses: what exists now stays, so it need not be searched."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
