"""The start of `vllama serve`, in the order in which a user notices its steps.

1. Bind the port: a taken one is reported at once, and clients that come from now on wait.
2. Answer requests that ask only whether there is a server, and which one; all other
   requests wait until the gateway is complete.
3. Compose the rest: hardware, engines, models. What is wrong there ends the server with its exit
   code, and the waiting requests get the reason.
4. Let the daemon run until a signal ends it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import socket
import sys
from collections.abc import Callable
from dataclasses import replace

import uvloop

from vllama.accounts.keys.ring import KeyRing
from vllama.base import executors, log_context
from vllama.base.clock import RealClock
from vllama.base.errors import VllamaError
from vllama.base.servers import RunningServer, announce
from vllama.config import (
    Config,
    choose_collector,
    environ,
    keys_file,
    models_settings,
    read_node_key,
)
from vllama.models.library import open_library
from vllama.net.http.listener import Certificate, bind
from vllama.net.http.server import HttpServer
from vllama.net.http.watchdog import watch_loop
from vllama.observe.metrics.server_metrics import Metrics
from vllama.observe.tracing.setup import open_tracing
from vllama.routes.app import App
from vllama.routes.context import Starting
from vllama.routes.in_use import InUse, Setup
from vllama.routes.route_table import ROUTES
from vllama.server.daemon import Daemon
from vllama.server.preflight import (
    check_engine,
    check_model,
    check_nodes,
    check_open,
    check_upstreams,
    close_folders,
    gather_facts,
    with_preload,
)
from vllama.server.reporter import Reporter
from vllama.server.signals import Stop, handled_signals
from vllama.supervise.guard import divide_control_group, raise_file_limit
from vllama.supervise.leftovers import sweep
from vllama.supervise.shim import PR_SET_DUMPABLE, prctl

GC_THRESHOLDS = (50_000, 20, 20)
M_ARENA_MAX = -8  # malloc.h; each heap keeps its peak, so threads share one
# a large piece has pages of its own: in the heap, where glibc soon puts it, it leaves a hole
M_MMAP_THRESHOLD, LARGE_BYTES = -3, 64 * 1024
MOST_DIGITS = 640  # of an integer, Python's least: long ones cost a square of their length


def serve(config: Config, reporter: Reporter, load: Callable[[], Config]) -> int:
    """Run the server until a signal stops it; return the exit code.

    `load` reads the settings again, from where `config` came; it may raise VllamaError.
    Raises VllamaError for everything that is wrong before models are served, and EngineMissing also
    if loading the first model finds that out.
    """
    raise_file_limit()
    divide_control_group()
    prctl(PR_SET_DUMPABLE, 0)  # engines belong to the same user
    sys.set_int_max_str_digits(MOST_DIGITS)
    keep_heap_small()
    check_nodes(config)
    check_open(config)
    certificate = Certificate(config.tls_cert, config.tls_key) if config.tls_cert else None
    log_context.port = -1  # its own is another server's until it is bound
    listener = bind(config.host, config.port)
    port = listener.getsockname()[1]
    log_context.port = port

    def with_port(read: Config) -> Config:
        """Put the kernel's port in the place of 0, and its scheme, here and after each reload."""
        scheme = "https" if read.tls_cert else "http"  # clients may use another one, of a proxy
        return replace(read, port=read.port or port, scheme=scheme)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(
                _serve(
                    listener, certificate, with_port(config), reporter, lambda: with_port(load())
                )
            )
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
    key = read_node_key(config)
    keys = KeyRing(
        config.api_key,
        keys_file(config.data_dir),
        RealClock(),
        required=config.require_keys,
        node=key if not config.is_head else None,  # the head shows it
    )
    in_use = InUse(Setup(config=config))
    starting = Starting(in_use=in_use, keys=keys, metrics=metrics, routes=ROUTES)
    app = App(starting)
    server = HttpServer(
        app,
        drain_s=config.drain_timeout_s,
        certificate=certificate,
        buffer_bytes=config.max_buffer_size_bytes,
        metrics=metrics,
    )
    failed: VllamaError | None = None
    file = RunningServer(config.url, starting.owner_secret, str(config.tls_cert or ""))
    with (
        announce(config.data_dir, file),
        handled_signals(stop, reload),
        watch_loop(metrics, lambda: not server.clients),
    ):
        async with asyncio.TaskGroup() as group:
            http = group.create_task(server.serve(listener), name="http")
            try:
                daemon = await executors.upkeep.run(
                    compose, app, certificate, stop.asked, reporter, load
                )
            except VllamaError as error:
                failed = error
                app.fail(error)
                server.stop()
            else:
                _collect_garbage_rarely()
                app.complete(daemon.gateway)
                await daemon.run(server, http, stop, reload)
    if failed is not None:
        raise failed
    if stop.missing is not None:
        raise stop.missing
    return stop.code


def compose(
    app: App,
    certificate: Certificate | None,
    stop: asyncio.Event,
    reporter: Reporter,
    load: Callable[[], Config],
) -> Daemon:
    """Check what can be checked beforehand, and build the daemon; takes seconds, needs no loop.

    Completes the snapshot in use. Raises VllamaError for everything that is wrong.
    """
    in_use = app.starting.in_use
    config = in_use.config
    facts = gather_facts(config)
    check_upstreams(config)
    check_engine(config, facts)
    for line in (*sweep(config.run_dir), *close_folders(config)):
        reporter.note(line)
    library = open_library(with_preload(models_settings(config), config.model))
    library.local.sweep()
    check_model(library, config.model)
    tracing = open_tracing(choose_collector(config, environ()))
    in_use.now = replace(in_use.now, facts=facts, library=library)
    return Daemon(app, certificate, stop, reporter, load, tracing)


def keep_heap_small() -> None:
    """Return freed memory to the system, as far as glibc allows it."""
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_ARENA_MAX, 1)
        libc.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def _collect_garbage_rarely() -> None:
    """Spare requests the collector's pauses: what exists now stays, so it need not be searched."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
