"""The CPU: the cores and memory that this process may use, its name, and its features."""

from __future__ import annotations

import math
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

UNLIMITED_BYTES = 2**60
"""cgroup v1 writes "no limit" as a number near 2^63."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroups:
    """The limits of this process's control groups; None where there is none.

    `memory_free_bytes` is the least that any of them has left, and counts clean page cache as free;
    `memory_cached_bytes` of it are that cache. `memory_unwritten_bytes` become clean.
    """

    cores: float | None = None
    memory_bytes: int | None = None
    memory_free_bytes: int = 0
    memory_cached_bytes: int = 0
    memory_unwritten_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The cores and memory that this process may use; `physical_cores` as in `Platform`."""

    cores: int
    physical_cores: int
    ram_total_bytes: int
    ram_available_bytes: int
    name: str
    features: frozenset[str]
    shared_memory_bytes: int = 0


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
        shared_memory_bytes=_measure_shared(root / "dev/shm"),
    )


def _measure_shared(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def measure_usable_ram(limits: Cgroups, kept_bytes: int = 0) -> tuple[int, int]:
    """Return total and available memory in bytes, within the limits of the control groups.

    `kept_bytes` of the page cache are mapped weights, which do not count as available. A group
    counts the pages that it was the first to read: those of another group cost it nothing.

    The system's own figure, MemAvailable, counts active and inactive pages of files alike, and is
    short by the low watermarks only (`si_mem_available` in Linux's mm/show_mem.c), so it stands as
    it is. With LXCFS it is the container's already, and the smaller of both counts.
    """
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available - kept_bytes
    if limits.memory_bytes is not None:
        total = min(total, limits.memory_bytes)
        kept_here = min(kept_bytes, limits.memory_cached_bytes)
        available = min(available, limits.memory_free_bytes - kept_here)
    return total, max(0, available)


def read_affinity() -> frozenset[int]:
    """Return the logical cores that the kernel may run this process on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def count_physical_cores(allowed: frozenset[int], root: Path = Path("/")) -> int:
    """Return how many of the cores can compute at full speed at the same time.

    Two hyperthreads count as one core. The efficiency cores of a hybrid Intel CPU do not count,
    because threads that synchronize are as fast as the slowest. Linux reports both under
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
    """Parse a quota and its period, as in cgroup v2's `cpu.max`; return cores, None without one.

    No quota is `max`, or with v1 -1.
    """
    match text.split():
        case [quota, period] if quota.isdigit() and period.isdigit() and int(period):
            return int(quota) / int(period)
    return None


def parse_memory_limit(text: str) -> int | None:
    """Parse cgroup `memory.max` (v2) or `memory.limit_in_bytes` (v1); None without a limit."""
    value = text.strip()
    return int(value) if value.isdigit() and int(value) < UNLIMITED_BYTES else None


def parse_page_cache(text: str) -> tuple[int, int]:
    """Parse from `memory.stat` the bytes of clean page cache, which the kernel can drop at once,
    and of what still has to be written.

    Pages of files count, active or not; those of tmpfs are anonymous there. In v1 the figures with
    `total_` are those of the group with all below it, as its usage is; v2 has no others (Linux's
    Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst).
    """
    rows = (line.split() for line in text.splitlines())
    stat = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}

    def find(*names: str) -> int:
        return next((stat[name] for name in names if name in stat), 0)

    cached = sum(find(f"total_{name}", name) for name in ("inactive_file", "active_file"))
    unwritten = sum(find(f"total_{name}", f"file_{name}") for name in ("dirty", "writeback"))
    unwritten = min(cached, unwritten)
    return cached - unwritten, unwritten


def parse_self_cgroup(text: str) -> dict[str, str]:
    """Parse `/proc/self/cgroup`: controller → path, with "" for the unified (v2) hierarchy."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.strip().split(":", 2)
        if len(parts) == 3:
            paths.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return paths


def read_cgroup(root: Path = Path("/")) -> Cgroups:
    """Return the tightest limits between this process's control group and the root."""
    mount = root / "sys/fs/cgroup"
    paths = parse_self_cgroup(_read(root / "proc/self/cgroup") or "")
    if (mount / "cgroup.controllers").exists():
        folders = _list_ancestors(mount, paths.get("", "/"))
        return _read_limits(folders, ("cpu.max",), folders, "memory.max", "memory.current")
    cpu = _list_ancestors(mount / "cpu", paths.get("cpu", "/"))
    memory = _list_ancestors(mount / "memory", paths.get("memory", "/"))
    quota = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    return _read_limits(cpu, quota, memory, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _read_limits(
    cpu: list[Path], quota: tuple[str, ...], memory: list[Path], limit: str, usage: str
) -> Cgroups:
    """Return the smallest quota and memory limit, and what the fullest group has left.

    `cpu` and `memory` are folders; `quota`, `limit` and `usage` are names of files in them.
    """
    texts = (" ".join(_read(folder / name) or "" for name in quota) for folder in cpu)
    cores = [cores for text in texts if (cores := parse_cpu_max(text)) is not None]
    limits: list[int] = []
    left: list[tuple[int, int, int]] = []
    for folder in memory:
        if (most := parse_memory_limit(_read(folder / limit) or "")) is not None:
            used = parse_memory_limit(_read(folder / usage) or "") or 0
            clean, unwritten = parse_page_cache(_read(folder / "memory.stat") or "")
            limits.append(most)
            left.append((max(0, min(most, most - used + clean)), clean, unwritten))
    free, cached, unwritten = min(left, default=(0, 0, 0))
    return Cgroups(
        cores=min(cores, default=None),
        memory_bytes=min(limits, default=None),
        memory_free_bytes=free,
        memory_cached_bytes=cached,
        memory_unwritten_bytes=unwritten,
    )


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
