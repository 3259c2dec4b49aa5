"""The ASGI server: binding and running it; the only file that knows which one it is."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vllama import early
from vllama.early import BACKLOG
from vllama.errors import ConfigError, PortTaken
from vllama.gateway.app import App

PROBE_LIMIT_S = 1.0
PROBE_BYTES = 4096


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket, so that a taken port is reported before anything slow.

    Raises PortTaken, which tells whether it is another Ollama, and ConfigError for an address
    that is not ours.
    """
    descriptor = early.take(host, port)
    if descriptor is not None:
        listener = socket.socket(fileno=descriptor)
        listener.setblocking(False)
        return listener
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(
            f"cannot listen on '{host}': {error.strerror}", hint="give an address of this machine"
        ) from error
    listener = socket.socket(family, kind, proto)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(where)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"cannot listen on {host}:{port}: {owner_of(host, port)} uses it",
                hint="stop that one, or choose another port with --port or OLLAMA_HOST",
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM):
            raise ConfigError(
                f"cannot listen on {host}:{port}: permission denied",
                hint="choose a port above 1023 with --port",
            ) from error
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="give an address of this machine with --host",
        ) from error
    listener.setblocking(False)
    return listener


def owner_of(host: str, port: int, limit_s: float = PROBE_LIMIT_S) -> str:
    """Return a name for the program that listens there already: it may be an Ollama."""
    where = "127.0.0.1" if host in ("", "0.0.0.0") else "::1" if host == "::" else host
    answer = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((where, port), timeout=limit_s) as probe,
    ):
        probe.sendall(b"GET /api/version HTTP/1.0\r\nhost: localhost\r\n\r\n")
        while len(answer) < PROBE_BYTES and (data := probe.recv(PROBE_BYTES)):
            answer += data  # head and body may come apart
    if b'"vllama"' in answer:
        return "another vllama"
    return "an Ollama server" if b'"version"' in answer else "another program"


class Protocol(HttpToolsProtocol):
    """uvicorn's, which answers also who has shut its sending side already (`printf … | nc`)."""

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection until what was asked is answered; False closes it.

        Only for requests that make nothing: of any other, the end of its sending side is how a
        client that leaves stops the engine, and how Go's server sees it too.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        asked = [cycle, *(waiting for waiting, _ in self.pipeline)]
        if any(each.scope["method"] not in ("GET", "HEAD") for each in asked):
            return False
        cycle.keep_alive = False  # the newest; those before it are answered first
        return True


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals belong to the daemon."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield

    def stop(self, *, now: bool = False) -> None:
        """Stop accepting and end when the running requests have; `now`: do not wait for them."""
        self.should_exit = True
        if now:
            self.force_exit = True


def make_server(app: App, *, drain_s: float) -> Server:
    """Return a server for `app`; run it with `serve(sockets=[listener])`."""
    return Server(
        uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, round(drain_s)),
        )
    )
