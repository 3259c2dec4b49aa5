"""The policy that decides which models are loaded. Pure: it maps the loaded models, the pending
loads and the free memory to one decision for each pending load.

Memory is counted in pools ("ram", "gpu0", …), in bytes. Pending loads are served in order of
arrival. A load that has to wait reserves the memory that it will need. A later load may overtake it
only if it fits next to that reservation; otherwise a stream of small models could keep a large one
waiting forever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

Pools = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A model that has a process, or has been admitted to start one.

    `holds` is the memory measured now, `claims` the memory that it will hold once loaded.
    `busy`: it has leases or queued requests, or is still loading. `pinned`: its keep-alive is
    infinite, so it is evicted after all others; of the rest, those with a lower `priority` are
    evicted first. `retiring`: it ends as soon as it is idle.
    `since_s` is the time when it became ready; a busy model is not retired before `turn_ends_s`,
    or two models in demand would spend all their time loading. `asleep_holds` is the memory that it
    would keep while asleep, None if it cannot sleep. `sleeping`: it sleeps, and takes no slot.
    """

    key: str
    holds: Pools
    claims: Pools
    busy: bool = False
    pinned: bool = False
    priority: int = 0
    retiring: bool = False
    sleeping: bool = False
    last_used_s: float = 0.0
    since_s: float = 0.0
    turn_ends_s: float = math.inf
    asleep_holds: Pools | None = None

    @property
    def rank(self) -> tuple[bool, int]:
        """Primary key of the order of eviction: the lowest first."""
        return self.pinned, self.priority

    @property
    def frees(self) -> dict[str, int]:
        """Memory that its end would free: what it holds, or the larger reservation for it."""
        pools = {*self.holds, *self.claims}
        return {pool: max(self.holds.get(pool, 0), self.claims.get(pool, 0)) for pool in pools}


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingLoad:
    """A model that waits to be loaded or woken; `since_s` is the time of its arrival."""

    key: str
    needs: Pools
    since_s: float


class Action(StrEnum):
    """Action for a pending load."""

    LOAD = "load"
    EVICT = "evict"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An action, the keys of the models that it concerns, and the reason in words.

    EVICT: the idle models in `sleep` are put to sleep, those in `evict` are unloaded. WAIT: the
    busy models in `retire` have had their turn; they finish their running and queued requests, then
    end; `waits_for` has all that hold up the load. REFUSE: `available` is the memory that would be
    free if no other model were loaded.
    """

    key: str
    action: Action
    sleep: tuple[str, ...] = ()
    evict: tuple[str, ...] = ()
    retire: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    reason: str = ""
    available: Pools = field(default_factory=dict)


@dataclass(slots=True)
class _Space:
    """Memory, slots and candidates for eviction that are left for the next pending load.

    `ending` has the keys of retiring models, `returning` and `returning_slots` what they will free.
    """

    spare: dict[str, int]
    slots: int
    models: list[Resident]
    ending: tuple[str, ...] = ()
    returning: dict[str, int] = field(default_factory=dict)
    returning_slots: int = 0

    def fits(self, needs: Pools, freed: Pools | None = None, slots: int = 0) -> bool:
        return self.slots + slots >= 1 and self.has_memory(needs, freed or {})

    def has_memory(self, needs: Pools, freed: Pools) -> bool:
        return all(
            need <= self.spare.get(pool, 0) + freed.get(pool, 0) for pool, need in needs.items()
        )

    def allocate(self, needs: Pools) -> None:
        """Take the memory and the slot of a load that starts now."""
        _add(self.spare, needs, -1)
        self.slots -= 1

    def reserve(self, needs: Pools, victims: _Victims) -> None:
        """Set aside what a waiting load will use: its victims, then what is returning, then the
        free memory.
        """
        freed = victims.compute_freed()
        for pool, need in needs.items():
            short = max(0, need - freed.get(pool, 0))
            soon = min(short, self.returning.get(pool, 0))
            self.returning[pool] = self.returning.get(pool, 0) - soon
            self.spare[pool] = self.spare.get(pool, 0) - (short - soon)
        if not victims.slots:
            if self.slots < 1 and self.returning_slots:
                self.returning_slots -= 1
            else:
                self.slots -= 1
        gone = {item.key for item in victims.all}
        self.models = [item for item in self.models if item.key not in gone]


@dataclass(slots=True)
class _Victims:
    """Models to put to sleep or to evict, and the memory and slots that this frees."""

    sleep: list[Resident]
    evict: list[Resident]

    def compute_freed(self, returning: Pools | None = None) -> dict[str, int]:
        total = dict(returning or {})
        for model in self.all:
            _add(total, model.frees)
        for model in self.sleep:
            _add(total, model.asleep_holds or {}, -1)
        return total

    @property
    def slots(self) -> int:
        return len(self.sleep) + sum(not model.sleeping for model in self.evict)

    @property
    def all(self) -> list[Resident]:
        return [*self.sleep, *self.evict]


def decide_loads(
    free: Pools,
    models: Sequence[Resident],
    waiting: Sequence[PendingLoad],
    *,
    max_loaded: int,
    now_s: float,
    settling: bool = False,
) -> list[Decision]:
    """Decide about all pending loads, in order of arrival.

    `free` is measured now. The memory that running loads have not taken yet is subtracted first.
    Then, for each pending load:

    1. LOAD if its memory and a slot are free.
    2. WAIT if retiring models will free enough.
    3. EVICT idle models if they free enough: those of the lowest priority first, then the least
       recently used, pinned models last, and no more of them than needed. A model that can sleep
       is put to sleep if that frees enough.
    4. WAIT for busy models. Those whose turn is over are retired, the longest loaded first and
       pinned models last.
    5. WAIT for earlier pending loads; or REFUSE, if the load would not fit even with no other model
       loaded.

    While the memory of an ended process is still being returned (`settling`), measurements are too
    low, so nothing is evicted or refused for lack of memory.
    """
    space = _Space(
        spare=_compute_spare(free, models),
        slots=max_loaded - sum(not item.sleeping for item in models),
        models=[item for item in models if not item.retiring],
        ending=tuple(item.key for item in models if item.retiring),
    )
    for item in models:
        if item.retiring:
            _add(space.returning, item.frees)
            space.returning_slots += not item.sleeping
    decisions = []
    for load in sorted(waiting, key=lambda load: load.since_s):
        alone = _compute_space_alone(load, free, models, max_loaded)
        if settling or alone.fits(load.needs):
            decisions.append(_decide(load, space, max_loaded, now_s, settling))
        else:
            decisions.append(Decision(key=load.key, action=Action.REFUSE, available=alone.spare))
    return decisions


def relieve_pressure(
    free: Pools, models: Sequence[Resident], *, max_loaded: int
) -> Decision | None:
    """Decide which models to evict because a limit is exceeded.

    Either `free` is negative in some pool, because an estimate was too low or another program has
    grown; or more models are loaded than allowed, because the limit was lowered. EVICT as few idle
    models as are enough, least recently used first, or all that would help if that is not enough.
    Pinned models are evicted only for the limit on the number of models, and last. WAIT if only
    busy models could be evicted. Returns None if no limit is exceeded or no model can be evicted.
    """
    spare = dict(free)
    for item in models:
        if item.retiring:
            _add(spare, item.holds)
    over = {pool: 0 for pool, size in spare.items() if size < 0}
    slots = max_loaded - sum(not (item.sleeping or item.retiring) for item in models)
    candidates = [
        item
        for item in models
        if not (item.retiring or (item.pinned and over))
        and (any(item.frees.get(pool) for pool in over) or (slots < 0 and not item.sleeping))
    ]
    idle = sorted(
        (item for item in candidates if not item.busy),
        key=lambda item: (item.rank, item.last_used_s),
    )
    if not candidates:
        return None
    if not idle:
        return Decision(key="", action=Action.WAIT)
    space = _Space(spare=spare, slots=slots + 1, models=[])
    victims = _choose_victims(space, over, idle, may_sleep=True) or _Victims([], idle)
    return Decision(
        key="",
        action=Action.EVICT,
        sleep=tuple(item.key for item in victims.sleep),
        evict=tuple(item.key for item in victims.evict),
        reason="models use more memory than planned" if over else _explain_limit(max_loaded),
    )


def _decide(
    load: PendingLoad, space: _Space, max_loaded: int, now_s: float, settling: bool
) -> Decision:
    needs, others = load.needs, [item for item in space.models if item.key != load.key]
    reason = _explain_limit(max_loaded) if space.slots < 1 else "not enough free memory"
    if space.fits(needs):
        space.allocate(needs)
        return Decision(key=load.key, action=Action.LOAD)
    short = not space.has_memory(needs, {})
    if (settling and short) or space.fits(needs, space.returning, space.returning_slots):
        space.reserve(needs, _Victims([], []))
        what = "models to unload" if space.ending else "a stopped engine to release its memory"
        return Decision(
            key=load.key,
            action=Action.WAIT,
            waits_for=space.ending,
            reason=f"{reason}: waiting for {what}",
        )
    idle = sorted(
        (item for item in others if not item.busy), key=lambda item: (item.rank, item.last_used_s)
    )
    if victims := _choose_victims(space, needs, idle, may_sleep=True):
        space.reserve(needs, victims)
        return Decision(
            key=load.key,
            action=Action.EVICT,
            sleep=tuple(item.key for item in victims.sleep),
            evict=tuple(item.key for item in victims.evict),
            reason=reason,
        )
    busy = sorted(
        (item for item in others if item.busy), key=lambda item: (item.rank, item.since_s)
    )
    if victims := _choose_victims(space, needs, idle + busy, may_sleep=False):
        space.reserve(needs, victims)
        return Decision(
            key=load.key,
            action=Action.WAIT,
            retire=tuple(
                item.key for item in victims.evict if item.busy and item.turn_ends_s <= now_s
            ),
            waits_for=tuple(item.key for item in victims.evict if item.busy),
            reason=f"{reason}: waiting for busy models",
        )
    return Decision(key=load.key, action=Action.WAIT, reason="waiting for earlier loads")


def _choose_victims(
    space: _Space, needs: Pools, candidates: Sequence[Resident], *, may_sleep: bool
) -> _Victims | None:
    """Return as few of `candidates` as make room for `needs`, in their order of preference.

    A greedy choice, which the last loop reduces: a large victim that is added late can make the
    smaller ones before it unnecessary.
    """

    def is_enough(victims: _Victims) -> bool:
        slots = victims.slots + space.returning_slots
        return space.fits(needs, victims.compute_freed(space.returning), slots)

    victims = _Victims([], [])
    for item in candidates:
        sleeps = may_sleep and item.asleep_holds is not None
        (victims.sleep if sleeps else victims.evict).append(item)
        if is_enough(victims):
            break
    while victims.sleep and not is_enough(victims):
        victims.evict.append(victims.sleep.pop(0))
    if not is_enough(victims):
        return None
    for item in sorted(victims.all, key=candidates.index, reverse=True):
        fewer = _Victims(
            [other for other in victims.sleep if other is not item],
            [other for other in victims.evict if other is not item],
        )
        if fewer.all and is_enough(fewer):
            victims = fewer
    return victims


def _compute_spare(free: Pools, models: Sequence[Resident]) -> dict[str, int]:
    """Return the free memory less what all residents will still take.

    Retiring models count too: one that crashes is restarted for the requests in its queue.
    """
    spare = dict(free)
    for item in models:
        for pool, claim in item.claims.items():
            spare[pool] = spare.get(pool, 0) - max(0, claim - item.holds.get(pool, 0))
    return spare


def _add(total: dict[str, int], more: Pools, sign: int = 1) -> None:
    for pool, size in more.items():
        total[pool] = total.get(pool, 0) + sign * size


def _compute_space_alone(
    load: PendingLoad, free: Pools, models: Sequence[Resident], max_loaded: int
) -> _Space:
    """Return the space that `load` would have if no other model were loaded."""
    spare = dict(free)
    for item in models:
        if item.key != load.key:
            _add(spare, item.holds)
    return _Space(spare=spare, slots=max_loaded, models=[])


def _explain_limit(max_loaded: int) -> str:
    models = "1 model" if max_loaded == 1 else f"{max_loaded} models"
    return f"only {models} can be loaded at a time (setting max_loaded_models)"
