"""`vllama serve` opens: it answers, then gets ready what it serves with.

In order: 1. bind, so that a taken port is reported at once; 2. answer: whoever only asks whether
there is a server, and which, need not wait; all others wait (`Gateway.completed`); 3. beside that
make the rest (`daemon.compose`), most of which is imports; 4. let the daemon run. What is wrong
with the rest ends the server, with its exit code, and is what those who wait are answered.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvloop

from vllama.beside import beside
from vllama.config import Config, guards
from vllama.errors import VllamaError
from vllama.http.certificate import Certificate
from vllama.http.server import Server, bind
from vllama.http.watchdog import watched
from vllama.metrics import Metrics
from vllama.routes.app import App, Gateway
from vllama.server.signals import Stop, handled_signals

if TYPE_CHECKING:
    from vllama.server.daemon import Daemon
    from vllama.server.reporter import Reporter

TURNS = 20
"""Of the loop, before it shares the interpreter: who waits already has had an answer by then."""


def serve(config: Config, reporter: Reporter, load: Callable[[], Config]) -> int:
    """Run the server until it is told to stop; return the exit code.

    `load` reads the settings again, from where `config` came; it may raise VllamaError.
    Raises VllamaError for everything that is wrong before it serves models, EngineMissing also if
    that is found out by loading the first model.
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
    gateway = Gateway(guards(config), metrics)
    server = Server(App(gateway), drain_s=config.drain_timeout_s, certificate=certificate)
    failed: VllamaError | None = None
    with handled_signals(stop, reload), watched(metrics):
        async with asyncio.TaskGroup() as group:
            http = group.create_task(server.serve(listener), name="http")
            for _ in range(TURNS):
                await asyncio.sleep(0)
            try:
                daemon = await beside(_composed, config, reporter, load)
            except VllamaError as error:
                failed = error
                gateway.fail(error)
                server.stop()
            else:
                await daemon.run(gateway, listener, server, http, stop, reload)
    if failed is not None:
        raise failed
    if stop.missing is not None:
        raise stop.missing
    return stop.code


def _composed(config: Config, reporter: Reporter, load: Callable[[], Config]) -> Daemon:
    from vllama.server.daemon import compose

    return compose(config, reporter, load)
