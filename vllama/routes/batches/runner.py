"""Runs the rows of batches: in order, each once, and only while nobody else asks their model."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from pathlib import Path
from secrets import token_hex
from typing import Protocol

import msgspec

from vllama.accounts.keys.ring import KeyRing
from vllama.base import executors
from vllama.base.errors import Unauthorized, VllamaError
from vllama.dialects.errors import make_openai_error
from vllama.dialects.openai.batch_types import OVER, RequestCounts, RowError, RowErrors
from vllama.routes.batches.inner import Answer, ask, make_request
from vllama.routes.batches.lane import LOOK_S, Lane, is_row
from vllama.routes.batches.rows import Place, Row, check_rows, read_row
from vllama.routes.batches.store import BatchStore, Conflict, Journal, StoredBatch
from vllama.routes.catalog import Catalog
from vllama.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

BUSY = (429, 503)
BUSY_PAUSE_S = 2.0
EXPIRE_S = 3600.0


class Host(Protocol):
    """The parts of the server that a batch needs."""

    answer: Answer
    keys: KeyRing
    lane: Lane
    catalog: Catalog
    scheduler: Scheduler


class Batches:
    """The batches of one server; those that had not ended when it did go on at its start."""

    def __init__(self, store: BatchStore, host: Host) -> None:
        self.store = store
        self._host = host
        self._running: dict[str, tuple[asyncio.Task[None], StoredBatch]] = {}

    async def run(self) -> None:
        """Go on with what had not ended, and remove what has expired, until cancelled."""
        try:
            while True:
                await executors.storage.run(self.store.expire)
                for stored in reversed(await executors.storage.run(self.store.list_batches)):
                    if stored.shown.status not in OVER:
                        self.start(stored)
                await asyncio.sleep(EXPIRE_S)
        finally:
            for task, _ in self._running.values():
                task.cancel()

    def start(self, stored: StoredBatch) -> None:
        """Run a batch, unless it runs already."""
        identity = stored.shown.id
        if identity not in self._running:
            task = asyncio.create_task(self._run(stored), name=identity)
            self._running[identity] = task, stored
            task.add_done_callback(lambda _: self._running.pop(identity, None))

    def find_running(self, identity: str) -> StoredBatch | None:
        """Return a batch that runs, with its counts; None if it does not."""
        found = self._running.get(identity)
        return found[1] if found is not None else None

    async def cancel(self, stored: StoredBatch) -> StoredBatch:
        """Stop a batch; rows that have ended stay. Raises OSError, Conflict if it is over."""
        shown = stored.shown
        if shown.status in OVER:
            raise Conflict(f"cannot cancel {shown.id}: it is over ({shown.status})")
        if shown.status != "cancelling":
            shown.status, shown.cancelling_at = "cancelling", int(time.time())
            await executors.storage.run(self.store.save_batch, stored)
        self.start(stored)
        return stored

    async def _run(self, stored: StoredBatch) -> None:
        """Check a batch, run its rows, and write its files."""
        shown = stored.shown
        try:
            places = await self._check(stored)
            if places is not None:
                await self._run_rows(stored, places)
        except OSError as error:
            log.error("batch %s stops until the server is started again: %s", shown.id, error)
        except Exception:
            log.exception("batch %s: unexpected error", shown.id)

    async def _check(self, stored: StoredBatch) -> list[Place] | None:
        """Return the rows of a batch; None if there are errors, which it has then."""
        shown = stored.shown
        path = self.store.content(shown.input_file_id)
        try:
            places, errors = await executors.storage.run(check_rows, path, shown.endpoint)
        except FileNotFoundError:
            gone = RowError(code="file_not_found", message="its input file was removed")
            places, errors = [], [gone]
        now_s = int(time.time())
        if errors:
            shown.status, shown.failed_at, shown.errors = "failed", now_s, RowErrors(data=errors)
        else:
            shown.request_counts.total = len(places)
            if shown.status == "validating":
                shown.status, shown.in_progress_at = "in_progress", now_s
        await executors.storage.run(self.store.save_batch, stored)
        return None if errors else places

    async def _run_rows(self, stored: StoredBatch, places: list[Place]) -> None:
        shown, journal = stored.shown, Journal(self.store.folder, stored.shown.id)
        ended, good, bad = await executors.storage.run(journal.read)
        counts = shown.request_counts = RequestCounts(total=len(places), completed=good, failed=bad)
        pending = deque(place for place in places if place.custom_id not in ended)
        active: set[asyncio.Task[None]] = set()
        path = self.store.content(shown.input_file_id)

        async def run_row(place: Place, row: Row) -> None:
            is_row.set(True)
            answer = await self._ask(stored, row)
            if answer is None or answer[0] in BUSY:
                pending.appendleft(place)  # another request came, or there is no room for it now
                await asyncio.sleep(BUSY_PAUSE_S if answer else 0)
                return
            line = _write_line(place.custom_id, *answer)
            is_good = answer[0] < 400
            await executors.storage.run(lambda: journal.add(line, good=is_good))
            counts.completed += is_good
            counts.failed += not is_good

        try:
            while pending or active:
                if shown.status == "cancelling" or time.time() > shown.expires_at:
                    break
                if pending and await self._may_start(row := await _read(path, pending[0])):
                    place = pending.popleft()
                    active.add(asyncio.create_task(run_row(place, row)))
                    await asyncio.sleep(0)
                else:
                    await asyncio.sleep(LOOK_S) if not active else await asyncio.wait(
                        active, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED
                    )
                for task in [each for each in active if each.done()]:
                    active.discard(task)
                    task.result()
        finally:
            for task in active:
                task.cancel()
        await self._end(stored, finished=not pending and not active)

    async def _end(self, stored: StoredBatch, *, finished: bool) -> None:
        """Write the files of a batch, and its last state."""
        shown, now_s = stored.shown, int(time.time())
        shown.finalizing_at = now_s
        shown.output_file_id = await executors.storage.run(self.store.make_output, stored, "out")
        shown.error_file_id = await executors.storage.run(self.store.make_output, stored, "err")
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

    async def _ask(self, stored: StoredBatch, row: Row) -> tuple[int, bytes] | None:
        """Return the status and the body of a row's answer, None if it was stopped."""
        host = self._host
        key = host.keys.find_owner(stored.owner, stored.key_name)
        if key is None and host.keys.is_required:
            error = Unauthorized("unauthorized: the key of this batch is gone")
            return error.status, msgspec.json.encode(make_openai_error(error))
        request, client = make_request(stored.shown.endpoint, row.body)
        return await ask(host.answer, request, client, key)


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
