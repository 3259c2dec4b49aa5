"""The speeds of models that have draft models, with and without them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from vllama.base import executors
from vllama.base.errors import QueueFull
from vllama.plan.draft_model import wants_draft
from vllama.routes.recording.running import RunningRequest, compute_speed
from vllama.routes.recording.stage import Stage
from vllama.scheduler.memory import DraftRecords


class DraftTimer(Stage):
    """Records how fast requests were that ran alone, since others would have slowed them down."""

    def __init__(self, records: DraftRecords) -> None:
        self._records = records

    def released(self, running: RunningRequest) -> None:
        lease, wanted = running.lease, running.wanted
        if lease is None or wanted is None or not (lease.is_alone and wants_draft(wanted.bundle)):
            return
        plan, tokens, rate = lease.instance.plan, running.generated_tokens, compute_speed(running)
        if plan is not None and rate:
            with suppress(QueueFull):
                executors.upkeep.start(partial(self._records.add, plan, tokens, tokens / rate))
