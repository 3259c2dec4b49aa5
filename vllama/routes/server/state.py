"""The handlers that tell about the server: its API, settings, events, requests, captures, usage."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, get_args

import msgspec
from msgspec import Struct

from vllama.accounts.keys.key import Scope
from vllama.accounts.usage.entries import check_day
from vllama.accounts.usage.store import COLUMNS, FAILURES, UsageRow
from vllama.base import executors
from vllama.base.errors import BadRequest, Busy, Forbidden, NotFound
from vllama.base.meaning import TEXT, make_integer, make_word, says
from vllama.dialects.events import EndedRow, EventData, Mark, RequestRow, Sample
from vllama.net.http.request import JSON, Request
from vllama.observe.captures.folder import find_capture, list_summaries
from vllama.observe.captures.format import ReadCapture, Summary
from vllama.observe.captures.reading import read_texts
from vllama.routes.events.activity import DAY_S
from vllama.routes.events.hub import TOPICS
from vllama.routes.recording.running import describe
from vllama.routes.route import Framing, Parameter, Route, RouteKind, Stream, server_route

if TYPE_CHECKING:
    from vllama.routes.context import Gateway, Starting

REQUESTS = "/api/requests/"
STREAMS = "/api/streams/"
CAPTURES = "/api/captures/"
MAX_LISTED = 200
"""Captures, or requests, that one answer lists."""
USUAL = "day,key,model"
PARAMETERS = ("by", "since", "until")


class RunningRequests(Struct):
    """The running and queued requests, oldest first."""

    requests: Annotated[list[RequestRow], says("requests, oldest first")]


class EndedRequests(Struct):
    """The finished requests, newest first."""

    requests: Annotated[list[EndedRow], says("requests, newest first")]
    more: Annotated[bool, says("true if older ones are available")]


class Day(Struct):
    """The last 24 hours by the minute."""

    samples: Annotated[list[Sample], says("samples, oldest first, without repeated ones")]
    marks: Annotated[list[Mark], says("loads and evictions, oldest first")]


class Streams(Struct):
    """The detached streams of a key."""

    running: Annotated[list[RequestRow], says("running requests, oldest first")]
    ended: Annotated[list[EndedRow], says("recently finished requests, oldest first")]


class Captures(Struct):
    """The most recent captures, newest first; empty if captures are off."""

    enabled: Annotated[bool, says("true if requests are captured")]
    captures: Annotated[list[Summary], says("captures, newest first")]


class UsageRows(Struct):
    """Usage, grouped by the requested columns."""

    usage: Annotated[list[UsageRow], says("one row per group")]
    currency: Annotated[str, says("currency of the cost")]


async def get_document(starting: Starting, request: Request) -> None:
    """Return this OpenAPI document.

    No key is needed: the document is the same for everyone.
    """
    # large, and most servers are never asked
    from vllama.routes.describe.document import encode_document

    needs_key = starting.keys.is_required
    document = await executors.codec.run(encode_document, starting.routes, needs_key=needs_key)
    request.respond(200, document, JSON)


async def stream_events(gateway: Gateway, request: Request) -> None:
    """Stream server events: a snapshot, then every change."""
    topics = frozenset(request.read_query().get("events", ",".join(TOPICS)).split(","))
    for topic in sorted(topics.difference(TOPICS)):
        raise BadRequest(f"cannot stream '{topic}'", hint=f"choose from {', '.join(TOPICS)}")
    subscriber = gateway.events.subscribe(request, topics)
    request.watch(subscriber.ended.set)
    try:
        await subscriber.ended.wait()
    finally:
        request.unwatch(subscriber.ended.set)
        gateway.events.unsubscribe(subscriber)


async def list_samples(gateway: Gateway, request: Request) -> None:
    """List the samples of the last 24 hours, one per minute; the event stream has the last hour."""
    since_s = time.time() - DAY_S
    samples = gateway.events.history.minutes.list_since(since_s)
    request.json(200, Day(samples, gateway.scheduler.marks.list_since(since_s)))


async def list_requests(gateway: Gateway, request: Request) -> None:
    """List running and queued requests; keys without the scope read see only their own."""
    access = gateway.running.of(request).access
    own = access is not None and not access.allows(Scope.READ)
    places = gateway.scheduler.list_queue_places()
    rows = gateway.running.list_rows(places, access.name if access is not None and own else None)
    request.json(200, RunningRequests(rows))


async def list_ended(gateway: Gateway, request: Request) -> None:
    """List finished requests, newest first; the last thousand are stored."""
    query = request.read_query()
    text = query.get("limit", str(MAX_LISTED))
    if not (text.isdecimal() and 0 < int(text) <= MAX_LISTED):
        raise BadRequest(f"cannot list '{text}' requests", hint=f"the range is 1 to {MAX_LISTED}")
    found, more = gateway.activity.list_before(query.get("before", ""), int(text))
    request.json(200, EndedRequests(found, more))


async def list_streams(gateway: Gateway, request: Request) -> None:
    """List this key's running and recently finished detached responses.

    A request detaches its response with `x-vllama-detach: 1`; `x-request-id` sets its ID.
    """
    own = gateway.detached.list_streams(gateway.running.of(request).owner)
    running = [describe(one.running, None) for one in own if one.running]
    request.json(200, Streams(running, [one.row for one in own if one.row]))


async def read_stream(gateway: Gateway, request: Request) -> None:
    """Replay a response from a byte position, and follow it to its end."""
    given, id_ = request.read_query().get("from", "0"), request.path.removeprefix(STREAMS)
    if not given.isdecimal():
        raise BadRequest(f"cannot read from '{given[:80]}'", hint="it must be a number of bytes")
    stream = gateway.detached.find(gateway.running.of(request).owner, id_)
    await stream.send(request, int(given))


async def end_request(gateway: Gateway, request: Request) -> None:
    """Cancel a request; its client receives an error in the format of its API.

    A key can cancel its own requests; other requests need the scope admin.
    """
    id_, asking = request.path.removeprefix(REQUESTS), gateway.running.of(request)
    running, access = gateway.running.find(id_), asking.access
    is_own = running is None or access is None or running.owner == asking.owner
    if running is None or not (is_own or access is None or access.allows(Scope.READ)):
        raise NotFound(
            f"request '{id_}' is not running", hint="list running requests: vllama ps --requests"
        )
    if not (is_own or access is None or access.allows(Scope.ADMIN)):
        raise Forbidden(
            f"cannot cancel request '{id_}': it belongs to another key",
            hint="use a key with the scope admin",
        )
    running.end()
    if not is_own:
        before = {"key": running.key, "model": running.model}
        await gateway.record_act("requests end", id_, before)
    request.respond(200, b"")


async def list_captures(gateway: Gateway, request: Request) -> None:
    """List the most recent captures without bodies, newest first.

    A capture is a request with its response; `--capture N` enables captures.
    """
    captures = gateway.captures
    if captures is None:
        request.json(200, Captures(enabled=False, captures=[]))
        return
    folder = captures.folder
    found = await executors.disk.run(lambda: list(list_summaries(folder, MAX_LISTED)))
    request.json(200, Captures(enabled=True, captures=found))


async def get_capture(gateway: Gateway, request: Request) -> None:
    """Return a capture with its bodies and the text of its response.

    The ID is the capture's own, or the client's request ID.
    """
    id_ = request.path.removeprefix(CAPTURES)
    captures = gateway.captures
    if captures is None:
        raise NotFound(
            f"no capture '{id_}': requests are not captured",
            hint="start the server with --capture 100",
        )
    capture = await executors.disk.run(find_capture, captures.folder, id_)
    if capture is None:
        raise NotFound(f"no such capture: '{id_}'", hint="list the captures: vllama requests")
    content = await executors.disk.run(lambda: msgspec.json.encode(read_texts(capture)))
    request.respond(200, content, JSON)


async def list_usage(gateway: Gateway, request: Request) -> None:
    """Return usage: requests, tokens and time; keys without the scope read see only their own."""
    query = request.read_query()
    for name in query:
        if name not in PARAMETERS:
            raise BadRequest(
                f"cannot list usage by the parameter '{name}': unknown parameter",
                hint=f"use {', '.join(PARAMETERS)}",
            )
    by = tuple(name for name in query.get("by", USUAL).split(",") if name)
    for name in by:
        if name not in COLUMNS:
            raise BadRequest(
                f"cannot group usage by '{name}'", hint=f"choose from {', '.join(COLUMNS)}"
            )
    days = [query.get(name, "") for name in ("since", "until")]
    try:
        for day in filter(None, days):
            check_day(day)
    except ValueError as error:
        raise BadRequest(f"cannot list usage: {error}") from None
    access = gateway.running.of(request).access
    own = access if access is not None and not access.allows(Scope.READ) else None
    only = (own.name, own.user) if own is not None else (None, "")
    recorder = gateway.meter.recorder
    await recorder.flush()
    try:
        rows = await executors.storage.run(
            recorder.read, lambda store: store.list_rows(by, *days, *only)
        )
    except FAILURES as error:
        raise Busy(f"cannot list usage: {error}") from error
    request.json(200, UsageRows(rows, gateway.in_use.config.currency))


def _match_list(*words: str) -> str:
    """Return the pattern of some of these words with commas between them."""
    choice = "|".join(words)
    return f"({choice})(,({choice}))*"


_DAY: dict[str, Any] = {
    "anyOf": [{"type": "string", "format": "date"}, make_word("")],
    "examples": ["2026-11-23"],
}
_ID = Parameter("id", "request ID")
_own = partial(server_route, kind=RouteKind.OWN)
ROUTES = (
    Route(
        "GET HEAD /openapi.json",
        get_document,
        RouteKind.OPEN,
        keyless=True,
        starting=get_document,
        media={"application/json": {"type": "object"}},
    ),
    server_route(
        "GET /api/events",
        stream_events,
        RouteKind.OBSERVES,
        tells=True,
        parameters=(
            Parameter(
                "events",
                f"topics, comma-separated: {', '.join(TOPICS)}",
                TEXT | {"pattern": f"^{_match_list(*TOPICS)}$"},
            ),
        ),
        stream=Stream(Framing.NAMED_EVENTS, get_args(EventData)),
    ),
    server_route("GET /api/samples", list_samples, RouteKind.OBSERVES, tells=True, answer=Day),
    _own("GET /api/requests", list_requests, tells=True, answer=RunningRequests),
    server_route(
        f"GET {REQUESTS}ended",
        list_ended,
        RouteKind.OBSERVES,
        tells=True,
        parameters=(
            Parameter("before", "request ID; returns requests finished before this one", TEXT),
            Parameter("limit", "number of requests", make_integer(1, MAX_LISTED)),
        ),
        answer=EndedRequests,
    ),
    _own(f"DELETE {REQUESTS}{{id}}", end_request, parameters=(_ID,)),
    server_route("GET /api/streams", list_streams, RouteKind.DETACHED, answer=Streams),
    server_route(
        f"GET {STREAMS}{{id}}",
        read_stream,
        RouteKind.DETACHED,
        parameters=(_ID, Parameter("from", "number of bytes to skip", make_integer(0))),
        media={kind: {"type": "string"} for kind in ("application/x-ndjson", "text/event-stream")},
    ),
    server_route("GET /api/captures", list_captures, RouteKind.WRITTEN, answer=Captures),
    server_route(
        f"GET {CAPTURES}{{id}}",
        get_capture,
        RouteKind.WRITTEN,
        parameters=(Parameter("id", "capture ID, or request ID"),),
        answer=ReadCapture,
    ),
    _own(
        "GET /api/usage",
        list_usage,
        tells=True,
        parameters=(
            Parameter(
                "by",
                f"columns to group by, comma-separated: {', '.join(COLUMNS)}",
                TEXT | {"pattern": f"^({_match_list(*COLUMNS)})?$"},
            ),
            Parameter("since", "first day, in UTC", _DAY),
            Parameter("until", "last day, in UTC", _DAY),
        ),
        answer=UsageRows,
    ),
)
