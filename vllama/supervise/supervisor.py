"""The state machine of one engine's life.

Knows no model, engine or dialect: what to start comes as a function of an endpoint. Who runs
`run()`, and when to give up on it, is the caller's business.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
from collections.abc import Callable
from pathlib import Path

from vllama.clock import Clock
from vllama.errors import Busy, CoolingDown, EngineCrashed, EngineStartFailed, VllamaError
from vllama.supervise.backoff import Restarts
from vllama.supervise.history import History
from vllama.supervise.logs import LogRing, open_log
from vllama.supervise.ports import PortReservation
from vllama.supervise.probe import Readiness
from vllama.supervise.spec import (
    Attempt,
    Diagnosis,
    Endpoint,
    Exit,
    Grace,
    LaunchSpec,
    RestartPolicy,
    State,
)
from vllama.supervise.trial import KILL_AT_ONCE, Trial
from vllama.supervise.waits import finish

PATIENCE_S = 2.5

log = logging.getLogger(__name__)


class SupervisedProcess:
    """One child tree and its state, for one life: `run()` is called once."""

    def __init__(
        self,
        *,
        name: str,
        launch: Callable[[Endpoint], LaunchSpec],
        policy: RestartPolicy,
        log_dir: Path,
        clock: Clock,
        run_dir: Path | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        """`launch` is called for every attempt with a fresh port and a fresh random key.

        `run_dir` is where run files for `leftovers.sweep` go; `on_progress` gets the newest line
        of output while starting.
        """
        self.name = name
        self._launch = launch
        self._restarts = Restarts(policy)
        self._log_dir = log_dir
        self._clock = clock
        self._run_dir = run_dir
        self._on_progress = on_progress

        self._state = State.STOPPED
        self._changed = asyncio.Event()
        self._begun = False
        self._over = asyncio.Event()
        self._stop_wanted = False
        self._stop: asyncio.Future[None] | None = None
        self._hurry: asyncio.Future[None] | None = None
        self._grace: Grace | None = None

        self._trial: Trial | None = None
        self._endpoint: Endpoint | None = None
        self._logs = LogRing()
        self._history = History(clock)
        self._number = 0
        self._failed = False
        self._retry_at_s = 0.0

    # --- for readers ---------------------------------------------------------------------

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

    def suspect(self, endpoint: Endpoint) -> None:
        """Hear that it could not be reached; its exit tells more and is watched anyway."""

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

    def descendants_rss_bytes(self) -> int:
        """Return the resident memory of the engine and all below; blocks for milliseconds."""
        return self._trial.child.rss_bytes() if self._trial is not None else 0

    # --- for callers ---------------------------------------------------------------------

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

    async def stop(self, grace: Grace | None = None) -> None:
        """Stop for good and wait until the whole tree is gone; may be called again.

        `grace` replaces the launch's. One without waiting times (zeros) also cuts short the grace
        of a stop that is going on. Before `run()` began it returns at once, and `run()` will too.
        """
        self._stop_wanted = True
        self._grace = grace or self._grace
        if not self._begun:
            self._enter(State.STOPPED)
            return
        _settle(self._stop)
        if grace is not None and grace.term_s + grace.second_term_s <= 0:
            _settle(self._hurry)
        await self._over.wait()

    # --- the owner -----------------------------------------------------------------------

    async def run(self) -> None:
        """Own the process until it is stopped or has failed for good; never leave a tree behind.

        1. Starting: a fresh port, key and log; spawn; wait for readiness. What cannot be executed
           has failed for good.
        2. Ready: give the endpoint to all who wait, then wait for the exit or a stop.
        3. Judge, unless stopped: record exit and cause, and decide. A stall has failed for good.
           Before it was ever ready, an exit is tried again if its diagnosis says so, else it has
           failed for good. Later `after_crash` decides.
        4. Clear: end the whole tree, always, before anything else; cancellation does not cut it.
        5. Next: failed, stopped, or backoff and from 1 again.

        Cancellation is a stop whose caller does not wait. Called once in a life.
        """
        if self._begun:
            raise RuntimeError(f"{self.name}: run() called twice")
        self._begun = True
        loop = asyncio.get_running_loop()
        self._stop = stop = loop.create_future()
        self._hurry = loop.create_future()
        if self._stop_wanted:
            stop.set_result(None)
        try:
            while not stop.done() and await self._attempt(stop):
                delay_s = max(0.0, self._retry_at_s - self._clock.monotonic())
                await asyncio.wait({stop}, timeout=delay_s)  # 5
        except Exception as error:
            self._fail(Diagnosis(cause=f"internal error: {error!r}"))
            raise
        finally:
            self._over.set()
            self._enter(State.FAILED if self._failed else State.STOPPED)

    async def _attempt(self, stop: asyncio.Future[None]) -> bool:
        """Go through the steps 1 to 4; return whether there is to be another attempt."""
        self._enter(State.STARTING)
        try:
            with PortReservation() as port:
                trial = await self._begin(port)
                return await self._live(trial, port, stop)
        except VllamaError as error:
            self._fail(Diagnosis(cause=error.message, hint=error.hint))
        except OSError as error:
            where = error.filename or self._log_dir
            hint = "free some space there" if error.errno == errno.ENOSPC else None
            self._fail(Diagnosis(cause=f"cannot write '{where}': {error.strerror}", hint=hint))
        return False

    async def _begin(self, port: PortReservation) -> Trial:
        """Launch and spawn (step 1)."""
        self._number += 1
        key = "sk-" + secrets.token_urlsafe(24)  # a prefix, since a leading "-" looks like a flag
        spec = self._launch(Endpoint(host=port.host, port=port.port, api_key=key))
        now_s = self._clock.time()
        log_path = open_log(self._log_dir, self.name, attempt=self._number, now_s=now_s)
        self._history.begin(self._number, log_path)
        self._logs = LogRing()
        port.before_spawn(hold=spec.hold_port)
        self._trial = await Trial.begin(
            spec,
            log_path=log_path,
            ring=self._logs,
            run_dir=self._run_dir,
            on_progress=self._on_progress,
        )
        self._history.spawned(self._trial.child.pid)
        return self._trial

    async def _live(self, trial: Trial, port: PortReservation, stop: asyncio.Future[None]) -> bool:
        """Go from spawned to gone (steps 1 to 4); return whether there is to be another attempt."""
        again = stalled = False
        try:
            readiness = await trial.until_ready(stop, self._clock)
            port.release()
            stalled = readiness is Readiness.STALLED
            if readiness is Readiness.READY:
                self._history.ready()
                self._endpoint = trial.spec.endpoint
                self._enter(State.READY)  # 2
                await trial.until_exit(stop)
            again = not stop.done() and self._judge(trial, stalled=stalled)  # 3
        finally:
            self._endpoint = None
            self._enter(State.BACKOFF if again else State.STOPPING)
            await finish(self._clear(trial, stalled=stalled))  # 4
        return again and not self._failed

    async def _clear(self, trial: Trial, *, stalled: bool) -> None:
        """End the tree and complete the record (step 4)."""
        grace = KILL_AT_ONCE if stalled else self._grace
        survivors = await trial.end(grace, hurry=self._hurry)
        self._trial = None
        self._history.ended(self._exit(trial, stalled=stalled), None)
        if survivors:
            self._fail(Diagnosis(cause=f"its processes {survivors} cannot be ended"))

    def _exit(self, trial: Trial, *, stalled: bool) -> Exit:
        return trial.exit(was_ready=self._history.is_ready, stalled=stalled)

    def _judge(self, trial: Trial, *, stalled: bool) -> bool:
        """Record an unasked end and decide whether to start again (step 3)."""
        ended = self._exit(trial, stalled=stalled)
        diagnosis = trial.spec.diagnose(ended)
        self._history.ended(ended, diagnosis)
        start_s, ready_s = self._history.durations()
        delay_s = None
        if not stalled:
            delay_s = self._restarts.delay_s(
                ever_ready=self._history.ever_ready,
                start_s=start_s,
                ready_s=ready_s,
                retryable=diagnosis.retryable,
            )
        if delay_s is None:
            self._fail(diagnosis)
            return False
        log.warning("%s: %s; starting again in %g s", self.name, diagnosis.cause, delay_s)
        self._retry_at_s = self._clock.monotonic() + delay_s
        return True

    # --- state ---------------------------------------------------------------------------

    def _enter(self, state: State) -> None:
        """Change the state and wake all who wait for a change."""
        self._state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _fail(self, diagnosis: Diagnosis) -> None:
        """Record that it has failed for good; the state follows when the tree is gone."""
        log.error("%s: failed: %s", self.name, diagnosis.cause)
        self._failed = True
        self._history.ended(None, diagnosis)

    def _why(self) -> str:
        diagnosis = self._history.diagnosis
        verb = "keep" if self._history.ever_ready else "start"
        cause = diagnosis.cause if diagnosis else "unknown cause"
        return f"cannot {verb} {self.name}{' running' if verb == 'keep' else ''}: {cause}"

    def _failure(self) -> EngineCrashed | EngineStartFailed:
        diagnosis = self._history.diagnosis
        kind = EngineCrashed if self._history.ever_ready else EngineStartFailed
        return kind(self._why(), hint=diagnosis.hint if diagnosis else None)


def _settle(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
