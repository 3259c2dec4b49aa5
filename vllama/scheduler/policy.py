"""Which models are loaded. Pure: what there is and who waits in, one decision for each out.

Memory is counted in pools ("ram", "gpu0", …), in bytes. Those who wait are served in order of
arrival; one that has to wait claims what it will need, so that a later one that fits beside that
claim goes ahead, and one that would starve it does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

Pools = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A model that has a process, or is just getting one.

    `holds` is measured, `claims` what it will hold in the end. `busy`: it has leases or requests
    waiting, or is still loading. `kept`: for ever, as far as time goes; it makes room after all
    others. `leaving`: it ends as soon as it is idle.
    `turn_ends_s`: until then nobody may ask it, busy as it is, to give way. `since_s` is when it
    became ready. `asleep_holds`: what it would still hold if it slept, None if it cannot (any
    more); `sleeping`: it does, and takes no slot.
    """

    key: str
    holds: Pools
    claims: Pools
    busy: bool = False
    kept: bool = False
    leaving: bool = False
    sleeping: bool = False
    last_used_s: float = 0.0
    since_s: float = 0.0
    turn_ends_s: float = math.inf
    asleep_holds: Pools | None = None

    @property
    def frees(self) -> dict[str, int]:
        """What its end would give to others: what it holds, and what was set aside for it."""
        pools = {*self.holds, *self.claims}
        return {pool: max(self.holds.get(pool, 0), self.claims.get(pool, 0)) for pool in pools}


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingLoad:
    """A model that waits to be loaded, or woken, and since when."""

    key: str
    needs: Pools
    since_s: float


class Action(StrEnum):
    """What to do about a load that waits."""

    LOAD = "load"
    EVICT = "evict"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An action, whom it concerns, and the reason in words.

    With EVICT: `sleep` and `evict` are idle ones. With WAIT: `give_way` are busy ones that have had
    their turn; they serve who has them or waits for them already, and end. With REFUSE: `most` is
    the memory that there would be if no other model were loaded.
    """

    key: str
    action: Action
    sleep: tuple[str, ...] = ()
    evict: tuple[str, ...] = ()
    give_way: tuple[str, ...] = ()
    reason: str = ""
    most: Pools = field(default_factory=dict)


@dataclass(slots=True)
class _Space:
    """What the next one may count on."""

    spare: dict[str, int]
    slots: int
    models: list[Resident]
    coming: dict[str, int] = field(default_factory=dict)
    coming_slots: int = 0

    def fits(self, needs: Pools, gained: Pools | None = None, slots: int = 0) -> bool:
        gained = gained or {}
        return self.slots + slots >= 1 and all(
            need <= self.spare.get(pool, 0) + gained.get(pool, 0) for pool, need in needs.items()
        )

    def take(self, needs: Pools) -> None:
        """Let a load have what is there now."""
        _add(self.spare, needs, -1)
        self.slots -= 1

    def leave_to(self, needs: Pools, victims: _Victims) -> None:
        """Let a load have its victims, and first of all what is coming back, to itself."""
        gained = victims.gained()
        for pool, need in needs.items():
            short = max(0, need - gained.get(pool, 0))
            soon = min(short, self.coming.get(pool, 0))
            self.coming[pool] = self.coming.get(pool, 0) - soon
            self.spare[pool] = self.spare.get(pool, 0) - (short - soon)
        if not victims.slots:
            if self.slots < 1 and self.coming_slots:
                self.coming_slots -= 1
            else:
                self.slots -= 1
        gone = {item.key for item in victims.all}
        self.models = [item for item in self.models if item.key not in gone]


@dataclass(slots=True)
class _Victims:
    """Models that would have to make room, and what that brings."""

    sleep: list[Resident]
    leave: list[Resident]

    def gained(self, coming: Pools | None = None) -> dict[str, int]:
        total = dict(coming or {})
        for model in self.all:
            _add(total, model.frees)
        for model in self.sleep:
            _add(total, model.asleep_holds or {}, -1)
        return total

    @property
    def slots(self) -> int:
        return len(self.sleep) + sum(not model.sleeping for model in self.leave)

    @property
    def all(self) -> list[Resident]:
        return [*self.sleep, *self.leave]


def arrange(
    free: Pools,
    models: Sequence[Resident],
    waiting: Sequence[PendingLoad],
    *,
    max_loaded: int,
    now_s: float,
    settling: bool = False,
) -> list[Decision]:
    """Decide about all that wait, in order of arrival.

    `free` is measured now; what loads under way still lack is set aside first. For each:

    1. Admission for it and a slot free: load.
    2. Else if those who leave already will make the room: wait.
    3. Else idle models go, least recently used first and no more than needed, those that are kept
       for ever after all others; one that can sleep sleeps if that is enough: evict.
    4. Else busy ones would have to give way: wait; those whose turn is over are told to, the one
       that has been there for longest first, again those that are kept after all others.
    5. Else it waits for those who came before it; or, if it would not fit even without any other
       model, it is refused. While memory of an ended process is still on its way back (`settling`)
       nobody is evicted or refused for lack of it.
    """
    space = _Space(
        spare=_spare(free, models),
        slots=max_loaded - sum(not item.sleeping for item in models),
        models=[item for item in models if not item.leaving],
    )
    for item in models:
        if item.leaving:
            _add(space.coming, item.frees)
            space.coming_slots += not item.sleeping
    decisions = []
    for load in sorted(waiting, key=lambda load: load.since_s):
        most = _without_others(load, free, models, max_loaded)
        if settling or most.fits(load.needs):
            decisions.append(_decide(load, space, max_loaded, now_s, settling))
        else:
            decisions.append(Decision(key=load.key, action=Action.REFUSE, most=most.spare))
    return decisions


def relieve(free: Pools, models: Sequence[Resident], *, max_loaded: int) -> Decision | None:
    """Decide who goes because more is held than may be: `free` is below zero somewhere.

    An estimate was too small, or another program has grown; or there are more models than may be
    loaded, because the limit is another now. Idle ones go (EVICT), the least recently used first
    and as few as are enough; if they are not enough, all that would help. What is kept for ever
    goes for the number only, and after all others. WAIT: only busy ones could go. None: there is
    nothing to do, or nobody who may go.
    """
    spare = dict(free)
    for item in models:
        if item.leaving:
            _add(spare, item.holds)
    over = {pool: 0 for pool, size in spare.items() if size < 0}
    slots = max_loaded - sum(not (item.sleeping or item.leaving) for item in models)
    may = [
        item
        for item in models
        if not (item.leaving or (item.kept and over))
        and (any(item.frees.get(pool) for pool in over) or (slots < 0 and not item.sleeping))
    ]
    idle = sorted(
        (item for item in may if not item.busy), key=lambda item: (item.kept, item.last_used_s)
    )
    if not may:
        return None
    if not idle:
        return Decision(key="", action=Action.WAIT)
    space = _Space(spare=spare, slots=slots + 1, models=[])
    victims = _least(space, over, idle, may_sleep=True) or _Victims([], idle)
    return Decision(
        key="",
        action=Action.EVICT,
        sleep=tuple(item.key for item in victims.sleep),
        evict=tuple(item.key for item in victims.leave),
        reason="more memory is held than may be" if over else _too_many(max_loaded),
    )


def _decide(
    load: PendingLoad, space: _Space, max_loaded: int, now_s: float, settling: bool
) -> Decision:
    needs, others = load.needs, [item for item in space.models if item.key != load.key]
    why = _too_many(max_loaded) if space.slots < 1 else "not enough free memory"
    nobody = _Victims([], [])
    if space.fits(needs):
        space.take(needs)
        return Decision(key=load.key, action=Action.LOAD)
    if settling or space.fits(needs, space.coming, space.coming_slots):
        space.leave_to(needs, nobody)
        return Decision(
            key=load.key, action=Action.WAIT, reason=f"{why}: waiting for one that is ending"
        )
    idle = sorted(
        (item for item in others if not item.busy), key=lambda item: (item.kept, item.last_used_s)
    )
    if victims := _least(space, needs, idle, may_sleep=True):
        space.leave_to(needs, victims)
        return Decision(
            key=load.key,
            action=Action.EVICT,
            sleep=tuple(item.key for item in victims.sleep),
            evict=tuple(item.key for item in victims.leave),
            reason=why,
        )
    busy = sorted(
        (item for item in others if item.busy), key=lambda item: (item.kept, item.since_s)
    )
    if victims := _least(space, needs, idle + busy, may_sleep=False):
        space.leave_to(needs, victims)
        tired = [item for item in victims.leave if item.busy and item.turn_ends_s <= now_s]
        return Decision(
            key=load.key,
            action=Action.WAIT,
            give_way=tuple(item.key for item in tired),
            reason=f"{why}: waiting for busy models",
        )
    return Decision(key=load.key, action=Action.WAIT, reason="others that wait come first")


def _least(
    space: _Space, needs: Pools, candidates: Sequence[Resident], *, may_sleep: bool
) -> _Victims | None:
    """Return as few of `candidates` as make room for `needs`, the first ones first."""

    def enough(victims: _Victims) -> bool:
        slots = victims.slots + space.coming_slots
        return space.fits(needs, victims.gained(space.coming), slots)

    victims = _Victims([], [])
    for item in candidates:
        sleeps = may_sleep and item.asleep_holds is not None
        (victims.sleep if sleeps else victims.leave).append(item)
        if enough(victims):
            break
    while victims.sleep and not enough(victims):
        victims.leave.append(victims.sleep.pop(0))
    if not enough(victims):
        return None
    for item in sorted(victims.all, key=candidates.index, reverse=True):
        fewer = _Victims(
            [other for other in victims.sleep if other is not item],
            [other for other in victims.leave if other is not item],
        )
        if fewer.all and enough(fewer):
            victims = fewer
    return victims


def _spare(free: Pools, models: Sequence[Resident]) -> dict[str, int]:
    """Return what is free less what others will still take.

    One that leaves too: if it crashes, it is started again for those who wait for it already.
    """
    spare = dict(free)
    for item in models:
        for pool, claim in item.claims.items():
            spare[pool] = spare.get(pool, 0) - max(0, claim - item.holds.get(pool, 0))
    return spare


def _add(total: dict[str, int], more: Pools, sign: int = 1) -> None:
    for pool, size in more.items():
        total[pool] = total.get(pool, 0) + sign * size


def _without_others(
    load: PendingLoad, free: Pools, models: Sequence[Resident], max_loaded: int
) -> _Space:
    """Return the room there would be if every other model had gone."""
    spare = dict(free)
    for item in models:
        if item.key != load.key:
            _add(spare, item.holds)
    return _Space(spare=spare, slots=max_loaded, models=[])


def _too_many(max_loaded: int) -> str:
    """Return why a number of models keeps one from being loaded."""
    models = "1 model" if max_loaded == 1 else f"{max_loaded} models"
    return f"only {models} may be loaded at once (OLLAMA_MAX_LOADED_MODELS)"
