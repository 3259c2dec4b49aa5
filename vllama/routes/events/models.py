"""The rows of models: what is loaded or loading, and what has failed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from vllama.base.units import rfc3339_local
from vllama.dialects.events import ModelError, ModelRow, PoolUse
from vllama.models.types import Bundle, Format
from vllama.plan.types import Plan
from vllama.scheduler.views import FailureView, Phase, View

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
