"""A loaded model: its plan, its process, its leases and the queue before it."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from vllama.chat.engine.traits import Traits
from vllama.models.types import Bundle
from vllama.plan.ladder import Failed
from vllama.plan.quant_fallback import names_form
from vllama.plan.types import Need, Plan
from vllama.scheduler.fair_queue import FairQueue
from vllama.scheduler.policy import Pools
from vllama.scheduler.process import Part, Process, Sleeper
from vllama.supervise.spec import Endpoint, State

MAX_PREFIXES = 1024

# computes a key that is equal for prompts with the same beginning; called only with replicas
Prefix = Callable[[], Hashable]


class Key(NamedTuple):
    """Identity of an instance: one model on disk, started for one mode."""

    model: str
    mode: str

    def __str__(self) -> str:
        """Return the key as logs show it."""
        return f"{self.model} ({self.mode})"


@dataclass(slots=True, eq=False)
class Waiter:
    """A request in the queue of `instance`. Its future is done when a slot has been counted for it.

    `request` is its name in logs (`log_context.Trace`), empty for a load without a request. When
    another instance replaces `instance`, the waiter moves to the queue of the new one.
    """

    instance: Instance
    future: asyncio.Future[None]
    keep_alive_s: float | None
    request: str = ""


@dataclass(slots=True, eq=False)
class Lease:
    """One request's hold on a slot of an instance; `Scheduler.release` returns it.

    `queue_position` is the request's initial position in the queue, from 1; 0: it did not wait.
    """

    instance: Instance
    endpoint: Endpoint
    traits: Traits
    began_s: float
    queued_s: float = 0.0
    queue_position: int = 0
    released: bool = False


class InstanceState(StrEnum):
    """The stage of an instance's life. `retiring` says separately if it takes new requests."""

    QUEUED = "queued"  # waiting for its plan, for the instance it replaces, or for room
    LOADING = "loading"  # admitted, but its process does not serve yet
    SERVING = "serving"
    SLEEPING = "sleeping"  # or falling asleep: new requests wait until it is awake
    WAKING = "waking"  # admitted again
    STOPPED = "stopped"


_STATE = InstanceState
TRANSITIONS: Mapping[InstanceState, frozenset[InstanceState]] = {
    _STATE.QUEUED: frozenset({_STATE.LOADING, _STATE.STOPPED}),
    # back to QUEUED: this plan did not start, and the next one is tried
    _STATE.LOADING: frozenset({_STATE.SERVING, _STATE.QUEUED, _STATE.STOPPED}),
    _STATE.SERVING: frozenset({_STATE.SLEEPING, _STATE.STOPPED}),
    # back to LOADING: the process ended while asleep, and is started again
    _STATE.SLEEPING: frozenset({_STATE.WAKING, _STATE.SERVING, _STATE.LOADING, _STATE.STOPPED}),
    _STATE.WAKING: frozenset({_STATE.SERVING, _STATE.SLEEPING, _STATE.STOPPED}),
    _STATE.STOPPED: frozenset(),
}
"""The states that may follow each state; docs/architecture.md shows them as a diagram."""
_LOADED = frozenset({_STATE.SERVING, _STATE.SLEEPING, _STATE.WAKING})


@dataclass(slots=True, eq=False, weakref_slot=True)
class Instance:
    """A loaded model, from its plan to the end of its process; changed by the scheduler only.

    `bundle` is the one that was requested last, of all with the files of `key`. `names` are the
    names of all that were requested.

    Life: `retiring`: it takes no new requests and ends after the last one. `replaces`: the instance
    of the same model that has to end before this one may load. `unload_reason`: why it is unloaded
    before its keep-alive is over. `waits_for`: what its load waits for now; `waited_for`: what it
    waited for last.

    Plans: `failed_plans` did not start; `next_plan` is tried after `plan`. `is_fallback`: it runs
    another quantisation than the requested one.

    Memory, in bytes by pool: `needs` is the estimate, `holds` the last measurement, `peak` the
    largest. `measured`: a measurement was made while it served; until then it may grow to `needs`.
    `awake_holds` is what it held before it fell asleep.

    Time: `service_s` is the moving average of the duration of a request. `busy_s` is the total time
    with requests until it was last idle, `busy_since_s` the start of the present busy time.
    """

    key: Key
    bundle: Bundle
    need: Need
    created_s: float
    keep_alive_s: float
    last_used_s: float
    unload_reason: str = ""
    plan: Plan | None = None
    failed_plans: tuple[Failed, ...] = ()
    next_plan: Plan | None = None
    is_fallback: bool = False
    process: Process | None = None
    sleeper: Sleeper | None = None
    state: InstanceState = InstanceState.QUEUED
    traits: Traits | None = None
    task: asyncio.Task[None] | None = None
    replaces: Instance | None = None
    retiring: bool = False
    waits_for: str = ""
    waited_for: str = ""
    needs: Pools = field(default_factory=dict)
    holds: Pools = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    measured: bool = False
    sleep_wanted: bool = False
    sleep_ends_s: float = math.inf
    awake_holds: Pools = field(default_factory=dict)
    load_s: float = 0.0
    ready_s: float = math.inf
    served: int = 0
    service_s: float = 0.0
    busy_s: float = 0.0
    busy_since_s: float = 0.0
    leases: int = 0
    leases_at: dict[Endpoint, int] = field(default_factory=dict)
    prefixes: OrderedDict[Hashable, Endpoint] = field(default_factory=OrderedDict)
    queue: FairQueue[Waiter] = field(default_factory=FairQueue)
    names: set[str] = field(default_factory=set)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def note_name(self, bundle: Bundle) -> None:
        """Note by which of its names the model is requested now."""
        if bundle is not self.bundle or not self.names:
            self.bundle = bundle
            self.names.add(bundle.name)

    def enter(self, state: InstanceState) -> None:
        """Change the state; only the transitions in `TRANSITIONS` are allowed."""
        assert state in TRANSITIONS[self.state], f"{self.key}: {self.state} -> {state}"
        self.state = state

    @property
    def admitted(self) -> bool:
        """Whether memory and a slot have been allocated to it."""
        return self.state not in (InstanceState.QUEUED, InstanceState.STOPPED)

    @property
    def loaded(self) -> bool:
        """Whether its process has become ready once; it may be asleep now."""
        return self.state in _LOADED

    @property
    def was_started(self) -> bool:
        """Whether an engine was started for it, with this plan or with one before."""
        return bool(self.failed_plans) or bool(self.process and self.process.attempts)

    @property
    def sleeping(self) -> bool:
        """Whether its process is asleep or waking up."""
        return self.state in (InstanceState.SLEEPING, InstanceState.WAKING)

    @property
    def ready(self) -> bool:
        """Whether a request can be sent to it now."""
        return (
            self.state is InstanceState.SERVING
            and self.process is not None
            and self.process.state is State.READY
        )

    @property
    def busy(self) -> bool:
        """Whether it is loading, has leases, or has queued requests."""
        return self.leases > 0 or bool(self.queue) or not self.loaded

    def compute_busy_s(self, now_s: float) -> float:
        """Return the total time in seconds in which it has had requests."""
        return self.busy_s + (now_s - self.busy_since_s if self.leases else 0.0)

    @property
    def limit(self) -> int:
        """How many requests the engine, or the replicas that are up, process at once."""
        if self.traits is None or self.process is None:
            return 1
        most, endpoints = self.traits.max_concurrency, self.process.endpoints
        if any(endpoint.concurrent for endpoint in endpoints):
            return min(most, sum(endpoint.concurrent or most for endpoint in endpoints))
        up = len(endpoints) if len(self.process.parts) > 1 else 1
        return most * up

    @property
    def has_slot(self) -> bool:
        """Whether one more request may be sent."""
        return self.leases < self.limit

    @property
    def should_grow(self) -> bool:
        """Whether requests wait that a load with more slots would serve at once."""
        return (
            bool(self.queue) and not self.has_slot and self.plan is not None and self.plan.may_grow
        )

    @property
    def deadline_s(self) -> float:
        """When it is unloaded without a new request; infinite while busy or pinned."""
        if self.busy or self.retiring:
            return math.inf
        return self.sleep_ends_s if self.sleeping else self.last_used_s + self.keep_alive_s

    @property
    def memory_bytes(self) -> int:
        """Measured size of the process, or the estimate before it is known."""
        # a measurement at the very start of a process says that it holds nothing
        held = sum(self.holds.values()) if self.loaded else 0
        return held or sum(self.needs.values())

    def choose_endpoint(self, prefix: Prefix | None) -> Endpoint | None:
        """Choose the endpoint for the next request.

        A replica that has served the same prefix has it in its cache, so it is preferred, unless it
        is full or has two requests more than the least busy one, which is chosen otherwise.
        Requests to an endpoint of weight 2 count half, and one that is full is left out.
        """
        endpoints = self.process.endpoints if self.process else ()
        if len(endpoints) < 2:
            return endpoints[0] if endpoints else None
        leases = {endpoint: self.leases_at.get(endpoint, 0) for endpoint in endpoints}
        room = [each for each in leases if leases[each] < (each.concurrent or math.inf)]
        best = min(room or leases, key=lambda each: (leases[each] + 1) / each.weight)
        key = prefix() if prefix is not None else None
        known = self.prefixes.get(key) if key is not None else None
        if known in leases and leases[known] <= leases[best] + 1:
            slots = known.concurrent or (self.traits.max_concurrency if self.traits else 1)
            if leases[known] < slots:
                best = known
        if key is not None:
            self.prefixes[key] = best
            self.prefixes.move_to_end(key)
            if len(self.prefixes) > MAX_PREFIXES:
                self.prefixes.popitem(last=False)
        return best

    def find_part(self, endpoint: Endpoint) -> Part | None:
        """Return the process that serves at `endpoint`."""
        parts = self.process.parts if self.process else ()
        return next((part for part in parts if endpoint in part.endpoints), None)

    def fits(self, bundle: Bundle, need: Need) -> bool:
        """Return whether it can serve a request with `need`.

        A request for a smaller context fits. One that names a quantisation does not fit an
        instance that runs another one. Before the plan exists, a default context counts as large
        enough; the scheduler checks again when the plan is known.
        """
        if self.is_fallback and names_form(bundle):
            return False
        if self.plan is None:
            have: int | None = self.need.context_length
            logprobs, trained = self.need.logprobs, None
        else:
            have, trained = self.plan.settings.context_length, self.plan.info.context_length
            logprobs = self.plan.settings.logprobs
        if need.logprobs and not logprobs:
            return False
        wanted = need.context_length or 0
        if trained:
            wanted = min(wanted, trained)
        return have is None or wanted <= have
