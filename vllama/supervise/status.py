"""The status of a supervised process; only its owner (`supervisor`) sets it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Self

from vllama.base.clock import Clock
from vllama.base.errors import Busy, CoolingDown, EngineCrashed, EngineStartFailed
from vllama.supervise.attempt_run import AttemptRun
from vllama.supervise.logs import LogRing
from vllama.supervise.probe import http_status
from vllama.supervise.spec import Attempt, Diagnosis, Endpoint, Exit, State
from vllama.supervise.tree import Footprint, TreeWork

_MAX_ATTEMPTS = 20


class Attempts:
    """The latest attempts; the last of them may be running."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._attempts: deque[Attempt] = deque(maxlen=_MAX_ATTEMPTS)
        self.diagnosis: Diagnosis | None = None
        self._began_s = 0.0
        self._ready_s: float | None = None
        self.ever_ready = False

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The attempts, oldest first."""
        return tuple(self._attempts)

    def begin(self, number: int, log_path: Path) -> None:
        """Begin an attempt."""
        self._began_s, self._ready_s = self._clock.monotonic(), None
        started_s = self._clock.time()
        self._attempts.append(Attempt(number=number, started_s=started_s, log_path=log_path))

    def record_pid(self, pid: int) -> None:
        """Record the engine's pid."""
        self._attempts[-1] = replace(self._attempts[-1], pid=pid)

    def record_ready(self) -> None:
        """Record that the process serves."""
        self.ever_ready = True
        self._ready_s = self._clock.monotonic()
        self._attempts[-1] = replace(self._attempts[-1], ready_s=self._clock.time())

    def compute_durations(self) -> tuple[float, float]:
        """Return the seconds for which it was starting, and then ready."""
        now_s = self._clock.monotonic()
        ready_s = now_s if self._ready_s is None else self._ready_s
        return ready_s - self._began_s, now_s - ready_s

    def record_end(self, ended: Exit | None, diagnosis: Diagnosis | None) -> None:
        """Record how it ended, and why unless it was stopped. Later calls add to earlier ones."""
        if diagnosis is not None:
            self.diagnosis = diagnosis
        if not self._attempts:
            return
        last = self._attempts[-1]
        self._attempts[-1] = replace(
            last,
            ended_s=self._clock.time() if last.ended_s is None else last.ended_s,
            exit=ended or last.exit,
            diagnosis=diagnosis or last.diagnosis,
        )


PATIENCE_S = 30.0
"""A request waits that long for a restart, whether its response has begun or not."""


class Status:
    """The state, endpoint and history of one child tree, and waiting for changes."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock
        self._state = State.STOPPED
        self._changed = asyncio.Event()
        self._listener: Callable[[], object] = _nothing
        self._begun = False
        self._over = asyncio.Event()
        self._stop_wanted = False
        self._run: AttemptRun | None = None
        self._endpoint: Endpoint | None = None
        self._logs = LogRing()
        self._history = Attempts(clock)
        self._retry_at_s = 0.0

    @property
    def state(self) -> State:
        """The current state."""
        return self._state

    @property
    def endpoint(self) -> Endpoint | None:
        """The endpoint of a ready process, else None."""
        return self._endpoint

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoint in a tuple, which is empty unless the process is ready."""
        return (self._endpoint,) if self._endpoint else ()

    @property
    def parts(self) -> tuple[Self, ...]:
        """The process itself: it has no replicas."""
        return (self,)

    def subscribe(self, changed: Callable[[], object]) -> None:
        """Call `changed` after every change of state."""
        self._listener = changed

    @property
    def pid(self) -> int | None:
        """The engine's pid, None if it does not run."""
        return self._run.child.pid if self._run is not None else None

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The latest attempts, oldest first, including the running one."""
        return self._history.attempts

    @property
    def last_diagnosis(self) -> Diagnosis | None:
        """Why it last ended unexpectedly."""
        return self._history.diagnosis

    def output(self) -> LogRing:
        """Return the lines of the latest attempt, including all that have been written so far.

        Reads the log file at once, which takes some 50 µs for a few lines. Raises OSError.
        """
        if self._run is not None:
            self._run.read_output()
        return self._logs

    def measure_footprint(self) -> Footprint:
        """Measure the memory of the tree; blocks for milliseconds, so call it in a thread."""
        run = self._run
        return run.child.measure_footprint() if run is not None else Footprint(whole=False)

    def measure_activity(self) -> TreeWork | None:
        """Return the CPU time and reads of the tree; blocks, so call it in a thread."""
        run = self._run
        return run.child.measure_activity() if run is not None else None

    async def check_health(self, endpoint: Endpoint, limit_s: float) -> bool:
        """Return whether the engine's health check answers within `limit_s`."""
        run = self._run
        if run is None or run.spec.endpoint != endpoint:
            return False
        probe = run.spec.probe
        status = await http_status(endpoint, probe.path, timeout_s=limit_s)
        return status is not None and status < 500

    async def ensure_ready(self) -> Endpoint:
        """Return the endpoint as soon as the process serves; without suspending if it does now.

        Waits during a start, and during a short backoff. Raises CoolingDown during a longer one,
        EngineStartFailed or EngineCrashed with the cause if it has failed for good, and Busy if it
        was stopped.
        """
        while self._endpoint is None:
            remaining_s = self._retry_at_s - self._clock.monotonic()
            if self._state is State.FAILED:
                raise self._make_failure()
            if self._over.is_set() or (self._stop_wanted and not self._begun):
                raise Busy(f"cannot use {self.name}: it was stopped", hint="try again")
            if self._state is State.BACKOFF and remaining_s > PATIENCE_S:
                raise CoolingDown(
                    self._explain(),
                    retry_after_s=remaining_s,
                    hint=f"try again in {remaining_s:.0f} s",
                )
            await self._changed.wait()
        return self._endpoint

    # --- for the owner -------------------------------------------------------------------

    def _enter(self, state: State) -> None:
        """Change the state, wake all waiting tasks, and notify the listener."""
        self._state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._listener()

    def _explain(self) -> str:
        diagnosis = self._history.diagnosis
        verb = "keep" if self._history.ever_ready else "start"
        cause = diagnosis.cause if diagnosis else "unknown cause"
        return f"cannot {verb} {self.name}{' running' if verb == 'keep' else ''}: {cause}"

    def _make_failure(self) -> EngineCrashed | EngineStartFailed:
        diagnosis = self._history.diagnosis
        kind = EngineCrashed if self._history.ever_ready else EngineStartFailed
        return kind(self._explain(), hint=diagnosis.hint if diagnosis else None)


def _nothing() -> None:
    """Do nothing; the default listener."""
