"""The front: guards, routing, and the boundary that turns errors into answers.

A plain dictionary instead of a framework's router: the routes are few and exact, and a token
passes nothing but `send()` (see docs/decisions).
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllama.errors import Busy, Unauthorized, VllamaError
from vllama.gateway.catalog import Catalog
from vllama.gateway.guards import Guards, cors_headers
from vllama.gateway.http import ClientGone, Message, Receive, Request, Send, now_ns
from vllama.gateway.routes import ROUTES, Handler, handler, methods_of
from vllama.gateway.upstream import Upstreams
from vllama.metrics import Metrics
from vllama.plan.types import Facts
from vllama.scheduler.scheduler import Scheduler
from vllama.tracing import Trace, model, trace
from vllama.translate.faults import anthropic_error, ollama_error, openai_error

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Gateway:
    """What the handlers work with; `environ` is what an engine would be started with."""

    catalog: Catalog
    scheduler: Scheduler
    upstreams: Upstreams
    facts: Facts
    guards: Guards
    metrics: Metrics
    environ: Mapping[str, str] = field(default_factory=dict)


class App:
    """The ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._numbers = itertools.count(1)
        self._prefix = f"{time.time_ns() // 1_000_000:x}"
        self._running: set[str] = set()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive, send, f"{self._prefix}-{next(self._numbers)}")
        doubled = request.id in self._running
        trace.set(Trace(request.id, f"{request.id}-{request.number}" if doubled else ""))
        model.set("")
        origin = request.header(b"origin")
        host = request.header(b"host")
        guards = self._gateway.guards
        if not guards.host_allowed(host) or not guards.origin_allowed(origin, host):
            await self._forbid(request, origin, host)
            return
        if origin:
            preflight = request.method == "OPTIONS"
            request.send = _with_headers(send, cors_headers(origin, preflight=preflight))
            if preflight:
                await request.respond(204, b"")
                return
        self._running.add(request.id)
        try:
            await self._handle(request)
        finally:
            if not doubled:
                self._running.discard(request.id)
        took_s = (now_ns() - request.started_ns) / 1e9
        route = request.path if request.path in ROUTES else "other"
        self._gateway.metrics.request(route, request.status, took_s)
        level = logging.DEBUG if request.method in ("GET", "HEAD") else logging.INFO
        status = request.status or "-"
        log.log(level, "%s %s %s %.3fs", request.method, request.path, status, took_s)

    async def _handle(self, request: Request) -> None:
        """Find the handler and run it; the one place where a request's errors end."""
        try:
            self._check_key(request)
            handle = await self._route(request)
            if handle:
                await handle(self._gateway, request)
        except ClientGone:
            log.info("%s %s: the client has left", request.method, request.path)
        except VllamaError as error:
            await self._fail(request, error)
        except Exception:
            # boundary: a bug in one request must not end the server
            log.exception("%s %s: unexpected error", request.method, request.path)
            await self._fail(
                request, VllamaError("internal error", hint="see the server's log and report it")
            )

    def _check_key(self, request: Request) -> None:
        """Raise Unauthorized if the server has keys and the request shows none of them."""
        guards = self._gateway.guards
        if not guards.keys:
            return
        authorization, api_key = request.header(b"authorization"), request.header(b"x-api-key")
        if not guards.key_allowed(request.path, authorization, api_key):
            raise Unauthorized(
                "unauthorized: the request shows no key of this server",
                hint="send 'Authorization: Bearer KEY'; the commands take it from OLLAMA_API_KEY",
            )

    async def _route(self, request: Request) -> Handler | None:
        """Return the handler, or answer 301/307, 404 or 405 and return None."""
        path = request.path
        methods = methods_of(path)
        if methods is None and path.endswith("/") and path.rstrip("/") in ROUTES:
            status = 301 if request.method == "GET" else 307
            await request.respond(status, b"", headers={"location": path.rstrip("/")})
            return None
        if methods is None:
            await request.text(404, "404 page not found")
            return None
        if request.method not in methods:
            text = b"405 method not allowed"
            allow = {"allow": ", ".join(methods)}
            await request.respond(405, text, b"text/plain; charset=utf-8", allow)
            return None
        return handler(methods[request.method])

    @staticmethod
    async def _fail(request: Request, error: VllamaError) -> None:
        """Answer with an error in the dialect of the route; too late if the head is out."""
        log.log(
            logging.WARNING if error.status >= 500 else logging.INFO,
            "%s %s: %s",
            request.method,
            request.path,
            error.sentence(),
        )
        if request.status:
            await request.send({"type": "http.response.body", "body": b""})
            return
        if request.path.startswith("/v1/messages"):
            from vllama.gateway.anthropic import seed_of  # only here: see `routes`

            id_ = f"req_{seed_of(request)}"
            status, body = anthropic_error(error, request_id=id_)
        elif request.path.startswith("/v1/"):
            status, body = openai_error(error)
        else:
            status, body = ollama_error(error)
        headers = {}
        if isinstance(error, Busy):
            headers["retry-after"] = str(max(1, round(error.retry_after_s)))
        if isinstance(error, Unauthorized):
            headers["www-authenticate"] = 'Bearer realm="vllama"'
        await request.respond(status, body, headers=headers)

    @staticmethod
    async def _forbid(request: Request, origin: str, host: str) -> None:
        """Answer 403 and, unlike Ollama, say why and what to do."""
        if origin:
            text = f"origin '{origin}' is not allowed; add it to OLLAMA_ORIGINS"
        else:
            text = f"host '{host}' is not allowed; use localhost, or --host to listen elsewhere"
        log.warning("%s %s 403: %s", request.method, request.path, text)
        await request.json(403, {"error": text})


def _with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """Return a `send` that adds headers to the head of the answer."""
    extra = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]

    def adding(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *extra]
        return send(message)

    return adding
