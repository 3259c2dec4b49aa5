"""The order in which answers that the death of an engine has interrupted are asked for again.

One of them may have caused the death, so they come back one at a time, oldest first, those without
a token last. The next is admitted when the one before has got something new. After a second death
that meets one of them, each runs to its end before the next. One that is being readmitted when the
engine dies again is the cause: all others had gone on.
"""

from __future__ import annotations

import asyncio

from vllama.supervise.spec import Endpoint


class Readmission:
    """The interrupted answers of one instance."""

    def __init__(self) -> None:
        self.waiting: list[Returning] = []
        self.admitted: Returning | None = None
        self.differs_by_one = False
        self.ended: set[Endpoint] = set()
        """Engines whose end answers have noticed: the scheduler may not yet know of it."""

    def admit(self) -> None:
        """Let the next answer be asked for again, if none is."""
        if self.admitted is not None:
            return
        if self.waiting:
            self.admitted = min(self.waiting, key=lambda one: (one.is_empty, one.began_ns))
            self.waiting.remove(self.admitted)
            self.admitted.turn.set()
        else:
            self.differs_by_one = False


class Returning:
    """An interrupted answer, which began at `began_ns`. `deaths` of engines have met it."""

    def __init__(self, gate: Readmission, began_ns: int) -> None:
        self._gate, self.began_ns = gate, began_ns
        self.is_empty = True
        self.deaths = 0
        self.turn = asyncio.Event()

    def note_death(self, endpoint: Endpoint) -> bool:
        """Note that its engine has ended; return whether that was the doing of this answer."""
        self.deaths += 1
        self._gate.ended.add(endpoint)
        if self._gate.admitted is None:  # else it is known whose doing it was
            self._gate.differs_by_one |= self.deaths > 1
        return self._gate.admitted is self

    def knows_end_of(self, endpoint: Endpoint) -> bool:
        """Whether an interrupted answer has noticed that an engine has ended."""
        return endpoint in self._gate.ended

    async def wait_for_turn(self) -> None:
        """Wait until it may be asked for again; it may be that already."""
        if self._gate.admitted is self:
            return
        self.turn.clear()
        self._gate.waiting.append(self)
        self._gate.admit()
        try:
            await self.turn.wait()
        except asyncio.CancelledError:
            self.leave()
            raise

    def pass_on(self) -> None:
        """Let the next one come: something new has come of this one."""
        if not self._gate.differs_by_one:
            self.leave()

    def leave(self) -> None:
        """Let the next one come: this one has ended, or waits no more."""
        gate = self._gate
        if self in gate.waiting:
            gate.waiting.remove(self)
        if gate.admitted is self:
            gate.admitted = None
            gate.admit()
