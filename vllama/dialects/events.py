"""The rows of the event stream and of the routes that list the same; docs/reference/events.md.

Times are Unix seconds in `time`, else RFC 3339. Sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

import msgspec

from vllama.base.outcome import Outcome


class PoolUse(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of one memory pool that were planned for a model, and those last measured."""

    planned: int
    measured: int


class ModelError(msgspec.Struct, frozen=True, kw_only=True):
    """The last failure of a model, which is kept until it has loaded."""

    cause: str
    hint: str | None
    since: str


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is loaded or loading, or that has failed.

    `state` is that of `vllama ps`; `cause` says what it waits for, or why its engine is down.
    `other_names` are those of other models with the same files that were requested: they share the
    engine. `size` is the bytes of memory that it takes, `context` is in tokens. `ending` of the
    `running` requests are answered by its previous engine, which ends after them. `expires_at` is
    None while the model is busy, or if it is never unloaded (`pinned`). `log` is the name for
    `GET /api/logs/NAME`, None if no engine was started here.
    """

    name: str
    other_names: list[str]
    digest: str
    state: str
    cause: str
    engine: str
    size: int
    context: int
    slots: int
    memory: Mapping[str, PoolUse]
    running: int
    ending: int
    waiting: int
    expires_at: str | None
    pinned: bool
    log: str | None
    error: ModelError | None


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waits or runs, as others see it.

    `queue_place` is its present place in the model's queue, from 1, and `waits_for` says what it
    waits for; both are None if it does not wait there. `first_token_s` is the time from the request
    to the first token, None before that.
    """

    id: str
    model: str
    method: str
    path: str
    dialect: str
    client: str
    key: str | None
    state: Literal["running", "waiting"]
    queue_place: int | None
    waits_for: str | None
    started_at: str
    prompt_tokens: int | None
    tokens: int
    first_token_s: float | None


class EndedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has ended.

    `seconds` is the time from the request to the end of the answer, `first_token_s` that to the
    first token. `status` is 0 if no answer was begun. `capture` is the id of its capture, None
    without one.
    """

    id: str
    model: str
    method: str
    path: str
    dialect: str
    client: str
    key: str | None
    started_at: str
    outcome: Outcome
    status: int
    seconds: float
    prompt_tokens: int | None
    tokens: int
    tokens_per_s: float | None
    first_token_s: float | None
    error: str | None
    capture: str | None


class PullRow(msgspec.Struct, frozen=True, kw_only=True):
    """A download as others see it; `completed` and `total` are in bytes, as far as they are known.

    `status` is in Ollama's words. `ended_at` is None while it goes on, `error` None unless it
    failed.
    """

    name: str
    status: str
    completed: int
    total: int
    error: str | None
    ended_at: str | None


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of one memory pool.

    `planned` is what the loaded models were expected to take, `measured` what they take. `free` is
    what is left for models: the reserve is not part of it.
    """

    total: int
    planned: int
    measured: int
    free: int


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The state at one moment, in Unix seconds, and the rates since the sample before.

    `first_token_s` is the mean time to the first token of the answers that have begun since, None
    if there were none.
    """

    time: float
    tokens_per_s: float
    first_token_s: float | None
    running: int
    waiting: int
    memory: Mapping[str, Pool]


class MarkKind(StrEnum):
    """What has happened to a model."""

    LOAD = "load"
    UNLOAD = "unload"
    EVICT = "evict"
    FAIL = "fail"
    RESTART = "restart"
    SLEEP = "sleep"
    WAKE = "wake"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """One such moment; `time` is in Unix seconds, `reason` a sentence for the user.

    `seconds` is the duration of a load or of waking up, `cause` the kind of a failure, in words for
    programs.
    """

    time: float
    kind: MarkKind
    model: str
    reason: str
    seconds: float | None = None
    cause: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything, at the beginning of a stream; the lists of topics that were not chosen lack."""

    time: float
    version: str
    models: list[ModelRow] | None = None
    requests: list[RequestRow] | None = None
    ended: list[EndedRow] | None = None
    pulls: list[PullRow] | None = None
    samples: list[Sample] | None = None
    marks: list[Mark] | None = None


class ChangedModels(msgspec.Struct, frozen=True, kw_only=True):
    """The models whose rows have changed, and the names of those that are gone."""

    models: list[ModelRow]
    gone: list[str]


class ChangedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """The requests whose rows have changed, and those that have ended."""

    requests: list[RequestRow]
    ended: list[EndedRow]


class ChangedLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """The models on the disk have changed: `GET /api/tags` lists them. `count` is how many."""

    count: int


class ChangedPulls(msgspec.Struct, frozen=True, kw_only=True):
    """The downloads whose rows have changed."""

    pulls: list[PullRow]


EventData = (
    Snapshot | ChangedModels | ChangedLibrary | ChangedRequests | ChangedPulls | Sample | Mark
)
