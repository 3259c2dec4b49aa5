"""Runs the rows of batches: in order, each once, and only while nobody else asks their model."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple, Protocol, TypeGuard

import msgspec

from vllama.accounts.keys.key import Key
from vllama.accounts.keys.ring import KeyRing
from vllama.base import executors
from vllama.base.errors import EngineCrashed, Unauthorized, VllamaError
from vllama.dialects.errors import make_openai_error
from vllama.dialects.openai.batch_types import OVER, RequestCounts, RowError, RowErrors
from vllama.net.http.request import RESUMED_HEADER, Request
from vllama.routes.batches.lane import LOOK_S, Lane, is_row
from vllama.routes.batches.rows import Place, Row, check_rows, read_row
from vllama.routes.batches.store import LOCKED_S, BatchStore, Conflict, Journal, StoredBatch
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


class Answered(NamedTuple):
    """A status and a body; `may_repeat`: its engine died, and nobody has asked it again."""

    status: int
    body: bytes
    may_repeat: bool = False


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

    async def cancel(self, identity: str, owner: str) -> StoredBatch:
        """Stop a batch; rows that have ended stay.

        Raises OSError, NotThere, and Conflict if it is over.
        """
        stored = self.store.find_batch(identity, owner)
        shown = stored.shown
        if shown.status in OVER:
            raise Conflict(f"cannot cancel {identity}: it is over ({shown.status})")
        if shown.status != "cancelling":
            shown.status, shown.cancelling_at = "cancelling", int(time.time())
            await executors.storage.run(self.store.save_batch, stored)
        self.start(stored)
        return stored

    async def _run(self, stored: StoredBatch) -> None:
        """Check a batch, run its rows, and write its files."""
        try:
            places = await self._check(stored)
            if places:
                await self._run_rows(stored, places)
        except OSError as error:
            log.error("batch %s stops for a while: %s", stored.shown.id, error)
        except Exception:
            log.exception("batch %s: unexpected error", stored.shown.id)
            unknown = RowError(code="server_error", message="internal error; see the server's log")
            await self._fail(stored, [unknown])

    async def _fail(self, stored: StoredBatch, errors: list[RowError]) -> None:
        """End a batch that cannot run, with what has been answered of it before."""
        shown = stored.shown
        shown.status, shown.failed_at = "failed", int(time.time())
        shown.errors = RowErrors(data=errors)
        await self._make_outputs(stored)
        await executors.storage.run(self.store.finish, stored)

    async def _make_outputs(self, stored: StoredBatch) -> None:
        """Make the files of what a batch has answered."""
        shown, make = stored.shown, self.store.make_output
        shown.output_file_id = await executors.storage.run(make, stored, "out")
        shown.error_file_id = await executors.storage.run(make, stored, "err")

    async def _check(self, stored: StoredBatch) -> list[Place] | None:
        """Return the rows of a batch; None if there are errors, which it has then."""
        shown = stored.shown
        path = self.store.content(shown.input_file_id)
        try:
            places, errors = await executors.storage.run(check_rows, path, shown.endpoint)
        except FileNotFoundError:
            gone = RowError(code="file_not_found", message="its input file was removed")
            places, errors = [], [gone]
        if errors:
            await self._fail(stored, errors)
            return None
        shown.request_counts.total = len(places)
        if shown.status == "validating":
            shown.status, shown.in_progress_at = "in_progress", int(time.time())
        await executors.storage.run(self.store.save_batch, stored)
        return places

    async def _run_rows(self, stored: StoredBatch, places: list[Place]) -> None:
        shown, journal = stored.shown, Journal(self.store.folder, stored.shown.id)
        ended, good, bad = await executors.storage.run(journal.read)
        counts = shown.request_counts = RequestCounts(total=len(places), completed=good, failed=bad)
        rows = _Rows(place for place in places if place.custom_id not in ended)
        active: set[asyncio.Task[None]] = set()
        path = self.store.content(shown.input_file_id)

        async def run_row(place: Place, row: Row) -> None:
            is_row.set(True)
            answer = await self._ask(stored, row)
            if not rows.is_final(answer, place):
                return
            line = _write_line(place.custom_id, answer.status, answer.body)
            is_good = answer.status < 400
            await executors.storage.run(lambda: journal.add(line, good=is_good))
            counts.completed += is_good
            counts.failed += not is_good

        try:
            while rows.are_left or active:
                if shown.status == "cancelling" or time.time() > shown.expires_at:
                    break
                place = rows.take(is_alone=not active)
                if place and await self._may_start(row := await _read(path, place)):
                    active.add(asyncio.create_task(run_row(place, row)))
                    await asyncio.sleep(0)
                else:
                    if place:
                        rows.give_back(place)
                    await asyncio.sleep(LOOK_S) if not active else await asyncio.wait(
                        active, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED
                    )
                for task in [each for each in active if each.done()]:
                    active.discard(task)
                    task.result()
        finally:
            for task in active:
                task.cancel()
        await self._end(stored, finished=not rows.are_left and not active)

    async def _end(self, stored: StoredBatch, *, finished: bool) -> None:
        """Write the files of a batch, and its last state."""
        shown, now_s = stored.shown, int(time.time())
        shown.finalizing_at = now_s
        await self._make_outputs(stored)
        if finished:
            shown.status, shown.completed_at = "completed", now_s
        elif shown.status == "cancelling":
            shown.status, shown.cancelled_at = "cancelled", now_s
        else:
            shown.status, shown.expired_at = "expired", now_s
        await executors.storage.run(self.store.finish, stored)
        log.info("batch %s has ended: %s", shown.id, shown.status)

    async def _may_start(self, row: Row) -> bool:
        """Return whether a row may run now; one without a model may, and gets its error."""
        host = self._host
        try:
            entry = await host.catalog.look_up(row.model)
        except VllamaError:
            return True
        return host.lane.may_start(entry.bundle, host.scheduler)

    async def _ask(self, stored: StoredBatch, row: Row) -> Answered | None:
        """Return the answer of a row, None if it was stopped."""
        host = self._host
        key = host.keys.find_owner(stored.owner, stored.key_name)
        if key is None and host.keys.is_required:
            error = Unauthorized("unauthorized: the key of this batch is gone")
            return Answered(error.status, msgspec.json.encode(make_openai_error(error)))
        body = bytearray()
        request = Request.without_socket(stored.shown.endpoint, row.body, body, CLIENT)
        await host.answer(request, key)
        if request.disconnected or not request.done:
            return None
        died = isinstance(request.failure, EngineCrashed)
        was_resumed = any(name == RESUMED_HEADER.encode() for name, _ in request.extra)
        return Answered(request.status, bytes(body), died and not was_resumed)


class _Rows:
    """The rows of a batch that are still to run, in order.

    After a refusal they rest, each time longer. A row whose engine has died may be the cause: it
    runs again after all others, alone, so that it cannot do them harm.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        self._new, self._again = deque(places), deque[Place]()
        self._deaths: Counter[str] = Counter()
        self._rest_s = LEAST_REST_S
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

    def is_final(self, answer: Answered | None, place: Place) -> TypeGuard[Answered]:
        """Return whether a row has its answer; else it runs again. None: another request came."""
        if answer is None:
            self.give_back(place)
        elif answer.status in BUSY:
            self.give_back(place)
            if time.monotonic() >= self._rests_until_s:  # else another row has been refused, too
                self._rests_until_s = time.monotonic() + self._rest_s
                self._rest_s = min(2 * self._rest_s, MOST_REST_S)
        elif answer.may_repeat and self._deaths[place.custom_id] < MOST_DEATHS:
            self._deaths[place.custom_id] += 1
            self._again.append(place)
        else:
            self._rest_s = LEAST_REST_S
            return True
        return False


async def _read(path: Path, place: Place) -> Row:
    return await executors.storage.run(read_row, path, place)


def _write_line(custom_id: str, status: int, body: bytes) -> bytes:
    """Return a line of an output file."""
    response = {
        "status_code": status,
        "request_id": f"req_{token_hex(12)}",
        "body": msgspec.Raw(body or b"null"),
    }
    identity = f"batch_req_{token_hex(12)}"
    line = {"id": identity, "custom_id": custom_id, "response": response, "error": None}
    return msgspec.json.encode(line)
