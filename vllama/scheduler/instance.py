"""A loaded model: its plan, its process, its leases and the queue before it."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from vllama.chat.engine.traits import Traits
from vllama.models.types import Bundle
from vllama.plan.ladder import Failed
from vllama.plan.quant_fallback import names_form
from vllama.plan.types import Need, Plan
from vllama.scheduler.policy import Pools
from vllama.supervise.logs import LogRing
from vllama.supervise.spec import Attempt, Diagnosis, Endpoint, Grace, State
from vllama.supervise.tree import Activity, Footprint

PREFIXES_KEPT = 1024

# asked only where there are replicas: equal for prompts that begin alike
Prefix = Callable[[], Hashable]


class Part(Protocol):
    """One of the processes of which a `Process` consists."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where it can be reached now."""
        ...

    def activity(self) -> Activity | None:
        """Return what it has done so far, None if that is unknown; blocks for milliseconds."""
        ...

    def output(self) -> LogRing | None:
        """Return the lines that it has printed by now, None if they cannot be read."""
        ...

    async def answers(self, endpoint: Endpoint, limit_s: float) -> bool:
        """Ask it by its health check whether it lives; no answer in `limit_s` seconds is a no."""
        ...

    def condemn(self, endpoint: Endpoint, cause: str | None) -> str:
        """Hear that it is of no use: it is ended and restarted as after a crash.

        `cause` None: by its own words, and its log may tell why. Returns the cause.
        """
        ...

    def condemned(self, endpoint: Endpoint) -> str | None:
        """Return why the engine there is being ended, if it was condemned."""
        ...


class Process(Protocol):
    """What the scheduler needs of a supervised process."""

    @property
    def state(self) -> State:
        """Current state."""
        ...

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Record of all starts."""
        ...

    @property
    def last_diagnosis(self) -> Diagnosis | None:
        """Why it last ended unasked."""
        ...

    @property
    def pid(self) -> int | None:
        """Process id of the engine, None while there is none."""
        ...

    @property
    def endpoint(self) -> Endpoint | None:
        """Where the current start listens; changes with every restart."""
        ...

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All places where it can be reached now; more than one for replicas."""
        ...

    @property
    def parts(self) -> Sequence[Part]:
        """The processes of which it consists; itself, if it is no set of replicas."""
        ...

    def listen(self, changed: Callable[[], object]) -> None:
        """Have `changed` called after every change of state."""
        ...

    def suspect(self, endpoint: Endpoint) -> None:
        """Hear that `endpoint` could not be reached."""
        ...

    async def run(self) -> None:
        """Own the process until it is stopped or failed for good."""
        ...

    async def ensure_ready(self) -> Endpoint:
        """Wait until it serves. Raises EngineError or Busy."""
        ...

    async def stop(self, grace: Grace | None = None) -> None:
        """Stop the whole tree; returns when it is gone."""
        ...

    def footprint(self) -> Footprint:
        """Measure the memory of its tree; blocks for milliseconds."""
        ...


class Sleeper(Protocol):
    """How the engine at an endpoint is put to sleep and woken."""

    async def sleep(self, endpoint: Endpoint) -> bool:
        """Let it give its memory back; False if it did not."""
        ...

    async def wake(self, endpoint: Endpoint) -> bool:
        """Let it take its memory again; False if it did not."""
        ...


class Key(NamedTuple):
    """Identity of an instance: one model on disk, started for one mode."""

    model: str
    mode: str

    def __str__(self) -> str:
        """Return it for logs."""
        return f"{self.model} ({self.mode})"


@dataclass(slots=True, eq=False)
class Waiter:
    """A request in the queue of `instance`; its future is done when it has been counted in there.

    It may be moved to the queue of the instance that takes the place of that one.
    """

    instance: Instance
    future: asyncio.Future[None]
    keep_alive_s: float | None


@dataclass(slots=True, eq=False)
class Lease:
    """One request's hold on an instance; give it back with `Scheduler.release`.

    `queue_position` is the place in the queue that it joined, from 1; 0: it did not wait.
    """

    instance: Instance
    endpoint: Endpoint
    traits: Traits
    began_s: float
    queued_s: float = 0.0
    queue_position: int = 0
    released: bool = False


class InstanceState(StrEnum):
    """How far a model's life is; whether it takes new requests is another question (`retiring`)."""

    QUEUED = "queued"  # for its plan, for the instance it replaces, or for room
    LOADING = "loading"  # it has its room, and its process does not serve yet
    SERVING = "serving"
    SLEEPING = "sleeping"  # or falling asleep: whoever comes waits until it is awake
    WAKING = "waking"  # it has its room again
    STOPPED = "stopped"


_STATE = InstanceState
TRANSITIONS: Mapping[InstanceState, frozenset[InstanceState]] = {
    _STATE.QUEUED: frozenset({_STATE.LOADING, _STATE.STOPPED}),
    # back to the queue: with another plan, since this one did not start
    _STATE.LOADING: frozenset({_STATE.SERVING, _STATE.QUEUED, _STATE.STOPPED}),
    _STATE.SERVING: frozenset({_STATE.SLEEPING, _STATE.STOPPED}),
    # loading: the process ended in its sleep, and is to be started over
    _STATE.SLEEPING: frozenset({_STATE.WAKING, _STATE.SERVING, _STATE.LOADING, _STATE.STOPPED}),
    _STATE.WAKING: frozenset({_STATE.SERVING, _STATE.SLEEPING, _STATE.STOPPED}),
    _STATE.STOPPED: frozenset(),
}
"""What may follow each state; docs/architecture.md has it as a diagram."""
_LOADED = frozenset({_STATE.SERVING, _STATE.SLEEPING, _STATE.WAKING})


@dataclass(slots=True, eq=False, weakref_slot=True)
class Instance:
    """A model that is loading, serving or on its way out; changed by the scheduler only.

    `retiring`: takes no new requests, ends when the last one has gone. `replaces`: the instance
    of the same model that has to be gone before this one may load.
    `failed` are the plans that did not start before the present one, `another` the one that comes
    after it; `stands_in`: it runs another quantisation than was asked for. `needs` is the estimate
    in bytes by pool, `holds` what was measured last, `peak` the most of that, `measured` whether
    that was when it served: before, it may grow up to `needs`. `awake_holds` is what it held before
    it fell asleep. `unwanted` is why it shall go though its keep-alive is not over. `service_s` is
    how long a request takes, as a moving average; `busy_s` how long there were requests, up to when
    it last fell idle, and `busy_since_s` since when there are.
    """

    key: Key
    bundle: Bundle
    need: Need
    created_s: float
    keep_alive_s: float
    last_used_s: float
    unwanted: str = ""
    plan: Plan | None = None
    failed: tuple[Failed, ...] = ()
    another: Plan | None = None
    stands_in: bool = False
    process: Process | None = None
    sleeper: Sleeper | None = None
    state: InstanceState = InstanceState.QUEUED
    traits: Traits | None = None
    task: asyncio.Task[None] | None = None
    replaces: Instance | None = None
    retiring: bool = False
    waits_for: str = ""
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
    busy_at: dict[Endpoint, int] = field(default_factory=dict)
    prefixes: OrderedDict[Hashable, Endpoint] = field(default_factory=OrderedDict)
    queue: deque[Waiter] = field(default_factory=deque)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def enter(self, state: InstanceState) -> None:
        """Go on to another state."""
        assert state in TRANSITIONS[self.state], f"{self.key}: {self.state} -> {state}"
        self.state = state

    @property
    def admitted(self) -> bool:
        """Whether it has its room."""
        return self.state not in (InstanceState.QUEUED, InstanceState.STOPPED)

    @property
    def loaded(self) -> bool:
        """Whether its process has served, and may sleep now."""
        return self.state in _LOADED

    @property
    def sleeping(self) -> bool:
        """Whether its process sleeps, or is being woken."""
        return self.state in (InstanceState.SLEEPING, InstanceState.WAKING)

    @property
    def ready(self) -> bool:
        """True if a request could be sent to it now."""
        return (
            self.state is InstanceState.SERVING
            and self.process is not None
            and self.process.state is State.READY
        )

    @property
    def busy(self) -> bool:
        """True while it loads, serves or somebody waits for it."""
        return self.leases > 0 or bool(self.queue) or not self.loaded

    def worked_s(self, now_s: float) -> float:
        """Return for how long it has had requests in its life."""
        return self.busy_s + (now_s - self.busy_since_s if self.leases else 0.0)

    @property
    def limit(self) -> int:
        """How many requests the engine, or all its replicas that are up, take at once."""
        if self.traits is None or self.process is None:
            return 1
        parts = self.process.parts
        up = len(self.process.endpoints) if len(parts) > 1 else 1
        return self.traits.max_concurrency * up

    @property
    def has_slot(self) -> bool:
        """True if one more request may be sent."""
        return self.leases < self.limit

    @property
    def crowded(self) -> bool:
        """True if requests wait that would be served at once if it were loaded for several."""
        return (
            bool(self.queue) and not self.has_slot and self.plan is not None and self.plan.may_grow
        )

    @property
    def deadline_s(self) -> float:
        """When it is unloaded if nobody asks again; infinite while busy or kept for ever."""
        if self.busy or self.retiring:
            return math.inf
        return self.sleep_ends_s if self.sleeping else self.last_used_s + self.keep_alive_s

    @property
    def memory_bytes(self) -> int:
        """Measured size of the process, or the estimate before it is known."""
        # a process that was looked at in its first moment held nothing
        held = sum(self.holds.values()) if self.loaded else 0
        return held or sum(self.needs.values())

    def place(self, prefix: Prefix | None) -> Endpoint | None:
        """Choose where the next request goes: where its prefix went before, else the least busy.

        A place that has two requests more than another is not chosen for the sake of a prefix.
        """
        places = self.process.endpoints if self.process else ()
        if len(places) < 2:
            return places[0] if places else None
        busy = {place: self.busy_at.get(place, 0) for place in places}
        best = min(busy, key=busy.__getitem__)
        key = prefix() if prefix is not None else None
        known = self.prefixes.get(key) if key is not None else None
        if known in busy and busy[known] <= busy[best] + 1:
            most = self.traits.max_concurrency if self.traits else 1
            if busy[known] < most:
                best = known
        if key is not None:
            self.prefixes[key] = best
            self.prefixes.move_to_end(key)
            if len(self.prefixes) > PREFIXES_KEPT:
                self.prefixes.popitem(last=False)
        return best

    def part_at(self, endpoint: Endpoint) -> Part | None:
        """Return the process that serves at `endpoint`."""
        parts = self.process.parts if self.process else ()
        return next((part for part in parts if endpoint in part.endpoints), None)

    def fits(self, bundle: Bundle, need: Need) -> bool:
        """Return True if a request with `need` can use it as it is (a smaller context can).

        One that runs another quantisation is not for a request whose name says which it wants.

        Before there is a plan, a context that was not asked for counts as large enough: the
        scheduler asks again when the plan is known.
        """
        if self.stands_in and names_form(bundle):
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
