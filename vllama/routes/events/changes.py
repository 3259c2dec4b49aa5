"""What has changed since it was last told: rows are compared, so nobody has to report changes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from vllama import __version__
from vllama.base import executors
from vllama.base.units import rfc3339_local
from vllama.dialects.events import (
    ChangedLibrary,
    ChangedModels,
    ChangedPulls,
    ChangedRequests,
    EventData,
    ModelError,
    ModelRow,
    PoolUse,
    PullRow,
    RequestRow,
    Snapshot,
)
from vllama.models.types import Bundle, Format
from vllama.plan.types import Plan
from vllama.routes.catalog import Catalog
from vllama.routes.events.activity import HOUR_S, Activity, History
from vllama.routes.pulls import Pulls
from vllama.routes.recording.running import RunningRequests
from vllama.scheduler.scheduler import Scheduler
from vllama.scheduler.views import FailureView, Phase, View

Row = TypeVar("Row")
Event = tuple[str, str, EventData]
"""The topic, name and data of an event."""

TOPICS = ("models", "requests", "pulls", "samples", "marks")
"""What can be subscribed to: the lists of a snapshot."""


class Disk:
    """The models at the last look; `changes` counts how often they were others than before."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._seen: frozenset[tuple[object, ...]] = frozenset()
        self._known_changes = 0
        self.changes = 0

    @property
    def is_outdated(self) -> bool:
        """Whether this server itself has changed something since the last look."""
        return self._catalog.changes != self._known_changes

    @property
    def count(self) -> int:
        """How many models there were."""
        return len(self._seen)

    async def look(self) -> None:
        """Look at the disk, in a thread: no model is read."""
        self._known_changes = self._catalog.changes
        bundles = await executors.upkeep.run(self._catalog.library.list)
        seen = frozenset(_identify(bundle) for bundle in bundles)
        if seen != self._seen:
            self._seen = seen
            self.changes += 1


def _identify(bundle: Bundle) -> tuple[object, ...]:
    return bundle.name, bundle.key, bundle.size_bytes, bundle.modified_s


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
        return make_rows(self._scheduler.list_models(), self._scheduler.list_failures())

    def _list_requests(self) -> dict[str, RequestRow]:
        rows = self._running.list_rows(self._scheduler.list_queue_places())
        return {row.id: row for row in rows}


FAILED = "failed"


def make_rows(views: Iterable[View], failures: Iterable[FailureView]) -> dict[str, ModelRow]:
    """Return one row for each of the models' `views` and of `failures`, by its name."""
    rows = {view.name: _make_row(view) for view in views}
    for failure in failures:
        rows.setdefault(failure.name, _make_failed_row(failure))
    return rows


def read_view(view: View) -> dict[str, Any]:
    """Return what the rows of `/api/ps` and of the event stream have in common."""
    return {
        "digest": view.bundle.digest,
        "state": str(view.state),
        "cause": view.cause,
        "engine": view.plan.engine,
        "size": view.memory_bytes,
        "context_length": known_context(view.plan),
        "requests": view.leases - view.ending,
        "ending": view.ending,
        "slots": view.limit,
        "queued": view.queued,
    }


def known_context(plan: Plan) -> int:
    """Return the context in tokens; 0 where a server elsewhere does not tell."""
    if plan.bundle.format is Format.REMOTE and not plan.info.context_length:
        return 0
    return plan.settings.context_length


def _make_row(view: View) -> ModelRow:
    idle = not (view.leases or view.queued or view.state is Phase.LOADING)
    pools = sorted({*view.planned, *view.measured})
    return ModelRow(
        **read_view(view),
        name=view.name,
        other_names=list(view.other_names),
        memory={
            pool: PoolUse(planned=view.planned.get(pool, 0), measured=view.measured.get(pool, 0))
            for pool in pools
        },
        # whole seconds: the time is computed anew each time, and must not seem to change
        expires_at=rfc3339_local(round(view.expires_s))
        if idle and math.isfinite(view.expires_s)
        else None,
        pinned=view.pinned,
        log=view.plan.bundle.name if view.has_log and not _is_remote(view.bundle) else None,
        error=_make_error(view.failure) if view.failure else None,
    )


def _make_failed_row(failure: FailureView) -> ModelRow:
    return ModelRow(
        name=failure.name,
        other_names=[],
        digest=failure.bundle.digest,
        state=FAILED,
        cause=failure.cause,
        engine="",
        size=0,
        context_length=0,
        slots=0,
        memory={},
        requests=0,
        ending=0,
        queued=0,
        expires_at=None,
        pinned=False,
        log=failure.bundle.name if failure.has_log and not _is_remote(failure.bundle) else None,
        error=_make_error(failure),
    )


def _make_error(failure: FailureView) -> ModelError:
    return ModelError(cause=failure.cause, hint=failure.hint, since=rfc3339_local(failure.since_s))


def _is_remote(bundle: Bundle) -> bool:
    return bundle.format is Format.REMOTE


def _compare(before: Mapping[str, Row], now: Mapping[str, Row]) -> tuple[list[Row], list[str]]:
    """Return the rows that are new or changed, and the keys of those that are gone."""
    rows = [row for key, row in now.items() if before.get(key) != row]
    return rows, [key for key in before if key not in now]
