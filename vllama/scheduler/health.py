"""The health of engines: those that hang are found, those that fail get no requests for a while.

Traffic proves that an engine is alive; silence is examined. `HangDetector` judges one endpoint and
is pure; `HealthMonitor` measures, probes and acts. With S for `hang_s`, an engine counts as hung
when

* its health check has failed and it has sent no byte for S seconds; or
* an answer that has begun has been silent for S seconds while the engine was idle (no CPU time, no
  reading), for 4 S while its other answers made progress (an engine that is short of cache defers
  some of them that long), or for 10 S in any case; or
* an answer has not begun for S seconds while the engine was idle and uses no GPU.

A long prompt meets none of these conditions, because it keeps a CPU busy. With a GPU the processor
may be idle during a long prompt, so the third condition is for CPU engines only. An answer that is
silent because its client does not read is not judged.

The answers of a hung engine end with the cause, and the engine is restarted as after a crash. Of a
server elsewhere nothing can be measured: an answer that has begun and is silent for S ends alone.

Where several endpoints have a model, requests go to the others when one has failed, until a probe
of it succeeds (`Recovery`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from contextvars import Context
from typing import TYPE_CHECKING

from vllama.base import executors
from vllama.base.clock import wait_for
from vllama.base.errors import UpstreamError, VllamaError
from vllama.net.upstream.connection import Progress
from vllama.supervise.spec import Endpoint
from vllama.supervise.tree import TreeWork
from vllama.targets.choice import PROBED_MOST_S, Breakers, describe_failure

if TYPE_CHECKING:
    from vllama.scheduler.hooks import Hooks, Part
    from vllama.scheduler.instance import Instance, Key
    from vllama.scheduler.state import Table

log = logging.getLogger(__name__)

CHECKS = 6  # in each `hang_s`
MIN_PROBE_S = 1.0
IDLE_SHARE = 0.1  # of a core
FACTOR_WITH_OTHERS, FACTOR_ALWAYS = 4, 10  # of `hang_s`


class HangDetector:
    """The observations of one endpoint, and the verdict. Times in seconds, monotonic."""

    def __init__(self, hang_s: float, now_s: float, *, uses_gpu: bool) -> None:
        self.hang_s = hang_s
        self._uses_gpu = uses_gpu
        self._answers: dict[int, tuple[Progress, float]] = {}
        self._alive_s = now_s
        self._progress_s = -math.inf
        self._failing_since_s: float | None = None
        self._activity: tuple[TreeWork, float] | None = None
        self._idle_since_s: float | None = None

    def add_progress(self, answers: Mapping[int, Progress], now_s: float) -> None:
        """Add the progress of all answers, by number."""
        seen = {}
        for number, answer in answers.items():
            before, at_s = self._answers.get(number, (None, now_s))
            progressed = before is not None and before.mark != answer.mark
            if progressed:
                self._alive_s, self._failing_since_s = now_s, None
                self._activity = self._idle_since_s = None
                self._progress_s = now_s
            seen[number] = (answer, now_s if progressed or answer.held else at_s)
        self._answers = seen

    def needs_probe(self, now_s: float) -> bool:
        """Return whether to probe the engine: it has sent nothing since the last check.

        An engine without requests is probed less often.
        """
        silent_s = now_s - self._alive_s
        if self._answers or self._failing_since_s is not None:
            return silent_s > 0
        return silent_s >= self.hang_s / 2

    def add_probe(self, activity: TreeWork | None, *, alive: bool, now_s: float) -> None:
        """Add the result of a health check, and the engine's CPU time and reads so far."""
        if alive:
            self._alive_s, self._failing_since_s = now_s, None
        elif self._failing_since_s is None:
            self._failing_since_s = self._alive_s
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

    def list_stalled(self, now_s: float) -> list[int]:
        """Return the answers with tokens that will have been silent for `hang_s` by the next check.

        Times are those of checks, so the silence has begun before.
        """
        limit_s = self.hang_s * (CHECKS - 1) / CHECKS
        return [
            number
            for number, (answer, at_s) in self._answers.items()
            if answer.has_tokens and not answer.held and now_s - at_s >= limit_s
        ]

    def judge(self, now_s: float) -> str | None:
        """Return why the engine counts as hung, or None."""
        hang_s = self.hang_s
        if self._failing_since_s is not None and now_s - self._failing_since_s >= hang_s:
            return f"no response to its health check for {hang_s:g} s"
        idle_s = 0.0 if self._idle_since_s is None else now_s - self._idle_since_s
        for answer, at_s in self._answers.values():
            silent_s = now_s - at_s
            if answer.held or silent_s < hang_s:
                continue
            if answer.begun:
                others_progress = self._progress_s > at_s
                limit_s = hang_s * (FACTOR_WITH_OTHERS if others_progress else FACTOR_ALWAYS)
                if idle_s >= hang_s or silent_s >= limit_s:
                    return f"no token for {silent_s:.0f} s in the middle of a response"
            elif idle_s >= hang_s and not self._uses_gpu:
                return f"no response started for {silent_s:.0f} s, and it is idle"
        return None


class HealthMonitor:
    """Checks all engines that serve."""

    def __init__(self, table: Table, hooks: Hooks) -> None:
        self._table = table
        self._hooks = hooks
        self._detectors: dict[Endpoint, HangDetector] = {}
        self._limits_changed = asyncio.Event()

    def update_limits(self) -> None:
        """Apply a new `hang_s` at once."""
        self._limits_changed.set()

    async def run(self) -> None:
        """Check at intervals until canceled; never, while `hang_s` is infinite."""
        while True:
            hang_s = self._table.limits.hang_s
            self._limits_changed.clear()
            if not await wait_for(self._limits_changed, hang_s / CHECKS):
                await self.check()

    async def check(self) -> None:
        """Check every endpoint once, concurrently."""
        seen: list[Endpoint] = []
        checks = []
        for instance in self._table.list_all():
            if not instance.loaded or instance.sleeping or instance.process is None:
                continue
            for part in instance.process.parts:
                for endpoint in part.endpoints:
                    seen.append(endpoint)
                    checks.append(self._check_endpoint(instance, part, endpoint))
        for endpoint in self._detectors.keys() - set(seen):
            del self._detectors[endpoint]
        await asyncio.gather(*checks)

    async def _check_endpoint(self, instance: Instance, part: Part, endpoint: Endpoint) -> None:
        clock, hang_s = self._table.clock, self._table.limits.hang_s
        detector = self._detectors.get(endpoint)
        if detector is None:
            plan = instance.plan
            detector = self._detectors[endpoint] = HangDetector(
                hang_s, clock.monotonic(), uses_gpu=bool(plan and plan.memory.on_gpu)
            )
        detector.hang_s = hang_s
        now_s, progress = clock.monotonic(), self._hooks.read_progress(endpoint)
        detector.add_progress(progress, now_s)
        if endpoint.is_elsewhere and (stalled := detector.list_stalled(now_s)):
            reason = f"no token from {endpoint.title} for {hang_s:g} s"
            self._hooks.abort_answers(endpoint, f"{reason} in the middle of a response", stalled)
        if detector.needs_probe(now_s):
            activity = await executors.upkeep.run(part.measure_activity) if progress else None
            alive = await part.check_health(endpoint, max(MIN_PROBE_S, hang_s / CHECKS))
            if endpoint not in part.endpoints:
                return  # the engine has ended meanwhile, or is being stopped
            # bytes that arrived during the probe are a sign of life too
            now_s = clock.monotonic()
            detector.add_progress(self._hooks.read_progress(endpoint), now_s)
            detector.add_probe(activity, alive=alive, now_s=now_s)
        cause = detector.judge(now_s)
        if cause is None:
            return
        cause = f"{endpoint.title} hangs: {cause}"  # logged by whoever ends the engine for it
        self._hooks.abort_answers(endpoint, cause, None)
        part.declare_unhealthy(endpoint, cause)


TICK_S = 0.25
BUSY_STATUS, SLOW_STATUS = 429, 504


class Recovery:
    """Opens the breakers of endpoints, and closes them after a probe."""

    def __init__(self, table: Table, hooks: Hooks) -> None:
        self._table = table
        self._hooks = hooks
        self._breakers: Breakers[tuple[Key, Endpoint]] = Breakers(table.clock)
        self._group: asyncio.TaskGroup | None = None
        self._failing: set[tuple[Key, Endpoint]] = set()  # each has a task that probes it

    def find_trouble(self, key: Key, endpoint: Endpoint) -> str:
        """Return why `endpoint` gets no requests for an instance; empty if it is healthy."""
        if reason := self._breakers.find_reason((key, endpoint)):
            return f"{endpoint.title} gets no requests until a probe succeeds: {reason}"
        if trouble := self._hooks.find_trouble(endpoint):
            return f"{endpoint.title} gets no requests: {trouble}"
        return ""

    def note_failure(self, instance: Instance, endpoint: Endpoint, error: VllamaError) -> None:
        """Give `endpoint` no requests until a probe succeeds.

        A single engine here gets them all the same, so nothing is noted of it.
        """
        places = instance.process.endpoints if instance.process else ()
        if not endpoint.is_elsewhere and len(places) < 2:
            return
        target = (instance.key, endpoint)
        if not self._breakers.find_reason(target):
            log.warning("%s at %s failed: %s", endpoint.title, endpoint.url, error.message)
        answer = error if isinstance(error, UpstreamError) else UpstreamError("")
        self._breakers.note_failure(
            target,
            slow=answer.status == SLOW_STATUS,
            reason=describe_failure(error),
            most_s=PROBED_MOST_S,
            wait_s=answer.retry_after_s if answer.status == BUSY_STATUS else 0.0,
        )
        if target not in self._failing and self._group is not None:
            self._failing.add(target)
            # a fresh context: a probe is no part of the request that has failed
            probing = self._recover(target)
            self._group.create_task(probing, name=f"probe {instance.key}", context=Context())

    async def run(self) -> None:
        """Probe what fails until canceled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None

    async def _recover(self, target: tuple[Key, Endpoint]) -> None:
        """Probe a target after each of its pauses, until it is well or gone."""
        key, endpoint = target
        while True:
            await asyncio.sleep(TICK_S)
            instance = self._table.instances.get(key)
            if instance is None or instance.find_part(endpoint) is None:
                if instance is None or not endpoint.is_elsewhere:
                    break  # an engine here that is restarted has another endpoint
            elif instance.traits is not None and self._breakers.admit(target):
                model = endpoint.model or instance.traits.model_name or instance.bundle.name
                error = await self._hooks.probe(endpoint, model, key.mode)
                if error is None:
                    log.info("%s at %s responds again", endpoint.title, endpoint.url)
                    break
                self.note_failure(instance, endpoint, error)
        self._breakers.note_success(target)
        self._failing.discard(target)
        if instance is not None:
            instance.wake.set()  # requests may wait for the room that it has
