"""One start of one process, from its log file to the end of its whole tree.

Combines `process`, `probe`, `logs` and `leftovers`. The state machine and the restarts are in
`supervisor`, which calls `begin`, `until_ready`, `until_exit` and always `end`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from vllama.base.clock import Clock
from vllama.supervise.aio import finish, in_thread
from vllama.supervise.leftovers import RunFile, make_scratch_folder, remove_scratch
from vllama.supervise.logs import LogRing, Tailer
from vllama.supervise.probe import ProbeResult, wait_ready
from vllama.supervise.process import Child
from vllama.supervise.spec import Exit, Grace, LaunchSpec
from vllama.supervise.tree import count_oom_kills

OUTPUT_LINES = 500
_SERVING_INTERVAL_S = 0.5
KILL_AT_ONCE = Grace(term_s=0.0, second_term_s=0.0)

log = logging.getLogger(__name__)


class AttemptRun:
    """A started process; created by `begin`, and always ended by `end`."""

    def __init__(
        self, spec: LaunchSpec, child: Child, tailer: Tailer, run_file: RunFile, scratch: Path
    ) -> None:
        self.spec = spec
        self.child = child
        self._tailer = tailer
        self._hopeless: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if spec.hopeless is not None:
            tailer.ring.on_line = partial(self._check_line, re.compile(spec.hopeless))
        self._tailing = asyncio.ensure_future(tailer.run())
        self._run_file = run_file
        self._scratch = scratch
        self._oom_kills = count_oom_kills()

    @classmethod
    async def begin(
        cls,
        spec: LaunchSpec,
        *,
        log_path: Path,
        ring: LogRing,
        run_dir: Path,
        on_progress: Callable[[str], object],
    ) -> AttemptRun:
        """Spawn the process. Raises EngineStartFailed if it cannot be executed."""
        scratch = make_scratch_folder()
        spec = spec.place(scratch)
        try:
            child = await Child.spawn(
                spec.argv,
                env=spec.env,
                cwd=spec.cwd,
                grace=spec.grace,
                log_path=log_path,
                scratch=scratch,
                memory_limit_bytes=spec.memory_limit_bytes,
            )
        except BaseException:
            remove_scratch(scratch)
            raise
        file = RunFile(run_dir, name=spec.name, pid=child.pid, argv=spec.argv, scratch=scratch)
        run = cls(spec, child, Tailer(log_path, ring, on_line=on_progress), file, scratch)
        try:
            await finish(in_thread("run-file", run._write_run_file))
        except BaseException:
            await finish(run.end(KILL_AT_ONCE, hurry=None))
            raise
        return run

    async def until_ready(self, stop: asyncio.Future[None], clock: Clock) -> ProbeResult:
        """Wait until ready, stalled, or interrupted: it ended, is hopeless or too large; `stop`."""
        readiness = await wait_ready(
            self.spec,
            clock=clock,
            progress=lambda: self._tailer.read_bytes,
            interrupts=(self.child.exited, self.child.excess, stop, self._hopeless),
        )
        self._tailer.ring.on_line = None
        if readiness is ProbeResult.READY:
            self._tailer.slow_down(_SERVING_INTERVAL_S)
        return readiness

    def _check_line(self, hopeless: re.Pattern[str], line: str) -> None:
        if hopeless.search(line) and not self._hopeless.done():
            self._hopeless.set_result(None)

    def read_output(self) -> None:
        """Read all lines that the process has written so far. Raises OSError."""
        while self._tailer.read():
            pass

    async def until_exit(self, *ends: asyncio.Future[Any], on_fatal: Callable[[], object]) -> None:
        """Wait for the process's exit or for one of `ends`.

        `on_fatal` is called when a line of its log matches `spec.fatal`, or it is too large.
        """
        self.child.excess.add_done_callback(lambda _: on_fatal())
        if self.spec.fatal is not None:
            fatal, loop = re.compile(self.spec.fatal), asyncio.get_running_loop()
            self._tailer.ring.on_line = lambda line: (
                loop.call_soon(on_fatal) if fatal.search(line) else None
            )
        await finish(in_thread("run-file", self._write_run_file))
        await _wait_for_first(self.child.exited, *ends)

    def exit(self, *, stalled: bool = False) -> Exit:
        """Return how the process ended, if it has, and its last lines so far."""
        self._tailer.finish()
        ring = self._tailer.ring
        return Exit(
            code=self.child.exited.result() if self.child.exited.done() else None,
            output=ring.tail(OUTPUT_LINES),
            first_error=ring.first_error,
            stalled=stalled,
            excess_bytes=self.child.excess.result() if self.child.excess.done() else None,
            oom=None if self._oom_kills is None else count_oom_kills() != self._oom_kills,
        )

    async def end(
        self, grace: Grace | None, *, hurry: asyncio.Future[None] | None
    ) -> tuple[int, ...]:
        """End the whole tree and release all resources; return the pids that could not be killed.

        1. TERM, and again after `term_s`. If the process has ended by itself, its guard is already
           cleaning up and gets the same time. `hurry` skips both waits.
        2. KILL until no process is left, and verify.
        3. Remove the run file, and read the rest of the log.

        Must not be canceled (see `aio.finish`).
        """
        grace = grace or self.spec.grace
        try:
            for wait_s in (grace.term_s, grace.second_term_s):
                if wait_s > 0 and not self.child.gone.done() and not _is_done(hurry):
                    await self.child.terminate()  # 1
                    await _wait_for_first(self.child.gone, hurry, timeout_s=wait_s)
            survivors = await self.child.kill_tree(grace.kill_s)  # 2
            remove_scratch(self._scratch)  # in case the guard was killed too
            if survivors:
                log.error("cannot stop %s: %s survive SIGKILL", self.spec.name, survivors)
            else:
                self._run_file.remove()
            return survivors
        finally:
            await self._stop_tailing()  # 3

    async def _stop_tailing(self) -> None:
        self._tailing.cancel()
        try:
            await self._tailing
        except asyncio.CancelledError:
            pass
        self._tailer.finish()

    def _write_run_file(self) -> None:
        """Record the tree, so that the next server can end it if this one is killed."""
        self._run_file.write(self.child.remember(), self.child.remember_shared_memory())


def _is_done(future: asyncio.Future[None] | None) -> bool:
    return future is not None and future.done()


async def _wait_for_first(
    *futures: asyncio.Future[Any] | None, timeout_s: float | None = None
) -> None:
    await asyncio.wait(
        {future for future in futures if future is not None},
        timeout=timeout_s,
        return_when=asyncio.FIRST_COMPLETED,
    )
