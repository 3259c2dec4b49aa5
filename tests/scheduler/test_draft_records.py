"""Measured speeds with and without a draft model, on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import LLAMA_SERVER_HERE, bundle, facts
from tests.plan.test_draft_model import INFO, MODEL
from vllama.plan.choose import make_plan
from vllama.plan.draft_model import DraftSpeeds, make_key
from vllama.plan.types import Need, Plan
from vllama.scheduler.memory import MAX_TOKENS, DraftRecords


def plan(*, drafts: bool, model=MODEL) -> Plan:
    made = make_plan(facts(installed=(LLAMA_SERVER_HERE,)), model, INFO, Need())
    kind = "simple" if drafts else None
    return replace(made, settings=replace(made.settings, draft_kind=kind))


def test_both_sides_are_kept_for_later_servers(tmp_path: Path) -> None:
    path = tmp_path / "drafts.json"
    for drafts, tokens, seconds in ((True, 100, 2.0), (True, 50, 2.0), (False, 10, 1.0)):
        DraftRecords(path).add(plan(drafts=drafts), tokens, seconds)
    speeds = DraftRecords(path).read()[make_key(MODEL, LLAMA_SERVER_HERE)]
    assert (speeds.with_draft.tokens, speeds.with_draft.seconds) == (150, 4.0)
    assert (speeds.without.tokens, speeds.without.seconds) == (10, 1.0)


def test_other_models_have_figures_of_their_own(tmp_path: Path) -> None:
    records, other = DraftRecords(tmp_path / "f"), bundle(draft=Path("/other.gguf"))
    records.add(plan(drafts=True), 5, 1.0)
    records.add(plan(drafts=True, model=other), 7, 1.0)
    assert sorted(row.with_draft.tokens for row in records.read().values()) == [5, 7]


def test_what_was_long_ago_counts_less(tmp_path: Path) -> None:
    records = DraftRecords(tmp_path / "f")
    for seconds in (2400.0, 24.0, 24.0, 24.0):
        records.add(plan(drafts=True), MAX_TOKENS, seconds)
    (speeds,) = records.read().values()
    assert speeds.with_draft.tokens == MAX_TOKENS
    assert speeds.with_draft.seconds == pytest.approx(24 + (2400 - 24) / 8)


@pytest.mark.parametrize("content", ["", "[]", '{"k": 1}', '{"k": {"with": ["a", 2]}}'])
def test_a_damaged_file_is_no_measurement(tmp_path: Path, content: str) -> None:
    (tmp_path / "f").write_text(content)
    assert set(DraftRecords(tmp_path / "f").read().values()) <= {DraftSpeeds()}
