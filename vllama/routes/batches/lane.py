"""When a row of a batch may run: while no other request asks its model, and a moment after."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TypeAlias

from vllama.base.clock import Clock
from vllama.models.types import Bundle
from vllama.plan.types import Need
from vllama.scheduler.scheduler import Scheduler

PAUSE_S = 1.0
"""From the last live answer to the next row."""
LEAVE_LIMIT_S = 1.0
"""How long a request waits for the rows that it has stopped."""
RECENT_S = 300.0
"""A model that was used in this time is not unloaded for a row."""
LOOK_S = 0.1
is_row: ContextVar[bool] = ContextVar("is_row", default=False)
"""Whether the running request is a row of a batch."""


Stop: TypeAlias = Callable[[], None]
"""Stops a row of a batch, for a while or wholly; it also says which request it is."""


class Lane:
    """Counts the live requests of each model, by its files, and stops its rows for them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._live: Counter[str] = Counter()
        self._waiting = 0
        self._ended_s: dict[str, float] = {}
        self._unloaded_s: dict[str, float] = {}
        self._rows: defaultdict[str, set[Stop]] = defaultdict(set)
        self._stopped: Counter[str] = Counter()  # those that go on from where they were
        self._row_left = asyncio.Event()

    def enter(self, key: str, stop: Stop) -> None:
        """Note that a request asks for a model; the rows of that model are stopped at once.

        A row's connection to the engine is closed, which stops it: beside a row a token takes 1.7
        times as long (measured on two cores).
        """
        if is_row.get():
            self._rows[key].add(stop)
            if self._live[key] or self._waiting:
                stop()
            return
        self._live[key] += 1
        self._stop_rows(key)

    async def wait_for_rows(self, key: str) -> None:
        """Wait until the rows that `enter` has stopped have left, which takes milliseconds.

        Their slots are free then; the request would else look like one too many for the engine,
        which would be loaded again with more slots.
        """
        if is_row.get() or not self._rows.get(key):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_LIMIT_S):
                while self._rows[key]:
                    self._row_left.clear()
                    await self._row_left.wait()

    @contextmanager
    def give_way(self) -> Iterator[None]:
        """Stop the rows of all models while the request waits: they may hold what it needs."""
        if is_row.get():
            yield
            return
        self._waiting += 1
        for key in self._rows:
            self._stop_rows(key)
        try:
            yield
        finally:
            self._waiting -= 1

    def note_unload(self, key: str) -> None:
        """Stop the rows of a model that a client unloads; only another request loads it soon."""
        self._unloaded_s[key] = self._clock.monotonic()
        self._stop_rows(key)

    def _stop_rows(self, key: str) -> None:
        for stop in tuple(self._rows.get(key, ())):
            stop()

    def leave(self, key: str, stop: Stop) -> None:
        """Note the end of that request."""
        if is_row.get():
            self._rows[key].discard(stop)
            self._row_left.set()
            return
        self._live[key] -= 1
        self._ended_s[key] = self._clock.monotonic()

    def may_start(self, bundle: Bundle, scheduler: Scheduler) -> bool:
        """Return whether a new row may start; those that were stopped go first."""
        return self._has_room(bundle, scheduler, self._stopped[bundle.key])

    async def wait_for_turn(self, bundle: Bundle, scheduler: Scheduler) -> None:
        """Wait until a row that was stopped may go on."""
        self._stopped[bundle.key] += 1
        try:
            while True:
                if self._has_room(bundle, scheduler):
                    return
                await asyncio.sleep(LOOK_S)
        finally:
            self._stopped[bundle.key] -= 1

    def _has_room(self, bundle: Bundle, scheduler: Scheduler, others: int = 0) -> bool:
        """Return whether a row may run beside those that do and `others`."""
        key, now_s = bundle.key, self._clock.monotonic()
        traits = scheduler.find_traits(bundle, Need())
        most = traits.max_concurrency if traits is not None else 1
        if self._waiting or self._live[key] or len(self._rows[key]) + others >= most:
            return False
        ended_s = self._ended_s.get(key, -PAUSE_S)
        unloaded_s = self._unloaded_s.get(key, -RECENT_S)
        if now_s - ended_s < PAUSE_S or unloaded_s > max(ended_s, now_s - RECENT_S):
            return False
        loaded = [view.key for view in scheduler.list_views()]
        return key in loaded or not any(
            self._live[each] or now_s - self._ended_s.get(each, -RECENT_S) < RECENT_S
            for each in loaded
        )
