"""The front: guards, routing, and the boundary that turns errors into answers.

A plain dictionary instead of a framework's router: the routes are few and exact, and a token
passes nothing but `send()` (see docs/decisions).
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import math
import time
from functools import partial
from html import escape

from msgspec import json

from vllama.accounts.keys.key import CLIENT_HEADER, ApiKey, Scope, act_for, act_for_user
from vllama.accounts.keys.ring import check_scopes, current_key
from vllama.base.audit import OWNER, actor
from vllama.base.clock import now_ns
from vllama.base.errors import (
    Busy,
    DiskFull,
    Forbidden,
    RequestEnded,
    ShuttingDown,
    Unauthorized,
    UpstreamError,
    VllamaError,
)
from vllama.base.log_context import Outcome, Trace, model, requested, trace
from vllama.chat.engine.request_fields import may_send_code, may_use_engine
from vllama.dialects.events import EndedRow
from vllama.net.http.request import CLIENT_CLOSED, ClientGone, Request
from vllama.routes.chain import answer_by_chain
from vllama.routes.context import Gateway, Starting
from vllama.routes.events.activity import AccessLine
from vllama.routes.guards import Guards, cors_headers, mask_addresses
from vllama.routes.openai.common import make_seed
from vllama.routes.recording.running import RunningRequest, describe_end, make_ended_error
from vllama.routes.recording.stage import Stages
from vllama.routes.route import Dialect, Route, RouteKind
from vllama.routes.route_table import RouteTable

log = logging.getLogger(__name__)
access_log = logging.getLogger("vllama.access")

MAX_LOGGED = 1000  # characters of a path, and of an error's text, that stand in the log


OWNERS = frozenset((RouteKind.SETS, RouteKind.WRITTEN, RouteKind.DETACHED, RouteKind.ADMIN))
"""Kinds for whoever owns the server; where no key says who that is, for its machine's own pages.

A route that declares no kind is one of them. tests/hostile/test_open_server.py lists all routes.
"""


def check_open(route: Route, *, is_stranger: bool) -> None:
    """Raise Forbidden for what a server does not do that everybody reaches without a key.

    `is_stranger`: the request names the server by a name that a stranger's page may have, too.
    """
    is_closed = route.kind in OWNERS or route.shared
    if is_closed or (is_stranger and route.tells):
        where = "" if is_closed else " under this name"
        raise Forbidden(
            f"cannot do this{where}: other machines can reach the server, and it requires no key",
            hint="add a key: vllama keys add NAME, or use the commands on its machine",
        )


def check_own(request: Request, guards: Guards, kind: RouteKind) -> None:
    """Raise Forbidden for what is its owner's, and is asked by a page of another origin.

    What other origins may do is to use models. No answer is stored: it may have a secret.
    """
    request.set_header("cache-control", "no-store")
    where = f"cannot serve {request.method} {request.path[:MAX_LOGGED]}"
    commands = "use the commands on its machine: vllama config edit, vllama keys"
    if guards.read_only and kind is RouteKind.SETS:
        raise Forbidden(f"{where}: this server is read-only", hint=commands)
    if not guards.is_own_origin(request):
        origin = request.header(b"origin")[:MAX_LOGGED]
        raise Forbidden(f"{where}: a page of '{origin}' may only use models", hint=commands)


def find_outcome(request: Request) -> Outcome:
    """Return how a request has ended."""
    if isinstance(request.failure, RequestEnded):
        return "stopped"
    if request.failure is not None or request.status >= 400:
        return "error"
    return "aborted" if request.disconnected and not request.done else "ok"


class App:
    """Answers every request, whatever happens."""

    def __init__(self, starting: Starting) -> None:
        """To be made in the running loop.

        All requests but those with a route that is `starting` wait for `complete` or `fail`.
        """
        self.starting = starting
        self._table = RouteTable(starting.routes)
        self._gateway: Gateway | None = None
        self._stages = Stages(starting.activity)
        self._completed: asyncio.Future[Gateway] = asyncio.get_running_loop().create_future()
        self._numbers = itertools.count(1)
        self._prefix = f"{time.time_ns() // 1_000_000:x}"

    def complete(self, gateway: Gateway) -> None:
        """Serve all requests from now on."""
        self._gateway, self._stages = gateway, gateway.stages
        self._completed.set_result(gateway)

    def fail(self, error: VllamaError) -> None:
        """Fail all waiting requests, and those that still come, with `error`."""
        self._completed.set_exception(error)
        self._completed.exception()  # else asyncio warns if no request waits for it

    async def __call__(self, request: Request) -> None:
        """Serve one request."""
        request.identify(f"{self._prefix}-{next(self._numbers)}")
        model.set("")
        requested.set("")
        route = self._table.find(request.method, request.path)
        authorization, api_key = request.header(b"authorization"), request.header(b"x-api-key")
        key = self.starting.keys.find(authorization, api_key)
        if key is not None and Scope.NODE in key.scopes:
            key = act_for(key, request.header(CLIENT_HEADER))
        if key is not None:
            key = act_for_user(key, request.header)
        if self._admit(request, route):
            await self._answer(request, route, key)

    async def answer(self, request: Request, key: ApiKey | None) -> None:
        """Serve a request that the server asks itself, as if it had shown `key`."""
        request.identify(f"{self._prefix}-{next(self._numbers)}")
        model.set("")
        requested.set("")
        await self._answer(request, self._table.find(request.method, request.path), key)

    async def _answer(self, request: Request, route: Route, key: ApiKey | None) -> None:
        starting, gateway = self.starting, self._gateway
        running = starting.running.begin(request, route, key)
        if key is not None:
            request.charge(key.identity)
        current_key.set(key)
        actor.set(" for ".join(filter(None, (key.name, key.user))) if key is not None else OWNER)
        request.mask = partial(self._mask, key)
        may_send_code.set(
            starting.guards.inspect_code and key is not None and key.allows(Scope.ADMIN)
        )
        may_use_engine.set(key is not None and key.allows(Scope.ENGINE))
        trace.set(Trace(request.id, running.id))
        self._stages.began(running)
        try:
            self._check(request, running)
            if gateway is None and route.starting is not None:
                await route.starting(starting, request)
            else:  # one canceled request must not cancel it for all
                await self._serve(await asyncio.shield(self._completed), request, running)
        except ClientGone:
            pass  # there is nobody to answer; see `_note`
        except asyncio.CancelledError:
            if not running.claims_cancellation():
                self._fail(
                    request, route.dialect, ShuttingDown("cannot go on: the server is stopping")
                )
                raise
            self._fail(request, route.dialect, make_ended_error())
        except VllamaError as error:
            self._fail(request, route.dialect, error)
        except Exception as error:
            # boundary: a bug in one request must not end the server
            failure = VllamaError("internal error", hint="see the server's log and report it")
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                failure = DiskFull(f"cannot write to the server's disk: {error.strerror}")
            else:
                log.exception("%s %s: unexpected error", request.method, request.path)
            self._fail(request, route.dialect, failure)
        finally:
            starting.running.finish(running)
            row = self._note(request, running)
            self._stages.ended(running, row)

    def _admit(self, request: Request, route: Route) -> bool:
        """Return whether a page of its origin may ask; else, or if it only asks that, answer."""
        origin = request.header(b"origin") if b"origin" in request.headers else ""
        host, guards = request.header(b"host"), self.starting.guards
        keyed = self.starting.keys.is_required
        if not guards.host_allowed(host, keyed=keyed) or (
            origin and not guards.origin_allowed(origin, host, keyed=keyed)
        ):
            self._forbid(request, route.dialect, origin, host)
            self._count(request, route, 0.0, find_outcome(request))
            return False
        if not origin:
            return True
        is_preflight = request.method == "OPTIONS"
        asked = request.header(b"access-control-request-headers") if is_preflight else ""
        for name, value in cors_headers(origin, preflight=is_preflight, asked=asked).items():
            request.set_header(name, value)
        if is_preflight:
            request.respond(204, b"")
        return not is_preflight

    def _check(self, request: Request, running: RunningRequest) -> None:
        """Raise what keeps a request from its handler."""
        keys, guards, route = self.starting.keys, self.starting.guards, running.route
        if not route.keyless:
            keys.check(running.access)
        changes = route.kind is RouteKind.WRITES and request.method != "HEAD"
        if changes and guards.read_only:
            raise Forbidden(
                f"cannot serve {request.method} {request.path}: this server is read-only",
                hint="start it without --read-only",
            )
        if route.kind is RouteKind.SETS or (route.kind in OWNERS and not keys.is_required):
            check_own(request, guards, route.kind)
        check_scopes(running.access, route.scopes)
        if not (guards.loopback or keys.is_required):
            check_open(route, is_stranger=guards.is_stranger(request, keyed=False))

    @staticmethod
    async def _serve(gateway: Gateway, request: Request, running: RunningRequest) -> None:
        """Serve a request, here or by a node; admit one to a model, and record it."""
        route = running.route
        if for_model := route.kind is RouteKind.MODEL:
            for admitted in gateway.stages.admitted:
                await admitted(running)
            request.before_end = partial(gateway.stages.before_end, running)
        if gateway.nodes is not None and (for_model or route.on_nodes):
            from vllama.routes.nodes import forward_to_node  # only where there are nodes

            if await forward_to_node(gateway, request, running):
                return
        if for_model and gateway.catalog.library.has_fallbacks:
            await answer_by_chain(gateway, request, route.handler)
        else:
            await route.handler(gateway, request)

    def _mask(self, key: ApiKey | None, data: bytes) -> bytes:
        """Return the part of `data` that `key` may see; without keys, clients here see all."""
        sees_all = self.starting.guards.loopback and not self.starting.keys.is_required
        if key is not None:
            sees_all = key.allows(Scope.ADMIN)
        if sees_all or self._gateway is None:
            return data
        return mask_addresses(self._gateway.watch.endpoints, data)

    def _note(self, request: Request, running: RunningRequest) -> EndedRow:
        """Count an answer that has ended, and log it in a line, with the error it ended with.

        Return its row among the requests that have ended.
        """
        outcome = find_outcome(request)
        took_s = (now_ns() - request.started_ns) / 1e9
        failure, status = request.failure, request.status
        error: BaseException | None = failure
        self._count(request, running.route, took_s, outcome, key=running.key)
        row = describe_end(running, took_s, outcome)
        if row.first_token_s is not None:
            self.starting.metrics.observe_tokens(
                row.model, first_token_s=row.first_token_s, tokens_per_s=row.tokens_per_s
            )
        is_quiet = request.method in ("GET", "HEAD") or not running.route.described
        level = logging.DEBUG if is_quiet else logging.INFO
        end = ""
        if outcome == "stopped":
            end = f": {failure}"
        elif failure is not None:
            late = status < 400
            level = logging.WARNING if late or failure.status >= 500 else logging.INFO
            end = f"{', then an error' if late else ''}: {failure.sentence()[:MAX_LOGGED]}"
        elif request.disconnected and not request.done:
            end = ": the client has left"
        access_log.log(level, AccessLine(row, end))
        while error is not None:
            # it holds what was read of the request, in cycles that are collected late
            before = error.__cause__ or error.__context__
            error.__traceback__ = error.__cause__ = error.__context__ = None
            error = before
        return row

    def _count(
        self, request: Request, route: Route, took_s: float, outcome: Outcome, *, key: str = ""
    ) -> None:
        """Count a request that has ended."""
        status, failure = request.status, request.failure
        reason = failure.kind if failure is not None else None
        if outcome in ("error", "stopped"):
            reason = reason or f"status_{status}"
        self.starting.metrics.count_request(
            model=model.get(),
            route=route.make_label(request.path),
            dialect=route.dialect,
            status=status or CLIENT_CLOSED,
            outcome=outcome,
            key=key,
            seconds=took_s,
            reason=reason,
        )

    @staticmethod
    def _fail(request: Request, dialect: Dialect, error: VllamaError) -> None:
        """Answer with an error in the dialect of the route; too late if the head is out."""
        request.failure = error
        if request.status:
            if not request.done:
                request.fail()
            return
        body = dialect.make_error(error, f"req_{make_seed(request)}")
        own = {name.decode() for name, _ in request.extra}  # limits of the client's own key
        headers: dict[str, str] = {}
        if isinstance(error, UpstreamError):
            headers |= {name: value for name, value in error.headers.items() if name not in own}
        if isinstance(error, Busy):
            headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
        if isinstance(error, Unauthorized):
            headers["www-authenticate"] = 'Bearer realm="vllama"'
        request.respond(error.status, request.mask(json.encode(body)), headers=headers)

    def _forbid(self, request: Request, dialect: Dialect, origin: str, host: str) -> None:
        """Answer 403 and, unlike Ollama, say why and what to do."""
        if origin:
            error = Forbidden(f"origin '{origin}' is not allowed", hint="add it to OLLAMA_ORIGINS")
        else:
            hint = "use localhost; behind a proxy, require a key (--api-key-file)"
            error = Forbidden(f"host '{host}' is not allowed", hint=hint)
        text = error.sentence()[:MAX_LOGGED]
        log.warning("%s %s 403: %s", request.method, request.path[:MAX_LOGGED], text)
        if "text/html" in request.header(b"accept"):  # a person looks at it
            request.failure = error
            page = f"<!doctype html><title>vllama</title><p>{escape(text)}\n"
            request.respond(403, page.encode(), b"text/html; charset=utf-8")
            return
        self._fail(request, dialect, error)
