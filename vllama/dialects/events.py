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
    """The bytes of one memory pool that were planned for a model, and those last measured."""

    planned: Annotated[int, says("the bytes that the plan expects")]
    measured: Annotated[int, says("the bytes that were measured last")]


class ModelError(msgspec.Struct, frozen=True, kw_only=True):
    """The last failure of a model, which is kept until it has loaded."""

    cause: Annotated[str, says("why it waits, is down or has failed")]
    hint: str | None
    since: Annotated[str, says("when it happened")]


class ModelRow(LoadedModel, kw_only=True, omit_defaults=False):
    """A model that is loaded or loading, or that has failed: a row of `/api/ps`, and more."""

    expires_at: Annotated[  # type: ignore[assignment]  # in `/api/ps` it is never null
        str | None, says("when it is unloaded; null while it is busy, or never")
    ]
    memory: Annotated[Mapping[str, PoolUse], says("the pools of memory, by their names")]
    pinned: Annotated[bool, says("whether it is never unloaded")]
    log: Annotated[str | None, says("its name at `/api/logs`; null if no engine was started here")]
    error: Annotated[ModelError | None, says("the last failure, until the model has loaded")]


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waits or runs, as others see it."""

    id: str
    model: str
    method: str
    path: str
    dialect: Annotated[str, says("the API that the client speaks")]
    client: str
    key: Annotated[str | None, says("the name of the API key")]
    state: Annotated[Literal["running", "waiting"], says("whether it waits or runs")]
    queue_place: Annotated[
        int | None,
        says("its present place in the model's queue, from 1; null if it waits elsewhere"),
    ]
    waits_for: Annotated[str | None, says("what it waits for; null if it does not wait")]
    started_at: str
    prompt_tokens: int | None
    generated_tokens: int
    first_token_s: Annotated[float | None, says("from the request to the first token")]
    resumed: Annotated[int, says("how often it has gone on after the end of its engine")]


class EndedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has ended."""

    id: str
    model: str
    requested: Annotated[str, says("the model that it named, as far as that is known")]
    method: str
    path: str
    dialect: Annotated[str, says("the API that the client speaks")]
    client: str
    key: Annotated[str | None, says("the name of the API key")]
    started_at: str
    outcome: Annotated[Outcome, says("how it ended")]
    status: Annotated[int, says("the HTTP status; 0 if no response was begun")]
    seconds: Annotated[float, says("from the request to the end of the response")]
    prompt_tokens: int | None
    cached_tokens: Annotated[int | None, says("the tokens of the prompt that needed no work")]
    generated_tokens: int
    prompt_tokens_per_s: Annotated[float | None, says("null where the engine does not tell")]
    tokens_per_s: float | None
    first_token_s: Annotated[float | None, says("from the request to the first token")]
    resumed: Annotated[int, says("how often it has gone on after the end of its engine")]
    error: Annotated[str | None, says("what went wrong; null if nothing did")]
    capture: Annotated[str | None, says("the id of its capture; null without one")]


class PullRow(msgspec.Struct, frozen=True, kw_only=True):
    """A download as others see it; its bytes as far as they are known."""

    name: str
    status: Annotated[str, says("the step, in Ollama's words")]
    completed: Annotated[int, says("bytes so far")]
    total: Annotated[int, says("all bytes")]
    error: Annotated[str | None, says("why it failed; null unless it did")]
    ended_at: Annotated[str | None, says("when it ended; null while it goes on")]


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of one memory pool."""

    total: Annotated[int, says("all bytes of the pool")]
    planned: Annotated[int, says("the bytes that the loaded models were expected to take")]
    measured: Annotated[int, says("the bytes that the loaded models take")]
    free: Annotated[int, says("the bytes that are left for models, without the reserve")]


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """Utilization of a GPU; null where it is unknown."""

    use: Annotated[float | None, says("the part of the time that it worked, 0 to 1")]
    temperature_c: Annotated[float | None, says("degrees Celsius")]
    power_w: Annotated[float | None, says("watts")]


class MachineUse(msgspec.Struct, frozen=True, kw_only=True):
    """Utilization of the machine."""

    cpu: Annotated[float, says("the part of all cores in use, 0 to 1")]
    gpus: Annotated[Mapping[str, GpuUse], says("the GPUs that tell it, by their names")]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The state at one moment, and the rates since the sample before."""

    time: Annotated[float, says("when it was taken, in Unix seconds")]
    tokens_per_s: float
    first_token_s: Annotated[
        float | None,
        says("the mean time to the first token since the sample before; null without a response"),
    ]
    requests: Annotated[int, says("requests that are running")]
    queued: Annotated[int, says("requests that are waiting")]
    memory: Annotated[Mapping[str, Pool], says("the pools of memory, by their names")]
    machine: Annotated[
        MachineUse | None, says("how busy the machine is; null while nobody reads the stream")
    ] = None


class MarkKind(StrEnum):
    """Event in the life of a model."""

    LOAD = "load"
    UNLOAD = "unload"
    EVICT = "evict"
    FAIL = "fail"
    RESTART = "restart"
    SLEEP = "sleep"
    WAKE = "wake"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """One such moment."""

    time: Annotated[float, says("when it happened, in Unix seconds")]
    kind: Annotated[MarkKind, says("what has happened")]
    model: str
    reason: Annotated[str, says("the reason, in a sentence")]
    seconds: Annotated[float | None, says("how long a load or waking up took")] = None
    cause: Annotated[str, says("the kind of a failure, for programs")] = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything, at the beginning of a stream; the lists of topics that were not chosen lack."""

    time: Annotated[float, says("when it was made, in Unix seconds")]
    version: Annotated[str, says("the version of vllama")]
    models: Annotated[
        list[ModelRow] | None, says("the models that are loaded, loading or failed")
    ] = None
    requests: Annotated[list[RequestRow] | None, says("the requests that wait or run")] = None
    ended: Annotated[list[EndedRow] | None, says("the newest requests that have ended")] = None
    pulls: Annotated[list[PullRow] | None, says("the downloads")] = None
    samples: Annotated[list[Sample] | None, says("the samples of the last minutes")] = None
    marks: Annotated[list[Mark] | None, says("what has happened to models lately")] = None


class ChangedModels(msgspec.Struct, frozen=True, kw_only=True):
    """The models whose rows have changed, and the names of those that are gone."""

    models: Annotated[list[ModelRow], says("the models whose rows have changed")]
    gone: Annotated[list[str], says("the names of models that are gone")]


class ChangedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """The requests whose rows have changed, and those that have ended."""

    requests: Annotated[list[RequestRow], says("the requests whose rows have changed")]
    ended: Annotated[list[EndedRow], says("the latest requests that have ended")]
    gone: Annotated[list[str], says("the ids of requests that no longer wait or run")]


class ChangedLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """The models on the disk have changed: `GET /api/tags` lists them."""

    count: Annotated[int, says("how many models are on the disk")]


class ChangedPulls(msgspec.Struct, frozen=True, kw_only=True):
    """The downloads whose rows have changed."""

    pulls: Annotated[list[PullRow], says("the downloads whose rows have changed")]


EventData = (
    Snapshot | ChangedModels | ChangedLibrary | ChangedRequests | ChangedPulls | Sample | Mark
)
