"""Which models are loaded and who may use them: `acquire`, `release`, `unload`, `views`.

Rules (see README.md beside this file): no `await` between reading and writing state; no lock is
held while a process or socket is awaited; a load belongs to the scheduler, not to the request
that asked for it; a busy model is never stopped for another one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from vllama.clock import Clock
from vllama.errors import (
    CoolingDown,
    EngineCrashed,
    EngineError,
    EngineStartFailed,
    NotEnoughMemory,
    QueueFull,
    ShuttingDown,
    VllamaError,
)
from vllama.models.types import Bundle
from vllama.plan.types import Need, Plan
from vllama.scheduler.instance import Instance, Key, Lease, Process, Waiter
from vllama.scheduler.policy import Action, Loaded, make_room
from vllama.supervise.spec import State
from vllama.translate.traits import Traits

log = logging.getLogger(__name__)


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
    free_bytes: Callable[[Plan], int]
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


class Scheduler:
    """Owner of all instances; `run` is its life."""

    def __init__(self, ports: Ports, limits: Limits, clock: Clock) -> None:
        self._ports = ports
        self._limits = limits
        self._clock = clock
        self._instances: dict[Key, Instance] = {}
        self._leaving: set[Instance] = set()
        self._failures: dict[Key, Failure] = {}
        self._group: asyncio.TaskGroup | None = None
        self._closing = False
        self._changed = asyncio.Event()

    # -- life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep house (keep-alive deadlines) until cancelled; then stop every instance."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                while True:
                    self.expire()
                    self._changed.clear()
                    wait_s = self.next_deadline_s() - self._clock.monotonic()
                    try:
                        async with asyncio.timeout(None if math.isinf(wait_s) else max(wait_s, 0)):
                            await self._changed.wait()
                    except TimeoutError:
                        pass
            finally:
                self._closing = True
                self._group = None
                for instance in [*self._instances.values(), *self._leaving]:
                    if instance.task:
                        instance.task.cancel()

    def close_queue(self) -> None:
        """Refuse new requests and those that wait; running ones go on."""
        self._closing = True
        for instance in [*self._instances.values()]:
            self._fail_queue(instance, ShuttingDown("cannot serve: the server is stopping"))

    async def drained(self) -> None:
        """Wait until no request is running."""
        for instance in [*self._instances.values(), *self._leaving]:
            while instance.leases:
                instance.idle.clear()
                await instance.idle.wait()

    # -- requests -----------------------------------------------------------------------------

    def try_acquire(self, bundle: Bundle, need: Need, keep_alive_s: float | None) -> Lease | None:
        """Return a lease if one can be had at once, without suspending; else None."""
        instance = self._instances.get(Key(bundle.key, need.mode))
        if (
            instance is None
            or self._closing
            or not (instance.ready and instance.has_slot and not instance.queue)
            or not instance.fits(need)
        ):
            return None
        self._take(instance, keep_alive_s)
        return self._lease(instance)

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

    async def _queued(self, instance: Instance, keep_alive_s: float | None) -> Lease:
        """Wait in the queue of `instance`, in order."""
        waiting = sum(len(item.queue) for item in self._instances.values())
        if waiting >= self._limits.max_queue:
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
                self._give_back(instance)  # granted and cancelled in one turn
            raise
        lease = self._lease(instance)
        lease.queued_s = self._clock.monotonic() - begun_s
        return lease

    def release(self, lease: Lease) -> None:
        """Give a lease back; the timer of keep-alive starts when the last one is back."""
        if lease.released:
            return
        lease.released = True
        self._give_back(lease.instance)

    def unload(self, bundle: Bundle) -> bool:
        """Stop all instances of `bundle` as soon as they are idle; False if there is none."""
        hit = False
        for key, instance in list(self._instances.items()):
            if key.model == bundle.key:
                instance.keep_alive_s = 0.0
                hit = True
        self.expire()
        return hit

    async def stopped(self, bundle: Bundle) -> None:
        """Wait until no instance of `bundle` that is on its way out is left."""
        for instance in list(self._leaving):
            if instance.key.model == bundle.key:
                await instance.ended.wait()

    def touch(self, bundle: Bundle, keep_alive_s: float) -> None:
        """Set the keep-alive of all instances of `bundle`."""
        for key, instance in self._instances.items():
            if key.model == bundle.key:
                instance.keep_alive_s = keep_alive_s
        self._changed.set()

    # -- views --------------------------------------------------------------------------------

    def views(self) -> list[View]:
        """Return what is loaded or loading, latest expiry first."""
        now_s, wall_s = self._clock.monotonic(), self._clock.time()
        rows = []
        for instance in [*self._instances.values(), *self._leaving]:
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

    def next_deadline_s(self) -> float:
        """Return the monotonic time of the next unload, infinite if none is due."""
        return min((item.deadline_s for item in self._instances.values()), default=math.inf)

    def expire(self) -> None:
        """Begin to unload every idle instance whose time is over."""
        now_s = self._clock.monotonic()
        for instance in list(self._instances.values()):
            if instance.deadline_s <= now_s:
                self._retire(instance, "its keep-alive is over")

    # -- state --------------------------------------------------------------------------------

    def _instance_for(self, bundle: Bundle, need: Need) -> Instance:
        """Return the instance that a request with `need` belongs to, making it if needed."""
        if self._closing or self._group is None:
            raise ShuttingDown("cannot serve: the server is stopping")
        key = Key(bundle.key, need.mode)
        if (failure := self._failures.get(key)) and failure.until_s > self._clock.monotonic():
            raise failure.error
        self._failures.pop(key, None)
        old = self._instances.get(key)
        if old and old.fits(need):
            return old
        if old:
            need = self._widened(old, need)
            self._retire(old, "a request needs it loaded differently")
        now_s = self._clock.monotonic()
        instance = Instance(
            key=key,
            need=need,
            created_s=now_s,
            keep_alive_s=old.keep_alive_s if old else self._limits.keep_alive_s,
            last_used_s=now_s,
            replaces=old,
        )
        self._instances[key] = instance
        instance.task = self._group.create_task(self._own(instance, bundle), name=str(key))
        return instance

    @staticmethod
    def _widened(old: Instance, need: Need) -> Need:
        """Return `need` and what the old instance had, so that two needs do not take turns."""
        had = old.plan.settings if old.plan else None
        context = max(need.context_length or 0, had.context_length if had else 0) or None
        return replace(
            need,
            context_length=context,
            logprobs=need.logprobs or bool(had and had.logprobs),
        )

    def _take(self, instance: Instance, keep_alive_s: float | None) -> None:
        instance.leases += 1
        if keep_alive_s is not None:
            instance.keep_alive_s = keep_alive_s

    @staticmethod
    def _lease(instance: Instance) -> Lease:
        process, traits = instance.process, instance.traits
        if process is None or process.endpoint is None or traits is None:
            raise EngineCrashed(f"cannot serve '{instance.key.model}': the engine has just ended")
        return Lease(instance, process.endpoint, traits)

    def _give_back(self, instance: Instance) -> None:
        instance.leases -= 1
        instance.last_used_s = self._clock.monotonic()
        instance.wake.set()
        if not instance.leases:
            instance.idle.set()
        self._changed.set()

    def _retire(self, instance: Instance, why: str) -> None:
        """Take it out of the table; its own task stops it when the last request has gone."""
        if instance.retiring:
            return
        log.info("unload %s: %s", instance.key, why)
        instance.retiring = True
        self._leaving.add(instance)
        if self._instances.get(instance.key) is instance:
            del self._instances[instance.key]
        instance.wake.set()

    @staticmethod
    def _fail_queue(instance: Instance, error: VllamaError) -> None:
        while instance.queue:
            waiter = instance.queue.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(error)

    # -- one instance's life ------------------------------------------------------------------

    async def _own(self, instance: Instance, bundle: Bundle) -> None:
        """Own an instance: plan, make room, load, hand out, stop. Never raises but Cancelled."""
        try:
            try:
                await self._load(instance, bundle)
                await self._hand_out(instance)
            except VllamaError as error:
                log.warning("%s: %s", instance.key, error.sentence())
                self._fail_queue(instance, error)
                if instance.plan:
                    self._ports.told(instance.plan, error)
            except Exception:
                # boundary: one instance's bug must not end the others
                log.exception("%s: unexpected error", instance.key)
                self._fail_queue(
                    instance, EngineStartFailed(f"cannot serve '{bundle.name}': internal error")
                )
        finally:
            self._retire(instance, "it has ended")
            self._fail_queue(instance, ShuttingDown("cannot serve: the server is stopping"))
            self._leaving.discard(instance)
            instance.ended.set()
            self._changed.set()

    async def _load(self, instance: Instance, bundle: Bundle) -> None:
        """Plan it, wait for the one it replaces and for room, and create its process."""
        instance.plan = await self._ports.plan(bundle, instance.need)
        for reason in instance.plan.reasons:
            log.info("plan %s: %s", bundle.name, reason)
        if instance.replaces:
            await instance.replaces.ended.wait()
            instance.replaces = None
        await self._room_for(instance, instance.plan)
        instance.traits = self._ports.traits(instance.plan)
        instance.process = self._ports.start(instance.plan)

    async def _room_for(self, instance: Instance, plan: Plan) -> None:
        """Evict or wait until `plan` fits."""
        while True:
            others = [item for item in self._instances.values() if item is not instance]
            loading = sum(item.memory_bytes for item in others if item.process and not item.loaded)
            loaded = [
                Loaded(
                    key=str(item.key),
                    memory_bytes=item.memory_bytes,
                    busy=item.busy,
                    pinned=math.isinf(item.keep_alive_s),
                    last_used_s=item.last_used_s,
                )
                for item in others
                if item.process
            ]
            decision = make_room(
                plan.memory.total_bytes,
                self._ports.free_bytes(plan) - loading,
                loaded,
                self._limits.max_loaded,
            )
            if decision.action is Action.LOAD:
                return
            if decision.action is Action.REFUSE and not self._leaving - {instance}:
                gib = 1024**3
                free = max(0, self._ports.free_bytes(plan)) / gib
                raise NotEnoughMemory(
                    f"cannot load '{plan.bundle.name}': model requires more system memory "
                    f"({plan.memory.total_bytes / gib:.1f} GiB) than is available "
                    f"({free:.1f} GiB): {decision.reason}",
                    hint="stop another model, or use a smaller context or quantisation",
                )
            for item in others:
                if str(item.key) in decision.evict:
                    self._retire(item, f"room for {plan.bundle.name}: {decision.reason}")
            leaving = [item.ended.wait() for item in self._leaving if item is not instance]
            if decision.evict:
                await asyncio.gather(*leaving)
            else:
                await self._something_changes()

    async def _something_changes(self) -> None:
        """Wait for a release or an end, or a little while: memory is freed by others too."""
        await asyncio.sleep(self._limits.retry_room_s)

    async def _hand_out(self, instance: Instance) -> None:
        """Run the process and give its slots to the queue, in order, until it is retired."""
        process = instance.process
        assert process is not None
        async with asyncio.TaskGroup() as group:
            runner = group.create_task(process.run())
            runner.add_done_callback(lambda _: instance.wake.set())
            try:
                while not (instance.retiring and not instance.leases and not instance.queue):
                    instance.wake.clear()
                    if instance.queue or not instance.loaded:
                        try:
                            await process.ensure_ready()
                            self._loaded(instance)
                        except EngineError as error:
                            self._note_failure(instance, error)
                            self._fail_queue(instance, error)
                        except VllamaError as error:
                            self._fail_queue(instance, error)
                        self._serve_queue(instance)
                    if runner.done():
                        return
                    self._changed.set()
                    await instance.wake.wait()
            finally:
                # the process is down before the instance is gone, whatever happens here
                await asyncio.shield(process.stop())

    def _loaded(self, instance: Instance) -> None:
        """Note that it serves; tell of it the first time."""
        if not instance.loaded and instance.plan:
            instance.loaded = True
            instance.last_used_s = self._clock.monotonic()
            self._ports.told(instance.plan, None)

    def _note_failure(self, instance: Instance, error: EngineError) -> None:
        """Remember an engine that served and then used up its restarts."""
        if not instance.loaded:
            if instance.plan:
                self._ports.told(instance.plan, error)
            return
        if not instance.process or instance.process.state is not State.FAILED:
            return
        pause_s = self._limits.cool_down_s
        cooling = CoolingDown(error.message, retry_after_s=pause_s, hint=error.hint)
        until_s = self._clock.monotonic() + pause_s
        self._failures[instance.key] = Failure(error=cooling, until_s=until_s)

    def _serve_queue(self, instance: Instance) -> None:
        """Hand free slots to the waiting requests, first come first served."""
        while instance.queue and instance.has_slot and instance.ready:
            waiter = instance.queue.popleft()
            if not waiter.future.done():
                self._take(instance, waiter.keep_alive_s)
                waiter.future.set_result(None)
        if not instance.leases and not instance.queue:
            instance.last_used_s = self._clock.monotonic()
