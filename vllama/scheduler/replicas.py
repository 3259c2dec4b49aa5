"""Several processes of one model that look like one: `--replicas N`.

Each is supervised by itself; what is up serves, what has crashed comes back. Requests are placed by
`Instance.place`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from vllama.errors import VllamaError
from vllama.scheduler.instance import Part, Process
from vllama.supervise.spec import Attempt, Diagnosis, Endpoint, Grace, State
from vllama.supervise.tree import Footprint

# the state of the set is the best of its members'
BEST_FIRST = (
    State.READY,
    State.STARTING,
    State.BACKOFF,
    State.STOPPING,
    State.STOPPED,
    State.FAILED,
)


class Replicas:
    """A `Process` made of others."""

    def __init__(self, members: Sequence[Process]) -> None:
        self._members = tuple(members)

    @property
    def state(self) -> State:
        """Ready if one is; failed if all are."""
        return min((member.state for member in self._members), key=BEST_FIRST.index)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The record of all starts, in order of time."""
        every = [attempt for member in self._members for attempt in member.attempts]
        return tuple(sorted(every, key=lambda attempt: attempt.started_s))

    @property
    def last_diagnosis(self) -> Diagnosis | None:
        """Why the first of those ended that have ended unasked."""
        found = (member.last_diagnosis for member in self._members)
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
        for member in self._members:
            member.listen(changed)

    def suspect(self, endpoint: Endpoint) -> None:
        """Pass it on to the one concerned."""
        for member in self._members:
            if endpoint in member.endpoints:
                member.suspect(endpoint)

    async def run(self) -> None:
        """Own all of them until the last one is stopped or failed for good."""
        async with asyncio.TaskGroup() as group:
            for member in self._members:
                group.create_task(member.run())

    async def ensure_ready(self) -> Endpoint:
        """Wait until one of them serves. Raises what the last one raised if none ever will."""
        if up := self.endpoints:
            return up[0]
        asks = [asyncio.ensure_future(member.ensure_ready()) for member in self._members]
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

    async def stop(self, grace: Grace | None = None) -> None:
        """Stop all of them."""
        await asyncio.gather(*(member.stop(grace) for member in self._members))

    def footprint(self) -> Footprint:
        """Measure all of them together."""
        prints = [member.footprint() for member in self._members]
        return Footprint(
            ram_bytes=sum(item.ram_bytes for item in prints),
            file_bytes=sum(item.file_bytes for item in prints),
            pids=frozenset().union(*(item.pids for item in prints)),
        )
