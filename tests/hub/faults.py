"""What can go wrong with an answer of the stand-in hub, and what it notes about each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one answer. `after` counts body bytes; offsets are file offsets."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None  # then the connection is closed
    reset_after: int | None = None  # then it is reset
    stall_after: int | None = None  # then nothing comes any more
    corrupt_at: int | None = None  # the byte at this offset is wrong
    bytes_per_s: float | None = None
    ignore_range: bool = False
    shift: int = 0  # the range sent begins that much later than the one asked for


@dataclass(frozen=True)
class Logged:
    """One request, logged when its answer is over."""

    server: str  # "hub" or "cdn"
    method: str
    path: str
    headers: Mapping[str, str]
    status: int
    sent_bytes: int


FaultHook = Callable[[str, str, Mapping[str, str], str], Fault | None]
