"""The public face of the scheduler: `acquire`, `release`, `unload`, `list_views`.

The rules are in README.md of this folder. The main ones: no `await` between reading and writing
state; no lock is held while a process or socket is awaited; a load belongs to the scheduler, not to
the request that asked for it; a busy model is never stopped for another one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextvars import Context

import msgspec

from vllama import log_context
from vllama.clock import Clock
from vllama.errors import QueueFull, ShuttingDown
from vllama.models.types import Bundle
from vllama.plan.types import Need
from vllama.scheduler.admission import Admission
from vllama.scheduler.contention import Contention
from vllama.scheduler.fair_queue import Flow
from vllama.scheduler.hang_detection import HealthMonitor
from vllama.scheduler.instance import Instance, Key, Lease, Prefix, Waiter
from vllama.scheduler.lifecycle import Lifecycle
from vllama.scheduler.marks import Marks
from vllama.scheduler.policy import Pools
from vllama.scheduler.state import Hooks, Limits, Table
from vllama.scheduler.views import (
    FailureView,
    QueuePlace,
    View,
    find_obstacle,
    list_failures,
    list_queue_places,
    list_views,
    merge_views,
)

log = logging.getLogger(__name__)

STOPPING = "cannot serve: the server is stopping"
ANYBODY = Flow()
MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 1.0, 60.0


class Scheduler:
    """The owner of all instances, as long as `run` runs."""

    def __init__(self, hooks: Hooks, limits: Limits, clock: Clock) -> None:
        self._hooks = hooks
        self._limits = limits
        self._clock = clock
        self._table = Table(limits, clock)
        self._admission = Admission(self._table, hooks)
        self._health = HealthMonitor(self._table, hooks)
        self._contention = Contention(self._table, hooks, self._reload)
        self._group: asyncio.TaskGroup | None = None
        self._closing = False

    # -- lifecycle ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Enforce the keep-alive deadlines until cancelled; then stop every instance."""
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
                    table.next_expiry_check_s = table.next_deadline_s()
                    wait_s = table.next_expiry_check_s - self._clock.monotonic()
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
                for instance in table.list_all():
                    if instance.task:
                        instance.task.cancel()

    def close_queue(self) -> None:
        """Refuse new and waiting requests; running requests continue."""
        self._closing = True
        for instance in self._table.list_all():
            self._table.fail_queue(instance, ShuttingDown(STOPPING))

    # -- requests -----------------------------------------------------------------------------

    def try_acquire(
        self, bundle: Bundle, need: Need, keep_alive_s: float | None, prefix: Prefix | None = None
    ) -> Lease | None:
        """Return a lease if one is available at once, without suspending; else None."""
        instance = self._table.instances.get(Key(bundle.key, need.mode))
        if (
            instance is None
            or self._closing
            or not (instance.ready and instance.has_slot and not instance.queue)
            or not instance.fits(bundle, need)
        ):
            return None
        instance.note_name(bundle)
        self._table.count_in(instance, keep_alive_s)
        return self._table.make_lease(instance, prefix)

    async def acquire(
        self,
        bundle: Bundle,
        need: Need,
        keep_alive_s: float | None,
        prefix: Prefix | None = None,
        flow: Flow = ANYBODY,
    ) -> Lease:
        """Return a lease on an instance of `bundle` that serves `need`.

        1. At once, if a compatible instance is ready, has a free slot, and has no queue.
        2. Otherwise from the queue of the instance, which is created if there is none. A request
           that is cancelled leaves the queue, but the load continues. The queue is taken in turn
           between flows.

        With replicas, requests with an equal `prefix` (prompts that begin alike) go to the same
        replica if possible. Raises QueueFull, ShuttingDown, and the errors of planning, loading and
        serving.
        """
        while True:
            if lease := self.try_acquire(bundle, need, keep_alive_s, prefix):
                return lease
            instance = self._ensure_instance(bundle, need)
            granted = await self._wait_in_queue(instance, keep_alive_s, prefix, flow)
            if granted and granted.instance.fits(bundle, need):
                return granted
            # The engine has just ended; or the instance had no plan yet when the request joined
            # the queue, and its context has turned out to be too small.
            if granted:
                self.release(granted)

    async def renew(
        self,
        lease: Lease,
        bundle: Bundle,
        need: Need,
        keep_alive_s: float | None,
        prefix: Prefix | None = None,
        flow: Flow = ANYBODY,
    ) -> Lease:
        """Return a lease for another attempt after the endpoint of `lease` could not be reached.

        While the engine counts as alive, this is the same lease. Otherwise it is a lease on the
        restarted engine, ahead of all waiting requests, because this request had its turn already;
        the old lease is released. Raises the errors of `acquire`.
        """
        instance = lease.instance
        if instance.process and lease.endpoint in instance.process.endpoints:
            return lease
        if self._closing:
            raise ShuttingDown(STOPPING)
        if not instance.ended.is_set() and (
            granted := await self._wait_in_queue(instance, keep_alive_s, prefix, flow, lease)
        ):
            return granted
        self.release(lease)
        return await self.acquire(bundle, need, keep_alive_s, prefix, flow)

    def touch(self, bundle: Bundle, need: Need, keep_alive_s: float | None) -> bool:
        """Restart the keep-alive timer of a ready instance that fits `need`; False if none does.

        This serves requests that only load a model, so they need no slot.
        """
        instance = self._table.instances.get(Key(bundle.key, need.mode))
        if instance is None or not instance.ready or not instance.fits(bundle, need):
            return False
        instance.note_name(bundle)
        self._table.touch(instance, keep_alive_s)
        return True

    def release(self, lease: Lease) -> None:
        """Return a lease; the keep-alive timer starts with the last one."""
        self._table.release(lease)

    def report_unreachable(self, lease: Lease) -> None:
        """Report that the endpoint of `lease` could not be reached."""
        if lease.instance.process:
            lease.instance.process.report_unreachable(lease.endpoint)

    def unload(self, bundle: Bundle, reason: str = "a client asked for it") -> bool:
        """Stop all instances of `bundle` as soon as they are idle; False if there is none.

        A load that no request waits for is stopped at once. Other models with the same files share
        the instances, so they are unloaded too. Also forget the failures of the model, so that the
        next request loads it at once.
        """
        instances = self._table.find(bundle)
        for instance in instances:
            instance.keep_alive_s, instance.unload_reason = 0.0, reason
            instance.sleep_ends_s = -math.inf
            self._stop_unwanted(instance)
        self._table.forget_failures(bundle)
        self._table.expire()
        return bool(instances)

    def _stop_unwanted(self, instance: Instance) -> None:
        """Stop a load that is to be unloaded, once no request waits for it."""
        unwanted = instance.unload_reason and not (instance.loaded or instance.queue)
        if unwanted and not instance.retiring and instance.task:
            self._table.retire(instance, instance.unload_reason)
            instance.task.cancel()

    def set_limits(
        self, limits: Limits, renew: Callable[[Bundle], Bundle] = lambda bundle: bundle
    ) -> None:
        """Apply new limits; instances with the old default keep-alive get the new default.

        `renew` returns a model with its present settings.
        """
        table = self._table
        usual = {one: table.default_keep_alive_s(one.bundle) for one in table.list_all()}
        self._limits = table.limits = limits
        for instance, before_s in usual.items():
            instance.bundle = renew(instance.bundle)
            if instance.keep_alive_s == before_s:
                instance.keep_alive_s = table.default_keep_alive_s(instance.bundle)
        self._table.changed.set()
        self._table.room_changed.set()
        self._health.update_limits()

    @property
    def running(self) -> int:
        """How many requests are being answered."""
        return sum(instance.leases for instance in self._table.list_all())

    def is_loaded(self, bundle: Bundle) -> bool:
        """Return whether a model is loaded or loading."""
        return bool(self._table.find(bundle))

    def find_obstacle(self, bundle: Bundle) -> tuple[str, bool]:
        """Return why a model cannot serve, and whether that is temporary; ("", True) if it can."""
        return find_obstacle(self._table, bundle)

    def list_instances(self) -> list[Instance]:
        """Return all instances that have not ended, for observers: they change nothing."""
        return self._table.list_all()

    def list_views(self) -> list[View]:
        """Return the loaded and loading instances, latest expiry first."""
        return list_views(self._table)

    def list_models(self) -> list[View]:
        """Return the loaded and loading models, latest expiry first: one view of each."""
        return merge_views(list_views(self._table))

    def forget_name(self, name: str) -> None:
        """Name loaded models no longer by a name that was removed."""
        for instance in self._table.list_all():
            instance.names.discard(name)

    def list_failures(self) -> list[FailureView]:
        """Return the models that failed and have not been requested since."""
        return list_failures(self._table)

    def list_queue_places(self) -> dict[str, QueuePlace]:
        """Return where each waiting request waits, and for what, by its name in `log_context`."""
        return list_queue_places(self._table)

    @property
    def marks(self) -> Marks:
        """The latest loads, unloads, evictions, failures and restarts."""
        return self._table.marks

    @property
    def free(self) -> Pools:
        """Memory that was free for models at the last measurement, in bytes by pool."""
        return self._admission.free

    async def measure(self, *, max_age_s: float = 0.0, unloaded: bool = False) -> None:
        """Measure memory for `list_views`, unless a measurement is at most `max_age_s` old.

        With `unloaded` also if no model is loaded.
        """
        wanted = unloaded or bool(self._table.list_all())
        if wanted and self._admission.age_s >= max_age_s:
            await self._admission.measure()

    async def check_health(self) -> None:
        """Check the health of all engines now."""
        await self._health.check()

    def check_contention(self) -> None:
        """Check now whether other programs compete with engines for the cores."""
        self._contention.check()

    def expire(self) -> None:
        """Unload every idle instance whose deadline has passed."""
        self._table.expire()

    # -- queues -------------------------------------------------------------------------------

    async def _wait_in_queue(
        self,
        instance: Instance,
        keep_alive_s: float | None,
        prefix: Prefix | None,
        flow: Flow,
        renewed: Lease | None = None,
    ) -> Lease | None:
        """Wait in the queue of `instance` for a lease; return None if the instance has ended.

        `renewed` is a lease whose engine has ended. Its request had its turn, so it goes first.
        """
        begun_s = self._clock.monotonic()
        waiter = self._make_waiter(instance, keep_alive_s)
        if renewed is None:
            self._make_room(instance, flow)
            instance.queue.append(waiter, flow)
        else:
            instance.queue.append_first(waiter)
            self.release(renewed)  # only now, since an idle instance may end
        position = instance.queue.find_place(waiter)
        log.debug("%s: a request waits at position %d", instance.bundle.name, position)
        while True:
            instance.wake.set()
            await self._wait_for_turn(waiter)
            instance = waiter.instance
            if lease := self._table.make_lease(instance, prefix):
                break
            if instance.ended.is_set():
                return None
            # the engine has ended at this very moment: the request keeps its position
            waiter = self._make_waiter(instance, keep_alive_s)
            instance.queue.append_first(waiter)
        lease.queued_s = lease.began_s - begun_s
        lease.queue_position = position
        log.debug(
            "%s: a request waited %.3f s, from position %d of the queue",
            *(instance.bundle.name, lease.queued_s, position),
        )
        return lease

    def _make_room(self, instance: Instance, flow: Flow) -> None:
        """Make room in a full queue for a request of `flow`.

        The last request of the flow that has the most is refused, so that nobody can keep others
        out by filling the queue. Raises QueueFull if that is `flow` itself.
        """
        if len(instance.queue) < self._limits.max_queue:
            return
        # the two spaces are Ollama's: clients match the text
        refusal = QueueFull(
            "server busy, please try again.  maximum pending requests exceeded",
            retry_after_s=compute_retry_after_s(instance),
        )
        refused = instance.queue.pop_from_longest(flow)
        if refused is None:
            raise refusal
        if not refused.future.done():
            refused.future.set_exception(refusal)

    @staticmethod
    def _make_waiter(instance: Instance, keep_alive_s: float | None) -> Waiter:
        trace = log_context.trace.get()
        future = asyncio.get_running_loop().create_future()
        return Waiter(instance, future, keep_alive_s, trace.name if trace else "")

    async def _wait_for_turn(self, waiter: Waiter) -> None:
        """Wait until `waiter` has a slot; when cancelled, leave the queue or return the slot."""
        future = waiter.future
        try:
            await future
        except asyncio.CancelledError:
            instance = waiter.instance
            if instance.queue.remove(waiter):
                self._stop_unwanted(instance)
            elif future.done() and not future.cancelled() and future.exception() is None:
                # granted and cancelled in the same iteration of the event loop
                self._table.count_out(instance)
            raise

    def _ensure_instance(self, bundle: Bundle, need: Need) -> Instance:
        """Return the instance for a request with `need`; create or replace it if necessary."""
        if self._closing or self._group is None:
            raise ShuttingDown(STOPPING)
        key = Key(bundle.key, need.mode)
        self._table.check_failure(key)
        old = self._table.instances.get(key)
        if old and old.fits(bundle, need):
            old.note_name(bundle)
            return old
        if old:
            need = widen_need(old, need)
            self._table.retire(old, "a request needs other settings", replaced=True)
        return self._create(self._group, key, bundle, need, old)

    def _reload(self, old: Instance, threads: int, reason: str) -> None:
        """Load `old` again with at most `threads` threads."""
        if self._closing or self._group is None or old.unload_reason:
            return
        self._table.retire(old, reason, replaced=True)
        need = msgspec.structs.replace(old.need, threads_at_most=threads)
        self._create(self._group, old.key, old.bundle, need, old)

    def _grow(self, old: Instance) -> None:
        """Load `old` again with several slots, and move its queue to the new instance."""
        if self._closing or self._group is None or old.retiring or old.plan is None:
            return
        if old.unload_reason:  # it serves its queue, and ends
            return
        reason = f"several requests came at once: it gets {old.plan.most_parallel} slots"
        self._table.retire(old, reason, replaced=True)
        self._table.concurrent.add(old.key)
        new = self._create(self._group, old.key, old.bundle, old.need, old)
        self._table.move_queue(old, new)

    def _create(
        self, group: asyncio.TaskGroup, key: Key, bundle: Bundle, need: Need, old: Instance | None
    ) -> Instance:
        """Create an instance, which replaces `old`, and start its task."""
        now_s = self._clock.monotonic()
        if key in self._table.concurrent:
            need = msgspec.structs.replace(need, concurrent=True)
        ending = (item for item in self._table.retiring if item.key == key)
        # an unload that was asked for concerns the old one only
        inherits = old is not None and not old.unload_reason
        instance = Instance(
            key=key,
            bundle=bundle,
            need=need,
            created_s=now_s,
            keep_alive_s=old.keep_alive_s
            if old and inherits
            else self._table.default_keep_alive_s(bundle),
            last_used_s=now_s,
            replaces=old or next(ending, None),
            names={bundle.name, *(old.names if old else ())},
        )
        self._table.instances[key] = instance
        lifecycle = Lifecycle(self._table, self._hooks, self._admission, instance, self._grow)
        # a fresh context, or log lines would name the request that happened to start the load
        context = Context()
        context.run(log_context.model.set, bundle.name)
        instance.task = group.create_task(lifecycle.run(), name=str(key), context=context)
        return instance


def compute_retry_after_s(instance: Instance) -> float:
    """Return the expected time for the queue to drain, as Retry-After of a refused request."""
    drain_s = instance.service_s * len(instance.queue) / max(1, instance.limit)
    return min(max(drain_s, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)


def widen_need(old: Instance, need: Need) -> Need:
    """Return `need` widened by the old instance's, so that two clients do not reload in turns."""
    had = old.plan.settings if old.plan else None
    context = max(need.context_length or 0, had.context_length if had else 0) or None
    logprobs = need.logprobs or bool(had and had.logprobs)
    return msgspec.structs.replace(
        need,
        context_length=context,
        logprobs=logprobs,
        threads_at_most=old.need.threads_at_most,
    )
