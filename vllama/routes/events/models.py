"""The rows of models: what is loaded or loading, and what has failed."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from vllama.dialects.events import ModelError, ModelRow, PoolUse
from vllama.models.types import Format
from vllama.scheduler.policy import Pools
from vllama.scheduler.views import FailureView, View
from vllama.units import rfc3339_local

FAILED = "failed"


def make_rows(views: Iterable[View], failures: Iterable[FailureView]) -> dict[str, ModelRow]:
    """Return one row for each model, by its name.

    A model may be loaded twice, for text and for embeddings, or because a new instance replaces an
    old one. Its row has the sums, and the state of the first of `views`.
    """
    rows: dict[str, ModelRow] = {}
    for view in views:
        row = _make_row(view)
        other = rows.get(row.name)
        rows[row.name] = _add(other, row) if other else row
    for failure in failures:
        if failure.name not in rows:
            rows[failure.name] = _make_failed_row(failure)
    return rows


def sum_pools(pools: Iterable[Pools]) -> dict[str, int]:
    """Return the sum of each pool."""
    total: dict[str, int] = {}
    for each in pools:
        for pool, size in each.items():
            total[pool] = total.get(pool, 0) + size
    return total


def _make_row(view: View) -> ModelRow:
    idle = not view.leases and not view.queued and math.isfinite(view.expires_s)
    pools = sorted({*view.planned, *view.measured})
    return ModelRow(
        name=view.name,
        digest=view.bundle.digest,
        state=str(view.state),
        cause=view.cause,
        engine=view.plan.engine,
        size=view.memory_bytes,
        context=view.plan.settings.context_length,
        slots=view.limit,
        memory={
            pool: PoolUse(planned=view.planned.get(pool, 0), measured=view.measured.get(pool, 0))
            for pool in pools
        },
        running=view.leases,
        waiting=view.queued,
        # whole seconds: the time is computed anew each time, and must not seem to change
        expires_at=rfc3339_local(round(view.expires_s)) if idle else None,
        pinned=view.pinned,
        log=None if view.bundle.format is Format.REMOTE else view.plan.bundle.name,
        error=_make_error(view.failure) if view.failure else None,
    )


def _add(first: ModelRow, other: ModelRow) -> ModelRow:
    pools = sorted({*first.memory, *other.memory})
    none = PoolUse(planned=0, measured=0)
    pairs = {pool: (first.memory.get(pool, none), other.memory.get(pool, none)) for pool in pools}
    return msgspec.structs.replace(
        first,
        size=first.size + other.size,
        slots=first.slots + other.slots,
        running=first.running + other.running,
        waiting=first.waiting + other.waiting,
        memory={
            pool: PoolUse(planned=a.planned + b.planned, measured=a.measured + b.measured)
            for pool, (a, b) in pairs.items()
        },
        error=first.error or other.error,
    )


def _make_failed_row(failure: FailureView) -> ModelRow:
    return ModelRow(
        name=failure.name,
        digest=failure.bundle.digest,
        state=FAILED,
        cause=failure.cause,
        engine="",
        size=0,
        context=0,
        slots=0,
        memory={},
        running=0,
        waiting=0,
        expires_at=None,
        pinned=False,
        log=None if failure.bundle.format is Format.REMOTE else failure.bundle.name,
        error=_make_error(failure),
    )


def _make_error(failure: FailureView) -> ModelError:
    return ModelError(cause=failure.cause, hint=failure.hint, since=rfc3339_local(failure.since_s))
