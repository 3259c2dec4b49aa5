"""The routes that tell about the server itself."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, get_args

from msgspec import UNSET, Struct, UnsetType

from vllama.accounts.usage.store import UsageRow
from vllama.dialects.events import EventData, RequestRow
from vllama.dialects.ollama import request_types as requests
from vllama.observe.captures.format import ReadCapture, Summary
from vllama.routes.openapi.fields import EXAMPLE_MODEL, INTEGER, MODEL
from vllama.routes.openapi.operation import Body, Framing, Operation, Parameter, Stream, Tag
from vllama.routes.server import health, logs, metrics, planning, state


class Obstacle(Struct):
    """What keeps the server from serving, or does not work, and why."""

    what: str
    why: str


class Health(Struct):
    """Whether all is well, and what is not."""

    status: Literal["ok", "error"]
    reasons: list[Obstacle] | UnsetType = UNSET
    warnings: list[Obstacle] | UnsetType = UNSET


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
    """A setting in effect; a secret is not shown.

    `effect` tells when a change of the config file holds once the server has read it again.
    """

    key: str
    text: str
    source: str
    default: str
    help: str
    effect: Literal["now", "next load", "restart", "commands"]
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


class PlanDevice(Struct):
    """Memory of one device in bytes: `pool` is "ram" or "gpu0", "gpu1" and so on.

    `usable_bytes` is what there is less the reserve, `free_bytes` what is free now, once the models
    in `unloads` are gone.
    """

    device: str
    pool: str
    total_bytes: int
    usable_bytes: int
    takes_bytes: int
    free_bytes: int


class PlanNow(Struct):
    """Whether a model that fits this machine also fits into the memory that is free now.

    `unloads` are the models that are unloaded for it; `missing_bytes` is what other programs hold
    of the memory that it needs. `summary` says it in a sentence, `hint` what helps.
    """

    fits: bool
    missing_bytes: int
    unloads: list[str]
    summary: str
    hint: str | None


class PlanAnswer(Struct):
    """How a model would be served, and why.

    `error` and `hint` stand in place of the plan if the model cannot be served. `now` is null if
    the model does not fit this machine, is loaded, or lies on another server. Sizes are in bytes.
    """

    model: str
    platform: str | UnsetType = UNSET
    engines: list[dict[str, Any]] | UnsetType = UNSET
    files: list[dict[str, Any]] | UnsetType = UNSET
    format: str | UnsetType = UNSET
    quantization: str | UnsetType | None = UNSET
    download_bytes: int | UnsetType = UNSET
    candidates: list[dict[str, Any]] | UnsetType = UNSET
    notes: list[str] | UnsetType = UNSET
    now: PlanNow | UnsetType | None = UNSET
    error: str | UnsetType = UNSET
    hint: str | UnsetType | None = UNSET
    context_length: int | UnsetType = UNSET
    memory: dict[str, Any] | UnsetType = UNSET
    devices: list[PlanDevice] | UnsetType = UNSET
    engine: str | UnsetType = UNSET
    gpu_layers: int | UnsetType = UNSET
    reasons: list[str] | UnsetType = UNSET
    strict: bool | UnsetType = UNSET
    if_it_fails: dict[str, Any] | UnsetType = UNSET
    command: list[str] | UnsetType = UNSET
    loaded: bool | UnsetType = UNSET
    template: str | UnsetType = UNSET


class Preview(Struct):
    """How one engine would serve a model; `plan` is the answer of `/api/plan`."""

    model_id: str
    engine: str | None
    chosen: bool
    memory_bytes: int | None
    error: str | None
    plan: PlanAnswer


class Previews(Struct):
    """How each installed engine would serve a model, the chosen one first."""

    previews: list[Preview]


_TEXT: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
_DAY: dict[str, Any] = {
    "anyOf": [{"type": "string", "format": "date"}, {"const": ""}],
    "examples": ["2026-11-23"],
}
_CONTEXT = INTEGER | {"minimum": 1}
_LAYERS = INTEGER | {"minimum": -1}
_MODEL = Parameter("model", "the model's name", MODEL, required=True)


def _match_list(*words: str) -> str:
    """Return the pattern of some of these words with commas between them."""
    choice = "|".join(words)
    return f"({choice})(,({choice}))*"


_describe = partial(Operation, tag=Tag.SERVER)
_plan = partial(
    _describe,
    summary="Tell how a model would be served, and why",
    answer=PlanAnswer,
    errors=(404, 502),
)
OPERATIONS = {
    health.get_root: _describe(
        "Tell that the server runs",
        media={"text/plain": {"const": "Ollama is running"}},
    ),
    health.get_health: _describe(
        "Tell whether all is well",
        answer=Health,
        statuses=(200, 503),
    ),
    health.get_live: _describe("Tell that the process answers", answer=Liveness),
    health.get_ready: _describe(
        "Tell whether a request would be served now",
        answer=Readiness,
        statuses=(200, 503),
    ),
    metrics.get_metrics: _describe(
        "Export the metrics for Prometheus",
        media={"text/plain": _TEXT, "application/openmetrics-text": _TEXT},
    ),
    state.list_requests: _describe("List the requests that wait or run", answer=RunningRequests),
    state.end_request: _describe(
        "End a request; its client gets an error",
        parameters=(Parameter("id", "the request's id"),),
    ),
    state.stream_events: _describe(
        "Follow what the server does",
        help="A snapshot, and then what changes, as server-sent events.",
        parameters=(
            Parameter(
                "events",
                "topics, with commas between them: models, requests, pulls, samples, marks",
                _TEXT
                | {
                    "pattern": f"^{_match_list('models', 'requests', 'pulls', 'samples', 'marks')}$"
                },
            ),
        ),
        stream=Stream(Framing.NAMED_EVENTS, get_args(EventData)),
    ),
    planning.plan: _plan(
        help="Nothing is downloaded but the header of the model's file. If the model does not fit, "
        "the answer has an `error` and a `hint` in place of the plan.",
        body=Body(
            type=requests.PLAN,
            required=("model",),
            fields={"model": MODEL, "context_length": _CONTEXT, "gpu_layers": _LAYERS},
            examples={"A model": {"model": EXAMPLE_MODEL}},
        ),
    ),
    planning.get_plan: _plan(
        help="As POST, with the model and the settings in the query.",
        parameters=(
            _MODEL,
            Parameter("engine", "the engine to plan with", _TEXT),
            Parameter("context_length", "context in tokens", _CONTEXT),
            Parameter("gpu_layers", "layers on the GPU, -1 for all", _LAYERS),
            Parameter("strict", "whether nothing else would be tried", {"type": "boolean"}),
        ),
    ),
    planning.list_previews: _describe(
        "Tell how each installed engine would serve a model",
        help="`model_id` may stand in place of `model`.",
        parameters=(_MODEL,),
        answer=Previews,
        errors=(404, 502),
    ),
    planning.list_engines: _describe("List the engines, and which one is chosen", answer=Engines),
    state.list_usage: _describe(
        "List what was used, by day, key and model",
        help="A key that may not read gets its own. Days are those of UTC.",
        parameters=(
            Parameter(
                "by",
                "what to sum by, with commas between them: day, key, model",
                _TEXT | {"pattern": f"^({_match_list('day', 'key', 'model')})?$"},
            ),
            Parameter("since", "the first day", _DAY),
            Parameter("until", "the last day", _DAY),
        ),
        answer=Usage,
    ),
    state.list_settings: _describe(
        "List the settings in effect, and where each comes from",
        answer=Settings,
    ),
    logs.list_logs: _describe("List the logs that are kept", answer=Logs),
    logs.get_log: _describe(
        "Show a log",
        help="With `?follow=1` the answer goes on with what is added, and has no end.",
        parameters=(
            Parameter("name", "`vllama`, or the name of a model"),
            Parameter("lines", "the last lines only", _COUNT),
            Parameter("attempt", "an attempt, in place of the newest", _COUNT),
        ),
        media={"text/plain": _TEXT},
    ),
    state.list_captures: _describe(
        "List the newest captures, without their bodies",
        help="A capture is a request to a model with its answer; `--capture N` keeps them.",
        answer=Captures,
    ),
    state.get_capture: _describe(
        "Show a capture with its bodies and the texts of its answer",
        parameters=(Parameter("id", "the capture's id, or the request's"),),
        answer=ReadCapture,
    ),
    state.get_document: _describe(
        "Describe the API: this document",
        media={"application/json": {"type": "object"}},
    ),
}
