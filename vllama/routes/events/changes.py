"""What has changed since it was last told: rows are compared, so nobody has to report changes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from vllama import __version__
from vllama.base import executors
from vllama.dialects.events import (
    ChangedLibrary,
    ChangedModels,
    ChangedPulls,
    ChangedRequests,
    EventData,
    ModelRow,
    PullRow,
    RequestRow,
    Snapshot,
)
from vllama.routes.catalog import Catalog
from vllama.routes.events.activity import HOUR_S, Activity, History
from vllama.routes.events.rows import make_rows
from vllama.routes.pulls import Pulls
from vllama.routes.recording.running import RunningRequests
from vllama.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from vllama.scheduler.slot_cache.store import SlotStore

Row = TypeVar("Row")
Event = tuple[str, str, EventData]
"""The topic, name and data of an event."""

TOPICS = ("models", "requests", "pulls", "samples", "marks")
"""What can be subscribed to: the lists of a snapshot."""


class Disk:
    """The models at the last look, of this class or of a client that asked for a list.

    What a client has seen counts: a file that came and went between two looks is still on its list.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known_changes = 0

    @property
    def is_outdated(self) -> bool:
        """Whether this server itself has changed something since the last look."""
        return self._catalog.changes != self._known_changes

    @property
    def changes(self) -> int:
        """How often the models were others than before."""
        return self._catalog.lists

    @property
    def count(self) -> int:
        """How many models there were."""
        return len(self._catalog.listed)

    async def look(self) -> None:
        """Look at the disk, in a thread: no model is read."""
        self._known_changes = self._catalog.changes
        self._catalog.note_list(await executors.upkeep.run(self._catalog.library.list))


class Changes:
    """Compares the server's state with that of the last call."""

    def __init__(
        self,
        scheduler: Scheduler,
        running: RunningRequests,
        activity: Activity,
        pulls: Pulls,
        history: History,
        disk: Disk,
        store: SlotStore | None,
    ) -> None:
        self._scheduler = scheduler
        self._running = running
        self._activity = activity
        self._pulls = pulls
        self._history = history
        self._disk = disk
        self._store = store  # of conversations, where they are kept
        self._models: Mapping[str, ModelRow] = {}
        self._requests: Mapping[str, RequestRow] = {}
        self._shown: set[str] = set()  # requests in the snapshots since the last call
        self._pulled: Mapping[str, PullRow] = {}
        self._ended = self._marked = self._sampled = self._listed = 0

    def make_snapshot(self, topics: frozenset[str]) -> Snapshot:
        """Return everything about `topics`."""
        now_s = time.time()
        marks = self._scheduler.marks
        requests = self._list_requests() if "requests" in topics else None
        self._shown.update(requests or ())
        return Snapshot(
            time=round(now_s, 3),
            version=__version__,
            models=list(self._list_models().values()) if "models" in topics else None,
            requests=None if requests is None else list(requests.values()),
            ended=None if requests is None else self._activity.list_ended(),
            pulls=self._pulls.list_rows() if "pulls" in topics else None,
            samples=self._history.list_samples() if "samples" in topics else None,
            marks=marks.list_since(now_s - HOUR_S) if "marks" in topics else None,
        )

    def collect(self) -> list[Event]:
        """Return the events since the last call."""
        found: list[Event] = []
        models, requests = self._list_models(), self._list_requests()
        pulled = {row.name: row for row in self._pulls.list_rows()}
        rows, gone = _compare(self._models, models)
        if rows or gone:
            found.append(("models", "models", ChangedModels(models=rows, gone=gone)))
        if self._listed != self._disk.changes:
            found.append(("models", "library", ChangedLibrary(count=self._disk.count)))
        new, _ = _compare(self._requests, requests)
        left = sorted((self._requests.keys() | self._shown) - requests.keys())
        ended = self._activity.list_after(self._ended)
        if new or ended or left:
            changed = ChangedRequests(requests=new, ended=ended, gone=left)
            found.append(("requests", "requests", changed))
        if moved := _compare(self._pulled, pulled)[0]:
            found.append(("pulls", "pulls", ChangedPulls(pulls=moved)))
        for mark in self._scheduler.marks.list_after(self._marked):
            found.append(("marks", "mark", mark))
        for sample in self._history.list_after(self._sampled):
            found.append(("samples", "sample", sample))
        self._models, self._requests, self._pulled = models, requests, pulled
        self._shown.clear()
        self._ended, self._marked = self._activity.count, self._scheduler.marks.count
        self._sampled, self._listed = self._history.count, self._disk.changes
        return found

    def _list_models(self) -> dict[str, ModelRow]:
        rows = make_rows(self._scheduler.list_models(), self._scheduler.list_failures())
        if self._store is not None:
            for row in rows.values():
                row.conversations = self._store.summarise(row.name)
        return rows

    def _list_requests(self) -> dict[str, RequestRow]:
        rows = self._running.list_rows(self._scheduler.list_queue_places())
        return {row.id: row for row in rows}


def _compare(before: Mapping[str, Row], now: Mapping[str, Row]) -> tuple[list[Row], list[str]]:
    """Return the rows that are new or changed, and the keys of those that are gone."""
    rows = [row for key, row in now.items() if before.get(key) != row]
    return rows, [key for key in before if key not in now]
