"""The handler of `GET /api/events`; see docs/reference/events.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllama.errors import BadRequest
from vllama.http.request import Request
from vllama.routes.events.changes import TOPICS

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

ALL = frozenset(TOPICS)


async def stream_events(gateway: Gateway, request: Request) -> None:
    """Stream a snapshot, and then what changes, until the client leaves or the server stops."""
    subscriber = gateway.events.subscribe(request, read_topics(request.read_query()))
    request.watch(subscriber.ended.set)
    try:
        await subscriber.ended.wait()
    finally:
        request.unwatch(subscriber.ended.set)
        gateway.events.unsubscribe(subscriber)


def read_topics(query: dict[str, str]) -> frozenset[str]:
    """Return the topics of `?events=`, all by default. Raises BadRequest for an unknown one."""
    named = frozenset(query["events"].split(",")) if "events" in query else ALL
    for topic in sorted(named - ALL):
        raise BadRequest(f"cannot stream '{topic}'", hint=f"choose from {', '.join(TOPICS)}")
    return named
