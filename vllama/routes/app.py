"""The front: guards, routing, and the boundary that turns errors into answers.

A plain dictionary instead of a framework's router: the routes are few and exact, and a token
passes nothing but `send()` (see docs/decisions).
"""

from __future__ import annotations

import asyncio
import html
import itertools
import logging
import math
import time
from urllib.parse import quote

from vllama.clock import now_ns
from vllama.dialects.errors import write_anthropic_error, write_ollama_error, write_openai_error
from vllama.errors import Busy, Forbidden, RequestEnded, Unauthorized, VllamaError
from vllama.http.request import CLIENT_CLOSED, ClientGone, Request
from vllama.keys.current import current_key
from vllama.keys.key import Key
from vllama.log_context import Trace, model, trace
from vllama.outcome import Outcome
from vllama.routes.access_log import log_access
from vllama.routes.capture_writer import RECORDED
from vllama.routes.context import Gateway
from vllama.routes.dialect import Dialect, find_dialect
from vllama.routes.fallback import answer_by_chain
from vllama.routes.guards import cors_headers, is_keyless
from vllama.routes.ollama.chat import only_unloads
from vllama.routes.openai.common import make_seed
from vllama.routes.request_log import INFERENCE
from vllama.routes.route_table import (
    MODEL_HANDLERS,
    ROUTES,
    WHILE_STARTING,
    WRITES,
    Handler,
    find_methods,
    list_scopes,
    name_route,
)
from vllama.routes.running import RunningRequest
from vllama.routes.traces import begin_trace, end_trace

log = logging.getLogger(__name__)

MAX_LOGGED = 1000  # characters of a path, and of an error's text, that stand in the log


def clean_path(path: str) -> str:
    """Return a path without doubled slashes, `.` and `..`; a slash at its end stays."""
    if "//" not in path and "/." not in path:
        return path
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    clean = "/" + "/".join(parts)
    return clean + "/" if path.endswith("/") and parts else clean


def check_scope(key: Key | None, handler: Handler) -> None:
    """Raise Forbidden if `key` does not allow what `handler` does."""
    scopes = list_scopes(handler)
    if key is None or not scopes or any(map(key.allows, scopes)):
        return
    needed = " or ".join(f"'{scope}'" for scope in scopes)
    raise Forbidden(
        f"cannot do this with the key '{key.name}': it needs the scope {needed}",
        hint="ask the operator, who can use: vllama keys change",
    )


def find_outcome(request: Request) -> Outcome:
    """Return how a request has ended."""
    if isinstance(request.failure, RequestEnded):
        return "stopped"
    if request.failure is not None or request.status >= 400:
        return "error"
    return "aborted" if request.disconnected and not request.done else "ok"


class App:
    """Answers every request, whatever happens."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._numbers = itertools.count(1)
        self._prefix = f"{time.time_ns() // 1_000_000:x}"
        self._ready: dict[tuple[str, str], Handler] = {}  # by method and path, of fixed paths

    async def __call__(self, request: Request) -> None:
        """Serve one request."""
        request.identify(f"{self._prefix}-{next(self._numbers)}")
        model.set("")
        origin = request.header(b"origin") if b"origin" in request.headers else ""
        host = request.header(b"host")
        guards, keys = self._gateway.guards, self._gateway.keys
        if not guards.host_allowed(host) or (
            origin and not guards.origin_allowed(origin, host, keyed=keys.is_required)
        ):
            self._forbid(request, origin, host)
            self._count(request, 0.0, find_outcome(request))
            return
        if origin:
            preflight = request.method == "OPTIONS"
            for name, value in cors_headers(origin, preflight=preflight).items():
                request.set_header(name, value)
            if preflight:
                request.respond(204, b"")
                return
        authorization, api_key = request.header(b"authorization"), request.header(b"x-api-key")
        running = self._gateway.running.begin(request, keys.find(authorization, api_key))
        current_key.set(running.access)
        trace.set(Trace(request.id, running.id))
        if self._gateway.tracing is not None:
            begin_trace(self._gateway.tracing, request, name_route(request.path))
        try:
            await self._handle(request, running)
        finally:
            if running.is_metered:
                self._gateway.meter.finish(running)
            self._gateway.running.finish(running)
            outcome = find_outcome(request)
            if running.recorder is not None and self._gateway.captures is not None:
                self._gateway.captures.end(running, outcome)
        self._note(request, running, outcome)
        end_trace(running, name_route(request.path), model.get(), outcome)

    def _note(self, request: Request, running: RunningRequest, outcome: Outcome) -> None:
        """Count an answer that has ended, and log it in a line, with the error it ended with."""
        took_s = (now_ns() - request.started_ns) / 1e9
        failure, status = request.failure, request.status
        error: BaseException | None = failure
        self._count(request, took_s, outcome, key=running.key)
        self._gateway.activity.note_end(running, took_s, outcome)
        if (first_ns := running.first_token_ns) is not None:
            self._gateway.metrics.observe_tokens(
                running.model,
                first_token_s=(first_ns - request.started_ns) / 1e9,
                tokens_per_s=running.tokens_per_s,
            )
        level = logging.DEBUG if request.method in ("GET", "HEAD") else logging.INFO
        end = ""
        if outcome == "stopped":
            end = f": {failure}"
        elif failure is not None:
            late = status < 400
            level = logging.WARNING if late or failure.status >= 500 else logging.INFO
            end = f"{', then an error' if late else ''}: {failure.sentence()[:MAX_LOGGED]}"
        elif request.disconnected and not request.done:
            end = ": the client has left"
        log_access(level, running, took_s, outcome, end)
        while error is not None:
            # it holds what was read of the request, in cycles that are collected late
            before = error.__cause__ or error.__context__
            error.__traceback__ = error.__cause__ = error.__context__ = None
            error = before

    def _count(self, request: Request, took_s: float, outcome: Outcome, *, key: str = "") -> None:
        """Count a request that has ended."""
        status, failure = request.status, request.failure
        reason = failure.kind if failure is not None else None
        if outcome in ("error", "stopped"):
            reason = reason or f"status_{status}"
        self._gateway.metrics.count_request(
            model=model.get(),
            route=name_route(request.path),
            dialect=find_dialect(request.path),
            status=status or CLIENT_CLOSED,
            outcome=outcome,
            key=key,
            seconds=took_s,
            reason=reason,
        )

    async def _handle(self, request: Request, running: RunningRequest) -> None:
        """Find the handler and run it; the one place where a request's errors end."""
        try:
            if not is_keyless(request.path):
                self._gateway.keys.check(running.access)
            handle = self._ready.get((request.method, request.path)) or await self._route(request)
            if handle:
                check_scope(running.access, handle)
                if handle in MODEL_HANDLERS and not await only_unloads(request):
                    await self._gateway.meter.admit(request, running)
                if self._gateway.request_log is not None and request.path in INFERENCE:
                    await self._gateway.request_log.keep(request)
                if self._gateway.captures is not None and request.path in RECORDED:
                    await self._gateway.captures.begin(request, running)
                if request.path in RECORDED and self._gateway.catalog.has_fallbacks:
                    await answer_by_chain(self._gateway, request, handle)
                else:
                    await handle(self._gateway, request)
        except ClientGone:
            pass  # there is nobody to answer; see `_note`
        except asyncio.CancelledError:
            if not running.claims_cancellation():
                raise
            self._fail(request, running.make_error())
        except VllamaError as error:
            self._fail(request, error)
        except Exception:
            # boundary: a bug in one request must not end the server
            log.exception("%s %s: unexpected error", request.method, request.path)
            self._fail(
                request, VllamaError("internal error", hint="see the server's log and report it")
            )

    @staticmethod
    def _redirect(request: Request, path: str, *, permanent: bool) -> None:
        """Send the client to another path of this server, with a page for browsers as Go's."""
        status, reason = (301, "Moved Permanently") if permanent else (307, "Temporary Redirect")
        place = quote(path)
        page, kind = b"", b""
        if request.method in ("GET", "HEAD"):
            page = f'<a href="{html.escape(place)}">{reason}</a>.\n\n'.encode()
            kind = b"text/html; charset=utf-8"
        request.respond(status, page, kind, {"location": place})

    async def _route(self, request: Request) -> Handler | None:
        """Return the handler, or answer 301/307, 404 or 405 and return None."""
        path = request.path
        if (clean := clean_path(path)) != path:
            self._redirect(request, clean, permanent=False)
            return None
        methods = find_methods(path)
        if methods is None and request.method in ROUTES.get(path.removesuffix("/"), ()):
            self._redirect(request, path.removesuffix("/"), permanent=request.method == "GET")
            return None
        if methods is None:
            request.text(404, "404 page not found")
            return None
        if request.method not in methods:
            text = b"405 method not allowed"
            allow = {"allow": ", ".join(methods)}
            request.respond(405, text, b"text/plain; charset=utf-8", allow)
            return None
        handler = methods[request.method]
        if handler in WRITES and self._gateway.guards.read_only:
            raise Forbidden(
                f"cannot serve {request.method} {path}: this server is read-only",
                hint="start it without --read-only, or use the commands on its machine: "
                "vllama pull, create, cp, rm",
            )
        if handler not in WHILE_STARTING:
            await self._gateway.completed()
        if path in ROUTES and handler not in WRITES:  # those are checked each time, see above
            self._ready[request.method, path] = handler
        return handler

    @staticmethod
    def _fail(request: Request, error: VllamaError) -> None:
        """Answer with an error in the dialect of the route; too late if the head is out."""
        request.failure = error
        if request.status:
            if not request.done:
                request.fail()
            return
        dialect = find_dialect(request.path)
        if dialect is Dialect.ANTHROPIC:
            id_ = f"req_{make_seed(request)}"
            status, body = write_anthropic_error(error, request_id=id_)
        elif dialect in (Dialect.OPENAI, Dialect.RESPONSES):
            status, body = write_openai_error(error)
        else:
            status, body = write_ollama_error(error)
        headers = {}
        if isinstance(error, Busy):
            headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
        if isinstance(error, Unauthorized):
            headers["www-authenticate"] = 'Bearer realm="vllama"'
        request.respond(status, body, headers=headers)

    def _forbid(self, request: Request, origin: str, host: str) -> None:
        """Answer 403 and, unlike Ollama, say why and what to do."""
        if origin:
            error = Forbidden(f"origin '{origin}' is not allowed", hint="add it to OLLAMA_ORIGINS")
        else:
            hint = "use localhost, or --host to listen elsewhere"
            error = Forbidden(f"host '{host}' is not allowed", hint=hint)
        text = error.sentence()[:MAX_LOGGED]
        log.warning("%s %s 403: %s", request.method, request.path[:MAX_LOGGED], text)
        self._fail(request, error)
