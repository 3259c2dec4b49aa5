# SPDX-License-Identifier: MIT
"""CPU and memory of a process tree: /proc on Linux, psutil elsewhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        try:
            for task in Path(f"/proc/{found[-1]}/task").iterdir():
                todo += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            pass  # it has ended
    return found


def usage(pid: int) -> tuple[float, int]:
    """Return CPU seconds (user and system) and resident bytes of a process tree."""
    if sys.platform != "linux":
        return _usage_psutil(pid)
    cpu = pages = 0
    for member in family(pid):
        try:
            for task in Path(f"/proc/{member}/task").iterdir():
                cpu += int(
                    (task / "schedstat").read_text().split()[0]
                )  # ns: finer than stat's ticks
            pages += int(Path(f"/proc/{member}/statm").read_text().split()[1])
        except OSError:
            pass
    return cpu / 1e9, pages * os.sysconf("SC_PAGE_SIZE")


def _usage_psutil(pid: int) -> tuple[float, int]:
    import psutil

    cpu, rss = 0.0, 0
    try:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            times = process.cpu_times()
            cpu += times.user + times.system
            rss += process.memory_info().rss
    except psutil.NoSuchProcess:
        pass
    return cpu, rss
