"""A loaded model: its plan, its process, its leases and the queue before it."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from vllama.chat.engine.traits import Traits
from vllama.models.headers.lora import read_rank
from vllama.models.types import Bundle, Format
from vllama.plan.ladder import Failed
from vllama.plan.quant_fallback import names_form
from vllama.plan.types import Need, Plan
from vllama.scheduler.growth import Growth
from vllama.scheduler.hooks import LoadedBytes, Part, Placed, Process, Sleeper
from vllama.scheduler.policy import Pools
from vllama.scheduler.turns import FairQueue, Readmission
from vllama.supervise.spec import Endpoint, State
from vllama.targets.choice import choose_target

MAX_PREFIXES = 1024
# a size that was not needed for so long, and for the time of so many loads, is given up when idle
SHRINK_S, SHRINK_LOADS, SHRINK_IDLE_S = 90.0, 10, 10.0

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
    """A request in the queue of an instance."""

    instance: Instance  # if another one replaces it, the waiter moves to the queue of that
    future: asyncio.Future[None]  # done when a slot has been counted for the request
    keep_alive_s: float | None
    request: str = ""  # its name in logs (`log_context.Trace`), empty for a mere load
    on_trial: bool = False  # its lease was


@dataclass(slots=True, eq=False)
class Lease:
    """One request's hold on a slot of an instance; `Scheduler.release` returns it."""

    instance: Instance
    endpoint: Endpoint
    traits: Traits
    began_s: float
    number: int = 0  # of the requests that the instance has served, this one included
    queued_s: float = 0.0
    queue_position: int = 0  # where the request began to wait, from 1; 0: it did not
    released: bool = False
    patience_s: float | None = None  # for an answer, if another endpoint may give it
    on_trial: bool = False  # its renewal is served even while nobody else is (`Readmission`)

    @property
    def is_alone(self) -> bool:
        """No other request runs, or has begun since this one did."""
        return self.instance.leases == 1 and self.instance.served == self.number


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
    """A loaded model, from its plan to the end of its process; changed by the scheduler only."""

    key: Key
    bundle: Bundle  # the one that was requested last, of all with the files of `key`
    need: Need  # what its load was requested with
    keep_alive_s: float
    last_used_s: float
    names: dict[str, Bundle] = field(default_factory=dict)  # all that were requested
    form_named: bool = False  # its load was requested by a name with a quantization
    growth: Growth = field(default_factory=Growth)  # of all instances with its key

    # its life
    state: InstanceState = InstanceState.QUEUED
    task: asyncio.Task[None] | None = None  # owns it: `Lifecycle.run`
    replaces: Instance | None = None  # of the same model; has to end before this one may load
    retiring: bool = False  # takes no new requests, and ends after the last one
    unload_reason: str = ""  # why it is unloaded before its keep-alive is over
    waits_for: str = ""  # what its load waits for now
    waited_for: str = ""  # what its load waited for last
    load: LoadedBytes | None = None  # how far it is, while its process starts
    load_s: float = 0.0  # how long the last load took
    ready_s: float = math.inf  # when the last load ended
    carried: Sequence[Path] = ()  # files with the conversations of the instance that it replaces
    wake: asyncio.Event = field(default_factory=asyncio.Event)  # `task` has something to do
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    # what it runs
    plan: Plan | None = None
    is_fallback: bool = False  # `plan` is for another quantization than the requested one
    failed_plans: tuple[Failed, ...] = ()  # those that did not start
    process: Process | None = None
    traits: Traits | None = None
    sleeper: Sleeper | None = None  # None: its engine cannot sleep
    sleep_wanted: bool = False
    sleep_ends_s: float = math.inf  # when it is unloaded if it is still asleep

    # its memory, in bytes by pool
    needs: Pools = field(default_factory=dict)  # the estimate
    placed: Placed | None = None  # what its engine said after the load
    holds: Pools = field(default_factory=dict)  # the last measurement
    peak: dict[str, int] = field(default_factory=dict)  # the largest measurement
    # it was measured while it served; until then it may grow to `needs`
    measured: bool = False

    # its requests
    readmission: Readmission = field(init=False)
    queue: FairQueue[Waiter] = field(default_factory=FairQueue)
    leases: int = 0
    leases_at: dict[Endpoint, int] = field(default_factory=dict)
    # why an endpoint gets no requests while others are healthy
    find_trouble: Callable[[Endpoint], str] = lambda endpoint: ""
    # the endpoint that served a prefix last, the least recent first
    prefixes: OrderedDict[Hashable, Endpoint] = field(default_factory=OrderedDict)
    served: int = 0
    service_s: float = 0.0  # moving average of the duration of a request

    def __post_init__(self) -> None:
        """Wake its task to serve the queue after a trial."""
        self.readmission = Readmission(self.wake.set)

    def note_name(self, bundle: Bundle) -> None:
        """Note by which of its names the model is requested now; a base comes before adapters."""
        if bundle is not self.bundle or not self.names:
            self.bundle = bundle if bundle.lora is None or self.bundle.lora else self.bundle
            self.names[bundle.name] = bundle

    def enter(self, state: InstanceState) -> None:
        """Change the state; only the transitions in `TRANSITIONS` are allowed."""
        assert state in TRANSITIONS[self.state], f"{self.key}: {self.state} -> {state}"
        self.state = state

    @property
    def admitted(self) -> bool:
        """True if memory and a slot have been allocated to it."""
        return self.state not in (InstanceState.QUEUED, InstanceState.STOPPED)

    @property
    def loaded(self) -> bool:
        """True if its process has become ready once; it may be asleep now."""
        return self.state in _LOADED

    @property
    def was_started(self) -> bool:
        """True if an engine was started for it, with this plan or with one before."""
        return bool(self.failed_plans) or bool(self.process and self.process.attempts)

    @property
    def sleeping(self) -> bool:
        """True if its process is asleep or waking up."""
        return self.state in (InstanceState.SLEEPING, InstanceState.WAKING)

    @property
    def ready(self) -> bool:
        """True if a request can be sent to it now."""
        return (
            self.state is InstanceState.SERVING
            and self.process is not None
            and self.process.state is State.READY
        )

    @property
    def busy(self) -> bool:
        """True if it is loading, has leases, or has queued requests."""
        return self.leases > 0 or bool(self.queue) or not self.loaded

    @property
    def is_abandoned(self) -> bool:
        """True if it is loading, and no request waits for it any more."""
        return not (self.loaded or self.queue)

    @property
    def limit(self) -> int:
        """Number of requests that the engine, or its ready replicas, process in parallel."""
        if self.traits is None or self.process is None:
            return 1
        most, endpoints = self.traits.max_concurrency, self.process.endpoints
        if len(endpoints) == 1:
            return min(most, endpoints[0].concurrent or most)
        if any(endpoint.concurrent for endpoint in endpoints):
            endpoints = tuple(filter(self.is_healthy, endpoints)) or endpoints
            return min(most, sum(endpoint.concurrent or most for endpoint in endpoints))
        up = len(endpoints) if len(self.process.parts) > 1 else 1
        return most * up

    @property
    def has_slot(self) -> bool:
        """True if one more request may be sent."""
        return self.leases < self.limit

    @property
    def should_grow(self) -> bool:
        """True if requests wait that a load with more slots would serve at once."""
        return (
            bool(self.queue)
            and not self.has_slot
            and not self.need.concurrent
            and self.plan is not None
            and self.plan.may_grow
        )

    @property
    def shrinks_s(self) -> float:
        """Time of its load for less, with its conversations; infinite while busy, or if not."""
        fixed = self.busy or self.retiring or self.unload_reason or not self.ready
        places = self.process.endpoints if self.process else ()
        if fixed or len(places) > 1 or not (self.plan and self.traits and self.traits.slots):
            return math.inf
        *_, since_s = self.growth.reduce(self.need, self.plan)
        least_s = SHRINK_LOADS * self.load_s  # a request during the load has to wait for it
        crowd_ends_s = since_s + max(SHRINK_S, least_s)
        return max(crowd_ends_s, self.last_used_s + max(SHRINK_IDLE_S, least_s))

    @property
    def deadline_s(self) -> float:
        """Time of its unload without a new request; infinite while busy or pinned."""
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
        """Choose the endpoint for the next request (`targets.choice`)."""
        endpoints = self.process.endpoints if self.process else ()
        if len(endpoints) < 2:
            return endpoints[0] if endpoints else None
        loads = {endpoint: self.leases_at.get(endpoint, 0) for endpoint in endpoints}
        key = prefix() if prefix is not None else None
        known = self.prefixes.get(key) if key is not None else None
        slots = self.traits.max_concurrency if self.traits else 1
        best = choose_target(loads, self.is_healthy, known, slots)
        if key is not None:
            self.prefixes[key] = best
            self.prefixes.move_to_end(key)
            if len(self.prefixes) > MAX_PREFIXES:
                self.prefixes.popitem(last=False)
        return best

    def is_healthy(self, endpoint: Endpoint) -> bool:
        """Return whether nothing is known against sending requests to `endpoint`."""
        return not self.find_trouble(endpoint)

    def find_part(self, endpoint: Endpoint) -> Part | None:
        """Return the process that serves at `endpoint`."""
        parts = self.process.parts if self.process else ()
        return next((part for part in parts if endpoint in part.endpoints), None)

    def fits(self, bundle: Bundle, need: Need) -> bool:
        """Return whether it can serve a request with `need`.

        A request for a smaller context fits. One that names a quantization does not fit an
        instance that runs another one. A plan fits the need that it was made for, and all that are
        no larger, even if it gives less: another load would give no more. No load changes a server
        elsewhere. Before the plan exists, a default context counts as large enough; the scheduler
        checks again when the plan is known. A model whose files have changed does not fit.
        """
        if bundle.format is Format.REMOTE:
            return True
        if bundle.state != self.bundle.state:
            return False
        if self.is_fallback and names_form(bundle) and not self.form_named:
            return False
        asked, plan = self.need, self.plan
        if bundle.lora and plan and self.traits and not self.traits.adapter_paths:
            return False
        if bundle.lora and plan and read_rank(bundle.lora) > plan.info.lora_rank:
            return False
        if need.logprobs and not (asked.logprobs or (plan and plan.settings.logprobs)):
            return False
        if need.load.engine not in (None, asked.load.engine, plan and plan.engine):
            return False
        wanted, have = need.load.num_ctx or 0, asked.load.num_ctx
        if plan is None:
            return have is None or wanted <= have
        if plan.info.context_length:
            wanted = min(wanted, plan.info.context_length)
        return wanted <= max(have or 0, plan.settings.context_length)
