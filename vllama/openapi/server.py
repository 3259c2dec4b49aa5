"""The routes that tell about the server itself."""

from __future__ import annotations

from typing import Any, Literal, get_args

from msgspec import UNSET, Struct, UnsetType

from vllama.captures.format import ReadCapture, Summary
from vllama.dialects.events import EventData, RequestRow
from vllama.dialects.ollama import request_types as requests
from vllama.openapi.fields import EXAMPLE_MODEL, INTEGER, MODEL
from vllama.openapi.operation import Body, Operation, Parameter, Stream, StreamKind, Tag
from vllama.usage.store import UsageRow


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


class RunningRequests(Struct):
    """The requests to models, the oldest first."""

    requests: list[RequestRow]


class Captures(Struct):
    """The newest captures, the newest first; none are made if they are not enabled."""

    enabled: bool
    captures: list[Summary]


class LogAttempt(Struct):
    """The log of one start of an engine."""

    attempt: int
    size: int
    written_at: str | None


class Log(Struct):
    """A log: vllama's own, or that of a model's engine with its attempts, the oldest first."""

    name: str
    size: int
    attempts: list[LogAttempt]


class Logs(Struct):
    """The logs that are kept."""

    logs: list[Log]


class Usage(Struct):
    """What was used."""

    usage: list[UsageRow]


class SettingRow(Struct):
    """A setting in effect; a secret is not shown."""

    key: str
    text: str
    source: str
    default: str
    help: str
    needs_restart: bool


class Settings(Struct):
    """The settings in effect, and the config file, empty if there is none.

    `refused` is why the server has not taken over the file as it is now, empty if it has.
    """

    file: str
    refused: str
    settings: list[SettingRow]


class EngineRow(Struct):
    """What is known of one engine."""

    name: str
    title: str
    aliases: list[str]
    formats: list[str]
    modes: list[str]
    installed: bool
    version: str | None
    where: str | None
    path: str | None
    offloads: bool | None
    preference: int
    suits: bool
    reason: str
    missing: str | None
    hint: str | None
    requirements: list[str]
    download_bytes: int | None
    by_hand: str | None
    chosen: bool


class Engines(Struct):
    """The machine and its engines, installed ones first; `error` says why none is chosen."""

    platform: str
    chosen: str | None
    engines: list[EngineRow]
    error: str | UnsetType = UNSET
    hint: str | UnsetType | None = UNSET


class Preview(Struct):
    """How one engine would serve a model; `plan` is the answer of `/api/plan`."""

    model_id: str
    engine: str | None
    chosen: bool
    memory_bytes: int | None
    error: str | None
    plan: dict[str, Any]


class Previews(Struct):
    """How each installed engine would serve a model, the chosen one first."""

    previews: list[Preview]


_TEXT: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 999_999_999}

_DAY: dict[str, Any] = {
    "anyOf": [{"type": "string", "format": "date"}, {"const": ""}],
    "examples": ["2026-11-23"],
}

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
        paths=("/api/events",),
        methods=("get",),
        tag=Tag.SERVER,
        summary="Follow what the server does",
        help="A snapshot, and then what changes, as server-sent events.",
        parameters=(
            Parameter(
                name="events",
                help="topics, with commas between them: models, requests, pulls, samples, marks",
                where="query",
                schema={
                    "type": "string",
                    "pattern": "^(models|requests|pulls|samples|marks)"
                    "(,(models|requests|pulls|samples|marks))*$",
                },
            ),
        ),
        stream=Stream(kind=StreamKind.EVENTS, type=get_args(EventData), named=True),
    ),
    Operation(
        paths=("/api/plan",),
        tag=Tag.SERVER,
        summary="Tell how a model would be served, and why",
        help="Nothing is downloaded but the header of the model's file. If the model does not fit, "
        "the answer has an `error` and a `hint` in place of the plan.",
        body=Body(
            type=requests.PLAN,
            required=("model",),
            fields={
                "model": MODEL,
                "context_length": INTEGER | {"minimum": 1},
                "gpu_layers": INTEGER | {"minimum": -1},
            },
            examples={"A model": {"model": EXAMPLE_MODEL}},
        ),
        answer=dict[str, Any],
        errors=(404, 502),
    ),
    Operation(
        paths=("/instance/previews",),
        methods=("get",),
        tag=Tag.SERVER,
        summary="Tell how each installed engine would serve a model",
        help="`model_id` may stand in place of `model`.",
        parameters=(
            Parameter(
                name="model", help="the model's name", where="query", schema=MODEL, required=True
            ),
        ),
        answer=Previews,
        errors=(404, 502),
    ),
    Operation(
        paths=("/api/engines",),
        methods=("get",),
        tag=Tag.SERVER,
        summary="List the engines, and which one is chosen",
        answer=Engines,
    ),
    Operation(
        paths=("/api/usage",),
        methods=("get",),
        tag=Tag.SERVER,
        summary="List what was used, by day, key and model",
        help="A key that may not read gets its own. Days are those of UTC.",
        parameters=(
            Parameter(
                name="by",
                help="what to sum by, with commas between them: day, key, model",
                where="query",
                schema={"type": "string", "pattern": "^((day|key|model)(,(day|key|model))*)?$"},
            ),
            Parameter(name="since", help="the first day", where="query", schema=_DAY),
            Parameter(name="until", help="the last day", where="query", schema=_DAY),
        ),
        answer=Usage,
    ),
    Operation(
        paths=("/api/config",),
        methods=("get",),
        tag=Tag.SERVER,
        summary="List the settings in effect, and where each comes from",
        answer=Settings,
    ),
    Operation(
        paths=("/api/logs",),
        methods=("get",),
        tag=Tag.SERVER,
        summary="List the logs that are kept",
        answer=Logs,
    ),
    Operation(
        paths=("/api/logs/{name}",),
        methods=("get",),
        tag=Tag.SERVER,
        summary="Show a log",
        help="With `?follow=1` the answer goes on with what is added, and has no end.",
        parameters=(
            Parameter(name="name", help="`vllama`, or the name of a model"),
            Parameter(name="lines", help="the last lines only", where="query", schema=_COUNT),
            Parameter(
                name="attempt",
                help="an attempt, in place of the newest",
                where="query",
                schema=_COUNT,
            ),
        ),
        media={"text/plain": _TEXT},
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
        summary="Show a capture with its bodies and the texts of its answer",
        parameters=(Parameter(name="id", help="the capture's id, or the request's"),),
        answer=ReadCapture,
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
