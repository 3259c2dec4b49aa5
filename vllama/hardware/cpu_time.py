"""CPU time that was used: by all on the cores of this process, and by one program."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTime:
    """Seconds of CPU time since a moment in the past that stays the same.

    `all_s` is that of all programs on the `cores` logical cores that this process may use, what a
    hypervisor gave to others included; `own_s` that of the process which was asked for.
    """

    cores: int
    all_s: float
    own_s: float


def cpu_time(pid: int) -> CpuTime | None:
    """Read it for the process `pid`, in some 0.1 ms; None if that has ended or cannot be read."""
    try:
        own = psutil.Process(pid).cpu_times()
        rows = psutil.cpu_times(percpu=True)
    except (psutil.Error, OSError):
        return None
    if hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
        rows = [row for core, row in enumerate(rows) if core in allowed]
    return CpuTime(
        cores=len(rows), all_s=sum(map(_busy_s, rows)), own_s=float(own.user + own.system)
    )


def _busy_s(row: object) -> float:
    # `guest` and `guest_nice` are counted in `user` and `nice` already (proc(5))
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(float(getattr(row, name, 0.0)) for name in names)
