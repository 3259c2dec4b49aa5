"""The rows of loaded, loading and failed models, in `/api/ps` and in the event stream."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from vllama.base.units import rfc3339_local
from vllama.dialects.events import ModelError, ModelRow, PoolUse
from vllama.dialects.ollama.answer_types import KeptConversations, LoadedModel, LoadProgress
from vllama.models.headers.info import build_details
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.plan.types import Plan
from vllama.scheduler.views import FailureView, Phase, View

if TYPE_CHECKING:
    from vllama.scheduler.slot_cache.cache import SlotCache


def make_loaded_row(view: View, names: Sequence[str]) -> LoadedModel:
    """Describe a model that is loaded or loading; `names` are those that the client may know."""
    return LoadedModel(
        name=names[0],
        model=names[0],
        size=view.memory_bytes,
        digest=view.bundle.digest,
        details=build_details(view.bundle, view.plan.info),
        expires_at=rfc3339_local(view.expires_s),
        size_vram=view.vram_bytes,
        context_length=get_known_context(view.plan),
        state=str(view.state),
        engine=view.plan.engine,
        engine_version=view.plan.installation.version,
        requests=view.leases - view.ending,
        slots=view.limit,
        queued=view.queued,
        replicas=view.replicas,
        restarts=view.restarts,
        pid=view.pid,
        other_names=list(names[1:]),
        ending=view.ending,
        cause=view.cause,
        placement=view.placed,
        load=LoadProgress(rfc3339_local(load.started_s), load.completed_bytes, load.total_bytes)
        if (load := view.load)
        else None,
    )


def add_conversations(rows: Iterable[LoadedModel], cache: SlotCache | None) -> None:
    """Add to `rows` what is kept of their models on disk; without a `cache` nothing is."""
    if cache is not None:
        for row in rows:
            count, size_bytes, hits = cache.store.summarise(row.name)
            row.conversations = KeptConversations(count=count, size=size_bytes, hits=hits)


def get_known_context(plan: Plan) -> int:
    """Return the context in tokens; 0 where a server elsewhere does not tell."""
    if plan.bundle.format is Format.REMOTE and not plan.info.context_length:
        return 0
    return plan.settings.context_length


def make_rows(views: Iterable[View], failures: Iterable[FailureView]) -> dict[str, ModelRow]:
    """Return one row of the event stream for each of `views` and of `failures`, by its name."""
    rows = {view.name: _make_row(view) for view in views}
    for failure in failures:
        rows.setdefault(failure.name, _make_failed_row(failure))
    return rows


def _make_row(view: View) -> ModelRow:
    idle = not (view.leases or view.queued or view.state is Phase.LOADING)
    pools = sorted({*view.planned, *view.measured})
    shown = msgspec.structs.asdict(make_loaded_row(view, (view.name, *view.other_names)))
    # whole seconds: the time is computed anew each time, and must not seem to change
    expires = rfc3339_local(round(view.expires_s)) if math.isfinite(view.expires_s) else None
    return ModelRow(
        **shown | {"expires_at": expires if idle else None},
        memory={
            pool: PoolUse(planned=view.planned.get(pool, 0), measured=view.measured.get(pool, 0))
            for pool in pools
        },
        pinned=view.pinned,
        log=_find_log(view.plan.bundle, view.has_log),
        error=_make_error(view.failure) if view.failure else None,
    )


def _make_failed_row(failure: FailureView) -> ModelRow:
    return ModelRow(
        name=failure.name,
        model=failure.name,
        size=0,
        digest=failure.bundle.digest,
        details=build_details(failure.bundle, ModelInfo(architecture="unknown")),
        expires_at=None,
        size_vram=0,
        context_length=0,
        state=str(Phase.FAILED),
        engine="",
        engine_version=None,
        requests=0,
        slots=0,
        queued=0,
        replicas=0,
        restarts=0,
        pid=None,
        cause=failure.cause,
        memory={},
        pinned=False,
        log=_find_log(failure.bundle, failure.has_log),
        error=_make_error(failure),
    )


def _make_error(failure: FailureView) -> ModelError:
    return ModelError(cause=failure.cause, hint=failure.hint, since=rfc3339_local(failure.since_s))


def _find_log(bundle: Bundle, has_log: bool) -> str | None:
    return bundle.name if has_log and bundle.format is not Format.REMOTE else None
