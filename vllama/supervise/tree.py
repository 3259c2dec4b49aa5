"""Process trees as psutil sees them: who is below, who is in a session, signals, memory.

Knows no guard and no event loop; every function blocks for the milliseconds that a scan of the
process table takes. A `psutil.Process` is an identity (pid and start time): a signal to one never
reaches a stranger that got the same pid.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

import psutil


def process(pid: int) -> psutil.Process | None:
    """Return the living process `pid`, if there is one."""
    try:
        found = psutil.Process(pid)
    except psutil.Error:
        return None
    return found if alive(found) else None


def below(root: psutil.Process) -> list[psutil.Process]:
    """Return the descendants of `root`, without itself."""
    try:
        return root.children(recursive=True)
    except psutil.Error:
        return []


def session(leader: int) -> list[psutil.Process]:
    """Return the living members of the session that `leader` made."""
    members = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == leader and (found := process(pid)) is not None:
                members.append(found)
        except OSError:
            continue
    return members


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


def rss_bytes(procs: Iterable[psutil.Process]) -> int:
    """Return the sum of resident memory; shared pages count once per process."""
    total_bytes = 0
    for proc in procs:
        try:
            total_bytes += proc.memory_info().rss
        except psutil.Error:
            continue
    return total_bytes
