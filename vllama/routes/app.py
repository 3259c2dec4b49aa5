"""The front: guards, routing, and the boundary that turns errors into answers.

A plain dictionary instead of a framework's router: the routes are few and exact, and a token
passes nothing but `send()` (see docs/decisions).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from functools import partial

from msgspec import json

from vllama.accounts.keys.key import CLIENT_HEADER, Key, Scope, act_for
from vllama.accounts.keys.ring import check_scopes, current_key
from vllama.base.clock import now_ns
from vllama.base.errors import (
    Busy,
    Forbidden,
    RequestEnded,
    ShuttingDown,
    Unauthorized,
    UpstreamError,
    VllamaError,
)
from vllama.base.log_context import Outcome, Trace, model, requested, trace
from vllama.chat.engine.request_fields import may_send_code
from vllama.net.http.request import CLIENT_CLOSED, ClientGone, Request
from vllama.routes.chain import answer_by_chain
from vllama.routes.context import Gateway
from vllama.routes.events.activity import AccessLine
from vllama.routes.guards import Guards, cors_headers, mask_addresses
from vllama.routes.openai.common import make_seed
from vllama.routes.recording.running import RunningRequest
from vllama.routes.recording.traces import begin_trace, end_trace
from vllama.routes.route import Dialect, Route, RouteKind
from vllama.routes.route_table import RouteTable

log = logging.getLogger(__name__)
access_log = logging.getLogger("vllama.access")

MAX_LOGGED = 1000  # characters of a path, and of an error's text, that stand in the log


def check_open(route: Route, *, is_stranger: bool) -> None:
    """Raise Forbidden for what a server does not tell that everybody reaches without a key.

    `is_stranger`: the request names the server by a name that a stranger's page may have, too.
    """
    if route.kind is RouteKind.SETS:
        raise Forbidden(
            "cannot change this: other machines can reach the server, and it requires no key",
            hint="use the commands on its machine: vllama config edit, vllama keys add NAME",
        )
    if route.kind is RouteKind.WRITTEN or (is_stranger and route.tells):
        where = " under this name" if route.tells else ""
        raise Forbidden(
            f"cannot show this{where}: other machines can reach the server, and it requires no key",
            hint="add a key: vllama keys add NAME, or use the commands on its machine",
        )


def check_own(request: Request, guards: Guards) -> None:
    """Raise Forbidden for a change of settings or keys that is not for this server's own clients.

    What other origins may do is to use models. No answer is stored: it may have a secret.
    """
    request.set_header("cache-control", "no-store")
    where = f"cannot serve {request.method} {request.path[:MAX_LOGGED]}"
    commands = "use the commands on its machine: vllama config edit, vllama keys"
    if guards.read_only:
        raise Forbidden(f"{where}: this server is read-only", hint=commands)
    if not guards.is_own_origin(request):
        origin = request.header(b"origin")[:MAX_LOGGED]
        raise Forbidden(f"{where}: a page of '{origin}' may not change this server", hint=commands)


def find_outcome(request: Request) -> Outcome:
    """Return how a request has ended."""
    if isinstance(request.failure, RequestEnded):
        return "stopped"
    if request.failure is not None or request.status >= 400:
        return "error"
    return "aborted" if request.disconnected and not request.done else "ok"


class App:
    """Answers every request, whatever happens."""

    def __init__(self, gateway: Gateway, table: RouteTable | None = None) -> None:
        self._gateway = gateway
        self._table = table or RouteTable()
        gateway.describe_api = self._describe
        gateway.answer = self.answer
        self._numbers = itertools.count(1)
        self._prefix = f"{time.time_ns() // 1_000_000:x}"

    def _describe(self, *, needs_key: bool) -> bytes:
        """Return the description of the API; the first time this takes some tenths of a second."""
        from vllama.routes.describe.document import (
            encode_document,  # large, and most servers are never asked
        )

        return encode_document(self._table.routes, needs_key=needs_key)

    async def __call__(self, request: Request) -> None:
        """Serve one request."""
        request.identify(f"{self._prefix}-{next(self._numbers)}")
        model.set("")
        requested.set("")
        route, gateway = self._table.find(request.method, request.path), self._gateway
        authorization, api_key = request.header(b"authorization"), request.header(b"x-api-key")
        key = gateway.keys.find(authorization, api_key)
        if key is not None and Scope.NODE in key.scopes:
            key = act_for(key, request.header(CLIENT_HEADER))
        if self._admit(request, route):
            await self._answer(request, route, key)

    async def answer(self, request: Request, key: Key | None) -> None:
        """Serve a request that the server asks itself, as if it had shown `key`."""
        request.identify(f"{self._prefix}-{next(self._numbers)}")
        model.set("")
        requested.set("")
        await self._answer(request, self._table.find(request.method, request.path), key)

    async def _answer(self, request: Request, route: Route, key: Key | None) -> None:
        gateway = self._gateway
        running = gateway.running.begin(request, route, key)
        current_key.set(key)
        request.mask = partial(self._mask, key)
        may_send_code.set(
            gateway.guards.inspect_code and key is not None and key.allows(Scope.ADMIN)
        )
        trace.set(Trace(request.id, running.id))
        if gateway.tracing is not None:
            begin_trace(gateway.tracing, request, route)
        try:
            await self._check(request, running)
            if route.kind is RouteKind.MODEL:
                await self._begin_work(request, running)
            is_about_model = route.kind is RouteKind.MODEL or route.on_nodes
            if gateway.nodes is not None and is_about_model:
                from vllama.routes.nodes import forward_to_node  # only where there are nodes

                if await forward_to_node(gateway, request, running):
                    return
            if route.kind is RouteKind.MODEL and gateway.catalog.has_fallbacks:
                await answer_by_chain(gateway, request, route.handler)
            else:
                await route.handler(gateway, request)
        except ClientGone:
            pass  # there is nobody to answer; see `_note`
        except asyncio.CancelledError:
            if not running.claims_cancellation():
                self._fail(
                    request, route.dialect, ShuttingDown("cannot go on: the server is stopping")
                )
                raise
            self._fail(request, route.dialect, running.make_error())
        except VllamaError as error:
            self._fail(request, route.dialect, error)
        except Exception:
            # boundary: a bug in one request must not end the server
            log.exception("%s %s: unexpected error", request.method, request.path)
            unknown = VllamaError("internal error", hint="see the server's log and report it")
            self._fail(request, route.dialect, unknown)
        finally:
            outcome = self._end(request, running)
        self._note(request, running, outcome)
        end_trace(running, model.get(), outcome)

    def _admit(self, request: Request, route: Route) -> bool:
        """Return whether a page of its origin may ask; else, or if it only asks that, answer."""
        origin = request.header(b"origin") if b"origin" in request.headers else ""
        host, guards = request.header(b"host"), self._gateway.guards
        if not guards.host_allowed(host) or (
            origin and not guards.origin_allowed(origin, host, keyed=self._gateway.keys.is_required)
        ):
            self._forbid(request, route.dialect, origin, host)
            self._count(request, route, 0.0, find_outcome(request))
            return False
        if not origin:
            return True
        is_preflight = request.method == "OPTIONS"
        for name, value in cors_headers(origin, preflight=is_preflight).items():
            request.set_header(name, value)
        if is_preflight:
            request.respond(204, b"")
        return not is_preflight

    async def _check(self, request: Request, running: RunningRequest) -> None:
        """Raise what keeps a request from its handler; wait until the server has started."""
        gateway, route = self._gateway, running.route
        guards = gateway.guards
        if not route.keyless:
            gateway.keys.check(running.access)
        if route.kind is RouteKind.WRITES and guards.read_only:
            raise Forbidden(
                f"cannot serve {request.method} {request.path}: this server is read-only",
                hint="start it without --read-only, or use the commands on its machine: "
                "vllama pull, create, cp, rm",
            )
        if route.kind is RouteKind.SETS:
            check_own(request, guards)
        if not (route.starting or gateway.is_complete):
            await gateway.completed()
        check_scopes(running.access, route.scopes)
        if not (guards.loopback or gateway.keys.is_required):
            check_open(route, is_stranger=guards.is_stranger(request, keyed=False))

    async def _begin_work(self, request: Request, running: RunningRequest) -> None:
        """Admit a request to a model, and keep of it what is wanted."""
        gateway, route = self._gateway, running.route
        if route.is_free is None or not await route.is_free(request):
            gateway.meter.admit(request, running)
        if gateway.captures is not None and route.captured:
            await gateway.captures.begin(request, running)

    def _end(self, request: Request, running: RunningRequest) -> Outcome:
        """Forget a request that has ended; return how it did."""
        gateway = self._gateway
        if running.is_metered:
            gateway.meter.finish(running)
        gateway.running.finish(running)
        outcome = find_outcome(request)
        if running.recorder is not None and gateway.captures is not None:
            gateway.captures.end(running, outcome)
        return outcome

    def _mask(self, key: Key | None, data: bytes) -> bytes:
        """Return what `key` may see of `data`; without keys, clients here see all."""
        gateway = self._gateway
        sees_all = gateway.guards.loopback and not gateway.keys.is_required
        if key is not None:
            sees_all = key.allows(Scope.ADMIN)
        if sees_all or not gateway.is_complete:
            return data
        return mask_addresses(gateway.watch.endpoints, data)

    def _note(self, request: Request, running: RunningRequest, outcome: Outcome) -> None:
        """Count an answer that has ended, and log it in a line, with the error it ended with."""
        took_s = (now_ns() - request.started_ns) / 1e9
        failure, status = request.failure, request.status
        error: BaseException | None = failure
        self._count(request, running.route, took_s, outcome, key=running.key)
        row = running.describe_end(took_s, outcome)
        self._gateway.activity.note_end(running, row)
        if row.first_token_s is not None:
            self._gateway.metrics.observe_tokens(
                row.model, first_token_s=row.first_token_s, tokens_per_s=row.tokens_per_s
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
        access_log.log(level, AccessLine(row, end))
        while error is not None:
            # it holds what was read of the request, in cycles that are collected late
            before = error.__cause__ or error.__context__
            error.__traceback__ = error.__cause__ = error.__context__ = None
            error = before

    def _count(
        self, request: Request, route: Route, took_s: float, outcome: Outcome, *, key: str = ""
    ) -> None:
        """Count a request that has ended."""
        status, failure = request.status, request.failure
        reason = failure.kind if failure is not None else None
        if outcome in ("error", "stopped"):
            reason = reason or f"status_{status}"
        self._gateway.metrics.count_request(
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
            hint = "use localhost, or --host to listen elsewhere"
            error = Forbidden(f"host '{host}' is not allowed", hint=hint)
        text = error.sentence()[:MAX_LOGGED]
        log.warning("%s %s 403: %s", request.method, request.path[:MAX_LOGGED], text)
        self._fail(request, dialect, error)
