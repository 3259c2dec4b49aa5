"""Which models stay loaded. Pure: what is loaded and what is free in, a decision out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One loaded model as the policy sees it.

    `busy`: it has leases or requests waiting, or is still loading. `pinned`: kept for ever.
    """

    key: str
    memory_bytes: int
    busy: bool
    pinned: bool
    last_used_s: float


class Action(StrEnum):
    """What to do about a model that wants to be loaded."""

    LOAD = "load"
    EVICT = "evict"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An action, the keys it evicts, and the reason in words."""

    action: Action
    evict: tuple[str, ...] = ()
    reason: str = ""


def make_room(
    need_bytes: int, free_bytes: int, loaded: Sequence[Loaded], max_loaded: int
) -> Decision:
    """Decide how a model of `need_bytes` gets its place.

    `free_bytes` is what is free now, less what loads under way will still take.

    1. Room for it and a slot free: load.
    2. Else evict idle models, least recently used first, pinned ones never, until it fits.
    3. If that is not enough but busy models could give way later: wait.
    4. If even that would not help: refuse.
    """
    must_go = max(0, len(loaded) + 1 - max_loaded)
    if need_bytes <= free_bytes and not must_go:
        return Decision(action=Action.LOAD)
    movable = [item for item in loaded if not item.pinned]
    idle = sorted((item for item in movable if not item.busy), key=lambda item: item.last_used_s)
    evict: list[str] = []
    gained = 0
    for item in idle:
        if len(evict) >= must_go and need_bytes <= free_bytes + gained:
            break
        evict.append(item.key)
        gained += item.memory_bytes
    if len(evict) >= must_go and need_bytes <= free_bytes + gained:
        why = "no free slot" if need_bytes <= free_bytes else "not enough free memory"
        return Decision(action=Action.EVICT, evict=tuple(evict), reason=why)
    total = free_bytes + sum(item.memory_bytes for item in movable)
    if need_bytes <= total and len(movable) >= must_go:
        return Decision(action=Action.WAIT, reason="busy models hold the memory or the slots")
    pinned = [item.key for item in loaded if item.pinned]
    reason = f"pinned models hold it: {', '.join(pinned)}" if pinned else "it is used elsewhere"
    return Decision(action=Action.REFUSE, reason=reason)
