"""The state machine of one engine's life.

Knows no model, engine or dialect: what to start comes as a function of an endpoint. Who runs
`run()`, and when to give up on it, is the caller's business.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

from vllama.clock import Clock
from vllama.errors import VllamaError
from vllama.supervise.aio import finish
from vllama.supervise.attempt_run import KILL_AT_ONCE, Trial
from vllama.supervise.backoff import Restarts
from vllama.supervise.logs import LogRing, open_log
from vllama.supervise.ports import PortReservation
from vllama.supervise.probe import Readiness
from vllama.supervise.spec import (
    Diagnosis,
    Endpoint,
    Exit,
    Grace,
    LaunchSpec,
    RestartPolicy,
    State,
)
from vllama.supervise.status import Status

log = logging.getLogger(__name__)

UNKNOWN = "unknown cause"


class SupervisedProcess(Status):
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
        super().__init__(name, clock)
        self._launch = launch
        self._restarts = Restarts(policy)
        self._log_dir = log_dir
        self._run_dir = run_dir
        self._on_progress = on_progress

        self._stop: asyncio.Future[None] | None = None
        self._hurry: asyncio.Future[None] | None = None
        self._grace: Grace | None = None
        self._hangs: asyncio.Future[str] | None = None
        self._number = 0
        self._failed = False

    # --- for callers ---------------------------------------------------------------------

    def report_unreachable(self, endpoint: Endpoint) -> None:
        """Hear that it could not be reached; its exit tells more and is watched anyway."""

    def declare_unhealthy(self, endpoint: Endpoint, cause: str | None) -> str:
        """Hear that the engine there is of no use: it is killed, and restarted as after a crash.

        `cause` None: it says so itself, and its log may tell why. Returns the cause; if it does not
        serve there any more, that of its last end.
        """
        if self._endpoint == endpoint and self._hangs is not None and not self._hangs.done():
            cause = cause or self._cause_by_log()
            self._hangs.set_result(cause)
            self._endpoint = None  # nobody is sent there any more
            self._enter(State.BACKOFF)
        elif self._hangs is not None and self._hangs.done():
            return self._hangs.result()
        last = self._history.diagnosis
        return cause or (last.cause if last else UNKNOWN)

    def find_unhealthy_cause(self, endpoint: Endpoint) -> str | None:
        """Return why the engine there is being killed; None: it is not."""
        there = self._trial is not None and self._trial.spec.endpoint == endpoint
        hangs = self._hangs if there else None
        return hangs.result() if hangs is not None and hangs.done() else None

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
        2. Ready: give the endpoint to all who wait, then wait for the exit, a stop, or for
           somebody to tell that it hangs (`condemn`).
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
            full = error.errno == errno.ENOSPC  # a write does not know the file's name
            where = error.filename or (self._log_dir if full else None)
            what = f"cannot write '{where}'" if where else "the system refused it"
            hint = "free some space there" if full else None
            self._fail(Diagnosis(cause=f"{what}: {error.strerror or error}", hint=hint))
        return False

    async def _begin(self, port: PortReservation) -> Trial:
        """Launch and spawn (step 1)."""
        self._number += 1
        key = "sk-" + secrets.token_urlsafe(24)  # a prefix, since a leading "-" looks like a flag
        spec = self._launch(Endpoint(host=port.host, port=port.port, api_key=key))
        now_s = self._clock.time()
        log_path = open_log(self._log_dir, self.name, now_s=now_s)
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
                self._hangs = asyncio.get_running_loop().create_future()
                self._endpoint = trial.spec.endpoint
                self._enter(State.READY)  # 2
                endpoint = trial.spec.endpoint
                await trial.until_exit(
                    stop, self._hangs, on_fatal=lambda: self.declare_unhealthy(endpoint, None)
                )
            again = not stop.done() and self._judge(trial, stalled=stalled)  # 3
        finally:
            self._endpoint = None
            self._enter(State.BACKOFF if again else State.STOPPING)
            hangs = self._hangs is not None and self._hangs.done()
            await finish(self._clear(trial, stalled=stalled, kill=stalled or hangs))  # 4
            self._hangs = None
        return again and not self._failed

    async def _clear(self, trial: Trial, *, stalled: bool, kill: bool) -> None:
        """End the tree and complete the record (step 4)."""
        grace = KILL_AT_ONCE if kill else self._grace
        survivors = await trial.end(grace, hurry=self._hurry)
        self._trial = None
        self._history.ended(self._exit(trial, stalled=stalled), None)
        if survivors:
            self._fail(Diagnosis(cause=f"its processes {survivors} cannot be ended"))

    def _exit(self, trial: Trial, *, stalled: bool) -> Exit:
        return trial.exit(was_ready=self._history.is_ready, stalled=stalled)

    def _cause_by_log(self) -> str:
        """Read in the log of an engine that still runs why it cannot go on."""
        if self._trial is None:
            return UNKNOWN
        try:
            return self._trial.spec.diagnose(self._exit(self._trial, stalled=False)).cause
        except OSError as error:
            log.warning("%s: cannot read its log: %s", self.name, error)
            return UNKNOWN

    def _judge(self, trial: Trial, *, stalled: bool) -> bool:
        """Record an unasked end and decide whether to start again (step 3)."""
        ended = self._exit(trial, stalled=stalled)
        diagnosis = trial.spec.diagnose(ended)
        if self._hangs is not None and self._hangs.done():
            diagnosis = Diagnosis(cause=self._hangs.result())
        self._history.ended(ended, diagnosis)
        start_s, ready_s = self._history.durations()
        delay_s = None
        if not stalled:
            delay_s = self._restarts.delay_s(
                ever_ready=self._history.ever_ready,
                start_s=start_s,
                ready_s=ready_s,
                retryable=diagnosis.retryable,
                killed=ended.code in (-signal.SIGKILL, -signal.SIGTERM),
                oom=ended.oom,
            )
        if delay_s is None:
            self._fail(diagnosis)
            return False
        log.warning("%s: %s; starting again in %g s", self.name, diagnosis.cause, delay_s)
        self._retry_at_s = self._clock.monotonic() + delay_s
        return True

    # --- state ---------------------------------------------------------------------------

    def _fail(self, diagnosis: Diagnosis) -> None:
        """Record that it has failed for good; the state follows when the tree is gone."""
        log.error("%s: failed: %s", self.name, diagnosis.cause)
        self._failed = True
        self._history.ended(None, diagnosis)


def _settle(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
