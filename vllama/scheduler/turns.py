"""Whose turn it is: in the queue of a model, and after the death of an engine.

`FairQueue` is taken in turn between clients, in order of arrival within each. It is start-time fair
queueing (Goyal, Vin and Cheng, 1996) in which every request costs the same. Each flow, the requests
of one client, has a virtual time, at which its next request starts. The flow with the least one is
served, and its time advances by 1 / weight. A flow that has had nothing to do starts at the virtual
time of the request that was served last, so nobody saves up turns.

From this follows the bound: before the k-th waiting request of a flow with weight w is served, a
flow with weight v is served at most k * v / w + 1 times, however many requests it has.

`Readmission` orders the responses that the crash of an engine has interrupted. One of them may have
caused the crash, so they resume one at a time, oldest first, those without a token last. The next
is admitted when the one before has got something new. After a second crash that meets one of them,
each is tried alone: it runs to its end before the next, the newest first, and all other requests
of the instance stay queued. Only a response that runs alone when the engine crashes is the cause.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

from vllama.supervise.spec import Endpoint

Item = TypeVar("Item")


class Flow(NamedTuple):
    """Whose turn it is: a key's name, or an address, and the number of turns that it gets."""

    name: str = ""
    weight: float = 1.0


class FairQueue(Generic[Item]):
    """Items that wait, each of a flow; iteration is in the order in which they would be served."""

    def __init__(self) -> None:
        self._first: deque[Item] = deque()  # served before all flows
        self._waiting: dict[str, deque[Item]] = {}  # by flow; none of them is empty
        self._weights: dict[str, float] = {}
        self._starts: dict[str, float] = {}  # the virtual time of each flow's next request
        self._now = 0.0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Item]:
        yield from self._first
        heap = [(self._starts[name], place, name, 0) for place, name in enumerate(self._waiting)]
        heapq.heapify(heap)
        while heap:
            start, place, name, index = heap[0]
            items = self._waiting[name]
            yield items[index]
            if index + 1 < len(items):
                heapq.heapreplace(heap, (start + 1 / self._weights[name], place, name, index + 1))
            else:
                heapq.heappop(heap)

    def append(self, item: Item, flow: Flow) -> None:
        """Add an item behind those of its flow."""
        name = flow.name
        if name not in self._waiting:
            self._waiting[name] = deque()
            self._starts[name] = max(self._now, self._starts.get(name, 0.0))
        self._weights[name] = flow.weight
        self._waiting[name].append(item)
        self._length += 1

    def append_first(self, item: Item) -> None:
        """Add an item before all others: it had its turn already."""
        self._first.appendleft(item)
        self._length += 1

    def pop(self) -> Item:
        """Remove and return the item whose turn it is. Raises IndexError if there is none."""
        if self._first:
            self._length -= 1
            return self._first.popleft()
        if not self._waiting:
            raise IndexError("pop from an empty queue")
        name = min(self._waiting, key=self._starts.__getitem__)
        self._now = self._starts[name]
        item = self._waiting[name].popleft()
        self._length -= 1
        self._starts[name] += 1 / self._weights[name]
        self._tidy(name)
        return item

    def remove(self, item: Item) -> bool:
        """Remove an item that waits no more; False if it does not wait here."""
        if item in self._first:
            self._first.remove(item)
            self._length -= 1
            return True
        for name, items in self._waiting.items():
            if item in items:
                items.remove(item)
                self._length -= 1
                self._tidy(name)
                return True
        return False

    def pop_from_longest(self, flow: Flow) -> Item | None:
        """Remove and return the last item of the flow with the most of them, for its weight.

        None if that would be `flow` itself with one item more: then it is the one to be refused.
        """
        if not self._waiting:
            return None
        loads = {name: len(items) / self._weights[name] for name, items in self._waiting.items()}
        longest = max(loads, key=loads.__getitem__)
        own = len(self._waiting.get(flow.name, ())) + 1
        if longest == flow.name or loads[longest] <= own / flow.weight:
            return None
        item = self._waiting[longest].pop()
        self._length -= 1
        self._tidy(longest)
        return item

    def find_place(self, item: Item) -> int:
        """Return the place of an item in the order of service, from 1."""
        return next(place for place, other in enumerate(self, start=1) if other is item)

    def _tidy(self, name: str) -> None:
        """Forget a flow without items, unless it has to wait for its next turn."""
        if not self._waiting[name]:
            del self._waiting[name], self._weights[name]
        if not self._waiting:
            self._starts.clear()
            self._now = 0.0
        elif len(self._starts) > 2 * len(self._waiting) + 16:
            self._starts = {
                name: start
                for name, start in self._starts.items()
                if name in self._waiting or start > self._now
            }


class Readmission:
    """The interrupted responses of one instance; `on_open` is called after the last trial."""

    def __init__(self, on_open: Callable[[], object] = lambda: None) -> None:
        self.waiting: list[Returning] = []
        self.admitted: Returning | None = None
        self.is_one_by_one = False
        """Whether each is tried alone: nobody else may be sent to the engine."""
        self.ended: deque[Endpoint] = deque(maxlen=64)
        """Engines whose end responses have noticed: the scheduler may not yet know of it."""
        self.on_open = on_open

    def admit(self) -> None:
        """Start the next resumption, if none is running."""
        if self.admitted is not None:
            return
        if self.waiting:
            choose = max if self.is_one_by_one else min  # the newest is the likeliest cause
            self.admitted = choose(self.waiting, key=lambda one: (one.is_empty, one.began_ns))
            self.waiting.remove(self.admitted)
            self.admitted.turn.set()
        else:
            self.is_one_by_one = False
            self.on_open()


class Returning:
    """An interrupted response; `deaths` have met it since a cause was found."""

    def __init__(self, gate: Readmission, began_ns: int) -> None:
        self._gate, self.began_ns = gate, began_ns
        self.is_empty = True
        self.deaths = 0
        self.turn = asyncio.Event()

    def note_death(self, endpoint: Endpoint, *, was_alone: bool) -> bool:
        """Note the end of its engine, where it `was_alone` or not; return if it is the cause."""
        gate = self._gate
        self.deaths += 1
        gate.ended.append(endpoint)
        if gate.is_one_by_one and self.is_admitted and was_alone:
            for one in gate.waiting:
                one.deaths = 0  # the doing of this one
            gate.is_one_by_one = False  # they resume as after a first crash
            gate.on_open()
            return True
        gate.is_one_by_one |= self.deaths > 1
        return False

    @property
    def is_admitted(self) -> bool:
        """True if it is the one that may be requested again."""
        return self._gate.admitted is self

    def knows_end_of(self, endpoint: Endpoint) -> bool:
        """Return whether an interrupted response has noticed that an engine has exited."""
        return endpoint in self._gate.ended

    async def wait_for_turn(self) -> None:
        """Wait until it may be asked for again; it may be that already."""
        if self.is_admitted:
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
        """Pass the turn: this one has received something new."""
        if not self._gate.is_one_by_one:
            self.leave()

    def leave(self) -> None:
        """Pass the turn: this one has ended, or waits no more."""
        gate = self._gate
        if self in gate.waiting:
            gate.waiting.remove(self)
        if self.is_admitted:
            gate.admitted = None
            gate.admit()
