"""Do other programs take the cores that an engine computes on?

Threads that compute together wait for each other after every step, so that one busy core beside
them slows all of them down, far more than one thread fewer would (`plan.threads`). What counts is
the time in which an engine had requests: CPU time that others used then. If it was too much for
`ENOUGH_S`, the engine is loaded again with as many threads as there were cores left; if there was
room again for all of them for `CALM_S`, with all.

`Watch` judges one engine and is pure; `Contention` looks and acts. A model that is busy is loaded
again when it falls idle, or, if it does not for `PATIENCE_S`, as soon as its requests are over. One
that took longer than `LONGEST_LOAD_S` to load stays as it is, and so does one whose threads
somebody asked for.
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
    from vllama.scheduler.instance import Instance
    from vllama.scheduler.state import Hooks, Table

log = logging.getLogger(__name__)

LOOK_S = 1.0
LEAST_WORK = 0.9  # of the time between two looks, or nothing is learnt from it
SLACK_CORES = 0.5  # used by others beside as many threads as cores: not worth a load
CALM_CORES = 0.25
ENOUGH_S, CALM_S = 2.0, 10.0
PATIENCE_S = 30.0
LONGEST_LOAD_S = 10.0


@dataclass(slots=True)
class Watch:
    """What was seen of one engine that generates with `threads` of at most `most` threads.

    `contended_s` and `calm_s` are how long it has worked beside too many others, or beside few
    enough for `most` threads, without a break; `free` is how many cores they left it at the last
    look. Times in seconds, monotonic.
    """

    threads: int
    most: int
    contended_s: float = 0.0
    calm_s: float = 0.0
    free: float = math.inf
    wanted_since_s: float = math.inf
    last: CpuTime | None = None
    last_worked_s: float = 0.0
    last_look_s: float = 0.0

    def see(self, now: CpuTime | None, worked_s: float, now_s: float) -> None:
        """Take in the CPU time so far, and for how long it has had requests in its life."""
        before, passed_s = self.last, now_s - self.last_look_s
        busy_s = worked_s - self.last_worked_s
        self.last, self.last_worked_s, self.last_look_s = now, worked_s, now_s
        if now is None or before is None or passed_s <= 0 or busy_s < LEAST_WORK * passed_s:
            return
        others = (now.all_s - before.all_s - (now.own_s - before.own_s)) / passed_s
        self.free = now.cores - others
        contended = self.free < self.threads - SLACK_CORES
        calm = self.free >= self.most - CALM_CORES
        self.contended_s = self.contended_s + busy_s if contended else 0.0
        self.calm_s = self.calm_s + busy_s if calm else 0.0
        if self.wanted is None:
            self.wanted_since_s = math.inf
        else:
            self.wanted_since_s = min(self.wanted_since_s, now_s)

    @property
    def wanted(self) -> int | None:
        """How many threads would be better from now on; None: as many as there are."""
        if self.threads > 1 and self.contended_s >= ENOUGH_S:
            return min(self.threads - 1, max(1, math.floor(self.free + CALM_CORES)))
        if self.threads < self.most and self.calm_s >= CALM_S:
            return self.most
        return None


class Contention:
    """Looks at the engines that work on the CPU, and has them loaded again where that helps.

    `reload` loads an instance again, with at most so many threads.
    """

    def __init__(
        self, table: Table, hooks: Hooks, reload: Callable[[Instance, int, str], None]
    ) -> None:
        self._table = table
        self._hooks = hooks
        self._reload = reload
        self._watches: WeakKeyDictionary[Instance, Watch] = WeakKeyDictionary()

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Look at every engine once, and act."""
        now_s = self._table.clock.monotonic()
        for instance in list(self._table.instances.values()):
            plan, process = instance.plan, instance.process
            if not instance.ready or plan is None or process is None or process.pid is None:
                continue
            if plan.most_threads in (None, 1) or instance.load_s > LONGEST_LOAD_S:
                continue
            watch = self._watches.get(instance)
            if watch is None:
                assert plan.most_threads is not None
                watch = Watch(threads=plan.settings.threads, most=plan.most_threads)
                self._watches[instance] = watch
            worked_s = instance.worked_s(now_s)
            if worked_s > watch.last_worked_s:  # an idle engine costs no look at the system
                watch.see(self._hooks.cpu_time(process.pid), worked_s, now_s)
            else:
                watch.last = None
            waited_s = now_s - watch.wanted_since_s
            if watch.wanted and (not instance.busy or waited_s >= PATIENCE_S):
                self._act(instance, watch, watch.wanted)

    def _act(self, instance: Instance, watch: Watch, wanted: int) -> None:
        if wanted < watch.threads:
            why = f"other programs leave it {max(0.0, watch.free):.1f} cores"
        else:
            why = "the cores are free again"
        plural = "" if wanted == 1 else "s"
        self._reload(instance, wanted, f"{why}: it goes on with {wanted} thread{plural}")
