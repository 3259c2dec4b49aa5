"""Do the engines that serve still live? Their traffic proves it; only silence is looked into.

`HangDetector` judges one endpoint and is pure; `Health` looks, asks and acts. An engine counts as
hung, with S for `hang_s`, when

* its health check has failed, and no byte has come from it, for S seconds; or
* an answer that had begun has been silent for S seconds and the engine does nothing (no CPU, no
  reading), or for 4 S while other answers of it went on (an engine that is short of cache puts
  some off that long), or for 10 S in any case; or
* an answer has not begun for S seconds and the engine, which uses no GPU, does nothing.

A long prompt is none of these: it keeps a CPU busy. A client that does not read makes its own
answer silent: that one does not count. Then the answers are cut with the cause, and the engine is
restarted as after a crash.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vllama.supervise.spec import Endpoint
from vllama.supervise.tree import Activity
from vllama.upstream.connection import Progress

if TYPE_CHECKING:
    from vllama.scheduler.instance import Instance, Part
    from vllama.scheduler.state import Hooks, Table

log = logging.getLogger(__name__)

LOOKS = 6  # in `hang_s`
LEAST_PROBE_S = 1.0
IDLE_SHARE = 0.1  # of a core
WITH_OTHERS, IN_ANY_CASE = 4, 10  # times `hang_s`


class HangDetector:
    """What was seen of one endpoint, and the judgement on it. Times in seconds, monotonic."""

    def __init__(self, hang_s: float, now_s: float, *, uses_gpu: bool) -> None:
        self.hang_s = hang_s
        self._uses_gpu = uses_gpu
        self._moved: dict[int, tuple[Progress, float]] = {}
        self._proved_s = now_s
        self._went_on_s = -math.inf
        self._sick_since_s: float | None = None
        self._activity: tuple[Activity, float] | None = None
        self._idle_since_s: float | None = None

    def see(self, answers: Mapping[int, Progress], now_s: float) -> None:
        """Take in how far the answers are now."""
        moved = {}
        for number, answer in answers.items():
            before, at_s = self._moved.get(number, (None, now_s))
            went_on = before is not None and before.mark != answer.mark
            if went_on:
                self._proved_s, self._sick_since_s = now_s, None
                self._activity = self._idle_since_s = None
                self._went_on_s = now_s
            moved[number] = (answer, now_s if went_on or answer.held else at_s)
        self._moved = moved

    def doubtful(self, now_s: float) -> bool:
        """Tell whether it has to be asked: nothing has come from it since the last look.

        One that has nothing to do is asked less often.
        """
        silent_s = now_s - self._proved_s
        if self._moved or self._sick_since_s is not None:
            return silent_s > 0
        return silent_s >= self.hang_s / 2

    def asked(self, activity: Activity | None, *, alive: bool, now_s: float) -> None:
        """Take in how it answered its health check, and what it has done so far."""
        if alive:
            self._proved_s, self._sick_since_s = now_s, None
        elif self._sick_since_s is None:
            self._sick_since_s = self._proved_s
        before, self._activity = self._activity, (activity, now_s) if activity else None
        if activity is None or before is None:
            self._idle_since_s = None
            return
        last, at_s = before
        worked = activity.cpu_s - last.cpu_s > IDLE_SHARE * (now_s - at_s)
        if worked or activity.read_bytes != last.read_bytes:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = at_s

    def verdict(self, now_s: float) -> str | None:
        """Return why it counts as hung, or None."""
        hang_s = self.hang_s
        if self._sick_since_s is not None and now_s - self._sick_since_s >= hang_s:
            return f"it has not answered its health check for {hang_s:g} s"
        idle_s = 0.0 if self._idle_since_s is None else now_s - self._idle_since_s
        for answer, at_s in self._moved.values():
            silent_s = now_s - at_s
            if answer.held or silent_s < hang_s:
                continue
            if answer.begun:
                others_go_on = self._went_on_s > at_s
                limit_s = hang_s * (WITH_OTHERS if others_go_on else IN_ANY_CASE)
                if idle_s >= hang_s or silent_s >= limit_s:
                    return f"no token has come for {silent_s:.0f} s in the midst of an answer"
            elif idle_s >= hang_s and not self._uses_gpu:
                return f"no answer has begun for {silent_s:.0f} s, and it does nothing"
        return None


class Health:
    """Looks at all engines that serve, as long as there are any."""

    def __init__(self, table: Table, hooks: Hooks) -> None:
        self._table = table
        self._hooks = hooks
        self._detectors: dict[Endpoint, HangDetector] = {}
        self._limits_changed = asyncio.Event()

    def limits_changed(self) -> None:
        """Hear that `hang_s` may be another."""
        self._limits_changed.set()

    async def run(self) -> None:
        """Look again and again until cancelled, as long as anything is to be looked for."""
        while True:
            hang_s = self._table.limits.hang_s
            self._limits_changed.clear()
            try:
                async with asyncio.timeout(None if math.isinf(hang_s) else hang_s / LOOKS):
                    await self._limits_changed.wait()
            except TimeoutError:
                await self.look()

    async def look(self) -> None:
        """Look at every endpoint once, side by side."""
        seen: list[Endpoint] = []
        looks = []
        for instance in self._table.all():
            if not instance.loaded or instance.sleeping or instance.process is None:
                continue
            for part in instance.process.parts:
                for endpoint in part.endpoints:
                    seen.append(endpoint)
                    looks.append(self._look(instance, part, endpoint))
        for endpoint in self._detectors.keys() - set(seen):
            del self._detectors[endpoint]
        await asyncio.gather(*looks)

    async def _look(self, instance: Instance, part: Part, endpoint: Endpoint) -> None:
        clock, hang_s = self._table.clock, self._table.limits.hang_s
        detector = self._detectors.get(endpoint)
        if detector is None:
            plan = instance.plan
            detector = self._detectors[endpoint] = HangDetector(
                hang_s, clock.monotonic(), uses_gpu=bool(plan and plan.memory.on_gpu)
            )
        detector.hang_s = hang_s
        now_s, traffic = clock.monotonic(), self._hooks.traffic(endpoint)
        detector.see(traffic, now_s)
        if detector.doubtful(now_s):
            activity = await asyncio.to_thread(part.activity) if traffic else None
            alive = await part.answers(endpoint, max(LEAST_PROBE_S, hang_s / LOOKS))
            if endpoint not in part.endpoints:
                return  # it has ended meanwhile, or is being stopped
            # what has come while it was asked proves it too
            now_s = clock.monotonic()
            detector.see(self._hooks.traffic(endpoint), now_s)
            detector.asked(activity, alive=alive, now_s=now_s)
        cause = detector.verdict(now_s)
        if cause is None:
            return
        log.warning("%s hangs: %s", instance.bundle.name, cause)
        cause = f"the engine hangs: {cause}"
        self._hooks.cut(endpoint, cause)
        part.condemn(endpoint, cause)
