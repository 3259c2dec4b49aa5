"""Several processes of one model that look like one: `--replicas N`.

Each is supervised by itself; what is up serves, what has crashed comes back. One that has used up
its restarts is replaced by a new one after a pause, as long as another one is not failed too.
Requests are placed by `Instance.place`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from vllama.errors import VllamaError
from vllama.scheduler.instance import Part, Process
from vllama.supervise.spec import Attempt, Diagnosis, Endpoint, Grace, State
from vllama.supervise.tree import Footprint

log = logging.getLogger(__name__)

# before one that has failed is replaced; the last one counts for all that follow
PAUSES_S = (15.0, 30.0, 60.0, 120.0, 300.0)
ATTEMPTS_KEPT = 20

# the state of the set is the best of its members'
BEST_FIRST = (
    State.READY,
    State.STARTING,
    State.BACKOFF,
    State.STOPPING,
    State.STOPPED,
    State.FAILED,
)


class Pauses:
    """How long to wait before each new life of one place in the set."""

    def __init__(self, pauses_s: Sequence[float]) -> None:
        self._pauses_s = pauses_s
        self._lost = 0

    def after(self, life_s: float) -> float:
        """Return the pause after a life of `life_s`; one as long as the longest pause was good."""
        if life_s >= self._pauses_s[-1]:
            self._lost = 0
        pause_s = self._pauses_s[min(self._lost, len(self._pauses_s) - 1)]
        self._lost += 1
        return pause_s


class Replicas:
    """A `Process` made of others; `makers` make one that is not running yet for each place."""

    def __init__(
        self, makers: Sequence[Callable[[], Process]], *, pauses_s: Sequence[float] = PAUSES_S
    ) -> None:
        self._makers = tuple(makers)
        self._pauses_s = pauses_s
        self._members = [make() for make in makers]
        self._changed: Callable[[], object] | None = None
        self._over = asyncio.Event()
        self._past: deque[Attempt] = deque(maxlen=ATTEMPTS_KEPT)

    @property
    def state(self) -> State:
        """Ready if one is; failed if all are."""
        return min((member.state for member in self._members), key=BEST_FIRST.index)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The record of all starts, in order of time."""
        every = [attempt for member in self._members for attempt in member.attempts]
        return tuple(sorted((*self._past, *every), key=lambda attempt: attempt.started_s))

    @property
    def last_diagnosis(self) -> Diagnosis | None:
        """Why the first of those ended that have ended unasked; those that are down come first."""
        first = sorted(self._members, key=lambda member: member.state is State.READY)
        found = (member.last_diagnosis for member in first)
        return next((diagnosis for diagnosis in found if diagnosis), None)

    @property
    def pid(self) -> int | None:
        """The process id of the first that has one."""
        return next((member.pid for member in self._members if member.pid), None)

    @property
    def endpoint(self) -> Endpoint | None:
        """The first that is up."""
        return next(iter(self.endpoints), None)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All that are up."""
        return tuple(place for member in self._members for place in member.endpoints)

    @property
    def parts(self) -> Sequence[Part]:
        """The single processes."""
        return [part for member in self._members for part in member.parts]

    def listen(self, changed: Callable[[], object]) -> None:
        """Have `changed` called after every change of any of them."""
        self._changed = changed
        for member in self._members:
            member.listen(changed)

    def suspect(self, endpoint: Endpoint) -> None:
        """Pass it on to the one concerned."""
        for member in self._members:
            if endpoint in member.endpoints:
                member.suspect(endpoint)

    async def run(self) -> None:
        """Own all of them until they are stopped, or the last one has failed for good."""
        async with asyncio.TaskGroup() as group:
            for place in range(len(self._members)):
                group.create_task(self._keep(place))

    async def _keep(self, place: int) -> None:
        """Run the member in `place`, and another one after it if that fails."""
        loop, pauses = asyncio.get_running_loop(), Pauses(self._pauses_s)
        while True:
            begun_s, member = loop.time(), self._members[place]
            await member.run()
            if member.state is not State.FAILED or self.state is State.FAILED:
                self._over.set()  # stopped, or nobody is left
            pause_s = pauses.after(loop.time() - begun_s)
            if not self._over.is_set():
                log.warning("replica %d has failed; another one in %g s", place + 1, pause_s)
            try:
                async with asyncio.timeout(pause_s):
                    await self._over.wait()
                return
            except TimeoutError:
                pass
            self._past.extend(member.attempts)
            fresh = self._members[place] = self._makers[place]()
            if self._changed:
                fresh.listen(self._changed)

    async def ensure_ready(self) -> Endpoint:
        """Wait until one of them serves. Raises what the last one raised if none ever will."""
        while True:
            members = list(self._members)
            try:
                return await _first_ready(members)
            except VllamaError:
                if members == self._members:
                    raise  # else one has been replaced meanwhile

    async def stop(self, grace: Grace | None = None) -> None:
        """Stop all of them."""
        self._over.set()
        await asyncio.gather(*(member.stop(grace) for member in self._members))

    def footprint(self) -> Footprint:
        """Measure all of them together."""
        prints = [member.footprint() for member in self._members]
        return Footprint(
            ram_bytes=sum(item.ram_bytes for item in prints),
            file_bytes=sum(item.file_bytes for item in prints),
            pids=frozenset().union(*(item.pids for item in prints)),
            whole=all(item.whole for item in prints),
        )


async def _first_ready(members: Sequence[Process]) -> Endpoint:
    """Wait until one of `members` serves; raise what the last one raised if none does."""
    if up := [place for member in members for place in member.endpoints]:
        return up[0]
    asks = [asyncio.ensure_future(member.ensure_ready()) for member in members]
    try:
        error: VllamaError | None = None
        for ask in asyncio.as_completed(asks):
            try:
                return await ask
            except VllamaError as failure:
                error = failure
        assert error is not None
        raise error
    finally:
        for ask in asks:
            ask.cancel()
        await asyncio.gather(*asks, return_exceptions=True)
