"""Reload CPU engines with fewer threads while other programs use their cores.

The threads of an engine synchronise after every step. One core that another program keeps busy
therefore slows all of them down, much more than running one thread fewer does (`plan.threads`).
Only the time in which the engine had requests is judged. After `CONTENDED_LIMIT_S` of contention it
is reloaded with as many threads as there were cores left; after `CALM_LIMIT_S` without, with all of
its threads again.

`ContentionMeter` judges one engine and is pure; `Contention` samples and acts. A busy model is
reloaded when it becomes idle, or once it has stayed busy for `PATIENCE_S`, after its running
requests. A model that took longer than `LONGEST_LOAD_S` to load is left alone, and so is one whose
number of threads the user has set.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from vllama.hardware.cpu import CpuTime

if TYPE_CHECKING:
    from vllama.scheduler.hooks import Hooks
    from vllama.scheduler.instance import Instance
    from vllama.scheduler.state import Table

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
MIN_BUSY_SHARE = 0.9  # of the time between two samples; less says nothing about contention
SLACK_CORES = 0.5  # other programs may use this much before a reload is worth it
CALM_CORES = 0.25
CONTENDED_LIMIT_S, CALM_LIMIT_S = 2.0, 10.0
PATIENCE_S = 30.0
LONGEST_LOAD_S = 10.0


@dataclass(slots=True)
class ContentionMeter:
    """Contention of one engine that generates with `threads` of at most `max_threads` threads.

    `contended_s` and `calm_s` are the uninterrupted busy time in which too few cores were free, or
    enough for `max_threads`; `free_cores` is the number at the last sample. Times in seconds,
    monotonic.
    """

    threads: int
    max_threads: int
    contended_s: float = 0.0
    calm_s: float = 0.0
    free_cores: float = math.inf
    wanted_since_s: float = math.inf
    last: CpuTime | None = None
    last_busy_s: float = 0.0
    last_sample_s: float = 0.0

    def add_sample(self, now: CpuTime | None, busy_s: float, now_s: float) -> None:
        """Add a sample: CPU times so far, and how long the engine has had requests in total."""
        before, passed_s = self.last, now_s - self.last_sample_s
        newly_busy_s = busy_s - self.last_busy_s
        self.last, self.last_busy_s, self.last_sample_s = now, busy_s, now_s
        if now is None or before is None or passed_s <= 0:
            return
        if newly_busy_s < MIN_BUSY_SHARE * passed_s:
            return
        others = (now.all_s - before.all_s - (now.own_s - before.own_s)) / passed_s
        self.free_cores = now.cores - others
        contended = self.free_cores < self.threads - SLACK_CORES
        calm = self.free_cores >= self.max_threads - CALM_CORES
        self.contended_s = self.contended_s + newly_busy_s if contended else 0.0
        self.calm_s = self.calm_s + newly_busy_s if calm else 0.0
        if self.wanted_threads is None:
            self.wanted_since_s = math.inf
        else:
            self.wanted_since_s = min(self.wanted_since_s, now_s)

    @property
    def wanted_threads(self) -> int | None:
        """The number of threads that would be faster; None if the present one is right."""
        if self.threads > 1 and self.contended_s >= CONTENDED_LIMIT_S:
            return min(self.threads - 1, max(1, math.floor(self.free_cores + CALM_CORES)))
        if self.threads < self.max_threads and self.calm_s >= CALM_LIMIT_S:
            return self.max_threads
        return None


class Contention:
    """Samples the engines on the CPU, and reloads them where that helps.

    `reload` loads an instance again with at most a number of threads, for a reason.
    """

    def __init__(
        self, table: Table, hooks: Hooks, reload: Callable[[Instance, int, str], None]
    ) -> None:
        self._table = table
        self._hooks = hooks
        self._reload = reload
        self._meters: WeakKeyDictionary[Instance, ContentionMeter] = WeakKeyDictionary()

    async def run(self) -> None:
        """Check all engines at intervals until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            self.check()

    def check(self) -> None:
        """Sample every engine once, and reload those that need another number of threads."""
        now_s = self._table.clock.monotonic()
        for instance in list(self._table.instances.values()):
            plan, process = instance.plan, instance.process
            if not instance.ready or plan is None or process is None or process.pid is None:
                continue
            if plan.most_threads in (None, 1) or instance.load_s > LONGEST_LOAD_S:
                continue
            meter = self._meters.get(instance)
            if meter is None:
                assert plan.most_threads is not None
                meter = ContentionMeter(
                    threads=plan.settings.threads, max_threads=plan.most_threads
                )
                self._meters[instance] = meter
            busy_s = instance.compute_busy_s(now_s)
            if busy_s > meter.last_busy_s:  # no system call for an idle engine
                meter.add_sample(self._hooks.read_cpu_time(process.pid), busy_s, now_s)
            else:
                meter.last = None
            threads, waited_s = meter.wanted_threads, now_s - meter.wanted_since_s
            if threads and (not instance.busy or waited_s >= PATIENCE_S):
                if threads < meter.threads:
                    reason = f"other programs leave it {max(0.0, meter.free_cores):.1f} cores"
                else:
                    reason = "the cores are free again"
                plural = "" if threads == 1 else "s"
                self._reload(
                    instance, threads, f"{reason}: it continues with {threads} thread{plural}"
                )
