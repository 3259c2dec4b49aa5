"""The public face of the scheduler: `acquire`, `release`, `unload`, `list_views`.

The rules are in README.md of this folder. The main ones: no `await` between reading and writing
state; no lock is held while a process or socket is awaited; a load belongs to the scheduler, not to
the request that asked for it; a busy model is never stopped for another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from vllama.base.clock import Clock, wait_for
from vllama.base.errors import ShuttingDown, VllamaError
from vllama.chat.engine.traits import Traits
from vllama.models.types import Bundle
from vllama.plan.types import Need
from vllama.scheduler.admission import Admission
from vllama.scheduler.health import HealthMonitor, Recovery
from vllama.scheduler.hooks import Hooks, Limits
from vllama.scheduler.instance import Instance, Key, Lease, Prefix
from vllama.scheduler.leasing import Loads, wait_in_queue
from vllama.scheduler.policy import Pools
from vllama.scheduler.room import Room
from vllama.scheduler.state import STOPPING, Marks, Table
from vllama.scheduler.turns import Flow
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

ANYBODY = Flow()


class Scheduler:
    """The owner of all instances, as long as `run` runs."""

    def __init__(self, hooks: Hooks, limits: Limits, clock: Clock) -> None:
        self._table = Table(limits, clock)
        self._admission = Admission(self._table, hooks)
        self._health = HealthMonitor(self._table, hooks)
        self._recovery = Recovery(self._table, hooks)
        self._loads = Loads(self._table, hooks, self._admission, self._recovery)

    # -- lifecycle ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Enforce the keep-alive deadlines until canceled; then stop every instance."""
        table = self._table
        async with asyncio.TaskGroup() as group:
            self._loads.group = group
            helpers = [
                group.create_task(helper.run())
                for helper in (self._admission, self._health, self._recovery)
            ]
            try:
                while True:
                    self.expire()
                    table.changed.clear()
                    table.next_expiry_check_s = table.next_deadline_s()
                    wait_s = table.next_expiry_check_s - table.clock.monotonic()
                    await wait_for(table.changed, wait_s)
            finally:
                table.closing = True
                self._loads.group = None
                for helper in helpers:
                    helper.cancel()
                for instance in table.list_all():
                    if instance.task:
                        instance.task.cancel()

    def close_queue(self) -> None:
        """Refuse new and waiting requests; running requests continue."""
        self._table.closing = True
        for instance in self._table.list_all():
            self._table.fail_queue(instance, ShuttingDown(STOPPING))

    # -- requests -----------------------------------------------------------------------------

    def try_acquire(
        self, bundle: Bundle, need: Need, keep_alive_s: float | None, prefix: Prefix | None = None
    ) -> Lease | None:
        """Return a lease if one is available at once, without suspending; else None."""
        instance = self._find_ready(bundle, need)
        if instance is None or self._table.closing or instance.queue or not instance.has_slot:
            return None
        if instance.readmission.is_one_by_one:
            return None
        instance.note_name(bundle)
        instance.growth.note_context(need.load.num_ctx, self._table.clock.monotonic())
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
           that is canceled leaves the queue, but the load continues unless it is in others' way.
           The queue is taken in turn between flows.

        With replicas, requests with an equal `prefix` (prompts that begin alike) go to the same
        replica if possible. Raises QueueFull, ShuttingDown, and the errors of planning, loading and
        serving.
        """
        while True:
            if lease := self.try_acquire(bundle, need, keep_alive_s, prefix):
                return lease
            instance = self._loads.ensure(bundle, need)
            granted = await wait_in_queue(self._table, instance, keep_alive_s, prefix, flow)
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
        if self._table.closing:
            raise ShuttingDown(STOPPING)
        newer = self._table.instances.get(instance.key)
        if newer is not None and newer.replaces is instance:
            instance = newer
        if not instance.ended.is_set() and (
            granted := await wait_in_queue(self._table, instance, keep_alive_s, prefix, flow, lease)
        ):
            return granted
        self.release(lease)
        return await self.acquire(bundle, need, keep_alive_s, prefix, flow)

    def has_other(self, lease: Lease) -> bool:
        """Return whether another healthy endpoint has the model of `lease`."""
        instance = lease.instance
        places = instance.process.endpoints if instance.process else ()
        return len(places) > 1 and any(
            each != lease.endpoint and instance.is_healthy(each) for each in places
        )

    def note_failure(self, lease: Lease, error: VllamaError) -> None:
        """Give the endpoint of `lease` no requests until a probe succeeds, if others have them."""
        self._recovery.note_failure(lease.instance, lease.endpoint, error)

    def is_failing(self, bundle: Bundle) -> bool:
        """Return whether a model is loaded, and nothing healthy answers for it."""
        places = [
            (instance, each)
            for instance in self._table.find(bundle)
            for each in (instance.process.endpoints if instance.process else ())
        ]
        return bool(places) and not any(instance.is_healthy(each) for instance, each in places)

    @property
    def hang_s(self) -> float:
        """Maximum silence of a response, in seconds."""
        return self._table.limits.hang_s

    def _find_ready(self, bundle: Bundle, need: Need) -> Instance | None:
        """Return the loaded instance that would serve `need`."""
        instance = self._table.instances.get(Key(bundle.key, need.mode))
        return instance if instance and instance.ready and instance.fits(bundle, need) else None

    def find_traits(self, bundle: Bundle, need: Need) -> Traits | None:
        """Return the traits of the instance that would serve `need`; None if none is loaded."""
        instance = self._find_ready(bundle, need)
        return instance.traits if instance is not None else None

    def touch(self, bundle: Bundle, need: Need, keep_alive_s: float | None) -> bool:
        """Restart the keep-alive timer of a ready instance that fits `need`; False if none does.

        This serves requests that only load a model, so they need no slot.
        """
        instance = self._find_ready(bundle, need)
        if instance is None:
            return False
        instance.note_name(bundle)
        instance.growth.note_context(need.load.num_ctx, self._table.clock.monotonic())
        self._table.touch(instance, keep_alive_s)
        return True

    def release(self, lease: Lease) -> None:
        """Return a lease; the keep-alive timer starts with the last one."""
        self._table.release(lease)

    def report_unreachable(self, lease: Lease) -> None:
        """Report that the endpoint of `lease` could not be reached."""
        if part := lease.instance.find_part(lease.endpoint):
            part.report_unreachable(lease.endpoint)

    def unload(self, bundle: Bundle, reason: str = "requested by a client") -> bool:
        """Stop all instances of `bundle` as soon as they are idle; False if there is none.

        A load that no request waits for is stopped at once. Other models with the same files share
        the instances, so they are unloaded too. Also forget the failures of the model, so that the
        next request loads it at once.
        """
        instances = self._table.find(bundle)
        for instance in instances:
            self._table.end(instance, reason)
        self._table.forget_failures(bundle)
        self._table.expire()
        return bool(instances)

    def set_limits(
        self, limits: Limits, renew: Callable[[Bundle], Bundle] = lambda bundle: bundle
    ) -> None:
        """Apply new limits; instances with the old default keep-alive get the new default.

        `renew` returns a model with its present settings.
        """
        table = self._table
        usual = {one: table.default_keep_alive_s(one.bundle) for one in table.list_all()}
        table.limits = limits
        for instance, before_s in usual.items():
            instance.bundle = renew(instance.bundle)
            if instance.keep_alive_s == before_s or instance.bundle.settings.pin:
                instance.keep_alive_s = table.default_keep_alive_s(instance.bundle)
        self._table.changed.set()
        self._table.room_changed.set()
        self._health.update_limits()

    @property
    def running(self) -> int:
        """Number of running requests."""
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
        """Return the loaded and loading models, latest expiry first, without removed ones."""
        return merge_views(list_views(self._table, named=True))

    def drop_name(self, instance: Instance, name: str) -> None:
        """Name an instance no longer by a name of its model; unload it without any."""
        instance.names.pop(name, None)
        if not instance.names:
            self._table.end(instance, "it was removed")
            self._table.expire()
        elif instance.bundle.name == name:
            instance.bundle = min(instance.names.values(), key=lambda each: each.lora is not None)

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

    async def find_room(self, free: Pools) -> Room:
        """Measure, and return what a load would meet; `free` is for pools that nothing uses."""
        await self.measure(max_age_s=1.0, unloaded=True)
        return self._admission.find_room(free)

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

    def expire(self) -> None:
        """Unload every idle instance whose deadline has passed, and shrink those too large."""
        self._table.expire()
        self._loads.shrink()
