"""The CPU: the cores and memory that this process may use, its name, features, and CPU time."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

UNLIMITED_BYTES = 2**60
"""cgroup v1 writes "no limit" as a number near 2^63."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of this process's control groups; None where there is none.

    `memory_used_bytes` does not count page cache that the kernel can drop; `memory_cached_bytes` is
    the rest of the page cache: pages of files in use.
    """

    cores: float | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int = 0
    memory_cached_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The cores and memory that this process may use; `physical_cores` as in `Platform`."""

    cores: int
    physical_cores: int
    ram_total_bytes: int
    ram_available_bytes: int
    name: str
    features: frozenset[str]


def detect_cpu(root: Path = Path("/")) -> Cpu:
    """Detect what this process may use. Raises OSError if psutil fails."""
    limits = read_cgroup(root)
    total, available = measure_usable_ram(limits)
    name, features = parse_cpuinfo(_read(root / "proc/cpuinfo") or "")
    allowed = read_affinity()
    return Cpu(
        cores=apply_quota(len(allowed), limits.cores),
        physical_cores=apply_quota(count_physical_cores(allowed, root), limits.cores),
        ram_total_bytes=total,
        ram_available_bytes=available,
        name=name or platform.processor(),
        features=features,
    )


def measure_usable_ram(limits: Limits, kept_bytes: int = 0) -> tuple[int, int]:
    """Return total and available memory in bytes, within the limits of the control groups.

    `kept_bytes` of the page cache are mapped weights, which do not count as available.
    """
    memory = psutil.virtual_memory()
    total, available = memory.total, max(0, memory.available - kept_bytes)
    if limits.memory_bytes is not None:
        total = min(total, limits.memory_bytes)
        # the control group already counts active pages of files as used
        used = limits.memory_used_bytes + kept_bytes - min(kept_bytes, limits.memory_cached_bytes)
        available = min(available, max(0, limits.memory_bytes - used))
    return total, available


def read_affinity() -> frozenset[int]:
    """Return the logical cores that the kernel may run this process on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def count_physical_cores(allowed: frozenset[int], root: Path = Path("/")) -> int:
    """Return how many of the cores can compute at full speed at the same time.

    Two hyperthreads count as one core. The efficiency cores of a hybrid Intel CPU do not count,
    because threads that synchronise are as fast as the slowest. Linux reports both under
    /sys/devices; elsewhere every core counts.
    """
    fast = parse_cpu_list(_read(root / "sys/devices/cpu_core/cpus") or "") & allowed or allowed
    siblings = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return len({_read(root / siblings.format(core)) or str(core) for core in fast})


def parse_cpu_list(text: str) -> frozenset[int]:
    """Parse a list of cores in the form of Linux, `0-3,8`."""
    cores: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdigit() and (last.isdigit() or not dash):
            cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def apply_quota(cores: int, quota: float | None) -> int:
    """Limit a number of cores to the cgroup quota, rounded up."""
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def parse_cpuinfo(text: str) -> tuple[str, frozenset[str]]:
    """Parse the name and features of the first core in `/proc/cpuinfo` (x86 or ARM)."""
    name, features = "", frozenset[str]()
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "model name" and not name:
            name = value
        elif key in ("flags", "Features") and not features:
            features = frozenset(value.lower().split())
    return name, features


def parse_cpu_max(text: str) -> float | None:
    """Parse cgroup v2 `cpu.max`: `max 100000` or `150000 100000`; return cores."""
    match text.split():
        case [quota, period] if quota.isdigit() and period.isdigit() and int(period):
            return int(quota) / int(period)
    return None


def parse_cfs_quota(quota: str, period: str) -> float | None:
    """Parse cgroup v1 `cpu.cfs_quota_us` (-1: none) and `cpu.cfs_period_us`; return cores."""
    return parse_cpu_max(f"{quota} {period}")


def parse_memory_limit(text: str) -> int | None:
    """Parse cgroup `memory.max` (v2) or `memory.limit_in_bytes` (v1); None without a limit."""
    value = text.strip()
    return int(value) if value.isdigit() and int(value) < UNLIMITED_BYTES else None


def parse_inactive_file(text: str) -> int:
    """Parse from `memory.stat` the page cache that the kernel can drop."""
    return _parse_stat(text, "inactive_file")


def parse_active_file(text: str) -> int:
    """Parse from `memory.stat` the page cache that is in use."""
    return _parse_stat(text, "active_file")


def _parse_stat(text: str, name: str) -> int:
    for line in text.splitlines():
        match line.split():
            case [key, number] if key in (name, f"total_{name}") and number.isdigit():
                return int(number)
    return 0


def parse_self_cgroup(text: str) -> dict[str, str]:
    """Parse `/proc/self/cgroup`: controller → path, with "" for the unified (v2) hierarchy."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.strip().split(":", 2)
        if len(parts) == 3:
            paths.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return paths


def read_cgroup(root: Path = Path("/")) -> Limits:
    """Return the tightest limits between this process's control group and the root."""
    mount = root / "sys/fs/cgroup"
    paths = parse_self_cgroup(_read(root / "proc/self/cgroup") or "")
    if (mount / "cgroup.controllers").exists():
        return _read_v2(mount, paths.get("", "/"))
    return _read_v1(mount, paths)


def _read_v2(mount: Path, path: str) -> Limits:
    cores: list[float] = []
    memory: list[tuple[int, int, int]] = []
    for folder in _list_ancestors(mount, path):
        quota = parse_cpu_max(_read(folder / "cpu.max") or "")
        limit = parse_memory_limit(_read(folder / "memory.max") or "")
        if quota is not None:
            cores.append(quota)
        if limit is not None:
            memory.append((limit, *_read_usage(folder, "memory.current")))
    return _combine_limits(cores, memory)


def _read_v1(mount: Path, paths: dict[str, str]) -> Limits:
    cores: list[float] = []
    memory: list[tuple[int, int, int]] = []
    for folder in _list_ancestors(mount / "cpu", paths.get("cpu", "/")):
        quota = parse_cfs_quota(
            _read(folder / "cpu.cfs_quota_us") or "", _read(folder / "cpu.cfs_period_us") or ""
        )
        if quota is not None:
            cores.append(quota)
    for folder in _list_ancestors(mount / "memory", paths.get("memory", "/")):
        limit = parse_memory_limit(_read(folder / "memory.limit_in_bytes") or "")
        if limit is not None:
            memory.append((limit, *_read_usage(folder, "memory.usage_in_bytes")))
    return _combine_limits(cores, memory)


def _combine_limits(cores: list[float], memory: list[tuple[int, int, int]]) -> Limits:
    """Return the smallest quota, and the memory limit with the least free memory."""
    limit, used, cached = min(memory, key=lambda row: row[0] - row[1], default=(None, 0, 0))
    return Limits(
        cores=min(cores, default=None),
        memory_bytes=limit,
        memory_used_bytes=used,
        memory_cached_bytes=cached,
    )


def _read_usage(folder: Path, name: str) -> tuple[int, int]:
    """Return the memory in use there, and how much of it consists of pages of files."""
    used = parse_memory_limit(_read(folder / name) or "") or 0
    stat = _read(folder / "memory.stat") or ""
    return max(0, used - parse_inactive_file(stat)), parse_active_file(stat)


def _list_ancestors(mount: Path, path: str) -> list[Path]:
    """Return the folders from `path` up to the mount.

    A path outside this namespace (with `..`) is not visible, so only the mount is returned.
    """
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        parts = []
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTime:
    """CPU time in seconds since a fixed moment in the past.

    `all_s` is the time of all programs on the `cores` logical cores that this process may use,
    including time that a hypervisor gave to other machines. `own_s` is that of one process.
    """

    cores: int
    all_s: float
    own_s: float


def read_cpu_time(pid: int) -> CpuTime | None:
    """Return the CPU time of the process `pid`, in about 0.1 ms; None if it cannot be read."""
    try:
        own = psutil.Process(pid).cpu_times()
        rows = psutil.cpu_times(percpu=True)
    except (psutil.Error, OSError):
        return None
    if hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
        rows = [row for core, row in enumerate(rows) if core in allowed]
    return CpuTime(
        cores=len(rows), all_s=sum(map(_sum_busy_s, rows)), own_s=float(own.user + own.system)
    )


def _sum_busy_s(row: object) -> float:
    # `user` and `nice` already include `guest` and `guest_nice` (proc(5))
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(float(getattr(row, name, 0.0)) for name in names)
