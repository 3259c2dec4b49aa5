"""The server: where it listens, whom it serves, how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import time
from typing import TYPE_CHECKING, TypeAlias

from vllama.errors import ConfigError, PortTaken
from vllama.http.connection import Client
from vllama.http.head_cache import TOO_MANY_CLIENTS, TOO_SLOW, Heads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from vllama.http.certificate import Certificate
    from vllama.http.request import Request

log = logging.getLogger(__name__)

BACKLOG = 2048  # connections that wait to be accepted, as while a server starts
PROBE_LIMIT_S = 1.0
PROBE_BYTES = 4096
# Go's server, which clients of Ollama know, never closes a connection: whoever does meets, now and
# then, a request that is on its way
KEEP_ALIVE_S = 3600.0
HEAD_LIMIT_S = 75.0  # from the first byte of a request to the end of its head
BODY_STALL_S = 75.0  # between two bytes of a body: a slow upload goes on as long as it moves
MAX_CLIENTS = 10_000  # or three of four files that the process may have open, if that is less
SWEEP_S = 5.0
LAST_READ_S = 0.05
LAST_WORDS_S = 1.0  # for requests to tell why they end, when there is no more time

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = (
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
)  # fmt: skip


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket, so that a taken port is reported before anything slow.

    Raises PortTaken, which tells whether it is another Ollama, and ConfigError for an address
    that is not ours.
    """
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
                f"cannot listen on {host}:{port}: {find_port_owner(host, port)} uses it",
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


def find_port_owner(host: str, port: int, limit_s: float = PROBE_LIMIT_S) -> str:
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


def count_most_clients() -> int:
    """Return how many connections there may be: engines, logs and downloads need files too."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CLIENTS if files == resource.RLIM_INFINITY else min(MAX_CLIENTS, files * 3 // 4)


Application: TypeAlias = "Callable[[Request], Awaitable[None]]"
"""What answers requests."""


class Server:
    """Accepts clients and runs the application for each of their requests."""

    def __init__(
        self, app: Application, *, drain_s: float, certificate: Certificate | None = None
    ) -> None:
        """`certificate`: serve https with it."""
        self._app = app
        self.certificate = certificate
        self._drain_s = drain_s
        self._tasks: dict[Request, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._now = asyncio.Event()
        self._second = 0
        self._date = b""
        self.stopping = False  # no further request is taken
        self.clients: dict[Client, None] = {}  # the oldest first
        self._most_clients = count_most_clients()
        self._full_until_s = 0.0
        self.heads = Heads()

    async def serve(self, listener: socket.socket) -> None:
        """Serve on `listener` until `stop`, and then until the running requests have ended."""
        self._loop = loop = asyncio.get_running_loop()
        tls = self.certificate.context if self.certificate else None
        listening = await loop.create_server(
            lambda: Client(self), sock=listener, backlog=BACKLOG, ssl=tls
        )
        sweeper = asyncio.create_task(self._sweep(), name="sweeper")
        try:
            await self._stop.wait()
            # what clients have sent by now is accepted and read first: a socket that is closed with
            # something unread resets its client, who would hear nothing of an orderly end
            await asyncio.sleep(LAST_READ_S)
        finally:
            sweeper.cancel()
            listening.close()
        for client in tuple(self.clients):
            if client.quiet:
                client.close()
        await self._ended(self._drain_s)
        await self._ended(LAST_WORDS_S, hurry=False)
        for client in tuple(self.clients):
            client.abort()
        for task in self._tasks.values():
            task.cancel()

    def stop(self, *, now: bool = False) -> None:
        """Stop accepting and end when the running requests have; `now`: do not wait for them."""
        self.stopping = True
        self._stop.set()
        if now:
            self._now.set()

    def admit(self, client: Client) -> None:
        """Take a connection; if there are too many, instead of one that asks for nothing.

        Or turn it away if all are busy; that is looked at once in a second.
        """
        self.clients[client] = None
        if len(self.clients) <= self._most_clients:
            return
        now_s = time.monotonic()
        if now_s >= self._full_until_s:
            for other in self.clients:
                if other.quiet and other is not client:
                    del self.clients[other]
                    other.close()
                    return
            self._full_until_s = now_s + 1.0
            log.warning("%d connections are open, and all are busy", self._most_clients)
        client.turn_away(TOO_MANY_CLIENTS)

    def run(self, request: Request) -> None:
        """Begin to answer a request."""
        # with a name, or the loop would write one
        self._tasks[request] = asyncio.Task(self._answer(request), loop=self._loop, name="request")

    async def _answer(self, request: Request) -> None:
        try:
            await self._app(request)
        finally:
            del self._tasks[request]
            # an answer without an end would keep its client waiting for ever
            if not request.done:
                request.fail()

    def date(self) -> bytes:
        """Return the line of a head that tells the time (RFC 9110 §6.6.1)."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            now = time.gmtime(second)
            self._date = (
                f"date: {_DAYS[now.tm_wday]}, {now.tm_mday:02d} {_MONTHS[now.tm_mon - 1]} "
                f"{now.tm_year} {now.tm_hour:02d}:{now.tm_min:02d}:{now.tm_sec:02d} GMT\r\n"
            ).encode()
        return self._date

    async def _sweep(self) -> None:
        """Close what has waited too long for a request, or for the rest of its head."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = time.monotonic()
            for client in tuple(self.clients):
                limit_s = HEAD_LIMIT_S if client.asking else KEEP_ALIVE_S
                if client.quiet and client.quiet_since_s < now_s - limit_s:
                    client.close()
                elif client.starved and client.quiet_since_s < now_s - BODY_STALL_S:
                    client.turn_away(TOO_SLOW)

    async def _ended(self, limit_s: float, *, hurry: bool = True) -> None:
        """Return when all requests have ended, or `limit_s` later, or if there is no time left."""
        if not self._tasks:
            return
        hurried = asyncio.ensure_future(self._now.wait())
        everything = asyncio.ensure_future(asyncio.wait(tuple(self._tasks.values())))
        awaited = {everything, hurried} if hurry else {everything}
        await asyncio.wait(awaited, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        everything.cancel()
