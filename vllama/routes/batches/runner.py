"""Runs the rows of batches: in order, each once, and only while nobody else asks their model."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import msgspec

from vllama.accounts.keys.key import ApiKey
from vllama.accounts.keys.ring import KeyRing
from vllama.base import executors
from vllama.base.errors import EngineCrashed, Unauthorized, VllamaError
from vllama.dialects.errors import make_openai_error
from vllama.dialects.openai.batch_types import OVER, Batch, BatchStatus, RequestCounts, RowError
from vllama.net.http.request import RESUMED_HEADER, Request
from vllama.routes.batches.lane import LOOK_S, Lane, is_last_attempt
from vllama.routes.batches.rows import (
    Place,
    add_lines,
    check_rows,
    read_ended,
    read_row,
    write_line,
)
from vllama.routes.batches.store import ERROR, LOCKED_S, OUTPUT, BatchStore, Conflict, StoredBatch
from vllama.routes.catalog import Catalog
from vllama.routes.recording.running import is_row

log = logging.getLogger(__name__)

BUSY = (429, 503)
LEAST_REST_S, MOST_REST_S = 2.0, 60.0
MOST_DEATHS, MOST_RESTARTS = 2, 2
MOST_MODELS = 16  # whose next rows are looked at for one that may run
LOOK_AGAIN_S = 60.0
"""For files that have expired, and for batches that an error of the disk has stopped."""
CLIENT = "batch"
"""Stands in lists where other requests have the address of their client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The parts of the server that a batch needs."""

    answer: Callable[[Request, ApiKey | None], Awaitable[None]]
    keys: KeyRing
    lane: Lane
    catalog: Catalog


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
        """Go on with what had not ended, and remove what has expired, until canceled.

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
            raise Conflict(f"cannot cancel {identity}: it has already finished ({shown.status})")
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
            log.info("batch %s: %s", identity, status)
        except OSError as error:
            log.error("batch %s paused: %s", identity, error)
        except Exception:
            log.exception("batch %s: unexpected error", identity)
            unknown = RowError(code="server_error", message="internal error: see the server's log")
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
                if place := await self._take_next(rows, is_alone=not active):
                    body = await executors.storage.run(read_row, path, place)
                    active.add(asyncio.create_task(self._ask(stored, rows, place, body)))
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

    async def _take_next(self, rows: _Rows, *, is_alone: bool) -> Place | None:
        """Take out a row that may run now; None if none may."""
        for place in rows.list_next(is_alone=is_alone):
            if await self._may_start(place.model):
                rows.take(place)
                return place
        return None

    async def _may_start(self, model: str) -> bool:
        """Return whether a row may start; one without a model may, and gets its error."""
        try:
            entry = await self._host.catalog.find(model, trusted=True)
        except VllamaError:
            return True
        return self._host.lane.may_start(entry.bundle)

    async def _ask(
        self, stored: StoredBatch, rows: _Rows, place: Place, body: bytes
    ) -> Line | None:
        """Return the answer of a row; None if it has none, and goes back to the others."""
        is_row.set(True)
        host, custom_id = self._host, place.custom_id
        is_last_attempt.set(rows.restarts[custom_id] >= MOST_RESTARTS)
        key = host.keys.find_owner(stored.owner, stored.key_name)
        if key is None and host.keys.is_required:
            error = Unauthorized("unauthorized: the API key of this batch was removed")
            text = msgspec.json.encode(make_openai_error(error))
            return Line(False, write_line(custom_id, error.status, text))
        request = Request.without_socket(stored.shown.endpoint, body, CLIENT)
        await host.answer(request, key)
        if request.disconnected or not request.done:  # another request came
            rows.begin_again(place)
            return None
        if request.status in BUSY:
            rows.rest(place)
            return None
        was_resumed = any(name == RESUMED_HEADER.encode() for name, _ in request.extra)
        died = isinstance(request.failure, EngineCrashed) and not was_resumed
        if died and rows.repeat(place):
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
    """The rows of a batch that are still to run, in order within each model.

    After a refusal they rest, each time longer. A row that was stopped and has to begin again does
    so behind the others. A row whose engine has died may be the cause: it runs again after all
    others, alone, so that it cannot do them harm.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        self._new: defaultdict[str, deque[Place]] = defaultdict(deque)  # by model
        for place in places:
            self._new[place.model].append(place)
        self._again = deque[Place]()
        self._deaths, self.restarts = Counter[str](), Counter[str]()
        self.rest_s = LEAST_REST_S  # the next rest
        self._rests_until_s = 0.0

    @property
    def are_left(self) -> bool:
        """True while any is still to run."""
        return bool(self._new or self._again)

    def list_next(self, *, is_alone: bool) -> list[Place]:
        """Return those of which one may run next; `is_alone`: no other runs."""
        if time.monotonic() < self._rests_until_s:
            return []
        first = [rows[0] for rows in islice(self._new.values(), MOST_MODELS)]
        return first or (list(self._again)[:1] if is_alone else [])

    def take(self, place: Place) -> None:
        """Take out a row, which runs."""
        rows = self._find(place)
        rows.remove(place)
        if not rows:
            self._new.pop(place.model, None)

    def _find(self, place: Place) -> deque[Place]:
        return self._again if place.custom_id in self._deaths else self._new[place.model]

    def begin_again(self, place: Place) -> None:
        """Put a row that was taken out after the others, to run from its beginning."""
        self.restarts[place.custom_id] += 1
        self._find(place).append(place)

    def rest(self, place: Place) -> None:
        """Put a row that was refused before the others, after a rest of all."""
        self._find(place).appendleft(place)
        if time.monotonic() >= self._rests_until_s:  # else another row has been refused, too
            self._rests_until_s = time.monotonic() + self.rest_s
            self.rest_s = min(2 * self.rest_s, MOST_REST_S)

    def repeat(self, place: Place) -> bool:
        """Run a row whose engine has died again, unless it has done so often enough."""
        if self._deaths[place.custom_id] == MOST_DEATHS:
            return False
        self._deaths[place.custom_id] += 1
        self._again.append(place)
        return True
