"""What has changed since it was last told: rows are compared, so nobody has to report changes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TypeVar

from vllama import __version__
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
from vllama.routes.events.activity import Activity
from vllama.routes.events.disk import Disk
from vllama.routes.events.history import HOUR_S, History
from vllama.routes.events.models import make_rows
from vllama.routes.pulls import Pulls
from vllama.routes.recording.running import RunningRequests
from vllama.scheduler.scheduler import Scheduler

Row = TypeVar("Row")
Event = tuple[str, str, EventData]
"""The topic, name and data of an event."""

TOPICS = ("models", "requests", "pulls", "samples", "marks")
"""What can be subscribed to: the lists of a snapshot."""


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
    ) -> None:
        self._scheduler = scheduler
        self._running = running
        self._activity = activity
        self._pulls = pulls
        self._history = history
        self._disk = disk
        self._models: Mapping[str, ModelRow] = {}
        self._requests: Mapping[str, RequestRow] = {}
        self._pulled: Mapping[str, PullRow] = {}
        self._ended = self._marked = self._sampled = self._listed = 0

    def make_snapshot(self, topics: frozenset[str]) -> Snapshot:
        """Return everything about `topics`."""
        now_s = time.time()
        requests, marks = "requests" in topics, self._scheduler.marks
        return Snapshot(
            time=round(now_s, 3),
            version=__version__,
            models=list(self._list_models().values()) if "models" in topics else None,
            requests=list(self._list_requests().values()) if requests else None,
            ended=self._activity.list_ended() if requests else None,
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
        ended = self._activity.list_after(self._ended)
        if new or ended:
            found.append(("requests", "requests", ChangedRequests(requests=new, ended=ended)))
        if moved := _compare(self._pulled, pulled)[0]:
            found.append(("pulls", "pulls", ChangedPulls(pulls=moved)))
        for mark in self._scheduler.marks.list_after(self._marked):
            found.append(("marks", "mark", mark))
        for sample in self._history.list_after(self._sampled):
            found.append(("samples", "sample", sample))
        self._models, self._requests, self._pulled = models, requests, pulled
        self._ended, self._marked = self._activity.count, self._scheduler.marks.count
        self._sampled, self._listed = self._history.count, self._disk.changes
        return found

    def _list_models(self) -> dict[str, ModelRow]:
        return make_rows(self._scheduler.list_models(), self._scheduler.list_failures())

    def _list_requests(self) -> dict[str, RequestRow]:
        rows = self._running.list_rows(self._scheduler.list_queue_places())
        return {row.id: row for row in rows}


def _compare(before: Mapping[str, Row], now: Mapping[str, Row]) -> tuple[list[Row], list[str]]:
    """Return the rows that are new or changed, and the keys of those that are gone."""
    rows = [row for key, row in now.items() if before.get(key) != row]
    return rows, [key for key in before if key not in now]
