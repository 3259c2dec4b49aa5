"""Which models are loaded and who may use them: `acquire`, `release`, `unload`, `views`.

Rules (see README.md beside this file): no `await` between reading and writing state; no lock is
held while a process or socket is awaited; a load belongs to the scheduler, not to the request
that asked for it; a busy model is never stopped for another one.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

from vllama.clock import Clock
from vllama.errors import QueueFull, ShuttingDown
from vllama.models.types import Bundle
from vllama.plan.types import Need
from vllama.scheduler.instance import Instance, Key, Lease, Waiter
from vllama.scheduler.life import Life
from vllama.scheduler.table import Limits, Ports, Table, View

STOPPING = "cannot serve: the server is stopping"


class Scheduler:
    """The owner of all instances; `run` is its life."""

    def __init__(self, ports: Ports, limits: Limits, clock: Clock) -> None:
        self._ports = ports
        self._limits = limits
        self._clock = clock
        self._table = Table(limits, clock)
        self._group: asyncio.TaskGroup | None = None
        self._closing = False

    # -- life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep house (keep-alive deadlines) until cancelled; then stop every instance."""
        table = self._table
        async with asyncio.TaskGroup() as group:
            self._group = group
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

    def try_acquire(self, bundle: Bundle, need: Need, keep_alive_s: float | None) -> Lease | None:
        """Return a lease if one can be had at once, without suspending; else None."""
        instance = self._table.instances.get(Key(bundle.key, need.mode))
        if (
            instance is None
            or self._closing
            or not (instance.ready and instance.has_slot and not instance.queue)
            or not instance.fits(need)
        ):
            return None
        self._table.take(instance, keep_alive_s)
        return self._table.lease(instance)

    async def acquire(self, bundle: Bundle, need: Need, keep_alive_s: float | None) -> Lease:
        """Return a lease on an instance of `bundle` that serves `need`.

        1. A compatible instance that is ready, with a free slot and nobody waiting: at once.
        2. Else join the queue of the instance, which is made if there is none. A leaver only
           leaves the queue; the load goes on.

        Raises QueueFull, ShuttingDown, and what planning, loading or serving raised.
        """
        while True:
            if lease := self.try_acquire(bundle, need, keep_alive_s):
                return lease
            instance = self._instance_for(bundle, need)
            lease = await self._queued(instance, keep_alive_s)
            if instance.fits(need):
                return lease
            # it was still being planned when we joined, with a smaller context than we need
            self.release(lease)

    def touch(self, bundle: Bundle, need: Need, keep_alive_s: float | None) -> bool:
        """Prolong the stay of an instance that serves `need`; False if there is none ready.

        For a request that wants it loaded and no more: it need not wait for a slot.
        """
        instance = self._table.instances.get(Key(bundle.key, need.mode))
        if instance is None or not instance.ready or not instance.fits(need):
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

    def unload(self, bundle: Bundle) -> bool:
        """Stop all instances of `bundle` as soon as they are idle; False if there is none."""
        instances = self._table.of(bundle)
        for instance in instances:
            instance.keep_alive_s = 0.0
        self._table.expire()
        return bool(instances)

    def views(self) -> list[View]:
        """Return what is loaded or loading, latest expiry first."""
        return self._table.views()

    def expire(self) -> None:
        """Begin to unload every idle instance whose time is over."""
        self._table.expire()

    # -- joining ------------------------------------------------------------------------------

    async def _queued(self, instance: Instance, keep_alive_s: float | None) -> Lease:
        """Wait in the queue of `instance`, in order."""
        if self._table.waiting >= self._limits.max_queue:
            # the two spaces are Ollama's: clients match the text
            raise QueueFull("server busy, please try again.  maximum pending requests exceeded")
        waiter = Waiter(asyncio.get_running_loop().create_future(), keep_alive_s)
        instance.queue.append(waiter)
        instance.wake.set()
        begun_s = self._clock.monotonic()
        try:
            await waiter.future
        except asyncio.CancelledError:
            future = waiter.future
            if waiter in instance.queue:
                instance.queue.remove(waiter)
            elif future.done() and not future.cancelled() and future.exception() is None:
                self._table.give_back(instance)  # granted and cancelled in one turn
            raise
        lease = self._table.lease(instance)
        lease.queued_s = self._clock.monotonic() - begun_s
        return lease

    def _instance_for(self, bundle: Bundle, need: Need) -> Instance:
        """Return the instance that a request with `need` belongs to, making it if needed."""
        if self._closing or self._group is None:
            raise ShuttingDown(STOPPING)
        key = Key(bundle.key, need.mode)
        self._table.check_cool_down(key)
        old = self._table.instances.get(key)
        if old and old.fits(need):
            return old
        if old:
            need = widened(old, need)
            self._table.retire(old, "a request needs it loaded differently")
        now_s = self._clock.monotonic()
        instance = Instance(
            key=key,
            need=need,
            created_s=now_s,
            keep_alive_s=old.keep_alive_s if old else self._limits.keep_alive_s,
            last_used_s=now_s,
            replaces=old,
        )
        self._table.instances[key] = instance
        life = Life(self._table, self._ports, instance, bundle)
        instance.task = self._group.create_task(life.run(), name=str(key))
        return instance


def widened(old: Instance, need: Need) -> Need:
    """Return `need` and what the old instance had, so that two needs do not take turns."""
    had = old.plan.settings if old.plan else None
    context = max(need.context_length or 0, had.context_length if had else 0) or None
    logprobs = need.logprobs or bool(had and had.logprobs)
    return replace(need, context_length=context, logprobs=logprobs)
