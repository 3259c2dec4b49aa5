"""A set of equal processes of one model that acts as one process: `--replicas N`.

Each replica is supervised by itself, so a crashed one is restarted while the others serve. A
replica that has used up its restarts is replaced by a new one after a pause, unless all others have
failed too. `Instance.choose_endpoint` distributes the requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from vllama.base.clock import wait_for
from vllama.base.errors import VllamaError
from vllama.scheduler.hooks import Part, Process
from vllama.supervise.spec import Attempt, Diagnosis, Endpoint, Grace, State
from vllama.supervise.tree import Footprint

log = logging.getLogger(__name__)

# pauses before the first, second, … replacement of a failed replica; the last one repeats
PAUSES_S = (15.0, 30.0, 60.0, 120.0, 300.0)
MAX_ATTEMPTS_KEPT = 20

# the set has the best state of its members
BEST_FIRST = (
    State.READY,
    State.STARTING,
    State.BACKOFF,
    State.STOPPING,
    State.STOPPED,
    State.FAILED,
)


class Pauses:
    """The pauses before the replacements of one replica."""

    def __init__(self, pauses_s: Sequence[float]) -> None:
        self._pauses_s = pauses_s
        self._failures = 0

    def compute_pause(self, life_s: float) -> float:
        """Return the pause in seconds after a replica has failed `life_s` after its start.

        A life as long as the longest pause counts as success, and starts the series anew.
        """
        if life_s >= self._pauses_s[-1]:
            self._failures = 0
        pause_s = self._pauses_s[min(self._failures, len(self._pauses_s) - 1)]
        self._failures += 1
        return pause_s


class Replicas:
    """A `Process` made of others; each of `makers` makes a member that is not running yet."""

    def __init__(
        self, makers: Sequence[Callable[[], Process]], *, pauses_s: Sequence[float] = PAUSES_S
    ) -> None:
        self._makers = tuple(makers)
        self._pauses_s = pauses_s
        self._members = [make() for make in makers]
        self._changed: Callable[[], object] | None = None
        self._stopped = asyncio.Event()
        self._past: deque[Attempt] = deque(maxlen=MAX_ATTEMPTS_KEPT)

    @property
    def state(self) -> State:
        """Ready if a member is ready; failed if all members have failed."""
        return min((member.state for member in self._members), key=BEST_FIRST.index)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The record of all starts, in chronological order."""
        every = [attempt for member in self._members for attempt in member.attempts]
        return tuple(sorted((*self._past, *every), key=lambda attempt: attempt.started_s))

    @property
    def last_diagnosis(self) -> Diagnosis | None:
        """Why a member last crashed; a member that is down takes precedence."""
        first = sorted(self._members, key=lambda member: member.state is State.READY)
        return next((member.last_diagnosis for member in first if member.last_diagnosis), None)

    @property
    def pid(self) -> int | None:
        """The process id of the first member that has one."""
        return next((member.pid for member in self._members if member.pid), None)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All endpoints that are up."""
        return tuple(place for member in self._members for place in member.endpoints)

    @property
    def parts(self) -> Sequence[Part]:
        """The individual processes."""
        return [part for member in self._members for part in member.parts]

    def subscribe(self, changed: Callable[[], object]) -> None:
        """Call `changed` after every change of state of any member."""
        self._changed = changed
        for member in self._members:
            member.subscribe(changed)

    async def run(self) -> None:
        """Own all members until they are stopped, or the last one has failed for good."""
        async with asyncio.TaskGroup() as group:
            for place in range(len(self._members)):
                group.create_task(self._keep(place))

    async def _keep(self, place: int) -> None:
        """Run the member with index `place`, and replace it each time it fails."""
        loop, pauses = asyncio.get_running_loop(), Pauses(self._pauses_s)
        while True:
            begun_s, member = loop.time(), self._members[place]
            await member.run()
            if member.state is not State.FAILED or self.state is State.FAILED:
                self._stopped.set()  # the set was stopped, or no member is left
            pause_s = pauses.compute_pause(loop.time() - begun_s)
            if not self._stopped.is_set():
                diagnosis = member.last_diagnosis
                cause = diagnosis.cause if diagnosis else "its process exited"
                log.warning("replica %d failed: %s; restarting in %g s", place + 1, cause, pause_s)
            if await wait_for(self._stopped, pause_s):
                return
            self._past.extend(member.attempts)
            fresh = self._members[place] = self._makers[place]()
            if self._changed:
                fresh.subscribe(self._changed)

    async def ensure_ready(self) -> Endpoint:
        """Wait until a member serves. If none ever will, raise the error of the last one."""
        while True:
            members = list(self._members)
            try:
                return await _first_ready(members)
            except VllamaError:
                if members == self._members:
                    raise  # otherwise a member has been replaced meanwhile: try again

    async def stop(self, grace: Grace | None = None) -> None:
        """Stop all members."""
        self._stopped.set()
        await asyncio.gather(*(member.stop(grace) for member in self._members))

    def measure_footprint(self) -> Footprint:
        """Return the sum of all members' memory."""
        footprints = [member.measure_footprint() for member in self._members]
        return Footprint(
            ram_bytes=sum(item.ram_bytes for item in footprints),
            file_bytes=sum(item.file_bytes for item in footprints),
            pids=frozenset().union(*(item.pids for item in footprints)),
            whole=all(item.whole for item in footprints),
        )


async def _first_ready(members: Sequence[Process]) -> Endpoint:
    """Wait until one of `members` serves; if none does, raise the error of the last one."""
    if up := [place for member in members for place in member.endpoints]:
        return up[0]
    waits = [asyncio.ensure_future(member.ensure_ready()) for member in members]
    try:
        error: VllamaError | None = None
        for wait in asyncio.as_completed(waits):
            try:
                return await wait
            except VllamaError as failure:
                error = failure
        assert error is not None
        raise error
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
