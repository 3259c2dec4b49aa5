"""The rows of `vllama ps`: loading and loaded models, and models that failed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import NamedTuple

from vllama.models.types import Bundle
from vllama.plan.types import RAM, Plan
from vllama.scheduler.hooks import LoadedBytes, Process
from vllama.scheduler.instance import Instance
from vllama.scheduler.policy import Pools
from vllama.scheduler.state import LoadFailure, Table
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


ADDED = {"added": True}
"""The metadata of a number of which a model has the sum of its instances'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """An instance; or all of a model's together, which is a row of `ps`.

    `name` is what was requested last, `other_names` are those of other models with the same files
    that were requested: they share the instance, and have the same `key`. `expires_s` is Unix time,
    infinite for ever. `cause` says what a load waits for, why the engine last crashed, or why
    another than the first plan is used; `placed` where the engine says that the model lies; `load`
    how far a load is. `ending` of the `leases` are on
    an instance that another one replaces. `replicas` counts the processes that serve. `planned` and
    `measured` are bytes of memory by pool. `has_log`: an engine was started. `failure` is the last
    one, kept until the model has loaded.
    """

    key: str
    name: str
    other_names: tuple[str, ...]
    bundle: Bundle
    plan: Plan
    state: Phase
    cause: str
    placed: str
    load: LoadedBytes | None
    memory_bytes: int = field(metadata=ADDED)
    vram_bytes: int = field(metadata=ADDED)
    expires_s: float
    leases: int = field(metadata=ADDED)
    ending: int
    limit: int
    queued: int = field(metadata=ADDED)
    replicas: int
    restarts: int = field(metadata=ADDED)
    pid: int | None
    pinned: bool
    planned: Pools
    measured: Pools
    has_log: bool
    failure: FailureView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureView:
    """A model that failed and is not loaded again for another `retry_s` seconds.

    `since_s` is Unix time. `has_log`: an engine was started, so that there is a log of it.
    """

    name: str
    bundle: Bundle
    cause: str
    hint: str | None
    since_s: float
    retry_s: float
    has_log: bool


class QueuePlace(NamedTuple):
    """The place of a waiting request in its model's queue, from 1, and what it waits for."""

    place: int
    waits_for: str


SUMMED = tuple(each.name for each in fields(View) if each.metadata == ADDED)


def list_views(table: Table, *, named: bool = False) -> list[View]:
    """Return the loaded and loading instances, latest expiry first; `named`: with a name left."""
    items = [item for item in table.list_all() if item.names or not named]
    rows = [make_view(table, item, item.plan) for item in items if item.plan]
    return sorted(rows, key=lambda row: -row.expires_s)


def merge_views(views: Iterable[View]) -> list[View]:
    """Return one view for each model.

    A model may be loaded twice, for text and for embeddings, or because a new instance replaces an
    old one. It has the sums of both, and the state of the one that takes requests.
    """
    groups: dict[str, list[View]] = {}
    for view in views:
        groups.setdefault(view.key, []).append(view)
    return [_merge(group) if len(group) > 1 else group[0] for group in groups.values()]


def _merge(group: Sequence[View]) -> View:
    first, *others = sorted(group, key=lambda view: view.state is Phase.STOPPING)
    everything = (first, *others)
    names = {name for view in everything for name in (view.name, *view.other_names)}
    taking = [view for view in everything if view.state is not Phase.STOPPING] or everything
    ending = sum(
        view.leases
        for view in others
        if view.state is Phase.STOPPING and first.state is not Phase.STOPPING
    )
    sums = {name: sum(getattr(view, name) for view in everything) for name in SUMMED}
    return replace(
        first,
        **sums,
        other_names=tuple(sorted(names - {first.name})),
        ending=ending,
        limit=sum(view.limit for view in taking),
        planned=sum_pools(view.planned for view in everything),
        measured=sum_pools(view.measured for view in everything),
        has_log=any(view.has_log for view in everything),
        failure=next((view.failure for view in everything if view.failure), None),
    )


def sum_pools(pools: Iterable[Pools]) -> dict[str, int]:
    """Return the sum of each pool."""
    total: Counter[str] = Counter()
    for each in pools:
        total.update(each)
    return dict(total)


def make_view(table: Table, item: Instance, plan: Plan) -> View:
    """Return one row."""
    now_s, wall_s = table.clock.monotonic(), table.clock.time()
    left_s = item.keep_alive_s
    if not item.busy:
        left_s = max(0.0, item.deadline_s - now_s)
    process = item.process
    vram_bytes = sum(size for pool, size in item.holds.items() if pool != "ram")
    if not item.sleeping and not vram_bytes:
        planned_bytes = item.memory_bytes if plan.memory.on_gpu else 0
        vram_bytes = item.placed.vram_bytes if item.placed else planned_bytes
    phase, failure = find_phase(item), table.failures.get(item.key)
    # models with the same files share an instance: users look for the name that they asked for last
    bundle = item.bundle if item.bundle.key == plan.bundle.key else plan.bundle
    return View(
        key=item.key.model,
        name=bundle.name,
        other_names=tuple(sorted(item.names.keys() - {bundle.name})),
        bundle=bundle,
        plan=plan,
        state=phase,
        cause=explain_wait(item)
        or explain_down(process, phase)
        or explain_skipped(item)
        or (item.placed.trouble.cause if item.placed and item.placed.trouble else "")
        or plan.instead,
        placed=item.placed.text if item.placed else "",
        load=item.load,
        memory_bytes=item.memory_bytes,
        vram_bytes=min(vram_bytes, item.memory_bytes),
        expires_s=wall_s if item.retiring else wall_s + left_s,
        leases=item.leases,
        ending=0,
        limit=item.limit,
        queued=len(item.queue),
        replicas=len(process.endpoints) if process else 0,
        restarts=max(0, len(process.attempts) - len(process.parts)) if process else 0,
        pid=process.pid if process else None,
        pinned=math.isinf(item.keep_alive_s),
        planned=_find_planned(item, plan),
        measured=dict(item.holds),
        has_log=item.was_started,
        failure=view_failure(failure, now_s) if failure else None,
    )


def _find_planned(item: Instance, plan: Plan) -> dict[str, int]:
    """Return the need by pool, without the RAM that is reserved for conversations to come."""
    needs, memory = dict(item.needs), plan.memory
    if memory.claimed_bytes and RAM in needs:
        needs[RAM] = max(needs[RAM] - memory.claimed_bytes, memory.ram_bytes)
    return needs


def explain_wait(item: Instance) -> str:
    """Return the reason why a load or an unload waits; empty if it does not."""
    before = item.replaces
    if item.waits_for and before is not None and before.busy:
        count = before.leases + len(before.queue)
        return f"{item.waits_for}, which is finishing {count} request{'s' if count != 1 else ''}"
    if item.unload_reason and item.loaded and not item.retiring:
        return "unloading after its last request"
    return item.waits_for


def list_queue_places(table: Table) -> dict[str, QueuePlace]:
    """Return where each waiting request waits, and for what, by its name in `log_context`."""
    return {
        waiter.request: QueuePlace(place, waits_for)
        for item in table.list_all()
        if item.queue and (waits_for := explain_queue(item))
        for place, waiter in enumerate(item.queue, start=1)
        if waiter.request
    }


def explain_queue(item: Instance) -> str:
    """Return the reason why an instance's queue waits."""
    if item.ready:
        return "a free slot"
    if item.waits_for:
        return f"the model to be {'woken' if item.sleeping else 'loaded'}: {explain_wait(item)}"
    if item.loaded and not item.sleeping:
        cause = explain_down(item.process, find_phase(item))
        return f"the engine to be restarted: {cause}" if cause else "the engine to be restarted"
    return "the model to wake up" if item.sleeping else "the model to be loaded"


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


def explain_skipped(item: Instance) -> str:
    """Return why some of a model's endpoints get no requests."""
    places = item.process.endpoints if item.process and item.loaded else ()
    return "; ".join(trouble for each in places if (trouble := item.find_trouble(each)))


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


def view_failure(failure: LoadFailure, now_s: float) -> FailureView:
    """Return the row of a failure; `now_s` is monotonic time."""
    return FailureView(
        name=failure.bundle.name,
        bundle=failure.bundle,
        cause=failure.error.message,
        hint=failure.error.hint,
        since_s=failure.since_s,
        has_log=failure.has_log,
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
