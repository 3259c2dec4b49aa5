"""A loaded model: its plan, its process, its leases and the queue before it."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Protocol

from vllama.plan.types import Need, Plan
from vllama.supervise.spec import Attempt, Endpoint, Grace, State
from vllama.translate.traits import Traits


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
    def pid(self) -> int | None:
        """Process id of the engine, None while there is none."""
        ...

    @property
    def endpoint(self) -> Endpoint | None:
        """Where the current start listens; changes with every restart."""
        ...

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All places where it can be reached; more than one only for servers elsewhere."""
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

    def descendants_rss_bytes(self) -> int:
        """Measured memory of its tree, 0 if unknown."""
        ...


@dataclass(frozen=True, slots=True)
class Key:
    """Identity of an instance: one model on disk, started for one mode."""

    model: str
    mode: str

    def __str__(self) -> str:
        """Return it for logs."""
        return f"{self.model} ({self.mode})"


@dataclass(slots=True, eq=False)
class Waiter:
    """A request in the queue; its future gets None when it may go on."""

    future: asyncio.Future[None]
    keep_alive_s: float | None


@dataclass(slots=True, eq=False)
class Lease:
    """One request's hold on an instance; give it back with `Scheduler.release`."""

    instance: Instance
    endpoint: Endpoint
    traits: Traits
    queued_s: float = 0.0
    released: bool = False


@dataclass(slots=True, eq=False)
class Instance:
    """A model that is loading, serving or on its way out; changed by the scheduler only.

    `retiring`: takes no new requests, ends when the last one has gone. `replaces`: the instance
    of the same model that has to be gone before this one may load.
    """

    key: Key
    need: Need
    created_s: float
    keep_alive_s: float
    last_used_s: float
    plan: Plan | None = None
    process: Process | None = None
    loaded: bool = False
    traits: Traits | None = None
    task: asyncio.Task[None] | None = None
    replaces: Instance | None = None
    retiring: bool = False
    leases: int = 0
    busy_at: Counter[Endpoint] = field(default_factory=Counter)
    queue: deque[Waiter] = field(default_factory=deque)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ready(self) -> bool:
        """True if a request could be sent to it now."""
        return self.loaded and self.process is not None and self.process.state is State.READY

    @property
    def busy(self) -> bool:
        """True while it loads, serves or somebody waits for it."""
        return self.leases > 0 or bool(self.queue) or not self.loaded

    @property
    def limit(self) -> int:
        """How many requests the engine takes at once."""
        return self.traits.max_concurrency if self.traits else 1

    @property
    def has_slot(self) -> bool:
        """True if one more request may be sent."""
        return self.leases < self.limit

    @property
    def deadline_s(self) -> float:
        """When it is unloaded if nobody asks again; infinite while busy or kept for ever."""
        if self.busy or self.retiring:
            return math.inf
        return self.last_used_s + self.keep_alive_s

    @property
    def memory_bytes(self) -> int:
        """Measured size of the process, or the plan's estimate before it is known."""
        estimate = self.plan.memory.total_bytes if self.plan else 0
        measured = self.process.descendants_rss_bytes() if self.process and self.ready else 0
        return max(measured, 0) or estimate

    def fits(self, need: Need) -> bool:
        """Return True if a request with `need` can use it as it is (a smaller context can).

        Before there is a plan, a context that was not asked for counts as large enough: the
        scheduler asks again when the plan is known.
        """
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
