"""The lane of batches: a row runs while no other request asks its model, and a moment after."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import TypeAlias

from vllama.base.clock import Clock
from vllama.models.types import Bundle
from vllama.plan.types import Need
from vllama.routes.recording.running import RunningRequest
from vllama.routes.recording.stage import Stage
from vllama.scheduler.scheduler import Scheduler

PAUSE_S = 1.0
"""From the last live answer to the next row."""
LEAVE_LIMIT_S = 1.0
"""How long a request waits for the rows that it has stopped."""
RECENT_S = 300.0
"""A model that was used in this time is not unloaded for a row."""
LOOK_S = 0.1
is_last_attempt: ContextVar[bool] = ContextVar("is_last_attempt", default=False)
"""Whether it has begun again so often that it now runs to its end."""
MOST_STOPPED = 8  # rows of a model that wait with their texts while new ones start


Stop: TypeAlias = Callable[[], bool]
"""Stops a row of a batch, and tells whether it leaves the engine; it also says which one it is."""


class Lane(Stage):
    """Knows the live requests of each model, by its files, and stops its rows for them."""

    def __init__(self, clock: Clock, scheduler: Scheduler) -> None:
        self._clock, self._scheduler = clock, scheduler
        self._live: defaultdict[str, set[RunningRequest]] = defaultdict(set)
        self._waiting = set[RunningRequest]()  # live, for a slot of any model
        self._ended_s: dict[str, float] = {}
        self._unloaded_s: dict[str, float] = {}
        self._rows: defaultdict[str, set[Stop]] = defaultdict(set)
        self._staying: dict[str, set[Stop]] = {}  # those of them that run to their end
        # those that go on from where they were, by their turns
        self._stopped: defaultdict[str, list[object]] = defaultdict(list)
        self._new_until_s: dict[str, float] = {}  # new rows want to start
        self._row_left = asyncio.Event()

    async def queued(self, running: RunningRequest) -> None:
        """Stop the rows of the model, and wait until they have left, which takes milliseconds.

        A row's connection to the engine is closed, which stops it: beside a row a token takes 1.7
        times as long (measured on two cores). The slots of rows are free then; the request would
        else look like one too many for the engine, which would be loaded again with more slots.
        A row that was stopped waits for its turn.
        """
        assert running.wanted is not None
        key = running.wanted.bundle.key
        if running.is_paused:
            await self._wait_for_turn(running.wanted.bundle)
            running.is_paused = False
        if running.is_row:
            self._rows[key].add(running.stop)
            if self._live[key] or self._waiting:
                self._stop_rows(key)
            return
        self._live[key].add(running)
        self._stop_rows(key)
        if not self._rows.get(key):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_LIMIT_S):
                while self._rows[key] - self._staying.get(key, set()):
                    self._row_left.clear()
                    await self._row_left.wait()

    def waits(self, running: RunningRequest) -> None:
        """Stop the rows of all models while the request waits: they may hold what it needs."""
        if running.is_row or running.lease is not None:
            return
        self._waiting.add(running)
        for key in self._rows:
            self._stop_rows(key)

    def leased(self, running: RunningRequest) -> None:
        self._waiting.discard(running)

    def released(self, running: RunningRequest) -> None:
        assert running.wanted is not None
        key = running.wanted.bundle.key
        if running.is_row:
            self._rows[key].discard(running.stop)
            self._row_left.set()
            return
        self._waiting.discard(running)
        self._live[key].discard(running)
        self._ended_s[key] = self._clock.monotonic()

    def note_unload(self, key: str) -> None:
        """Stop the rows of a model that a client unloads; only another request loads it soon."""
        self._unloaded_s[key] = self._clock.monotonic()
        self._stop_rows(key)

    def _stop_rows(self, key: str) -> None:
        rows = tuple(self._rows.get(key, ()))
        self._staying[key] = {stop for stop in rows if not stop()}

    def may_start(self, bundle: Bundle) -> bool:
        """Return whether a new row may start: before those that were stopped, if they are few."""
        if len(self._stopped[bundle.key]) >= MOST_STOPPED:
            return False
        self._new_until_s[bundle.key] = self._clock.monotonic() + 2 * LOOK_S
        return self._has_room(bundle)

    async def _wait_for_turn(self, bundle: Bundle) -> None:
        """Wait until a row that was stopped may go on, after the others and the new ones."""
        turn, waiting = object(), self._stopped[bundle.key]
        waiting.append(turn)
        try:
            while True:
                new_until_s = self._new_until_s.get(bundle.key, 0.0)
                is_next = len(waiting) >= MOST_STOPPED or self._clock.monotonic() > new_until_s
                if is_next and waiting[0] is turn and self._has_room(bundle):
                    return
                await asyncio.sleep(LOOK_S)
        finally:
            waiting.remove(turn)

    def _has_room(self, bundle: Bundle) -> bool:
        """Return whether a row may run beside those that do."""
        key, now_s = bundle.key, self._clock.monotonic()
        traits = self._scheduler.find_traits(bundle, Need())
        most = traits.max_concurrency if traits is not None else 1
        if self._waiting or self._live[key] or len(self._rows[key]) >= most:
            return False
        ended_s = self._ended_s.get(key, -PAUSE_S)
        unloaded_s = self._unloaded_s.get(key, -RECENT_S)
        if now_s - ended_s < PAUSE_S or unloaded_s > max(ended_s, now_s - RECENT_S):
            return False
        loaded = [view.key for view in self._scheduler.list_views()]
        return key in loaded or not any(
            self._live[each] or now_s - self._ended_s.get(each, -RECENT_S) < RECENT_S
            for each in loaded
        )
