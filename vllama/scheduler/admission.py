"""Who may load, and when: measures the memory, asks the policy, tells those who wait.

One loop decides for all, so that two loads never take the same room and nobody is forgotten. It
runs only while somebody waits.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Hashable
from dataclasses import dataclass

from vllama.errors import NotEnoughMemory
from vllama.models.resolve.memory_fit import format_amounts
from vllama.scheduler.instance import Instance, InstanceState
from vllama.scheduler.memory import Measurable, Measured
from vllama.scheduler.policy import Action, Decision, PendingLoad, Pools, Resident, arrange, relieve
from vllama.scheduler.state import Hooks, Table

log = logging.getLogger(__name__)

# of what an ended process held, so much must be free again before anybody else is stopped for it
BACK_SHARE = 0.9


@dataclass(slots=True, eq=False)
class _Place:
    """One that waits for room."""

    needs: Pools
    since_s: float
    admitted: asyncio.Future[None]
    refused_s: float | None = None  # since when every look has said that it never will fit


class Admission:
    """The arbiter of memory and slots."""

    def __init__(self, table: Table, hooks: Hooks) -> None:
        self._table = table
        self._hooks = hooks
        self._places: dict[Instance, _Place] = {}
        self._free: Pools = {}
        self._back: dict[str, int] = {}
        self._back_until_s = -math.inf
        self._moved_s = -math.inf
        self._measured_s = -math.inf
        self._too_much = False
        self._look_again = False

    async def enter(self, instance: Instance, needs: Pools) -> None:
        """Wait until there is room for `needs`. Raises NotEnoughMemory if there never will be."""
        place = _Place(needs, self._table.clock.monotonic(), asyncio.Future())
        self._places[instance] = place
        self._table.room_changed.set()
        try:
            await place.admitted
        finally:
            self._places.pop(instance, None)
            self._table.room_wanted = bool(self._places) or self._too_much
            instance.waits_for = ""

    async def run(self) -> None:
        """Decide whenever something has changed, as long as somebody waits; until cancelled.

        And see, whenever a model has come or gone, that not more is held than may be.
        """
        changed = self._table.room_changed
        while True:
            await changed.wait()
            while changed.is_set() or self._places or self._look_again:
                changed.clear()
                measured = await self.measure()
                # from here on nothing is awaited: what is decided upon is what there is
                self._relieve(measured.free)
                self._table.room_wanted = bool(self._places) or self._too_much
                self._decide(measured)
                waiting = any(not place.admitted.done() for place in self._places.values())
                if waiting or self._look_again:
                    try:  # memory that another program frees: nothing tells us of that
                        async with asyncio.timeout(self._table.limits.retry_room_s):
                            await changed.wait()
                    except TimeoutError:
                        pass
                else:
                    await asyncio.sleep(0)  # those who were admitted take their places

    @property
    def age_s(self) -> float:
        """For how long nothing was measured."""
        return self._table.clock.monotonic() - self._measured_s

    async def measure(self) -> Measured:
        """Measure free memory and what every instance holds, and note it there.

        GPUs, which take longer to ask, are looked at only if one is used or wanted.
        """
        processes: dict[Hashable, Measurable] = {
            item: item.process for item in self._table.all() if item.process and item.admitted
        }
        serving = [item for item in self._table.all() if item.ready]
        gpus = any(
            pool.startswith("gpu")
            for item in (*self._places, *self._table.all())
            for pool in item.needs
        )
        try:
            measured = await self._hooks.measure(processes, gpus)
        except Exception:
            # boundary: what cannot be measured must keep nothing from running, or from ending
            log.exception("cannot measure memory")
            return Measured(free=self._free)
        for item in self._table.all():
            if item in measured.ended:
                item.holds = measured.holds.get(item, {})
            elif found := measured.holds.get(item):
                # what a driver does not tell is taken to be as estimated
                unknown = {
                    pool: size
                    for pool, size in item.needs.items()
                    if pool not in found and item.loaded and not item.sleeping
                }
                item.holds = {**unknown, **found}
                for pool, size in item.holds.items():
                    item.peak[pool] = max(item.peak.get(pool, 0), size)
                item.measured = item.measured or (item in serving and item.ready)
        self._free, self._measured_s = measured.free, self._table.clock.monotonic()
        return measured

    def moved(self) -> None:
        """Hear that an engine has started, crashed, or ended: memory may be on its way."""
        self._moved_s = self._table.clock.monotonic()

    def left(self, instance: Instance) -> None:
        """Hear that the process of `instance` is gone: its memory may come back a little later."""
        self.moved()
        now_s = self._table.clock.monotonic()
        if now_s > self._back_until_s:
            self._back.clear()
        self._back_until_s = now_s + self._table.limits.settle_s
        for pool, size in instance.holds.items():
            before = self._back.get(pool, self._free.get(pool, 0))
            self._back[pool] = before + int(size * BACK_SHARE)
        instance.holds = {}
        self._table.room_changed.set()

    def _settling(self, free: Pools) -> bool:
        if self._table.clock.monotonic() > self._back_until_s:
            return False
        return any(free.get(pool, size) < size for pool, size in self._back.items())

    def _relieve(self, free: Pools) -> None:
        """Let idle models go if more is held than may be; note whether a busy one should."""
        max_loaded = self._table.limits.max_loaded
        decision = relieve(free, self._models(), max_loaded=max_loaded)
        self._too_much = decision is not None and decision.action is Action.WAIT
        self._look_again = decision is not None and self._settling(free)
        if decision is not None and not self._look_again:
            self._make_room(decision, decision.reason)

    def _models(self) -> list[Resident]:
        table = self._table
        return [_model(item, table.limits.turn_s) for item in table.all() if item.admitted]

    def _decide(self, measured: Measured) -> None:
        """Ask the policy, and do what it says."""
        table = self._table
        waiting = {str(item.key): item for item in self._places}
        decisions = arrange(
            measured.free,
            self._models(),
            [
                PendingLoad(
                    key=key, needs=self._places[item].needs, since_s=self._places[item].since_s
                )
                for key, item in waiting.items()
                if not self._places[item].admitted.done()
            ],
            max_loaded=table.limits.max_loaded,
            now_s=table.clock.monotonic(),
            settling=self._settling(measured.free),
        )
        for decision in decisions:
            self._apply(decision, waiting[decision.key], measured.free)

    def _apply(self, decision: Decision, instance: Instance, free: Pools) -> None:
        table, place, name = self._table, self._places[instance], instance.bundle.name
        instance.waits_for = decision.reason
        if decision.action is not Action.REFUSE:
            place.refused_s = None
        if decision.action is Action.LOAD:
            log.debug("%s gets room: it needs %s, %s is free", name, dict(place.needs), dict(free))
            instance.enter(InstanceState.WAKING if instance.sleeping else InstanceState.LOADING)
            for pool, size in place.needs.items():  # of what comes back this one takes its part
                if pool in self._back:
                    self._back[pool] -= size
            place.admitted.set_result(None)
            return
        if decision.action is Action.REFUSE:
            alone = len(table.all()) == 1
            if not self._certain(instance, place):
                instance.waits_for = "not enough free memory: engines may be giving some back"
                return
            place.admitted.set_exception(
                make_too_little_error(name, place.needs, decision.most, alone=alone)
            )
            return
        self._make_room(decision, f"room for {name}: {decision.reason}")
        for other in list(table.instances.values()):
            if str(other.key) in decision.give_way:
                table.retire(other, f"gives way to {name}, which has waited for its turn")

    def _certain(self, instance: Instance, place: _Place) -> bool:
        """Tell whether a load that does not fit is refused now, or is looked at once more.

        A measurement takes a while, and what an engine takes, gives back, or has just lost in a
        crash may be seen neither with it nor as free: one look proves nothing. Where no engine is
        on its way up or down, a second one does; else those of `settle_s` have to agree.
        """
        table, limits = self._table, self._table.limits
        now_s = table.clock.monotonic()
        if place.refused_s is None:
            place.refused_s = now_s
        others = [item for item in table.all() if item is not instance and item.admitted]
        waited_s = now_s - place.refused_s
        if now_s - self._moved_s < limits.settle_s or any(
            not (item.ready or item.sleeping) for item in others
        ):
            return waited_s >= limits.settle_s
        return not others or waited_s >= limits.retry_room_s

    def _make_room(self, decision: Decision, why: str) -> None:
        """Let those go, or sleep, who have to."""
        for other in list(self._table.instances.values()):
            key = str(other.key)
            if key in decision.evict:
                self._table.retire(other, why)
            elif key in decision.sleep:
                other.sleep_wanted = True
                other.wake.set()


def _model(item: Instance, turn_s: float) -> Resident:
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
        busy=item.busy,
        kept=math.isinf(item.keep_alive_s),
        leaving=item.retiring,
        sleeping=sleeping,
        last_used_s=item.last_used_s,
        since_s=item.ready_s if item.loaded else math.inf,
        turn_ends_s=item.ready_s + max(turn_s, item.load_s) if item.loaded else math.inf,
        asleep_holds=asleep,
    )


def make_too_little_error(name: str, needs: Pools, most: Pools, *, alone: bool) -> NotEnoughMemory:
    """Return the error of a load that will never fit, with the numbers of the tightest pool.

    `most` is what would be free without other models; `alone`: there are none.
    """
    pool = min(needs, key=lambda pool: most.get(pool, 0) - needs[pool], default="ram")
    kind = "system memory" if pool == "ram" else f"memory on {pool.upper()}"
    needed, available = format_amounts(needs.get(pool, 0), max(0, most.get(pool, 0)))
    return NotEnoughMemory(
        f"cannot load '{name}': model requires more {kind} ({needed}) than is available "
        f"({available}){'' if alone else ', even with no other model loaded'}",
        hint="use a smaller context or quantisation, or end other programs",
    )
