"""Measures how fast models are with their draft models and without, and keeps it on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vllama.base import executors
from vllama.base.record_file import RecordFile
from vllama.plan.draft_model import TRIAL_TOKENS, DraftSpeeds, Speed, make_key
from vllama.plan.types import Plan

MAX_TOKENS = 8 * TRIAL_TOKENS
"""Tokens that count; of more, the older ones count less and less."""


class DraftRecords:
    """The file of measured speeds, by the keys of `plan.draft_model.make_key`."""

    def __init__(self, path: Path) -> None:
        self._file = RecordFile(path)

    def read(self) -> Mapping[str, DraftSpeeds]:
        """Return everything that was measured."""
        return {
            key: DraftSpeeds(
                with_draft=_read_speed(value, "with"), without=_read_speed(value, "without")
            )
            for key, value in self._file.read().items()
        }

    async def add(self, plan: Plan, tokens: int, seconds: float) -> None:
        """Record an answer of a model that has a draft model, whether it was used or not."""
        side = "with" if plan.settings.draft_kind else "without"

        def change(known: object) -> object:
            before = _read_speed(known, side)
            kept = min(1.0, MAX_TOKENS / (before.tokens + tokens))
            row = [round((before.tokens + tokens) * kept), (before.seconds + seconds) * kept]
            return (known if isinstance(known, dict) else {}) | {side: row}

        key = make_key(plan.bundle, plan.installation)
        await executors.upkeep.run(self._file.change, key, change)


def _read_speed(value: object, side: str) -> Speed:
    match value.get(side) if isinstance(value, dict) else None:
        case [int(tokens), int() | float() as seconds]:
            return Speed(tokens=tokens, seconds=seconds)
    return Speed()


def open_draft_records(data_dir: Path) -> DraftRecords:
    """Return the measured speeds of models with draft models."""
    return DraftRecords(data_dir / "drafts.json")
