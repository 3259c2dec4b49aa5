"""Which models are loaded and who may use them: `acquire`, `release`, `unload`, `list_views`.

Rules (see README.md beside this file): no `await` between reading and writing state; no lock is
held while a process or socket is awaited; a load belongs to the scheduler, not to the request
that asked for it; a busy model is never stopped for another one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextvars import Context

import msgspec

from vllama import log_context
from vllama.clock import Clock
from vllama.errors import QueueFull, ShuttingDown
from vllama.models.types import Bundle
from vllama.plan.types import Need
from vllama.scheduler.admission import Admission
from vllama.scheduler.contention import Contention
from vllama.scheduler.hang_detection import Health
from vllama.scheduler.instance import Instance, Key, Lease, Prefix, Waiter
from vllama.scheduler.lifecycle import Lifecycle
from vllama.scheduler.state import Hooks, Limits, Table
from vllama.scheduler.views import FailureView, View, find_obstacle, list_failures, list_views

log = logging.getLogger(__name__)

STOPPING = "cannot serve: the server is stopping"
LEAST_RETRY_S, MOST_RETRY_S = 1.0, 60.0


class Scheduler:
    """The owner of all instances; `run` is its life."""

    def __init__(self, hooks: Hooks, limits: Limits, clock: Clock) -> None:
        self._hooks = hooks
        self._limits = limits
        self._clock = clock
        self._table = Table(limits, clock)
        self._admission = Admission(self._table, hooks)
        self._health = Health(self._table, hooks)
        self._contention = Contention(self._table, hooks, self._reload)
        self._group: asyncio.TaskGroup | None = None
        self._closing = False

    # -- life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep house (keep-alive deadlines) until cancelled; then stop every instance."""
        table = self._table
        async with asyncio.TaskGroup() as group:
            self._group = group
            helpers = [
                group.create_task(helper.run())
                for helper in (self._admission, self._health, self._contention)
            ]
            try:
                while True:
                    table.expire()
                    table.changed.clear()
                    table.next_look_s = table.next_deadline_s()
                    wait_s = table.next_look_s - self._clock.monotonic()
                    try:
                        async with asyncio.timeout(None if math.isinf(wait_s) else max(wait_s, 0)):
                            await table.changed.wait()
                    except TimeoutError:
                        pass
            finally:
                self._closing = True
                self._group = None
                for helper in helpers:
                    helper.cancel()
                for instance in table.all():
                    if instance.task:
                        instance.task.cancel()

    def close_queue(self) -> None:
        """Refuse new requests and those that wait; running ones go on."""
        self._closing = True
        for instance in self._table.all():
            self._table.fail_queue(instance, ShuttingDown(STOPPING))

    async def drained(self) -> None:
        """Wait until no request is running."""
        for instance in self._table.all():
            while instance.leases:
                instance.idle.clear()
                await instance.idle.wait()

    # -- requests -----------------------------------------------------------------------------

    def try_acquire(
        self, bundle: Bundle, need: Need, keep_alive_s: float | None, prefix: Prefix | None = None
    ) -> Lease | None:
        """Return a lease if one can be had at once, without suspending; else None."""
        instance = self._table.instances.get(Key(bundle.key, need.mode))
        if (
            instance is None
            or self._closing
            or not (instance.ready and instance.has_slot and not instance.queue)
            or not instance.fits(bundle, need)
        ):
            return None
        self._table.take(instance, keep_alive_s)
        return self._table.lease(instance, prefix)

    async def acquire(
        self, bundle: Bundle, need: Need, keep_alive_s: float | None, prefix: Prefix | None = None
    ) -> Lease:
        """Return a lease on an instance of `bundle` that serves `need`.

        1. A compatible instance that is ready, with a free slot and nobody waiting: at once.
        2. Else join the queue of the instance, which is made if there is none. A leaver only
           leaves the queue; the load goes on.

        With replicas, requests whose `prefix` returns the same (prompts that begin alike) go to
        the same one if it can be had. Raises QueueFull, ShuttingDown, and what planning,
        loading or serving raised.
        """
        while True:
            if lease := self.try_acquire(bundle, need, keep_alive_s, prefix):
                return lease
            instance = self._instance_for(bundle, need)
            granted = await self._queued(instance, keep_alive_s, prefix)
            if granted and granted.instance.fits(bundle, need):
                return granted
            # the engine has just ended; or it was still being planned when we joined, with a
            # smaller context than we need
            if granted:
                self.release(granted)

    async def renew(
        self,
        lease: Lease,
        bundle: Bundle,
        need: Need,
        keep_alive_s: float | None,
        prefix: Prefix | None = None,
    ) -> Lease:
        """Return the lease for another try after its endpoint could not be reached.

        The same while the engine counts as alive; else one on the engine that comes after it,
        before all who wait. The given one is released, unless it is returned or this raises what
        `acquire` raises.
        """
        instance = lease.instance
        if instance.process and lease.endpoint in instance.process.endpoints:
            return lease
        if self._closing:
            raise ShuttingDown(STOPPING)
        if not instance.ended.is_set() and (
            granted := await self._queued(instance, keep_alive_s, prefix, instead=lease)
        ):
            return granted
        self.release(lease)
        return await self.acquire(bundle, need, keep_alive_s, prefix)

    def touch(self, bundle: Bundle, need: Need, keep_alive_s: float | None) -> bool:
        """Prolong the stay of an instance that serves `need`; False if there is none ready.

        For a request that wants it loaded and no more: it need not wait for a slot.
        """
        instance = self._table.instances.get(Key(bundle.key, need.mode))
        if instance is None or not instance.ready or not instance.fits(bundle, need):
            return False
        self._table.touch(instance, keep_alive_s)
        return True

    def release(self, lease: Lease) -> None:
        """Give a lease back; the timer of keep-alive starts when the last one is back."""
        self._table.release(lease)

    def suspect(self, lease: Lease) -> None:
        """Hear that the endpoint of `lease` could not be reached."""
        if lease.instance.process:
            lease.instance.process.suspect(lease.endpoint)

    def unload(self, bundle: Bundle, why: str = "a client asked for it") -> bool:
        """Stop all instances of `bundle` as soon as they are idle; False if there is none.

        Also lets a model that failed be tried again at once.
        """
        instances = self._table.of(bundle)
        for instance in instances:
            instance.keep_alive_s, instance.unwanted = 0.0, why
            instance.sleep_ends_s = -math.inf
        self._table.forget_failures(bundle)
        self._table.expire()
        return bool(instances)

    def limit(self, limits: Limits) -> None:
        """Go by other limits from now on; who has the default keep-alive gets the new one."""
        before, self._limits, self._table.limits = self._limits, limits, limits
        for instance in self._table.all():
            if instance.keep_alive_s == before.keep_alive_s:
                instance.keep_alive_s = limits.keep_alive_s
        self._table.changed.set()
        self._table.room_changed.set()
        self._health.limits_changed()

    @property
    def closing(self) -> bool:
        """Whether no request is taken any more."""
        return self._closing

    def has(self, bundle: Bundle) -> bool:
        """Return whether a model is loaded, or being loaded."""
        return bool(self._table.of(bundle))

    def obstacle(self, bundle: Bundle) -> tuple[str, bool]:
        """Return what keeps a model from serving, and whether that passes; ("", True): nothing."""
        return find_obstacle(self._table, bundle)

    def views(self) -> list[View]:
        """Return what is loaded or loading, latest expiry first."""
        return list_views(self._table)

    def failures(self) -> list[FailureView]:
        """Return the models that failed and were not asked for again since."""
        return list_failures(self._table)

    async def measure(self, *, max_age_s: float = 0.0) -> None:
        """Measure memory for `list_views`, unless that was done within `max_age_s`."""
        if self._table.all() and self._admission.age_s >= max_age_s:
            await self._admission.measure()

    async def look(self) -> None:
        """Look now at the health of all engines."""
        await self._health.look()

    def look_at_cores(self) -> None:
        """Look now at what other programs leave the engines of the cores."""
        self._contention.look()

    def expire(self) -> None:
        """Begin to unload every idle instance whose time is over."""
        self._table.expire()

    # -- joining ------------------------------------------------------------------------------

    async def _queued(
        self,
        instance: Instance,
        keep_alive_s: float | None,
        prefix: Prefix | None,
        instead: Lease | None = None,
    ) -> Lease | None:
        """Wait in the queue of `instance`, in order; None if it has ended.

        `instead` is a lease whose engine has ended: its holder had its turn, so it comes first.
        """
        position = 1 if instead else len(instance.queue) + 1
        if position > self._limits.max_queue and not instead:
            # the two spaces are Ollama's: clients match the text
            raise QueueFull(
                "server busy, please try again.  maximum pending requests exceeded",
                retry_after_s=compute_patience_s(instance),
            )
        begun_s = self._clock.monotonic()
        log.debug("%s: a request waits at place %d", instance.bundle.name, position)
        waiter = Waiter(instance, asyncio.get_running_loop().create_future(), keep_alive_s)
        if instead is None:
            instance.queue.append(waiter)
        else:
            instance.queue.appendleft(waiter)
            self.release(instead)  # not before: an instance without requests may end
        while True:
            instance.wake.set()
            await self._turn(waiter)
            instance = waiter.instance
            if lease := self._table.lease(instance, prefix):
                break
            if instance.ended.is_set():
                return None
            # the engine has ended at this moment; the place in the queue is not lost by that
            waiter = Waiter(instance, asyncio.get_running_loop().create_future(), keep_alive_s)
            instance.queue.appendleft(waiter)
        lease.queued_s = lease.began_s - begun_s
        lease.queue_position = position
        if log_context.trace.get():  # else it is the server itself, which loads its first model
            log.info(
                "%s: a request waited %.3f s, from place %d of the queue",
                *(instance.bundle.name, lease.queued_s, position),
            )
        return lease

    async def _turn(self, waiter: Waiter) -> None:
        """Wait until `waiter` is counted in; who leaves, leaves nothing behind."""
        future = waiter.future
        try:
            await future
        except asyncio.CancelledError:
            instance = waiter.instance
            if waiter in instance.queue:
                instance.queue.remove(waiter)
            elif future.done() and not future.cancelled() and future.exception() is None:
                self._table.give_back(instance)  # granted and cancelled in one turn
            raise

    def _instance_for(self, bundle: Bundle, need: Need) -> Instance:
        """Return the instance that a request with `need` belongs to, making it if needed."""
        if self._closing or self._group is None:
            raise ShuttingDown(STOPPING)
        key = Key(bundle.key, need.mode)
        self._table.check_failure(key)
        old = self._table.instances.get(key)
        if old and old.fits(bundle, need):
            return old
        if old:
            need = widened(old, need)
            self._table.retire(old, "a request needs it loaded differently")
        return self._begin(self._group, key, bundle, need, old)

    def _reload(self, old: Instance, threads: int, why: str) -> None:
        """Load `old` again, with at most so many threads."""
        if self._closing or self._group is None:
            return
        self._table.retire(old, why)
        need = msgspec.structs.replace(old.need, threads_at_most=threads)
        self._begin(self._group, old.key, old.bundle, need, old)

    def _grow(self, old: Instance) -> None:
        """Load `old` again for several requests at once; who waits for it waits for that."""
        if self._closing or self._group is None or old.retiring or old.plan is None:
            return
        self._table.retire(old, f"it is loaded again for {old.plan.most_parallel} requests at once")
        self._table.concurrent.add(old.key)
        new = self._begin(self._group, old.key, old.bundle, old.need, old)
        self._table.move_queue(old, new)

    def _begin(
        self, group: asyncio.TaskGroup, key: Key, bundle: Bundle, need: Need, old: Instance | None
    ) -> Instance:
        """Make an instance and let it live; it takes the place of `old`."""
        now_s = self._clock.monotonic()
        if key in self._table.concurrent:
            need = msgspec.structs.replace(need, concurrent=True)
        ending = (item for item in self._table.leaving if item.key == key)
        instance = Instance(
            key=key,
            bundle=bundle,
            need=need,
            created_s=now_s,
            keep_alive_s=old.keep_alive_s if old else self._limits.keep_alive_s,
            last_used_s=now_s,
            replaces=old or next(ending, None),
        )
        self._table.instances[key] = instance
        life = Lifecycle(self._table, self._hooks, self._admission, instance, self._grow)
        # not in the request's context: its life is longer
        context = Context()
        context.run(log_context.model.set, bundle.name)
        instance.task = group.create_task(life.run(), name=str(key), context=context)
        return instance


def compute_patience_s(instance: Instance) -> float:
    """Return for how long one who finds the queue full had better wait: until it has moved up."""
    until_served_s = instance.service_s * len(instance.queue) / max(1, instance.limit)
    return min(max(until_served_s, LEAST_RETRY_S), MOST_RETRY_S)


def widened(old: Instance, need: Need) -> Need:
    """Return `need` and what the old instance had, so that two needs do not take turns."""
    had = old.plan.settings if old.plan else None
    context = max(need.context_length or 0, had.context_length if had else 0) or None
    logprobs = need.logprobs or bool(had and had.logprobs)
    return msgspec.structs.replace(
        need,
        context_length=context,
        logprobs=logprobs,
        threads_at_most=old.need.threads_at_most,
    )
