"""One child tree: started through the guard, awaited, and ended completely.

Readiness, restarts and history are in `attempt_run` and `supervisor`. This module uses
`subprocess.Popen` and not the event loop's subprocess: asyncio's `wait()` returns only when every
grandchild has closed the output (CPython 3.11), and uvloop's blocks the loop while it spawns.
One daemon thread per child spawns it, reads the guard's status lines and waits for the guard.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import psutil

from vllama.base.errors import EngineStartFailed
from vllama.base.executors import post
from vllama.supervise import shim, tree
from vllama.supervise.aio import finish, in_thread
from vllama.supervise.guard import Command, Guard, GuardFailed
from vllama.supervise.spec import Grace

_SPAWN_LIMIT_S = 30.0
_TICK_S = 0.05
OOM_SCORE = 500
"""When memory runs out, the kernel ends what the server has started before anything else."""


class Child:
    """A running tree: the guard, the engine and its descendants. Created by `spawn`.

    `exited` is done, with the code as from `subprocess`, as soon as the engine itself has ended;
    `gone` when the guard has ended the rest of the tree, and has ended too. `excess`, with its
    bytes, if it exceeded its limit of memory: it is stopped then, and has to be killed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.exited: asyncio.Future[int] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.excess: asyncio.Future[int] = loop.create_future()
        self.pid = 0
        self.guard_pid = 0
        self._loop = loop
        self._spawned: asyncio.Future[None] = loop.create_future()
        self._guard_ended = threading.Event()
        self._known: set[psutil.Process] = set()
        self._shared: set[str] = set()  # shared memory of the processes that were signaled
        self._known_lock = threading.Lock()  # several threads take snapshots; held for microseconds

    @classmethod
    async def spawn(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log_path: Path,
        cwd: Path | None = None,
        grace: Grace | None = None,
        scratch: Path | None = None,
        memory_limit_bytes: int | None = None,
    ) -> Child:
        """Start `argv` with exactly `env`, its output appended to `log_path`.

        Returns once it has been executed. `grace` is the time that the guard gives the tree if this
        process dies, or if the engine leaves descendants behind. `scratch` is a folder to remove
        after the end of the tree. Raises EngineStartFailed if it cannot be executed.
        """
        child = cls(asyncio.get_running_loop())
        command = Command(
            argv=tuple(argv),
            env=dict(env),
            log_path=log_path,
            cwd=cwd,
            grace=grace or Grace(),
            scratch=scratch,
            oom_score=OOM_SCORE,
            memory_limit_bytes=memory_limit_bytes,
        )
        attend = partial(child._attend, command)
        threading.Thread(target=attend, name=f"child-{Path(argv[0]).name}", daemon=True).start()
        try:
            await asyncio.shield(child._spawned)
        except EngineStartFailed:
            await finish(child._wait_until_gone())
            raise
        except asyncio.CancelledError:
            await finish(child._abandon())
            raise
        return child

    async def wait(self) -> int:
        """Wait for the engine's own end and return its code (negative: signal)."""
        return await asyncio.shield(self.exited)

    async def terminate(self) -> None:
        """Send SIGTERM to the engine's group and to every descendant outside of it."""
        await in_thread("child-term", self._terminate)

    async def kill_tree(self, limit_s: float) -> tuple[int, ...]:
        """SIGKILL the whole tree; return the pids that have survived `limit_s`.

        1. Remember the descendants before the first signal, since orphans cannot be found later.
        2. Kill the group of the engine, then all known descendants; the guard does the same to all
           that it inherits. Repeat every 50 ms until the guard ends, which means that none is left.
        3. After the limit, kill the guard too.
        4. Verify: kill or report every process that was remembered or is in the engine's session.
           Then remove the shared memory that killed processes could not remove.

        After an unexpected end of the tree, steps 1 to 3 do nothing, and step 4 verifies the end.
        """
        return await in_thread("child-kill", partial(self._kill_tree, limit_s))

    def remember(self) -> tuple[psutil.Process, ...]:
        """Add a snapshot of the tree to the known processes; return those that are alive."""
        guard = None if self._guard_ended.is_set() else tree.find_process(self.guard_pid)
        below = tree.list_below(guard) if guard is not None else []
        with self._known_lock:
            old = self._known.difference(below)
            self._known = {*below, *(proc for proc in old if tree.is_alive(proc))}
            return tuple(self._known)

    def remember_shared_memory(self) -> set[str]:
        """Add the tree's shared memory (`sem.mp-…`, too) to what goes with it; return all of it."""
        self._shared |= shim.list_shared_memory(proc.pid for proc in self.remember())
        return self._shared

    def measure_footprint(self) -> tree.Footprint:
        """Measure the memory of engine and descendants; blocks for milliseconds."""
        return tree.measure_footprint(self.remember(), self.pid)

    def measure_activity(self) -> tree.TreeWork:
        """Return the CPU time and reads of engine and descendants; blocks for milliseconds."""
        return tree.measure_activity(self.remember())

    # --- in the loop ---------------------------------------------------------------------

    async def _wait_until_gone(self) -> None:
        await asyncio.shield(self.gone)

    async def _abandon(self) -> None:
        """Clean up after a canceled `spawn`: wait until it has succeeded or failed, then kill."""
        try:
            await self._spawned
        except EngineStartFailed:
            pass
        else:
            await self.kill_tree(_SPAWN_LIMIT_S)
        await self._wait_until_gone()

    def _on_spawned(self, failure: str | None) -> None:
        if failure is None:
            self._spawned.set_result(None)
        else:
            hint = "Check that the engine is installed and that its path is correct."
            self._spawned.set_exception(EngineStartFailed(failure, hint=hint))

    def _on_exited(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)

    def _on_gone(self, code: int) -> None:
        self._on_exited(code)  # in case the guard was killed before it reported the exit
        if not self._spawned.done():
            self._on_spawned("its guard could not be started")
        self.gone.set_result(None)

    # --- in the child's thread -------------------------------------------------------------

    def _attend(self, command: Command) -> None:
        """Spawn, read the guard's status lines, wait for the guard; post each event to the loop."""
        code, loop, excess = shim.EXEC_FAILED, self._loop, self.excess
        try:
            with Guard(command) as guard:
                self.guard_pid = guard.pid
                self.pid = guard.read_pid(_SPAWN_LIMIT_S)
                post(self._loop, partial(self._on_spawned, None))
                ended = guard.read_exit(lambda size: post(loop, partial(excess.set_result, size)))
                if ended is not None:
                    post(self._loop, partial(self._on_exited, ended))
                code = guard.wait()
        except GuardFailed as failure:
            post(self._loop, partial(self._on_spawned, str(failure)))
        finally:
            self._guard_ended.set()
            post(self._loop, partial(self._on_gone, code))

    # --- in threads of their own -------------------------------------------------------------

    def _terminate(self) -> None:
        if not self.exited.done():
            self.remember_shared_memory()
            tree.signal_tree(self.pid, self.remember(), signal.SIGTERM)

    def _kill_tree(self, limit_s: float) -> tuple[int, ...]:
        deadline = time.monotonic() + limit_s
        while not self._guard_ended.is_set():
            self.remember_shared_memory()  # 1
            if not self.exited.done():
                tree.signal_tree(self.pid, self.remember(), signal.SIGKILL)  # 2
            late = time.monotonic() > deadline
            _signal(self.guard_pid, signal.SIGKILL if late else signal.SIGUSR1)  # 3
            self._guard_ended.wait(_TICK_S)
            if late:
                break
        while True:
            members = {*self.remember(), *tree.list_session(self.pid)}
            left = [proc for proc in members if tree.is_alive(proc)]  # 4
            if not left or time.monotonic() > deadline + 1.0:
                shim.remove_shared_memory(self._shared)
                return tuple(proc.pid for proc in left)
            for proc in left:
                _signal(proc.pid, signal.SIGKILL)
            time.sleep(_TICK_S)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
