"""Runs the rows of batches: in order, each once, and only while nobody else asks their model."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from vllama.accounts.keys.key import Key
from vllama.accounts.keys.ring import KeyRing
from vllama.base import executors
from vllama.base.errors import EngineCrashed, Unauthorized, VllamaError
from vllama.dialects.errors import make_openai_error
from vllama.dialects.openai.batch_types import OVER, Batch, BatchStatus, RequestCounts, RowError
from vllama.net.http.request import RESUMED_HEADER, Request
from vllama.routes.batches.lane import LOOK_S, Lane, is_row
from vllama.routes.batches.rows import (
    Place,
    Row,
    add_lines,
    check_rows,
    read_ended,
    read_row,
    write_line,
)
from vllama.routes.batches.store import ERROR, LOCKED_S, OUTPUT, BatchStore, Conflict, StoredBatch
from vllama.routes.catalog import Catalog
from vllama.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

BUSY = (429, 503)
LEAST_REST_S, MOST_REST_S = 2.0, 60.0
MOST_DEATHS = 2
LOOK_AGAIN_S = 60.0
"""For files that have expired, and for batches that an error of the disk has stopped."""
CLIENT = "batch"
"""Stands in lists where other requests have the address of their client."""


class Host(Protocol):
    """The parts of the server that a batch needs."""

    answer: Callable[[Request, Key | None], Awaitable[None]]
    keys: KeyRing
    lane: Lane
    catalog: Catalog
    scheduler: Scheduler


class Line(NamedTuple):
    """A row's answer as a line of a file: the one of good answers, or the one of errors."""

    is_good: bool
    content: bytes


class Batches:
    """The batches of one server; those that had not ended when it did go on at its start."""

    def __init__(self, store: BatchStore, host: Host) -> None:
        self.store = store
        self._host = host
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Go on with what had not ended, and remove what has expired, until cancelled.

        While another server has the folder, wait for its end.
        """
        try:
            while True:
                is_open = await executors.storage.run(self.store.open)
                if is_open:
                    await executors.storage.run(self.store.expire)
                    for stored in reversed(self.store.list_batches()):
                        self.start(stored)
                await asyncio.sleep(LOOK_AGAIN_S if is_open else LOCKED_S)
        finally:
            for task in self._running.values():
                task.cancel()

    def start(self, stored: StoredBatch) -> None:
        """Run a batch, unless it runs already or is over."""
        identity = stored.shown.id
        if identity not in self._running and stored.shown.status not in OVER:
            task = self._running[identity] = asyncio.create_task(self._run(stored), name=identity)
            task.add_done_callback(lambda _: self._running.pop(identity, None))

    async def cancel(self, identity: str, owner: str) -> Batch:
        """Stop a batch, and return it as it is before it ends; rows that have ended stay.

        Raises OSError, NotFound, and Conflict if it is over.
        """
        stored = self.store.find_batch(identity, owner)
        shown = stored.shown
        if shown.status in OVER:
            raise Conflict(f"cannot cancel {identity}: it is over ({shown.status})")
        if shown.status != "cancelling":
            shown.enter("cancelling")
        answer = copy(shown)
        await executors.storage.run(self.store.save_batch, stored)
        self.start(stored)
        return answer

    async def _run(self, stored: StoredBatch) -> None:
        """Check a batch, run its rows, and end it with what has been answered."""
        identity = stored.shown.id
        try:
            status, errors = await self._run_rows(stored)
            await executors.storage.run(self.store.finish, stored, status, errors)
            log.info("batch %s has ended: %s", identity, status)
        except OSError as error:
            log.error("batch %s stops for a while: %s", identity, error)
        except Exception:
            log.exception("batch %s: unexpected error", identity)
            unknown = RowError(code="server_error", message="internal error; see the server's log")
            await executors.storage.run(self.store.finish, stored, "failed", [unknown])

    async def _run_rows(self, stored: StoredBatch) -> tuple[BatchStatus, list[RowError]]:
        """Return the status that a batch ends with, and what is wrong with its input."""
        shown, store = stored.shown, self.store
        path = store.content(shown.input_file_id)
        places, errors = await executors.storage.run(check_rows, path, shown.endpoint)
        if errors:
            return "failed", errors
        good = await executors.storage.run(read_ended, store.output(shown.id, OUTPUT))
        bad = await executors.storage.run(read_ended, store.output(shown.id, ERROR))
        ended = good | bad
        shown.request_counts = RequestCounts(
            total=len(places), completed=len(good), failed=len(bad)
        )
        if shown.status == "validating":
            shown.enter("in_progress")
        await executors.storage.run(store.save_batch, stored)
        rows = _Rows(place for place in places if place.custom_id not in ended)
        active: set[asyncio.Task[Line | None]] = set()
        try:
            while rows.are_left or active:
                if shown.status == "cancelling":
                    return "cancelled", []
                if time.time() > shown.expires_at:
                    return "expired", []
                if row := await self._take_next(rows, path, is_alone=not active):
                    active.add(asyncio.create_task(self._ask(stored, rows, row)))
                    await asyncio.sleep(0)  # so that it is in the lane before the next one
                elif active:
                    await asyncio.wait(active, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(LOOK_S)
                done = {task for task in active if task.done()}
                active -= done
                await self._keep(stored, [line for task in done if (line := task.result())])
        finally:
            for task in active:
                task.cancel()
        return "completed", []

    async def _take_next(self, rows: _Rows, path: Path, *, is_alone: bool) -> Row | None:
        """Take out the next row if it may run now; one without a model may, and gets its error."""
        place = rows.take(is_alone=is_alone)
        if place is None:
            return None
        row = await executors.storage.run(read_row, path, place)
        host = self._host
        try:
            entry = await host.catalog.look_up(row.model)
        except VllamaError:
            return row
        if host.lane.may_start(entry.bundle, host.scheduler):
            return row
        rows.give_back(place)
        return None

    async def _ask(self, stored: StoredBatch, rows: _Rows, row: Row) -> Line | None:
        """Return the answer of a row; None if it has none, and goes back to the others."""
        is_row.set(True)
        host, custom_id = self._host, row.place.custom_id
        key = host.keys.find_owner(stored.owner, stored.key_name)
        if key is None and host.keys.is_required:
            error = Unauthorized("unauthorized: the key of this batch is gone")
            text = msgspec.json.encode(make_openai_error(error))
            return Line(False, write_line(custom_id, error.status, text))
        request = Request.without_socket(stored.shown.endpoint, row.body, CLIENT)
        await host.answer(request, key)
        if request.disconnected or not request.done:  # another request came
            rows.give_back(row.place)
            return None
        if request.status in BUSY:
            rows.rest(row.place)
            return None
        was_resumed = any(name == RESUMED_HEADER.encode() for name, _ in request.extra)
        died = isinstance(request.failure, EngineCrashed) and not was_resumed
        if died and rows.repeat(row.place):
            return None
        rows.rest_s = LEAST_REST_S
        return Line(
            request.status < 400, write_line(custom_id, request.status, bytes(request.sink))
        )

    async def _keep(self, stored: StoredBatch, lines: Iterable[Line]) -> None:
        """Write answers; they count once they are on the disk."""
        good = [line.content for line in lines if line.is_good]
        bad = [line.content for line in lines if not line.is_good]
        for kind, contents in ((OUTPUT, good), (ERROR, bad)):
            if contents:
                path = self.store.output(stored.shown.id, kind)
                await executors.storage.run(add_lines, path, contents)
        stored.shown.request_counts.completed += len(good)
        stored.shown.request_counts.failed += len(bad)


class _Rows:
    """The rows of a batch that are still to run, in order.

    After a refusal they rest, each time longer. A row whose engine has died may be the cause: it
    runs again after all others, alone, so that it cannot do them harm.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        self._new, self._again = deque(places), deque[Place]()
        self._deaths: Counter[str] = Counter()
        self.rest_s = LEAST_REST_S  # the next rest
        self._rests_until_s = 0.0

    @property
    def are_left(self) -> bool:
        """Whether any is still to run."""
        return bool(self._new or self._again)

    def take(self, *, is_alone: bool) -> Place | None:
        """Take out the row that may run next, None while none may; `is_alone`: no other runs."""
        if time.monotonic() < self._rests_until_s:
            return None
        queue = self._new or (self._again if is_alone else None)
        return queue.popleft() if queue else None

    def give_back(self, place: Place) -> None:
        """Have a row that was taken out run next."""
        (self._again if place.custom_id in self._deaths else self._new).appendleft(place)

    def rest(self, place: Place) -> None:
        """Have a row that was refused run next, after a rest of all."""
        self.give_back(place)
        if time.monotonic() >= self._rests_until_s:  # else another row has been refused, too
            self._rests_until_s = time.monotonic() + self.rest_s
            self.rest_s = min(2 * self.rest_s, MOST_REST_S)

    def repeat(self, place: Place) -> bool:
        """Have a row whose engine has died run again, unless it has done so often enough."""
        if self._deaths[place.custom_id] == MOST_DEATHS:
            return False
        self._deaths[place.custom_id] += 1
        self._again.append(place)
        return True
