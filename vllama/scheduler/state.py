"""What is known of all instances, and the changes to it that never wait.

Everything here runs between two awaits, so no state is ever seen half changed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from vllama.chat.engine.traits import Traits
from vllama.clock import Clock
from vllama.errors import CoolingDown, EngineStartFailed, VllamaError
from vllama.hardware.cpu import CpuTime
from vllama.models.types import Bundle
from vllama.plan.ladder import Failed
from vllama.plan.types import Need, Plan
from vllama.scheduler.instance import Instance, InstanceState, Key, Lease, Prefix, Process, Sleeper
from vllama.scheduler.memory import Measurable, Measured
from vllama.scheduler.policy import Pools
from vllama.supervise.spec import Endpoint
from vllama.upstream.connection import Progress

log = logging.getLogger(__name__)

BUSY_LOOK_S = 1.0
SERVICE_SHARE = 0.2  # of the newest request in the average of how long one takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings of the scheduler; `keep_alive_s` is the default, infinite means for ever.

    `max_queue` is for each model. `retry_room_s`: how often memory is looked at while somebody
    waits for it; `settle_s`: how long that of an ended process may take to come back. A busy model
    serves for `turn_s`, or for as long as its load took, before it gives way. One that can sleep
    stays asleep for `sleep_s`. `hang_s`: see `health`; infinite: never.
    """

    keep_alive_s: float = 300.0
    max_loaded: int = 3
    max_queue: int = 512
    retry_room_s: float = 0.5
    settle_s: float = 5.0
    turn_s: float = 5.0
    sleep_s: float = 3600.0
    cool_down_s: float = 15.0
    hang_s: float = 30.0


async def make_no_other_error(bundle: Bundle, need: Need, failed: Sequence[Failed]) -> Plan:
    """Have no other plan: raise the error of the first."""
    raise EngineStartFailed(failed[0].message, hint=failed[0].diagnosis.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What the scheduler asks of the world; passed in so that tests can gate each of them.

    `plan` decides (may take a while); `another` decides after starts that failed, or raises why
    there is nothing left to try; `start` makes a process that is not running yet;
    `traits` declares its behaviour; `needs` tells what it will take, by pool; `measure` looks at
    memory (at GPUs only if told to); `told` hears of the end of every load, with its error if it
    failed; `remember` of what a process held at most in its life. `traffic` tells how far the
    answers from an endpoint are; `cut` ends them, with the cause. `sleeper` is None for an engine
    that cannot sleep. `over` comes when an instance has ended. `cpu_time` tells what a process, by
    its id, and all others have used; None: that is not known.
    """

    plan: Callable[[Bundle, Need], Awaitable[Plan]]
    start: Callable[[Plan], Process]
    traits: Callable[[Plan], Traits]
    needs: Callable[[Plan], Pools]
    measure: Callable[[Mapping[Hashable, Measurable], bool], Awaitable[Measured]]
    remember: Callable[[Plan, Pools], Awaitable[None]]
    another: Callable[[Bundle, Need, Sequence[Failed]], Awaitable[Plan]] = make_no_other_error
    told: Callable[[Plan, VllamaError | None], None] = lambda plan, error: None
    traffic: Callable[[Endpoint], Mapping[int, Progress]] = lambda endpoint: {}
    cut: Callable[[Endpoint, str], None] = lambda endpoint, cause: None
    sleeper: Callable[[Plan], Sleeper | None] = lambda plan: None
    over: Callable[[], object] = lambda: None
    cpu_time: Callable[[int], CpuTime | None] = lambda pid: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A model that failed: told to `ps` until it is asked for again or stopped.

    Until `until_s` (monotonic) it is not tried again, and `error` is the answer.
    """

    bundle: Bundle
    error: VllamaError
    since_s: float
    until_s: float


class Table:
    """All instances: those that take requests, and those on their way out."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self.limits = limits
        self.clock = clock
        self.instances: dict[Key, Instance] = {}
        self.leaving: set[Instance] = set()
        self.failures: dict[Key, Failure] = {}
        # models that several have asked at once: their next loads have room for them
        self.concurrent: set[Key] = set()
        self.changed = asyncio.Event()
        self.room_changed = asyncio.Event()
        self.room_wanted = False  # somebody waits for it: releases matter
        self.next_look_s = math.inf  # when the housekeeper will look again by itself

    def all(self) -> list[Instance]:
        """Return every instance that has not ended."""
        return [*self.instances.values(), *self.leaving]

    def of(self, bundle: Bundle) -> list[Instance]:
        """Return the instances of a model that take requests."""
        return [item for key, item in self.instances.items() if key.model == bundle.key]

    # -- leases -------------------------------------------------------------------------------

    def take(self, instance: Instance, keep_alive_s: float | None) -> None:
        """Count a request in; its keep-alive sticks to the instance."""
        if not instance.leases:
            instance.busy_since_s = self.clock.monotonic()
        instance.leases += 1
        instance.served += 1
        self.keep(instance, keep_alive_s)

    def lease(self, instance: Instance, prefix: Prefix | None = None) -> Lease | None:
        """Return the handle of a request that was counted in.

        None, and it is counted out again, if the engine has ended in between.
        """
        endpoint, traits = instance.place(prefix), instance.traits
        if endpoint is None or traits is None:
            self.give_back(instance)
            return None
        instance.busy_at[endpoint] = instance.busy_at.get(endpoint, 0) + 1
        return Lease(instance, endpoint, traits, self.clock.monotonic())

    def release(self, lease: Lease) -> None:
        """Count the request of a lease out, once."""
        if lease.released:
            return
        lease.released = True
        instance = lease.instance
        others = instance.busy_at.pop(lease.endpoint) - 1
        if others:
            instance.busy_at[lease.endpoint] = others
        self.give_back(instance)
        took_s = instance.last_used_s - lease.began_s
        before_s = instance.service_s or took_s
        instance.service_s = before_s + SERVICE_SHARE * (took_s - before_s)

    def touch(self, instance: Instance, keep_alive_s: float | None) -> None:
        """Let the timer of keep-alive start again, maybe with another length."""
        self.keep(instance, keep_alive_s)
        instance.last_used_s = self.clock.monotonic()
        if instance.deadline_s < self.next_look_s:
            self.changed.set()

    @staticmethod
    def keep(instance: Instance, keep_alive_s: float | None) -> None:
        """Let a keep-alive stick to an instance, whatever was wished for before."""
        if keep_alive_s is not None:
            instance.keep_alive_s, instance.unwanted = keep_alive_s, ""

    def give_back(self, instance: Instance) -> None:
        """Count a request out; the last one out starts the timer of keep-alive."""
        instance.leases -= 1
        instance.last_used_s = self.clock.monotonic()
        # waking tasks costs more than all else here: only those that have something to do
        if instance.queue or instance.retiring:
            instance.wake.set()
        if not instance.leases:
            instance.busy_s += instance.last_used_s - instance.busy_since_s
            instance.idle.set()
            if self.room_wanted:
                self.room_changed.set()
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
    def move_queue(old: Instance, new: Instance) -> None:
        """Let those who wait for one instance wait for another, in their order."""
        for waiter in old.queue:
            waiter.instance = new
        new.queue.extend(old.queue)
        old.queue.clear()

    @staticmethod
    def fail_queue(instance: Instance, error: VllamaError) -> None:
        """Tell everybody who waits."""
        while instance.queue:
            waiter = instance.queue.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(error)

    # -- leaving ------------------------------------------------------------------------------

    def retire(self, instance: Instance, why: str) -> None:
        """Take it out of the table; its own task stops it when the last request has gone.

        No `why`: the log has it already.
        """
        if instance.retiring:
            return
        if why:
            log.info("unload %s: %s", instance.bundle.name, why)
        instance.retiring = True
        self.leaving.add(instance)
        if self.instances.get(instance.key) is instance:
            del self.instances[instance.key]
        instance.wake.set()

    def ended(self, instance: Instance) -> None:
        """Forget it: its process is gone."""
        instance.enter(InstanceState.STOPPED)
        self.leaving.discard(instance)
        instance.ended.set()
        self.changed.set()
        self.room_changed.set()

    def expire(self) -> None:
        """Begin to unload every idle instance whose time is over; one that can sleep sleeps first.

        A keep-alive of 0 means unload: that one does not sleep.
        """
        now_s = self.clock.monotonic()
        for instance in list(self.instances.values()):
            if instance.deadline_s > now_s or instance.sleep_wanted:
                continue
            if instance.sleeper and not instance.sleeping and instance.keep_alive_s > 0:
                instance.sleep_wanted = True
                instance.wake.set()
            else:
                self.retire(instance, instance.unwanted or explain_expiry(instance))

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
                if not item.sleep_wanted
            ),
            default=math.inf,
        )

    def fail(self, instance: Instance, error: VllamaError, *, pause_s: float = 0.0) -> None:
        """Remember why a model failed, and for `pause_s` answer so instead of trying again."""
        if pause_s:
            error = CoolingDown(error.message, retry_after_s=pause_s, hint=error.hint)
        now_s = self.clock.monotonic()
        self.failures[instance.key] = Failure(
            bundle=instance.bundle, error=error, since_s=self.clock.time(), until_s=now_s + pause_s
        )

    def check_failure(self, key: Key) -> None:
        """Raise CoolingDown while a failed engine is not tried again; else forget its failure."""
        failure = self.failures.get(key)
        if failure and isinstance(failure.error, CoolingDown):
            left_s = failure.until_s - self.clock.monotonic()
            if left_s > 0:
                raise CoolingDown(
                    failure.error.message, retry_after_s=left_s, hint=failure.error.hint
                )
        self.failures.pop(key, None)

    def forget_failures(self, bundle: Bundle) -> None:
        """Forget that a model failed: it may be tried again at once."""
        for key in [key for key in self.failures if key.model == bundle.key]:
            del self.failures[key]


def explain_expiry(instance: Instance) -> str:
    """Return why an instance goes whose deadline has passed."""
    if instance.sleeping:
        return "it has slept for as long as it may"
    if instance.keep_alive_s <= 0:
        return "its keep_alive is 0"
    return f"idle for {instance.keep_alive_s:g} s, its keep_alive"
