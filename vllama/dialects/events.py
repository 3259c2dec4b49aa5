"""The rows of the event stream and of the routes that list the same; docs/reference/events.md.

Times are Unix seconds in `time`, else RFC 3339. Sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from vllama.base.log_context import Outcome
from vllama.base.meaning import says
from vllama.dialects.ollama.answer_types import LoadedModel


class PoolUse(msgspec.Struct, frozen=True, kw_only=True):
    """Planned and measured bytes of a model in one memory pool."""

    planned: Annotated[int, says("planned bytes")]
    measured: Annotated[int, says("last measured bytes")]


class ModelError(msgspec.Struct, frozen=True, kw_only=True):
    """The last failure of a model; cleared once it has loaded."""

    cause: Annotated[str, says("reason for the wait or the failure")]
    hint: str | None
    since: Annotated[str, says("time of the failure")]


class ModelRow(LoadedModel, kw_only=True, omit_defaults=False):
    """A loaded, loading or failed model: a row of `/api/ps` with more fields."""

    expires_at: Annotated[  # type: ignore[assignment]  # in `/api/ps` it is never null
        str | None, says("unload time; null while the model is busy or pinned")
    ]
    memory: Annotated[Mapping[str, PoolUse], says("memory use by pool")]
    pinned: Annotated[bool, says("true if the model is never unloaded")]
    log: Annotated[str | None, says("log name for `/api/logs`; null if no engine was started")]
    error: Annotated[ModelError | None, says("last load failure; null once loaded")]


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """A queued or running request."""

    id: str
    model: str
    method: str
    path: str
    dialect: Annotated[str, says("API of the request")]
    client: str
    key: Annotated[str | None, says("name of the API key")]
    state: Annotated[Literal["running", "waiting"], says("`running` or `waiting`")]
    queue_place: Annotated[
        int | None,
        says("position in the model's queue, from 1; null outside the queue"),
    ]
    waits_for: Annotated[str | None, says("reason for the wait; null if not waiting")]
    started_at: str
    prompt_tokens: int | None
    generated_tokens: int
    first_token_s: Annotated[float | None, says("time to first token, in seconds")]
    resumed: Annotated[int, says("number of times the response resumed after an engine crash")]


class EndedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request."""

    id: str
    model: str
    requested: Annotated[str, says("model name in the request, if known")]
    method: str
    path: str
    dialect: Annotated[str, says("API of the request")]
    client: str
    key: Annotated[str | None, says("name of the API key")]
    started_at: str
    outcome: Annotated[Outcome, says("outcome of the request")]
    status: Annotated[int, says("HTTP status; 0 if no response was started")]
    seconds: Annotated[float, says("total time, in seconds")]
    prompt_tokens: int | None
    cached_tokens: Annotated[int | None, says("prompt tokens read from the cache")]
    generated_tokens: int
    prompt_tokens_per_s: Annotated[float | None, says("null if the engine does not report it")]
    tokens_per_s: float | None
    first_token_s: Annotated[float | None, says("time to first token, in seconds")]
    resumed: Annotated[int, says("number of times the response resumed after an engine crash")]
    error: Annotated[str | None, says("error message; null on success")]
    capture: Annotated[str | None, says("capture ID; null if not captured")]


class PullRow(msgspec.Struct, frozen=True, kw_only=True):
    """A download. Byte counts are 0 until known."""

    name: str
    status: Annotated[str, says("current step, as in `/api/pull`")]
    completed: Annotated[int, says("bytes downloaded so far")]
    total: Annotated[int, says("total bytes")]
    error: Annotated[str | None, says("error message; null unless the download failed")]
    ended_at: Annotated[str | None, says("end time; null while downloading")]


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of one memory pool."""

    total: Annotated[int, says("size of the pool")]
    planned: Annotated[int, says("planned bytes of the loaded models")]
    measured: Annotated[int, says("measured bytes of the loaded models")]
    free: Annotated[int, says("bytes available to models, without the reserve")]


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """GPU utilization; null if unknown."""

    use: Annotated[float | None, says("fraction of time that the GPU was busy, 0 to 1")]
    temperature_c: Annotated[float | None, says("temperature in degrees Celsius")]
    power_w: Annotated[float | None, says("power draw, in watts")]


class MachineUse(msgspec.Struct, frozen=True, kw_only=True):
    """Machine utilization."""

    cpu: Annotated[float, says("fraction of all CPU cores in use, 0 to 1")]
    gpus: Annotated[Mapping[str, GpuUse], says("GPU utilization by GPU name")]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Current state, with rates since the previous sample."""

    time: Annotated[float, says("sample time, in Unix seconds")]
    tokens_per_s: float
    first_token_s: Annotated[
        float | None,
        says("mean time to first token since the previous sample; null if no responses"),
    ]
    requests: Annotated[int, says("running requests")]
    queued: Annotated[int, says("queued requests")]
    memory: Annotated[Mapping[str, Pool], says("memory pools by name")]
    machine: Annotated[
        MachineUse | None, says("machine utilization; null while nothing reads the stream")
    ] = None


class MarkKind(StrEnum):
    """A model event's type."""

    LOAD = "load"
    UNLOAD = "unload"
    EVICT = "evict"
    FAIL = "fail"
    RESTART = "restart"
    SLEEP = "sleep"
    WAKE = "wake"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A model event."""

    time: Annotated[float, says("event time, in Unix seconds")]
    kind: Annotated[MarkKind, says("event type")]
    model: str
    reason: Annotated[str, says("reason, as a sentence")]
    seconds: Annotated[float | None, says("duration of a load or wake-up, in seconds")] = None
    cause: Annotated[str, says("machine-readable failure type")] = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The full state at the start of a stream; topics that were not subscribed to are absent."""

    time: Annotated[float, says("creation time, in Unix seconds")]
    version: Annotated[str, says("version of vllama")]
    models: Annotated[list[ModelRow] | None, says("loaded, loading and failed models")] = None
    requests: Annotated[list[RequestRow] | None, says("queued and running requests")] = None
    ended: Annotated[list[EndedRow] | None, says("most recent finished requests")] = None
    pulls: Annotated[list[PullRow] | None, says("current downloads")] = None
    samples: Annotated[list[Sample] | None, says("samples of the last few minutes")] = None
    marks: Annotated[list[Mark] | None, says("recent model events")] = None


class ChangedModels(msgspec.Struct, frozen=True, kw_only=True):
    """Changed models, and the names of removed ones."""

    models: Annotated[list[ModelRow], says("changed models")]
    gone: Annotated[list[str], says("names of removed models")]


class ChangedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Changed and finished requests."""

    requests: Annotated[list[RequestRow], says("changed requests")]
    ended: Annotated[list[EndedRow], says("most recent finished requests")]
    gone: Annotated[list[str], says("IDs of requests that are no longer queued or running")]


class ChangedLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """A change to the models on disk; `GET /api/tags` lists them."""

    count: Annotated[int, says("number of models on disk")]


class ChangedPulls(msgspec.Struct, frozen=True, kw_only=True):
    """Changed downloads."""

    pulls: Annotated[list[PullRow], says("changed downloads")]


EventData = (
    Snapshot | ChangedModels | ChangedLibrary | ChangedRequests | ChangedPulls | Sample | Mark
)
