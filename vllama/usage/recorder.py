"""Records what requests take: into the journal at once, into the database in batches.

See docs/decisions/0028-usage-that-survives-a-kill.md.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sqlite3
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from vllama.usage.entries import Entry, encode_entry
from vllama.usage.journal import SUFFIX, Journal
from vllama.usage.store import UsageStore

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
MAX_JOURNAL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries of `journal`, which end at `size_bytes`; `is_last`: nothing follows them there."""

    journal: Journal
    size_bytes: int
    entries: list[Entry]
    is_last: bool


class UsageRecorder:
    """The usage of one server.

    A folder that cannot be written is reported in the log: a full disk must not end what the server
    is there for. What is recorded meanwhile is added as soon as that is possible again.
    """

    def __init__(self, store: UsageStore) -> None:
        """Raises OSError or sqlite3.Error."""
        self.store = store
        taken = store.take_over_journals(time.time())
        if taken:
            log.info("usage: took %d entries over from a server that was killed", taken)
        self._stamp = time.time_ns()
        self._numbers = itertools.count(1)
        self._journal = self._open_journal()
        self._pending: list[Entry] = []
        self._batches: deque[Batch] = deque()  # more than one only while the database fails
        self._folding = asyncio.Lock()
        self._closing = asyncio.Event()
        self._is_failing = False

    def record(self, entry: Entry) -> None:
        """Record an entry; it outlives the process once this returns."""
        self._pending.append(entry)
        try:
            self._journal.append(encode_entry(entry))
        except OSError as error:
            self._warn(error)

    async def run(self) -> None:
        """Move entries to the database in batches, until `close`."""
        while not self._closing.is_set():
            try:
                async with asyncio.timeout(INTERVAL_S):
                    await self._closing.wait()
            except TimeoutError:
                pass
            if self._pending or self._batches:
                await self.flush()
        await self.flush()
        if not self._batches:  # else the next server takes the journal over
            await asyncio.to_thread(self._remove, self._journal)
        self.store.close()

    def close(self) -> None:
        """Let `run` end, once everything is in the database."""
        self._closing.set()

    async def flush(self) -> None:
        """Move all entries to the database."""
        async with self._folding:
            try:
                self._batches.append(self._take_batch())
                while self._batches:
                    await asyncio.to_thread(self._fold, self._batches[0])
                    batch = self._batches.popleft()  # before what may fail without harm
                    if batch.is_last:
                        await asyncio.to_thread(self._remove, batch.journal)
                self._is_failing = False
            except (OSError, sqlite3.Error) as error:
                self._warn(error)

    def _take_batch(self) -> Batch:
        """Take what has been recorded since the last call; begin a new journal after a long one."""
        journal, entries = self._journal, self._pending
        is_last = journal.size_bytes > MAX_JOURNAL_BYTES
        if is_last:
            self._journal = self._open_journal()
        self._pending = []
        return Batch(journal, journal.size_bytes, entries, is_last)

    def _fold(self, batch: Batch) -> None:
        name = batch.journal.path.name
        self.store.fold(name, batch.size_bytes, batch.entries, time.time())

    def _open_journal(self) -> Journal:
        return Journal(self.store.folder / f"{self._stamp}-{next(self._numbers)}{SUFFIX}")

    def _remove(self, journal: Journal) -> None:
        journal.close()
        self.store.forget_journal(journal.path.name)

    def _warn(self, error: Exception) -> None:
        """Warn of what cannot be written, once until it can be."""
        if not self._is_failing:
            log.warning(
                "cannot keep usage in '%s': %s; it is kept in memory until that is possible",
                *(self.store.folder, error),
            )
        self._is_failing = True


def open_recorder(folder: Path) -> UsageRecorder | None:
    """Return a recorder; None, with a warning in the log, if `folder` cannot be used."""
    try:
        return UsageRecorder(UsageStore(folder))
    except (OSError, sqlite3.Error) as error:
        log.error(
            "cannot keep usage in '%s': %s; requests are not counted, and the tokens of a day are "
            "counted from the start of this server",
            *(folder, error),
        )
        return None
