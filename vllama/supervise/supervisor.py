"""The state machine of one engine process.

Knows no model, engine or dialect: the caller passes a function that returns the launch spec for an
endpoint. The caller also decides when to call `run()` and `stop()`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vllama.base.clock import Clock
from vllama.base.errors import VllamaError
from vllama.supervise.aio import finish
from vllama.supervise.attempt_run import KILL_AT_ONCE, AttemptRun
from vllama.supervise.backoff import RestartPolicy, Restarts
from vllama.supervise.logs import LogRing, open_log
from vllama.supervise.ports import PortReservation
from vllama.supervise.probe import ProbeResult
from vllama.supervise.spec import (
    Diagnosis,
    Endpoint,
    Exit,
    Grace,
    LaunchFailed,
    LaunchSpec,
    State,
)
from vllama.supervise.status import Status

log = logging.getLogger(__name__)

UNKNOWN = "unknown cause"


class SupervisedProcess(Status):
    """One child tree and its state; `run()` is called once."""

    def __init__(
        self,
        *,
        name: str,
        launch: Callable[[Endpoint], LaunchSpec],
        policy: RestartPolicy,
        log_dir: Path,
        clock: Clock,
        run_dir: Path,
        on_progress: Callable[[str], None],
    ) -> None:
        """Prepare; `launch` is called for every attempt with a new port and a new random key.

        `run_dir` is the folder of run files for `leftovers.sweep`; `on_progress` gets the latest
        line of output during a start.
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

    def note_success(self) -> None:
        """Count its crashes anew: it serves, so that requests have caused them."""
        self._restarts.crashes = 0

    def report_unreachable(self, endpoint: Endpoint) -> None:
        """Do nothing: the exit of the process is awaited anyway, and says more."""

    def declare_unhealthy(self, endpoint: Endpoint, cause: str | None) -> str:
        """Kill the engine at `endpoint`, and restart it as after a crash. Returns the cause.

        With `cause` None, it has reported a fatal error, and the cause is looked for in its log, or
        it is too large. If it does not serve there any more, the cause of its last end is returned.
        """
        if self._endpoint == endpoint and self._hangs is not None and not self._hangs.done():
            cause = cause or self._find_cause_in_log()
            self._hangs.set_result(cause)
            self._endpoint = None  # no more requests are sent there
            self._enter(State.BACKOFF)
        elif self._hangs is not None and self._hangs.done():
            return self._hangs.result()
        last = self._history.diagnosis
        return cause or (last.cause if last else UNKNOWN)

    def find_unhealthy_cause(self, endpoint: Endpoint) -> str | None:
        """Return why the engine at `endpoint` is being killed, None if it is not."""
        there = self._run is not None and self._run.spec.endpoint == endpoint
        hangs = self._hangs if there else None
        return hangs.result() if hangs is not None and hangs.done() else None

    async def stop(self, grace: Grace | None = None) -> None:
        """Stop for good and wait until the whole tree has ended; may be called again.

        `grace` replaces that of the launch spec. With zero times it also shortens a stop that is
        in progress. Before `run()` it returns at once, and `run()` will too.
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

        1. Start: a new port, key and log; spawn; wait until ready. A program that cannot be
           executed has failed for good.
        2. Serve: publish the endpoint, then wait for the exit, a stop, or `declare_unhealthy`.
        3. Decide, unless stopped: record exit and cause. A stalled start has failed for good. An
           exit before the process was ever ready is retried only if its diagnosis says so. After
           any other exit `Restarts.after_crash` decides.
        4. Clean up: always end the whole tree before anything else, even if canceled, because its
           remains would hold memory and ports that the next start needs.
        5. Continue: failed, stopped, or backoff and again from 1.

        Cancellation is a stop whose caller does not wait. May be called only once.
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
        """Do steps 1 to 4; return whether to make another attempt."""
        self._enter(State.STARTING)
        try:
            with PortReservation() as port:
                run = await self._begin(port)
                return await self._serve(run, port, stop)
        except VllamaError as error:
            fault = error.fault if isinstance(error, LaunchFailed) else None
            self._fail(Diagnosis(cause=error.message, hint=error.hint, fault=fault))
        except OSError as error:
            full = error.errno == errno.ENOSPC  # the error of a write has no file name
            where = error.filename or (self._log_dir if full else None)
            failure = f"cannot write '{where}'" if where else "the system rejected it"
            hint = "free some space there" if full else None
            self._fail(Diagnosis(cause=f"{failure}: {error.strerror or error}", hint=hint))
        return False

    async def _begin(self, port: PortReservation) -> AttemptRun:
        """Launch and spawn (step 1)."""
        self._number += 1
        # without the prefix, a leading "-" would look like a flag
        key = "sk-" + secrets.token_urlsafe(24)
        spec = self._launch(Endpoint(host=port.host, port=port.port, api_key=key))
        now_s = self._clock.time()
        log_path = open_log(self._log_dir, self.name, now_s=now_s)
        self._history.begin(self._number, log_path)
        self._logs = LogRing()
        port.before_spawn()
        self._run = await AttemptRun.begin(
            spec,
            log_path=log_path,
            ring=self._logs,
            run_dir=self._run_dir,
            on_progress=self._on_progress,
        )
        self._history.record_pid(self._run.child.pid)
        return self._run

    async def _serve(
        self, run: AttemptRun, port: PortReservation, stop: asyncio.Future[None]
    ) -> bool:
        """Do steps 1 to 4 after the spawn; return whether to make another attempt."""
        again = stalled = False
        try:
            readiness = await run.until_ready(stop, self._clock)
            port.release()
            stalled = readiness is ProbeResult.STALLED
            if readiness is ProbeResult.READY:
                self._history.record_ready()
                self._hangs = asyncio.get_running_loop().create_future()
                self._endpoint = run.spec.endpoint
                self._enter(State.READY)  # 2
                endpoint = run.spec.endpoint
                await run.until_exit(
                    stop, self._hangs, on_fatal=lambda: self.declare_unhealthy(endpoint, None)
                )
            again = not stop.done() and self._decide(run, stalled=stalled)  # 3
        finally:
            self._endpoint = None
            self._enter(State.BACKOFF if again else State.STOPPING)
            hangs = self._hangs is not None and self._hangs.done()
            kill = stalled or hangs or run.child.excess.done()
            await finish(self._clean_up(run, stalled=stalled, kill=kill))  # 4
            self._hangs = None
        return again and not self._failed

    async def _clean_up(self, run: AttemptRun, *, stalled: bool, kill: bool) -> None:
        """End the tree and complete the history (step 4)."""
        grace = KILL_AT_ONCE if kill else self._grace
        survivors = await run.end(grace, hurry=self._hurry)
        self._run = None
        self._history.record_end(run.exit(stalled=stalled), None)
        if survivors:
            self._fail(Diagnosis(cause=f"its processes {survivors} cannot be stopped"))

    def _find_cause_in_log(self) -> str:
        """Return the cause that the log of a running engine gives for its fatal error."""
        if self._run is None:
            return UNKNOWN
        try:
            return self._run.spec.explain(self._run.exit()).cause
        except OSError as error:
            log.warning("%s: cannot read its log: %s", self.name, error)
            return UNKNOWN

    def _decide(self, run: AttemptRun, *, stalled: bool) -> bool:
        """Record an unexpected end and decide whether to start again (step 3)."""
        ended = run.exit(stalled=stalled)
        diagnosis = run.spec.explain(ended)
        if self._hangs is not None and self._hangs.done():
            diagnosis = Diagnosis(cause=self._hangs.result(), fault=run.spec.silence)
        elif stalled and diagnosis.fault is None:
            diagnosis = replace(diagnosis, fault=run.spec.silence)
        self._history.record_end(ended, diagnosis)
        delay_s = None if stalled else self._find_delay(ended, diagnosis)
        if delay_s is None:
            self._fail(diagnosis)
            return False
        hint = f"; {diagnosis.hint}" if diagnosis.hint else ""
        when = f"in {delay_s:g} s" if delay_s else "now"
        log.warning("%s: %s; restarting %s%s", self.name, diagnosis.cause, when, hint)
        self._retry_at_s = self._clock.monotonic() + delay_s
        return True

    def _find_delay(self, ended: Exit, diagnosis: Diagnosis) -> float | None:
        """Return the pause before the next start, None to give up."""
        if self._history.ever_ready:
            start_s, ready_s = self._history.compute_durations()
            return self._restarts.after_crash(start_s=start_s, ready_s=ready_s)
        killed = ended.code in (-signal.SIGKILL, -signal.SIGTERM)
        retryable = diagnosis.retryable
        return self._restarts.after_failed_start(retryable=retryable, killed=killed, oom=ended.oom)

    # --- state ---------------------------------------------------------------------------

    def _fail(self, diagnosis: Diagnosis) -> None:
        """Record that it has failed for good; the state changes when the tree has ended."""
        # whoever waits for it logs the error that comes of it, with its hint
        log.debug("%s: failed: %s", self.name, diagnosis.cause)
        self._failed = True
        self._history.record_end(None, diagnosis)


def _settle(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
