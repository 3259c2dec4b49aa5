"""What can be read and awaited of a supervised process; its owner (`supervisor`) changes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from vllama.clock import Clock
from vllama.errors import Busy, CoolingDown, EngineCrashed, EngineStartFailed
from vllama.supervise.attempt_run import Trial
from vllama.supervise.history import History
from vllama.supervise.logs import LogRing
from vllama.supervise.probe import http_status
from vllama.supervise.spec import Attempt, Diagnosis, Endpoint, State
from vllama.supervise.tree import Activity, Footprint

PATIENCE_S = 2.5


class Status:
    """State, endpoint and history of one child tree, and the waits for them to change."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock
        self._state = State.STOPPED
        self._changed = asyncio.Event()
        self._listener: Callable[[], object] = _nothing
        self._begun = False
        self._over = asyncio.Event()
        self._stop_wanted = False
        self._trial: Trial | None = None
        self._endpoint: Endpoint | None = None
        self._logs = LogRing()
        self._history = History(clock)
        self._retry_at_s = 0.0

    @property
    def state(self) -> State:
        """Where in its life it is."""
        return self._state

    @property
    def endpoint(self) -> Endpoint | None:
        """Where it serves; None unless ready."""
        return self._endpoint

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where it serves, as a set of one or none."""
        return (self._endpoint,) if self._endpoint else ()

    @property
    def parts(self) -> tuple[Self, ...]:
        """The processes of which it consists: itself."""
        return (self,)

    def subscribe(self, changed: Callable[[], object]) -> None:
        """Have `changed` called after every change of state."""
        self._listener = changed

    @property
    def pid(self) -> int | None:
        """The engine's pid, None if there is none."""
        return self._trial.child.pid if self._trial is not None else None

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The newest attempts, oldest first, the running one included."""
        return self._history.attempts

    @property
    def last_diagnosis(self) -> Diagnosis | None:
        """Why it last ended unasked."""
        return self._history.diagnosis

    @property
    def logs(self) -> LogRing:
        """The newest lines of the newest attempt."""
        return self._logs

    def output(self) -> LogRing:
        """Return the lines of the newest attempt, with all that was written by now.

        Reads the log on the spot, some 50 µs if little has come. Raises OSError.
        """
        if self._trial is not None:
            self._trial.read_output()
        return self._logs

    def measure_footprint(self) -> Footprint:
        """Measure the engine and all below; for a thread, since it blocks for milliseconds."""
        trial = self._trial
        return trial.child.measure_footprint() if trial is not None else Footprint(whole=False)

    def measure_activity(self) -> Activity | None:
        """Return what the engine and all below have done so far; for a thread as well."""
        trial = self._trial
        return trial.child.measure_activity() if trial is not None else None

    async def check_health(self, endpoint: Endpoint, limit_s: float) -> bool:
        """Ask the engine whether it lives, by its own health check."""
        trial = self._trial
        if trial is None or trial.spec.endpoint != endpoint:
            return False
        probe = trial.spec.probe
        status = await http_status(endpoint, probe.path, timeout_s=limit_s)
        return status is not None and status < 500

    async def ensure_ready(self) -> Endpoint:
        """Return the endpoint as soon as the process serves; without suspending if it does.

        Joins a start, waits out a stop and a short backoff. Raises `CoolingDown` in a longer one,
        `EngineStartFailed` or `EngineCrashed` with the cause if it failed for good, and `Busy` if
        it was stopped.
        """
        while self._endpoint is None:
            remaining_s = self._retry_at_s - self._clock.monotonic()
            if self._state is State.FAILED:
                raise self._failure()
            if self._over.is_set() or (self._stop_wanted and not self._begun):
                raise Busy(f"cannot use {self.name}: it was stopped", hint="Try again.")
            if self._state is State.BACKOFF and remaining_s > PATIENCE_S:
                raise CoolingDown(
                    self._why(),
                    retry_after_s=remaining_s,
                    hint=f"Try again in {remaining_s:.0f} s.",
                )
            await self._changed.wait()
        return self._endpoint

    async def wait_not_ready(self, endpoint: Endpoint | None = None) -> None:
        """Wait until the process no longer serves at `endpoint` (default: where it does now).

        Returns as soon as the engine's exit is seen or a stop begins; at once if it does not serve
        there. A restart has another endpoint, so it does not confuse the waiter.
        """
        endpoint = endpoint or self._endpoint
        while endpoint is not None and self._endpoint == endpoint:
            await self._changed.wait()

    # --- for the owner -------------------------------------------------------------------

    def _enter(self, state: State) -> None:
        """Change the state and wake all who wait for a change."""
        self._state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._listener()

    def _why(self) -> str:
        diagnosis = self._history.diagnosis
        verb = "keep" if self._history.ever_ready else "start"
        cause = diagnosis.cause if diagnosis else "unknown cause"
        return f"cannot {verb} {self.name}{' running' if verb == 'keep' else ''}: {cause}"

    def _failure(self) -> EngineCrashed | EngineStartFailed:
        diagnosis = self._history.diagnosis
        kind = EngineCrashed if self._history.ever_ready else EngineStartFailed
        return kind(self._why(), hint=diagnosis.hint if diagnosis else None)


def _nothing() -> None:
    """Listen to nobody."""
