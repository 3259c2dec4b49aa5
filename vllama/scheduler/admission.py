"""Admission: measure the memory, ask the policy, and admit or refuse the pending loads.

One loop decides about all pending loads. Decided one by one, two loads could be promised the same
memory. The loop runs while a load is pending or a limit is exceeded; otherwise nothing is measured.

The hard part is that measurements lag behind. The operating system and the drivers return the
memory of an ended process a little later, and a starting engine takes its memory gradually.
Admission therefore reserves the estimate of a load until it has been measured, evicts nothing while
memory is being returned, and refuses a load only after measurements that agree.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Hashable
from dataclasses import dataclass
from types import MappingProxyType

from vllama.base.clock import wait_for
from vllama.base.errors import NotEnoughMemory
from vllama.base.units import format_amounts
from vllama.dialects.events import MarkKind
from vllama.scheduler.hooks import Hooks, Measured, Process
from vllama.scheduler.instance import Instance, InstanceState
from vllama.scheduler.policy import (
    Action,
    Decision,
    PendingLoad,
    Pools,
    Resident,
    decide_loads,
    relieve_pressure,
)
from vllama.scheduler.room import Room
from vllama.scheduler.state import Table

log = logging.getLogger(__name__)

# this share of an ended process's memory must be free again before another model is evicted
RETURNED_SHARE = 0.9


@dataclass(slots=True, eq=False)
class _Entry:
    """A pending load; every measurement since `refused_s` has said that it can never fit."""

    needs: Pools
    since_s: float
    admitted: asyncio.Future[None]
    refused_s: float | None = None


class Admission:
    """The only code that hands out memory and slots."""

    def __init__(self, table: Table, hooks: Hooks) -> None:
        self._table = table
        self._hooks = hooks
        self._entries: dict[Instance, _Entry] = {}
        self._free: Pools = {}
        # free memory to expect once ended processes have returned theirs
        self._expected_free: dict[str, int] = {}
        self._settles_at_s = -math.inf
        # what ended processes held in the last `return_s`
        self._lost: dict[str, int] = {}
        self._returns_at_s = -math.inf
        self._returning: Pools = {}  # by the system, at the last measurement
        self._last_transition_s = -math.inf
        self._measured_s = -math.inf
        self._busy_over_limit = False  # only busy models could be evicted
        self._measure_again = False

    async def wait_for_room(self, instance: Instance, needs: Pools) -> None:
        """Wait until there is room for `needs`. Raises NotEnoughMemory if there never will be.

        A model on another server takes no memory here, and does not count as loaded.
        """
        if instance.bundle.upstream is not None:
            instance.enter(InstanceState.LOADING)
            return
        entry = _Entry(needs, self._table.clock.monotonic(), asyncio.Future())
        self._entries[instance] = entry
        self._table.room_changed.set()
        try:
            await entry.admitted
        finally:
            self._entries.pop(instance, None)
            self._table.room_wanted = bool(self._entries) or self._busy_over_limit
            instance.waits_for = ""

    async def run(self) -> None:
        """Decide after every change while loads are pending, until canceled.

        Whenever a model has started or ended, also check that no limit is exceeded.
        """
        changed = self._table.room_changed
        while True:
            await changed.wait()
            while changed.is_set() or self._entries or self._measure_again:
                changed.clear()
                measured = await self.measure()
                # no await from here on, so the state cannot change between reading and deciding
                self._relieve_pressure(measured.free)
                self._table.room_wanted = bool(self._entries) or self._busy_over_limit
                self._decide(measured)
                waiting = any(not entry.admitted.done() for entry in self._entries.values())
                if waiting or self._measure_again:
                    # poll: no event reports memory that another program frees
                    await wait_for(changed, self._table.limits.retry_room_s)
                else:
                    await asyncio.sleep(0)  # let the admitted loads leave `_entries`

    @property
    def age_s(self) -> float:
        """Seconds since the last measurement."""
        return self._table.clock.monotonic() - self._measured_s

    @property
    def free(self) -> Pools:
        """Memory that was free for models at the last measurement; empty before the first."""
        return self._free

    async def measure(self) -> Measured:
        """Measure the free memory and that of every instance, and update the instances.

        GPUs are queried only if a model uses or needs one, because drivers answer slowly.
        """
        processes: dict[Hashable, Process] = {
            item: item.process for item in self._table.list_all() if item.process and item.admitted
        }
        serving = [item for item in self._table.list_all() if item.ready]
        gpus = any(
            pool.startswith("gpu")
            for item in (*self._entries, *self._table.list_all())
            for pool in item.needs
        )
        try:
            measured = await self._hooks.measure(processes, gpus)
        except Exception:
            # boundary: a failed measurement must not keep a model from running or from ending
            log.exception("cannot measure memory")
            return Measured(free=self._free)
        for item in self._table.list_all():
            if item in measured.ended:
                item.holds = measured.holds.get(item, {})
            elif holds := measured.holds.get(item):
                # some drivers report no memory per process: the engine does, or the estimate
                unknown = {
                    pool: size
                    for pool, size in (item.placed.pools if item.placed else item.needs).items()
                    if pool not in holds and item.loaded and not item.sleeping
                }
                item.holds = {**unknown, **holds}
                for pool, size in item.holds.items():
                    item.peak[pool] = max(item.peak.get(pool, 0), size)
                item.measured = item.measured or (item in serving and item.ready)
        self._free, self._measured_s = measured.free, self._table.clock.monotonic()
        self._returning = measured.returning
        return measured

    def note_transition(self) -> None:
        """Note that an engine has started, crashed or ended: measurements are unreliable now."""
        self._last_transition_s = self._table.clock.monotonic()

    def note_exit(self, instance: Instance) -> None:
        """Note that the process of `instance` is gone, and which memory it should return."""
        self.note_transition()
        now_s = self._table.clock.monotonic()
        if now_s > self._settles_at_s:
            self._expected_free.clear()
        self._settles_at_s = now_s + self._table.limits.settle_s
        if now_s > self._returns_at_s:
            self._lost.clear()
        self._returns_at_s = now_s + self._table.limits.return_s
        for pool, size in instance.holds.items():
            before = self._expected_free.get(pool, self._free.get(pool, 0))
            self._expected_free[pool] = before + int(size * RETURNED_SHARE)
            self._lost[pool] = self._lost.get(pool, 0) + size
        instance.holds = {}
        self._table.room_changed.set()

    def _is_settling(self, free: Pools) -> bool:
        """Return whether the memory of an ended process is still being returned."""
        if self._table.clock.monotonic() > self._settles_at_s:
            return False
        return any(free.get(pool, size) < size for pool, size in self._expected_free.items())

    def _relieve_pressure(self, free: Pools) -> None:
        """Evict idle models if a limit is exceeded."""
        max_loaded = self._table.limits.max_loaded
        decision = relieve_pressure(free, self._list_residents(), max_loaded=max_loaded)
        self._busy_over_limit = decision is not None and decision.action is Action.WAIT
        self._measure_again = decision is not None and self._is_settling(free)
        if decision is not None and not self._measure_again:
            self._make_room(decision, decision.reason)

    def find_room(self, free: Pools) -> Room:
        """Return the state for a load; `free` stands in for pools that were not measured."""
        return Room(
            free={**free, **self._free},
            models=self._list_residents(),
            names={str(item.key): item.bundle.name for item in self._table.list_all()},
            max_loaded=self._table.limits.max_loaded,
        )

    def _list_residents(self) -> list[Resident]:
        table = self._table
        return [
            _make_resident(item, table.limits.turn_s)
            for item in table.list_all()
            if item.admitted and item.bundle.upstream is None
        ]

    def _decide(self, measured: Measured) -> None:
        """Ask the policy, and apply its decisions."""
        table = self._table
        waiting = {str(item.key): item for item in self._entries}
        decisions = decide_loads(
            measured.free,
            self._list_residents(),
            [
                PendingLoad(
                    key=key, needs=self._entries[item].needs, since_s=self._entries[item].since_s
                )
                for key, item in waiting.items()
                if not self._entries[item].admitted.done()
            ],
            max_loaded=table.limits.max_loaded,
            now_s=table.clock.monotonic(),
            settling=self._is_settling(measured.free),
        )
        for decision in decisions:
            self._apply(decision, waiting[decision.key], measured.free)

    def _apply(self, decision: Decision, instance: Instance, free: Pools) -> None:
        table, entry, name = self._table, self._entries[instance], instance.bundle.name
        instance.waits_for = decision.reason
        if decision.waits_for:
            awaited = (one for one in table.list_all() if str(one.key) in decision.waits_for)
            instance.waits_for += f": {', '.join(sorted({one.bundle.name for one in awaited}))}"
        if decision.action is not Action.LOAD:
            instance.waited_for = decision.reason
            table.stop_unwanted(instance)
            if instance.retiring:
                return
        if decision.action is not Action.REFUSE:
            entry.refused_s = None
        if decision.action is Action.LOAD:
            log.debug("admit %s: needs %s, %s free", name, dict(entry.needs), dict(free))
            instance.enter(InstanceState.WAKING if instance.sleeping else InstanceState.LOADING)
            for pool, size in entry.needs.items():  # this load uses memory that is expected back
                if pool in self._expected_free:
                    self._expected_free[pool] -= size
            entry.admitted.set_result(None)
            return
        if decision.action is Action.REFUSE:
            alone = len(table.list_all()) == 1
            if not self._may_refuse(instance, entry, decision.available):
                instance.waits_for = "not enough free memory: waiting for engines to release some"
                return
            entry.admitted.set_exception(
                make_memory_error(name, entry.needs, decision.available, alone=alone)
            )
            return
        self._make_room(decision, f"evicted for {name}: {decision.reason}")
        for other in list(table.instances.values()):
            if str(other.key) in decision.retire:
                reason = f"its time slice is over and {name} is waiting"
                table.retire(other, reason, MarkKind.EVICT)

    def _may_refuse(self, instance: Instance, entry: _Entry, available: Pools) -> bool:
        """Return whether a load that does not fit is refused now, or measured again first.

        Memory that an engine is taking or returning may be counted neither as its own nor as free,
        so one measurement proves nothing. If no engine is starting or stopping, a second
        measurement has to agree; otherwise all measurements of `settle_s` have to. Those of
        `return_s` have to where all that ended engines held, and what is returned by the system,
        would be enough: some drivers need many seconds.
        """
        table, limits = self._table, self._table.limits
        now_s = table.clock.monotonic()
        if entry.refused_s is None:
            entry.refused_s = now_s
        others = [item for item in table.list_all() if item is not instance and item.admitted]
        waited_s = now_s - entry.refused_s
        lost = self._lost if now_s <= self._returns_at_s else {}
        if waited_s < limits.return_s and all(
            need <= sum(pools.get(pool, 0) for pools in (available, lost, self._returning))
            for pool, need in entry.needs.items()
        ):
            return False
        if now_s - self._last_transition_s < limits.settle_s or any(
            not (item.ready or item.sleeping) for item in others
        ):
            return waited_s >= limits.settle_s
        return not others or waited_s >= limits.retry_room_s

    def _make_room(self, decision: Decision, reason: str) -> None:
        """Unload the models in `decision.evict`, and put those in `decision.sleep` to sleep."""
        for other in list(self._table.instances.values()):
            key = str(other.key)
            if key in decision.evict:
                self._table.stop_unwanted(other, reason)
                self._table.retire(other, reason, MarkKind.EVICT)
            elif key in decision.sleep:
                other.sleep_wanted = True
                other.wake.set()


def _make_resident(item: Instance, turn_s: float) -> Resident:
    """Return an instance as the policy sees it."""
    holds = item.holds if item.measured else {pool: item.holds.get(pool, 0) for pool in item.needs}
    asleep = None
    if item.sleeper and item.loaded and not item.sleeping:
        gpu = sum(size for pool, size in item.holds.items() if pool != "ram")
        asleep = {"ram": item.holds.get("ram", 0) + gpu}
    sleeping = item.state is InstanceState.SLEEPING
    claims = holds if sleeping else (item.peak if item.measured else item.needs)
    return Resident(
        key=str(item.key),
        holds=holds,
        claims=claims,
        busy=item.busy and not item.is_abandoned,
        pinned=math.isinf(item.keep_alive_s),
        priority=item.bundle.settings.priority or 0,
        retiring=item.retiring,
        sleeping=sleeping,
        last_used_s=item.last_used_s,
        since_s=item.ready_s if item.loaded else math.inf,
        turn_ends_s=item.ready_s + max(turn_s, item.load_s) if item.loaded else math.inf,
        asleep_holds=asleep,
    )


class MemoryFull(NotEnoughMemory):
    """Others hold the memory; `available` are the bytes that are to be had of each pool."""

    available: Pools = MappingProxyType({})


def make_memory_error(name: str, needs: Pools, available: Pools, *, alone: bool) -> MemoryFull:
    """Return the error of a load that can never fit, with the numbers of the tightest pool.

    `available` is what would be free without other models; `alone`: none is loaded.
    """
    pool = min(needs, key=lambda pool: available.get(pool, 0) - needs[pool], default="ram")
    kind = "system memory" if pool == "ram" else f"memory on {pool.upper()}"
    needed, have = format_amounts(needs.get(pool, 0), max(0, available.get(pool, 0)))
    error = MemoryFull(
        f"cannot load '{name}': model requires more {kind} ({needed}) than is available "
        f"({have}){'' if alone else ', even with no other model loaded'}",
        hint="use a smaller context or quantization, or close other programs",
    )
    error.available = available
    return error
