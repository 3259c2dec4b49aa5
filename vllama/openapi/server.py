"""The routes that tell about the server itself."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from vllama.captures.format import Capture, Summary
from vllama.openapi.operation import Operation, Parameter, Tag


class Obstacle(Struct):
    """What keeps the server from serving, and why."""

    what: str
    why: str


class Health(Struct):
    """Whether all is well, and what is not."""

    status: Literal["ok", "error"]
    reasons: list[Obstacle] | UnsetType = UNSET


class Readiness(Struct):
    """Whether a request would be served now, and why not."""

    status: Literal["ready", "not ready"]
    reasons: list[Obstacle] | UnsetType = UNSET


class Liveness(Struct):
    """That the process answers."""

    status: Literal["ok"]


class RunningRequest(Struct):
    """A request that waits or runs."""

    id: str
    model: str
    method: str
    path: str
    client: str
    key: str | None
    state: Literal["running", "waiting"]
    started_at: str
    prompt_tokens: int
    tokens: int


class RunningRequests(Struct):
    """The requests to models, the oldest first."""

    requests: list[RunningRequest]


class Captures(Struct):
    """The newest captures, the newest first; none are made if they are not enabled."""

    enabled: bool
    captures: list[Summary]


_TEXT: dict[str, Any] = {"type": "string"}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        paths=("/",),
        methods=("get", "head"),
        tag=Tag.SERVER,
        summary="Tell that the server runs",
        media={"text/plain": {"const": "Ollama is running"}},
        keyless=True,
    ),
    Operation(
        paths=("/health",),
        methods=("get", "head"),
        tag=Tag.SERVER,
        summary="Tell whether all is well",
        answer=Health,
        statuses=(200, 503),
        keyless=True,
    ),
    Operation(
        paths=("/livez",),
        methods=("get", "head"),
        tag=Tag.SERVER,
        summary="Tell that the process answers",
        answer=Liveness,
        keyless=True,
    ),
    Operation(
        paths=("/readyz",),
        methods=("get", "head"),
        tag=Tag.SERVER,
        summary="Tell whether a request would be served now",
        answer=Readiness,
        statuses=(200, 503),
        keyless=True,
    ),
    Operation(
        paths=("/metrics",),
        methods=("get",),
        tag=Tag.SERVER,
        summary="Export the metrics for Prometheus",
        media={"text/plain": _TEXT, "application/openmetrics-text": _TEXT},
    ),
    Operation(
        paths=("/api/requests",),
        methods=("get",),
        tag=Tag.SERVER,
        summary="List the requests that wait or run",
        answer=RunningRequests,
    ),
    Operation(
        paths=("/api/requests/{id}",),
        methods=("delete",),
        tag=Tag.SERVER,
        summary="End a request; its client gets an error",
        parameters=(Parameter(name="id", help="the request's id"),),
        errors=(404,),
    ),
    Operation(
        paths=("/api/captures",),
        methods=("get",),
        tag=Tag.SERVER,
        summary="List the newest captures, without their bodies",
        help="A capture is a request to a model with its answer; `--capture N` keeps them.",
        answer=Captures,
    ),
    Operation(
        paths=("/api/captures/{id}",),
        methods=("get",),
        tag=Tag.SERVER,
        summary="Show a capture with its bodies",
        parameters=(Parameter(name="id", help="the capture's id, or the request's"),),
        answer=Capture,
        errors=(404,),
    ),
    Operation(
        paths=("/openapi.json",),
        methods=("get", "head"),
        tag=Tag.SERVER,
        summary="Describe the API: this document",
        media={"application/json": {"type": "object"}},
        keyless=True,
    ),
)
