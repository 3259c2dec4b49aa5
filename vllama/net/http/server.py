"""The HTTP server: its listening socket, its connections, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import resource
import socket
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from vllama.base.clock import wait_for
from vllama.net.http.budget import Budget
from vllama.net.http.connection import ClientConnection
from vllama.net.http.heads import TOO_MANY_CLIENTS, TOO_SLOW, Refusal
from vllama.net.http.listener import refuse_new_connections
from vllama.net.http.request import Request
from vllama.observe.metrics.server_metrics import Metrics

if TYPE_CHECKING:
    from vllama.net.http.listener import Certificate

log = logging.getLogger(__name__)

# Ollama never closes an idle connection, and its clients rely on that. A short limit would now and
# then close a connection while a request is being sent on it.
KEEP_ALIVE_S = 3600.0
HEAD_LIMIT_S = 75.0  # from the first byte of a request to the end of its head
BODY_STALL_S = 75.0  # between two bytes of a body; a slow upload continues as long as it progresses
HANDSHAKE_S = 10.0  # for TLS
GRACE_S = 1.0  # for a handshake or a next request while others wait to be accepted
ACCEPT_PAUSE_S = 0.1
MAX_CLIENTS = 10_000  # or what the files that the process may open allow, if that is less
OWN_FILES = 32  # of logs, databases and engines; each client may need another one for its engine
SPARE_CLIENTS = 8  # beyond the most, so that they can be told
SWEEP_S = 5.0
REFUSALS_LOGGED_S = 1.0  # at most one line in this time: whoever floods the server floods no log
# A stop closes idle connections only after this time without any request, because a proxy may be
# sending one: it cannot know of the stop before the next answer on that connection says so.
LAST_REQUESTS_S = 0.5
LAST_HANDSHAKES_S = 0.02  # for the connections that had begun when new ones were refused
DRAIN_STEP_S = 0.02
LAST_ANSWERS_S = 1.0  # for requests to send their errors after the time to drain is over

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = (
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
)  # fmt: skip


def compute_max_clients() -> int:
    """Return the maximum number of connections."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return MAX_CLIENTS
    return min(MAX_CLIENTS, max(SPARE_CLIENTS, (files - OWN_FILES - SPARE_CLIENTS) // 2))


Application: TypeAlias = "Callable[[Request], Awaitable[None]]"
"""The function that answers requests."""


class HttpServer:
    """Accepts clients and runs the application for each of their requests."""

    def __init__(
        self,
        app: Application,
        *,
        drain_s: float,
        certificate: Certificate | None = None,
        buffer_bytes: float = math.inf,
        metrics: Metrics | None = None,
    ) -> None:
        """Prepare; with a `certificate` the server speaks https."""
        self._app = app
        self._refusals = (metrics or Metrics()).http_refusals
        self._unlogged, self._log_again_s = 0, 0.0
        self.budget = Budget(buffer_bytes)
        self.certificate = certificate
        self._drain_s = drain_s
        self._tasks: dict[Request, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._second = 0
        self._date = b""
        self.draining = False  # every answer closes its connection
        self.drained = asyncio.Event()
        self.clients: dict[ClientConnection, None] = {}  # an ordered set, the oldest first
        self._connecting: dict[asyncio.Task[Any], float] = {}  # and since when
        self._max_clients = compute_max_clients()
        self._full_until_s = 0.0

    async def serve(self, listener: socket.socket) -> None:
        """Serve on `listener` until `stop`, and then until the last requests have ended.

        Every request that a client could send before it learned of the stop is answered: those of
        connections that wait to be accepted, and those on connections that were left open.
        """
        self._loop, self._listener = asyncio.get_running_loop(), listener
        sweeper = asyncio.create_task(self._sweep(), name="sweeper")
        self._listen()
        try:
            await self._stop.wait()
        finally:
            sweeper.cancel()
            await self._close_listener(listener)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_s):
                await asyncio.gather(*self._connecting, return_exceptions=True)
                await self._drain()
        self.drained.set()
        await self._wait_for_last_answers()
        for client in tuple(self.clients):
            client.abort()
        for task in self._tasks.values():
            task.cancel()

    def _listen(self) -> None:
        if not self._stop.is_set():
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Accept the connections that wait; if there are too many, they go on waiting.

        One that delays its TLS handshake makes room for them.
        """
        now_s, tls = time.monotonic(), self.certificate.context if self.certificate else None
        while len(self.clients) + len(self._connecting) < self._max_clients + SPARE_CLIENTS:
            try:
                connection = self._listener.accept()[0]
            except BlockingIOError:
                return
            except OSError:  # too many open files, or the client has left
                break
            connection.setblocking(False)
            accepting = self._loop.connect_accepted_socket(
                lambda: ClientConnection(self),
                connection,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_S if tls else None,
            )
            connecting = self._loop.create_task(accepting, name="connect")
            connecting.add_done_callback(self._forget)
            self._connecting[connecting] = now_s
        for connecting, since_s in self._connecting.items():
            if since_s < now_s - GRACE_S:
                connecting.cancel()
        self._loop.remove_reader(self._listener)
        self._loop.call_later(ACCEPT_PAUSE_S, self._listen)

    async def _close_listener(self, listener: socket.socket) -> None:
        """Accept what has connected, and close it."""
        self._loop.remove_reader(listener)
        if refuse_new_connections(listener):
            await asyncio.sleep(LAST_HANDSHAKES_S)
        self._accept()
        listener.close()

    def _forget(self, connecting: asyncio.Task[Any]) -> None:
        del self._connecting[connecting]
        if not connecting.cancelled():
            connecting.exception()  # no TLS, or not in time: nobody wants to know

    def drain(self) -> None:
        """Let every answer from now on close its connection; new ones are still accepted."""
        self.draining = True

    def stop(self, *, now: bool = False) -> None:
        """Stop accepting connections and end after the last requests; `now`: end at once."""
        self.draining = True
        self._stop.set()
        if now:
            self._hurry.set()

    def admit(self, client: ClientConnection) -> None:
        """Accept a connection. If there are too many, close an idle one, or else refuse this one.

        The search for an idle connection takes time, so it runs at most once per second.
        """
        self.clients[client] = None
        if len(self.clients) <= self._max_clients:
            return
        now_s = time.monotonic()
        if now_s >= self._full_until_s:
            for other in self.clients:
                is_idle = other.quiet and other.quiet_since_s < now_s - GRACE_S
                if is_idle and other is not client:
                    del self.clients[other]
                    other.abort() if other.paused else other.close()
                    return
            self._full_until_s = now_s + 1.0
            log.warning("all %d connections are busy", self._max_clients)
        client.refuse(TOO_MANY_CLIENTS)

    def note_refusal(self, refusal: Refusal, host: str) -> None:
        """Count a request that no handler sees, and log it, unless another one has just been."""
        status, reason = refusal.status.decode(), refusal.reason.decode()
        self._refusals.add((status[:3],))
        self._unlogged += 1
        now_s = time.monotonic()
        if now_s >= self._log_again_s:
            plural = "s" if self._unlogged > 1 else ""
            text = "%d request%s rejected before routing; the last from %s: %s: %s"
            log.warning(text, self._unlogged, plural, host or "a socket", status, reason)
            self._unlogged, self._log_again_s = 0, now_s + REFUSALS_LOGGED_S

    def run(self, request: Request) -> None:
        """Start the task that answers a request."""
        # with a name, because the loop would otherwise format one for each task
        self._tasks[request] = asyncio.Task(self._answer(request), loop=self._loop, name="request")

    def is_running(self, request: Request) -> bool:
        """Return whether the task that answers a request has been started."""
        return request in self._tasks

    async def _answer(self, request: Request) -> None:
        try:
            await self._app(request)
        finally:
            del self._tasks[request]
            # without an end, the client would wait for ever
            if not request.done:
                request.fail()

    def date(self) -> bytes:
        """Return the Date line of a head (RFC 9110, section 6.6.1)."""
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
        """Close connections that have waited too long for a request or for the rest of it."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = time.monotonic()
            budget = self.budget
            if is_short := budget.is_short:
                budget.is_short = budget.used_bytes > budget.limit_bytes / 2
                log.warning("rejecting requests: bodies and unsent data fill max_buffer_size")
            for client in tuple(self.clients):
                limit_s = HEAD_LIMIT_S if client.in_request_head else KEEP_ALIVE_S
                if client.quiet and client.quiet_since_s < now_s - limit_s:
                    client.close()
                elif client.starved and client.quiet_since_s < now_s - BODY_STALL_S:
                    client.refuse(TOO_SLOW)
                elif is_short:
                    client.drop_if_stalled()

    async def _drain(self) -> None:
        """Wait until all requests have ended, and close the connections that stay idle."""
        busy_s = time.monotonic()
        while (unfinished := [one for one in self.clients if not one.finished]) or self._tasks:
            now_s = time.monotonic()
            busy_s = now_s if self._tasks else busy_s
            for client in unfinished:
                if max(client.quiet_since_s, busy_s) <= now_s - LAST_REQUESTS_S:
                    client.close_if_idle()
            if await wait_for(self._hurry, DRAIN_STEP_S):
                return

    async def _wait_for_last_answers(self) -> None:
        """Wait until all requests have ended, or for `LAST_ANSWERS_S`."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks.values()), timeout=LAST_ANSWERS_S)
