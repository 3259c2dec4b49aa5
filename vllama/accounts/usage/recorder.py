"""Records what requests take: into the journal at once, into the database in batches.

See docs/decisions/0028-usage-that-survives-a-kill.md.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vllama.accounts.usage.entries import SUFFIX, Entry, Journal, UsedBefore, encode_entry, sum_up
from vllama.accounts.usage.store import (
    FAILURES,
    UsageStore,
    find_inode,
    is_damage,
    put_aside,
)
from vllama.base import executors, private
from vllama.base.clock import wait_for

log = logging.getLogger(__name__)

INTERVAL_S, RETRY_S = 1.0, 60.0
MAX_JOURNAL_BYTES = 1 << 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JournalBatch:
    """Entries of `journal`, which end at `size_bytes`; `is_last`: nothing follows them there."""

    journal: Journal | None
    size_bytes: int
    entries: list[Entry]
    is_last: bool


class UsageRecorder:
    """The usage of one server.

    A folder that cannot be used is reported in the log: a full disk must not end what the server is
    there for. What is recorded meanwhile is kept in memory, and added once that is possible; until
    then `failure` says why it is not.
    """

    def __init__(
        self, folder: Path, restore: Callable[[dict[str, UsedBefore]], object] = lambda found: None
    ) -> None:
        """Open the folder; `restore` is called once, with what limits still count."""
        self.folder, self.failure = folder, ""
        self._store: UsageStore | None = None
        self._journal: Journal | None = None
        self._restore: Callable[[dict[str, UsedBefore]], object] | None = restore
        self._found: dict[str, UsedBefore] | None = None
        self._opening = threading.RLock()
        self._stamp = time.time_ns()
        self._numbers = itertools.count(1)
        self._pending: list[Entry] = []
        self._batches: deque[JournalBatch] = deque()  # more than one only while the database fails
        self._folding = asyncio.Lock()
        self._closing = asyncio.Event()
        try:
            self.read(lambda store: None)
            self._journal = self._open_journal()
        except FAILURES as error:
            self._fail(error)
        self._hand_over()

    def record(self, entry: Entry) -> None:
        """Record an entry; it outlives the process once this returns."""
        self._pending.append(entry)
        if self._journal is None:
            return
        try:
            self._journal.append(encode_entry(entry))
        except OSError as error:
            self._fail(error)

    async def run(self) -> None:
        """Move entries to the database in batches, until `close`."""
        while not self._closing.is_set():
            await wait_for(self._closing, RETRY_S if self._store is None else INTERVAL_S)
            if self._pending or self._batches or self.failure:
                await self.flush()
        await self.flush()
        if not self.failure and self._journal is not None:  # else the next server takes it over
            await executors.upkeep.run(self._remove, self._journal)
        if self._store is not None:
            self._store.close()

    def close(self) -> None:
        """End `run` once everything is in the database."""
        self._closing.set()

    async def flush(self) -> None:
        """Move all entries to the database."""
        async with self._folding:
            try:
                self._take_batch()
                while self._batches:
                    await executors.upkeep.run(self._fold, self._batches[0])
                    batch = self._batches.popleft()  # before what may fail without harm
                    if batch.is_last and batch.journal is not None:
                        await executors.upkeep.run(self._remove, batch.journal)
                if self.failure:
                    log.warning("usage is stored in '%s' again", self.folder)
                self.failure = ""
            except FAILURES as error:
                self._fail(error)
            self._hand_over()

    def read(self, work: Callable[[UsageStore], T]) -> T:
        """Return the result of `work` on the database.

        One that cannot be used is put aside, and a new one begins. Raises one of `FAILURES`.
        """
        with self._opening:
            inode = find_inode(self.folder)
            try:
                return work(self._connect())
            except FAILURES as error:
                if not is_damage(error):
                    raise
                put_aside(self.folder, inode, error)
            return work(self._connect())

    def _connect(self) -> UsageStore:
        if self._store is not None and self._store.is_current:
            return self._store
        if self._store is not None:
            self._store.close()
            self._store = None
        store = UsageStore(self.folder)
        try:
            store.check()
            taken = store.take_over_journals(time.time())
            if self._restore is not None:
                self._found = store.read_recent(time.time())
        except BaseException:
            store.close()
            raise
        if taken:
            log.info("usage: recovered %d entries from a killed server", taken)
        self._store = store
        return store

    def _hand_over(self) -> None:
        """Load earlier usage into the limits, in their own thread, and once."""
        if self._found is not None and self._restore is not None:
            self._restore(self._found)
            self._found = self._restore = None

    def _take_batch(self) -> None:
        """Take the entries since the last call; begin a new journal after a long one."""
        journal, entries = self._journal, self._pending
        is_last = journal is None or journal.size_bytes > MAX_JOURNAL_BYTES
        if is_last:
            self._journal = self._open_journal()
        self._pending = []
        if self._batches and self._batches[-1].journal is journal:
            entries = sum_up([*self._batches.pop().entries, *entries])
        size_bytes = 0 if journal is None else journal.size_bytes
        self._batches.append(JournalBatch(journal, size_bytes, entries, is_last))

    def _fold(self, batch: JournalBatch) -> None:
        name = batch.journal.path.name if batch.journal is not None else ""
        self.read(lambda store: store.fold(name, batch.size_bytes, batch.entries, time.time()))

    def _open_journal(self) -> Journal:
        private.make_folder(self.folder)
        return Journal(self.folder / f"{self._stamp}-{next(self._numbers)}{SUFFIX}")

    def _remove(self, journal: Journal) -> None:
        journal.close()
        self.read(lambda store: store.forget_journal(journal.path.name))

    def _fail(self, error: Exception) -> None:
        """Note that usage cannot be kept, with a warning if that is new."""
        if not self.failure:
            log.warning(
                "cannot store usage in '%s': %s; keeping it in memory, retrying every minute",
                *(self.folder, error),
            )
        self.failure = str(error)
