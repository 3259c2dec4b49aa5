"""Process trees as psutil sees them: who is below, who is in a session, signals, memory.

Knows no guard and no event loop; every function blocks for the milliseconds that a scan of the
process table takes. A `psutil.Process` is an identity (pid and start time): a signal to one never
reaches a stranger that got the same pid.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil


def process(pid: int) -> psutil.Process | None:
    """Return the living process `pid`, if there is one."""
    try:
        found = psutil.Process(pid)
    except psutil.Error:
        return None
    return found if alive(found) else None


def list_below(root: psutil.Process) -> list[psutil.Process]:
    """Return the descendants of `root`, without itself."""
    try:
        return root.children(recursive=True)
    except psutil.Error:
        return []


def list_session(leader: int) -> list[psutil.Process]:
    """Return the living members of the session that `leader` made."""
    members = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == leader and (found := process(pid)) is not None:
                members.append(found)
        except OSError:
            continue
    return members


def told_of(folder: Path) -> list[psutil.Process]:
    """Return the living processes of whose environment a variable is `folder`.

    That of their start: a process that has left its tree, and its session, still has it.
    """
    found = []
    for proc in psutil.process_iter():
        try:
            if str(folder) in proc.environ().values() and alive(proc):
                found.append(proc)
        except (psutil.Error, OSError):  # another user's
            continue
    return found


def alive(proc: psutil.Process) -> bool:
    """Tell whether it still runs (a zombie does not)."""
    try:
        return proc.is_running() and proc.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def signal_tree(group: int, procs: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Signal the group first, then those of `procs` outside of it, once each.

    The group comes first because a tree walk alone misses the children of a process that forks
    quickly (measured: survivors in 10 of 10 runs).
    """
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass
    for proc in procs:
        try:
            if os.getpgid(proc.pid) != group:
                proc.send_signal(number)
        except (OSError, psutil.Error):
            continue


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Memory of a tree. `file_bytes` of `ram_bytes` are pages of files: the system counts those as
    available although the tree needs them (mapped weights). `pids` tell it to a GPU's driver.
    `whole` False: the process at the top has ended, and this is only what is left of the tree.
    """

    ram_bytes: int = 0
    file_bytes: int = 0
    pids: frozenset[int] = frozenset()
    whole: bool = True


def measure_footprint(procs: Iterable[psutil.Process], top: int | None = None) -> Footprint:
    """Measure `procs`: shared pages count in parts (Linux), elsewhere once per process.

    `top` is the pid of the process without which the tree is not whole.
    """
    ram_bytes, file_bytes, pids = 0, 0, set()
    for proc in procs:
        try:
            whole, of_files = _memory(proc)
        except (psutil.Error, OSError):
            continue
        if not whole:  # it has ended, and waits to be reaped
            continue
        ram_bytes += whole
        file_bytes += of_files
        pids.add(proc.pid)
    return Footprint(
        ram_bytes=ram_bytes,
        file_bytes=file_bytes,
        pids=frozenset(pids),
        whole=top is None or top in pids,
    )


def _memory(proc: psutil.Process) -> tuple[int, int]:
    """Return (all, of files) in bytes, from Linux's `smaps_rollup` (lines `Pss_File: 12 kB`)."""
    try:
        text = Path(f"/proc/{proc.pid}/smaps_rollup").read_text()
    except OSError:
        return proc.memory_info().rss, 0
    sizes = {name: rest.split() for name, _, rest in map(_split, text.splitlines()[1:])}
    if "Pss" not in sizes:
        return proc.memory_info().rss, 0
    return _kilobytes(sizes["Pss"]), _kilobytes(sizes.get("Pss_File", ["0"]))


def _split(line: str) -> tuple[str, str, str]:
    return line.partition(":")


def _kilobytes(words: list[str]) -> int:
    return int(words[0]) * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What a tree has done since it began: seconds of CPU, bytes read from disks."""

    cpu_s: float = 0.0
    read_bytes: int = 0


def measure_activity(procs: Iterable[psutil.Process]) -> Activity:
    """Sum up what `procs` have done; bytes are 0 where the system does not tell."""
    cpu_s, read_bytes = 0.0, 0
    for proc in procs:
        try:
            times = proc.cpu_times()
            cpu_s += times.user + times.system
            if hasattr(proc, "io_counters"):
                read_bytes += proc.io_counters().read_bytes
        except psutil.Error:
            continue
    return Activity(cpu_s=cpu_s, read_bytes=read_bytes)


def oom_kills() -> int | None:
    """Return how often the kernel has killed for want of memory since boot; None: not told.

    Linux: `oom_kill` of /proc/vmstat, which counts those within cgroups too.
    """
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    counts = (line.split() for line in lines if line.startswith("oom_kill "))
    return next((int(count) for _, count in counts), None)
