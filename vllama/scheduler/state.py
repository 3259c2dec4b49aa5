"""The table of all instances, and the changes to it that never suspend.

No function here awaits, so no other task ever sees a state that is half changed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from vllama.base.clock import Clock
from vllama.base.errors import CoolingDown, VllamaError
from vllama.dialects.events import Mark, MarkKind
from vllama.models.types import Bundle
from vllama.scheduler.growth import Growth
from vllama.scheduler.hooks import Limits
from vllama.scheduler.instance import Instance, InstanceState, Key, Lease, Prefix

log = logging.getLogger(__name__)

STOPPING = "cannot serve: the server is stopping"
MIN_BUSY_CHECK_S = 1.0
SERVICE_WEIGHT = 0.2  # of the latest request in the moving average of the service time
MAX_MARKS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailure:
    """A model that failed; it is remembered until the model loads, or until it is stopped.

    Until `until_s` (monotonic) it is not loaded again, and requests get `error`. `has_log`: an
    engine was started.
    """

    bundle: Bundle
    error: VllamaError
    since_s: float
    until_s: float
    has_log: bool


class Marks:
    """The latest moments at which a model was loaded, unloaded or evicted, or failed.

    Graphs show them beside the curves that they explain. `count` numbers all that have ever been.
    """

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque(maxlen=MAX_MARKS)
        self.count = 0
        self.on_mark: Callable[[Mark], object] = bool
        """Called with every mark: counters must not miss one."""

    def add(self, mark: Mark) -> None:
        """Add a mark, and drop the oldest if there are too many."""
        self._marks.append(mark)
        self.count += 1
        self.on_mark(mark)

    def list_since(self, time_s: float) -> list[Mark]:
        """Return the marks since a Unix time, oldest first."""
        return [mark for mark in self._marks if mark.time >= time_s]

    def list_after(self, count: int) -> list[Mark]:
        """Return the marks that came after the first `count`, as far as they are kept."""
        new = self.count - count
        return list(self._marks)[-new:] if new > 0 else []


class Table:
    """All instances: those that take requests, and those that are retiring."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self.limits = limits
        self.clock = clock
        self.instances: dict[Key, Instance] = {}
        self.retiring: set[Instance] = set()
        self.failures: dict[Key, LoadFailure] = {}
        self.marks = Marks()
        self.growths = defaultdict[Key, Growth](Growth)
        self.closing = False  # the server stops: no more requests and loads
        self.changed = asyncio.Event()
        self.room_changed = asyncio.Event()
        self.room_wanted = False  # admission waits for room, so it must hear of idle models
        self.next_expiry_check_s = math.inf  # when `Scheduler.run` wakes up without an event

    def list_all(self) -> list[Instance]:
        """Return every instance that has not ended."""
        return [*self.instances.values(), *self.retiring]

    def default_keep_alive_s(self, bundle: Bundle) -> float:
        """Return the keep-alive of a model of which no request says any."""
        if bundle.settings.pin:
            return math.inf
        own_s = bundle.settings.keep_alive_s
        return self.limits.keep_alive_s if own_s is None else own_s

    def find(self, bundle: Bundle) -> list[Instance]:
        """Return the instances of a model that take new requests."""
        return [item for key, item in self.instances.items() if key.model == bundle.key]

    # -- leases -------------------------------------------------------------------------------

    def count_in(self, instance: Instance, keep_alive_s: float | None) -> None:
        """Count a request, and set the keep-alive that it asks for."""
        instance.leases += 1
        instance.served += 1
        if keep_alive_s is not None:
            self.set_keep_alive(instance, keep_alive_s)

    def make_lease(self, instance: Instance, prefix: Prefix | None = None) -> Lease | None:
        """Return the lease of a request that has been counted.

        If the engine has ended in between, count the request out and return None.
        """
        endpoint, traits = instance.choose_endpoint(prefix), instance.traits
        if endpoint is None or traits is None:
            self.count_out(instance)
            return None
        if endpoint.model is not None:
            traits = replace(traits, model_name=endpoint.model)
        instance.leases_at[endpoint] = instance.leases_at.get(endpoint, 0) + 1
        return Lease(instance, endpoint, traits, self.clock.monotonic(), instance.served)

    def release(self, lease: Lease) -> None:
        """Return a lease; a second call does nothing."""
        if lease.released:
            return
        lease.released = True
        instance = lease.instance
        others = instance.leases_at.pop(lease.endpoint) - 1
        if others:
            instance.leases_at[lease.endpoint] = others
        self.count_out(instance)
        took_s = instance.last_used_s - lease.began_s
        before_s = instance.service_s or took_s
        instance.service_s = before_s + SERVICE_WEIGHT * (took_s - before_s)

    def touch(self, instance: Instance, keep_alive_s: float | None) -> None:
        """Restart the keep-alive timer, with another duration unless None."""
        self.set_keep_alive(instance, keep_alive_s)
        instance.last_used_s = self.clock.monotonic()
        if instance.deadline_s < self.next_expiry_check_s:
            self.changed.set()

    @staticmethod
    def set_keep_alive(instance: Instance, keep_alive_s: float | None) -> None:
        """Set the keep-alive unless None; this also cancels a pending unload.

        The user's `pin` wins over what requests say.
        """
        if keep_alive_s is not None and not instance.bundle.settings.pin:
            instance.keep_alive_s, instance.unload_reason = keep_alive_s, ""

    def count_out(self, instance: Instance) -> None:
        """Count a request out; the last one starts the keep-alive timer."""
        instance.leases -= 1
        instance.last_used_s = self.clock.monotonic()
        # Waking a task costs more than the rest of this function, so wake only those with work.
        if instance.queue or instance.retiring:
            instance.wake.set()
        if instance.leases:
            instance.growth.crowded_s = instance.last_used_s
            return
        if self.room_wanted:
            self.room_changed.set()
        if min(instance.deadline_s, instance.shrinks_s) < self.next_expiry_check_s:
            self.changed.set()

    def serve_queue(self, instance: Instance) -> None:
        """Give the free slots to waiting requests, in turn between their flows."""
        while instance.queue and instance.has_slot and instance.ready:
            if instance.readmission.is_one_by_one:
                waiter = next((one for one in instance.queue if one.on_trial), None)
                if waiter is None:
                    return
                instance.queue.remove(waiter)
            else:
                waiter = instance.queue.pop()
            if not waiter.future.done():
                self.count_in(instance, waiter.keep_alive_s)
                waiter.future.set_result(None)

    @staticmethod
    def move_queue(old: Instance, new: Instance) -> None:
        """Move all waiting requests to a new instance, in their order."""
        assert not new.queue
        new.queue, old.queue = old.queue, new.queue
        for waiter in new.queue:
            waiter.instance = new

    @staticmethod
    def fail_queue(instance: Instance, error: VllamaError) -> None:
        """Fail all waiting requests with `error`."""
        while instance.queue:
            waiter = instance.queue.pop()
            if not waiter.future.done():
                waiter.future.set_exception(error)

    # -- retiring -----------------------------------------------------------------------------

    def retire(
        self,
        instance: Instance,
        reason: str,
        kind: MarkKind = MarkKind.UNLOAD,
        *,
        replaced: bool = False,
    ) -> None:
        """Give an instance no new requests; its own task stops it after the last one.

        `replaced`: another instance of the same model takes its place. An empty `reason` is neither
        logged nor marked.
        """
        if instance.retiring:
            return
        if reason:
            verb = "reload" if replaced else "unload"
            log.info("%s %s: %s", verb, instance.bundle.name, reason)
            if instance.loaded:
                self.mark(kind, instance, reason)
        instance.retiring = True
        self.retiring.add(instance)
        if self.instances.get(instance.key) is instance:
            del self.instances[instance.key]
        instance.wake.set()

    def end(self, instance: Instance, reason: str) -> None:
        """Schedule an unload by the next `expire` after its requests, at once if none wait."""
        instance.keep_alive_s, instance.unload_reason = 0.0, reason
        instance.sleep_ends_s = -math.inf
        self.stop_unwanted(instance)

    def stop_unwanted(self, instance: Instance, reason: str = "") -> None:
        """Stop a load that no request waits for, if it is to be unloaded, or in others' way."""
        reason = reason or instance.unload_reason or instance.waits_for
        if reason and instance.is_abandoned and not instance.retiring and instance.task:
            self.retire(instance, f"no request is waiting for it ({reason})")
            instance.task.cancel()

    def remove(self, instance: Instance) -> None:
        """Remove an instance whose process tree is gone."""
        instance.enter(InstanceState.STOPPED)
        self.retiring.discard(instance)
        instance.ended.set()
        self.changed.set()
        self.room_changed.set()

    def expire(self) -> None:
        """Unload every idle instance whose deadline has passed, or put it to sleep if it can.

        A keep-alive of 0 asks to unload, so such an instance never sleeps.
        """
        now_s = self.clock.monotonic()
        for instance in list(self.instances.values()):
            if instance.deadline_s > now_s or instance.sleep_wanted:
                continue
            if instance.sleeper and not instance.sleeping and instance.keep_alive_s > 0:
                instance.sleep_wanted = True
                instance.wake.set()
            else:
                self.retire(instance, instance.unload_reason or explain_expiry(instance))

    def next_deadline_s(self) -> float:
        """Return the monotonic time of the next check of the deadlines, infinite for never.

        A busy instance counts as if it became idle now. The check is then early enough for its
        real deadline, and `count_out` seldom has to wake `Scheduler.run`.
        """
        now_s = self.clock.monotonic()
        return min(
            (
                now_s + max(item.keep_alive_s, MIN_BUSY_CHECK_S)
                if item.busy
                else min(item.deadline_s, item.shrinks_s)
                for item in self.instances.values()
                if not item.sleep_wanted
            ),
            default=math.inf,
        )

    def record_failure(
        self, instance: Instance, error: VllamaError, *, pause_s: float = 0.0
    ) -> None:
        """Record why a model failed, and refuse requests with that error for `pause_s` seconds."""
        if pause_s:
            error = CoolingDown(error.message, retry_after_s=pause_s, hint=error.hint)
        now_s = self.clock.monotonic()
        self.failures[instance.key] = LoadFailure(
            bundle=instance.bundle,
            error=error,
            since_s=self.clock.time(),
            until_s=now_s + pause_s,
            has_log=instance.was_started,
        )

    def check_failure(self, key: Key) -> None:
        """Raise CoolingDown during the pause after a failure."""
        failure = self.failures.get(key)
        if failure and isinstance(failure.error, CoolingDown):
            left_s = failure.until_s - self.clock.monotonic()
            if left_s > 0:
                raise CoolingDown(
                    failure.error.message, retry_after_s=left_s, hint=failure.error.hint
                )

    def mark(
        self,
        kind: MarkKind,
        instance: Instance,
        reason: str,
        *,
        seconds: float | None = None,
        cause: str = "",
    ) -> None:
        """Mark what happens to an instance now; see `Mark`."""
        now_s, name = round(self.clock.time(), 3), instance.bundle.name
        self.marks.add(
            Mark(time=now_s, kind=kind, model=name, reason=reason, seconds=seconds, cause=cause)
        )

    def forget_failures(self, bundle: Bundle) -> None:
        """Forget the failures of a model, so that the next request loads it at once."""
        for key in [key for key in self.failures if key.model == bundle.key]:
            del self.failures[key]


def explain_expiry(instance: Instance) -> str:
    """Return why an instance whose deadline has passed is unloaded."""
    if instance.sleeping:
        return "maximum sleep time reached"
    if instance.keep_alive_s <= 0:
        return "its keep_alive is 0"
    return f"idle for {instance.keep_alive_s:g} s, its keep_alive"
