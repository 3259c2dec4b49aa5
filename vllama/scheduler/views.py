"""The rows of `vllama ps`: loading and loaded models, and models that failed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from vllama.models.types import Bundle
from vllama.plan.types import Plan
from vllama.scheduler.instance import Instance, Process
from vllama.scheduler.policy import Pools
from vllama.scheduler.state import Failure, Table
from vllama.supervise.spec import State


class Phase(StrEnum):
    """The states of a model as users see them."""

    LOADING = "loading"
    READY = "ready"
    SLEEPING = "sleeping"
    BACKOFF = "backoff"
    STOPPING = "stopping"
    FAILED = "failed"


PHASES = {
    State.READY: Phase.READY,
    State.BACKOFF: Phase.BACKOFF,
    State.FAILED: Phase.FAILED,
    State.STOPPING: Phase.STOPPING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A row of `ps`.

    `expires_s` is Unix time, infinite for ever. `cause` says what a load waits for, why the engine
    last crashed, or why another than the first plan is used. `replicas` counts the processes that
    serve. `planned` and `measured` are bytes of memory by pool. `failure` is the last one, kept
    until the model has loaded.
    """

    name: str
    bundle: Bundle
    plan: Plan
    state: Phase
    cause: str
    memory_bytes: int
    vram_bytes: int
    expires_s: float
    leases: int
    limit: int
    queued: int
    replicas: int
    restarts: int
    pid: int | None
    pinned: bool
    planned: Pools
    measured: Pools
    failure: FailureView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureView:
    """A model that failed and is not loaded again for another `retry_s` seconds.

    `since_s` is Unix time.
    """

    name: str
    bundle: Bundle
    cause: str
    hint: str | None
    since_s: float
    retry_s: float


def list_views(table: Table) -> list[View]:
    """Return the loaded and loading models, latest expiry first."""
    rows = [make_view(table, item, item.plan) for item in table.list_all() if item.plan]
    return sorted(rows, key=lambda row: -row.expires_s)


def make_view(table: Table, item: Instance, plan: Plan) -> View:
    """Return one row."""
    now_s, wall_s = table.clock.monotonic(), table.clock.time()
    left_s = item.keep_alive_s
    if not item.busy:
        left_s = max(0.0, item.deadline_s - now_s)
    process = item.process
    vram_bytes = sum(size for pool, size in item.holds.items() if pool != "ram")
    if plan.memory.on_gpu and not item.sleeping:
        vram_bytes = vram_bytes or item.memory_bytes
    phase, failure = find_phase(item), table.failures.get(item.key)
    # models with the same files share an instance: users look for the name that they asked for last
    bundle = item.bundle if item.bundle.key == plan.bundle.key else plan.bundle
    return View(
        name=bundle.name,
        bundle=bundle,
        plan=plan,
        state=phase,
        cause=item.waits_for or explain_down(process, phase) or plan.instead,
        memory_bytes=item.memory_bytes,
        vram_bytes=min(vram_bytes, item.memory_bytes),
        expires_s=wall_s if item.retiring else wall_s + left_s,
        leases=item.leases,
        limit=item.limit,
        queued=len(item.queue),
        replicas=len(process.endpoints) if process else 0,
        restarts=max(0, len(process.attempts) - len(process.parts)) if process else 0,
        pid=process.pid if process else None,
        pinned=math.isinf(item.keep_alive_s),
        planned=dict(item.needs),
        measured=dict(item.holds),
        failure=view_failure(failure, now_s) if failure else None,
    )


def explain_down(process: Process | None, phase: Phase) -> str:
    """Return why a process or one of its replicas is down; empty if none is, or if unknown."""
    diagnosis = process.last_diagnosis if process else None
    if process is None or diagnosis is None:
        return ""
    if phase in (Phase.LOADING, Phase.BACKOFF, Phase.FAILED):
        return diagnosis.cause
    up, count = len(process.endpoints), len(process.parts)
    if phase is Phase.READY and up < count:
        return f"{count - up} of {count} replicas: {diagnosis.cause}"
    return ""


def find_phase(item: Instance) -> Phase:
    """Return the state of an instance as users see it."""
    if item.retiring:
        return Phase.STOPPING
    if item.sleeping:
        return Phase.SLEEPING
    return PHASES.get(item.process.state, Phase.LOADING) if item.process else Phase.LOADING


def list_failures(table: Table) -> list[FailureView]:
    """Return the models that failed and have not been requested since, newest first."""
    now_s = table.clock.monotonic()
    rows = [
        view_failure(failure, now_s)
        for key, failure in table.failures.items()
        if key not in table.instances
    ]
    return sorted(rows, key=lambda row: -row.since_s)


def view_failure(failure: Failure, now_s: float) -> FailureView:
    """Return the row of a failure; `now_s` is monotonic time."""
    return FailureView(
        name=failure.bundle.name,
        bundle=failure.bundle,
        cause=failure.error.message,
        hint=failure.error.hint,
        since_s=failure.since_s,
        retry_s=max(0.0, failure.until_s - now_s),
    )


def find_obstacle(table: Table, bundle: Bundle) -> tuple[str, bool]:
    """Return why a model cannot serve, and whether that is temporary; ("", True) if it can.

    A model that is not loaded counts as able to serve, unless a load has failed within the last
    `cool_down_s`: after that, only another attempt would show whether it still fails.
    """
    for item in table.find(bundle):
        phase = find_phase(item)
        if phase in (Phase.BACKOFF, Phase.FAILED):
            return explain_down(item.process, phase) or str(phase), phase is Phase.BACKOFF
    now_s = table.clock.time()
    for key, failure in table.failures.items():
        recent = now_s - failure.since_s < table.limits.cool_down_s
        if key.model == bundle.key and key not in table.instances and recent:
            return failure.error.message, False
    return "", True
