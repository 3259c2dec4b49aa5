"""What is known of all instances, and the changes to it that never wait.

Everything here runs between two awaits, so no state is ever seen half changed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from vllama.clock import Clock
from vllama.errors import CoolingDown, EngineCrashed, VllamaError
from vllama.models.types import Bundle
from vllama.plan.types import Need, Plan
from vllama.scheduler.instance import Instance, Key, Lease, Process
from vllama.supervise.spec import State
from vllama.translate.traits import Traits

log = logging.getLogger(__name__)

BUSY_LOOK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings of the scheduler; `keep_alive_s` is the default, infinite means for ever."""

    keep_alive_s: float = 300.0
    max_loaded: int = 3
    max_queue: int = 512
    retry_room_s: float = 0.5
    cool_down_s: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What the scheduler asks of the world; passed in so that tests can gate each of them.

    `plan` decides (may take a while); `start` makes a process that is not running yet;
    `traits` declares its behaviour; `free_bytes` measures the memory that plan would use.
    `told` hears of the end of every load, with its error if it failed.
    """

    plan: Callable[[Bundle, Need], Awaitable[Plan]]
    start: Callable[[Plan], Process]
    traits: Callable[[Plan], Traits]
    free_bytes: Callable[[Plan], Awaitable[int]]
    told: Callable[[Plan, VllamaError | None], None] = lambda plan, error: None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A row of `ps`. `expires_s` is Unix time, infinite for ever."""

    name: str
    bundle: Bundle
    plan: Plan
    state: State
    memory_bytes: int
    expires_s: float
    leases: int
    queued: int
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An engine that used up its restarts: the answer to give until `until_s` (monotonic)."""

    error: CoolingDown
    until_s: float


class Table:
    """All instances: those that take requests, and those on their way out."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self.limits = limits
        self.clock = clock
        self.instances: dict[Key, Instance] = {}
        self.leaving: set[Instance] = set()
        self.failures: dict[Key, Failure] = {}
        self.changed = asyncio.Event()
        self.next_look_s = math.inf  # when the housekeeper will look again by itself

    def all(self) -> list[Instance]:
        """Return every instance that has not ended."""
        return [*self.instances.values(), *self.leaving]

    def of(self, bundle: Bundle) -> list[Instance]:
        """Return the instances of a model that take requests."""
        return [item for key, item in self.instances.items() if key.model == bundle.key]

    @property
    def waiting(self) -> int:
        """How many requests are queued."""
        return sum(len(instance.queue) for instance in self.all())

    # -- leases -------------------------------------------------------------------------------

    def take(self, instance: Instance, keep_alive_s: float | None) -> None:
        """Count a request in; its keep-alive sticks to the instance."""
        instance.leases += 1
        if keep_alive_s is not None:
            instance.keep_alive_s = keep_alive_s

    def lease(self, instance: Instance) -> Lease:
        """Return the handle of a request that was counted in. Raises EngineCrashed."""
        process, traits = instance.process, instance.traits
        endpoints = process.endpoints if process else ()
        if not endpoints or traits is None:
            self.give_back(instance)
            raise EngineCrashed(f"cannot serve '{instance.key.model}': the engine has just ended")
        # the first of those with the fewest requests
        endpoint = min(endpoints, key=instance.busy_at.__getitem__)
        if len(endpoints) > 1:
            instance.busy_at[endpoint] += 1
        return Lease(instance, endpoint, traits)

    def release(self, lease: Lease) -> None:
        """Count the request of a lease out, once."""
        if lease.released:
            return
        lease.released = True
        busy = lease.instance.busy_at
        if busy:
            busy[lease.endpoint] -= 1
            busy += Counter()  # drops what is not positive
        self.give_back(lease.instance)

    def touch(self, instance: Instance, keep_alive_s: float | None) -> None:
        """Let the timer of keep-alive start again, maybe with another length."""
        if keep_alive_s is not None:
            instance.keep_alive_s = keep_alive_s
        instance.last_used_s = self.clock.monotonic()
        if instance.deadline_s < self.next_look_s:
            self.changed.set()

    def give_back(self, instance: Instance) -> None:
        """Count a request out; the last one out starts the timer of keep-alive."""
        instance.leases -= 1
        instance.last_used_s = self.clock.monotonic()
        # waking tasks costs more than all else here: only those that have something to do
        if instance.queue or instance.retiring:
            instance.wake.set()
        if not instance.leases:
            instance.idle.set()
        if instance.deadline_s < self.next_look_s:
            self.changed.set()

    def serve_queue(self, instance: Instance) -> None:
        """Hand free slots to the waiting requests, first come first served."""
        while instance.queue and instance.has_slot and instance.ready:
            waiter = instance.queue.popleft()
            if not waiter.future.done():
                self.take(instance, waiter.keep_alive_s)
                waiter.future.set_result(None)

    @staticmethod
    def fail_queue(instance: Instance, error: VllamaError) -> None:
        """Tell everybody who waits."""
        while instance.queue:
            waiter = instance.queue.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(error)

    # -- leaving ------------------------------------------------------------------------------

    def retire(self, instance: Instance, why: str) -> None:
        """Take it out of the table; its own task stops it when the last request has gone."""
        if instance.retiring:
            return
        log.info("unload %s: %s", instance.plan.bundle.name if instance.plan else instance.key, why)
        instance.retiring = True
        self.leaving.add(instance)
        if self.instances.get(instance.key) is instance:
            del self.instances[instance.key]
        instance.wake.set()

    def ended(self, instance: Instance) -> None:
        """Forget it: its process is gone."""
        self.leaving.discard(instance)
        instance.ended.set()
        self.changed.set()

    def expire(self) -> None:
        """Begin to unload every idle instance whose time is over."""
        now_s = self.clock.monotonic()
        for instance in list(self.instances.values()):
            if instance.deadline_s <= now_s:
                self.retire(instance, "its keep-alive is over")

    def next_deadline_s(self) -> float:
        """Return the monotonic time to look at the deadlines again, infinite for never.

        A busy instance counts as if it were released now: its release then seldom has to wake
        the housekeeper (`give_back`).
        """
        now_s = self.clock.monotonic()
        return min(
            (
                now_s + max(item.keep_alive_s, BUSY_LOOK_S) if item.busy else item.deadline_s
                for item in self.instances.values()
            ),
            default=math.inf,
        )

    def cool_down(self, key: Key, error: VllamaError) -> None:
        """Remember an engine that served and then used up its restarts."""
        pause_s = self.limits.cool_down_s
        cooling = CoolingDown(error.message, retry_after_s=pause_s, hint=error.hint)
        self.failures[key] = Failure(error=cooling, until_s=self.clock.monotonic() + pause_s)

    def check_cool_down(self, key: Key) -> None:
        """Raise CoolingDown while a failed engine is not tried again."""
        failure = self.failures.get(key)
        if failure and failure.until_s > self.clock.monotonic():
            raise failure.error
        self.failures.pop(key, None)

    # -- views --------------------------------------------------------------------------------

    def views(self) -> list[View]:
        """Return what is loaded or loading, latest expiry first."""
        now_s, wall_s = self.clock.monotonic(), self.clock.time()
        rows = []
        for instance in self.all():
            if instance.plan is None or instance.process is None:
                continue
            left_s = instance.keep_alive_s
            if not instance.busy:
                left_s = max(0.0, instance.deadline_s - now_s)
            rows.append(
                View(
                    name=instance.plan.bundle.name,
                    bundle=instance.plan.bundle,
                    plan=instance.plan,
                    state=State.STOPPING if instance.retiring else instance.process.state,
                    memory_bytes=instance.memory_bytes,
                    expires_s=wall_s if instance.retiring else wall_s + left_s,
                    leases=instance.leases,
                    queued=len(instance.queue),
                    pid=instance.process.pid,
                )
            )
        return sorted(rows, key=lambda row: -row.expires_s)
