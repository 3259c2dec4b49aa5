"""One telling of a plan for all who ask: the command line, `/api/show`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllama.errors import VllamaError
from vllama.hardware.detect import describe
from vllama.models.types import Bundle, ModelInfo
from vllama.plan.ladder import first_plan
from vllama.plan.report import report
from vllama.plan.types import Facts, Need, Plan


def tell(
    facts: Facts,
    bundle: Bundle,
    info: ModelInfo,
    environ: Mapping[str, str],
    *,
    running: Plan | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Plan for a model and return the report, which also says why there may be no plan.

    `running` is the plan that it is loaded by. `more` goes to `report`; without `files` those on
    this disk are looked at.
    """
    outcome: Plan | VllamaError
    try:
        outcome = running or first_plan(facts, bundle, info, Need(), lambda: more.get("forms", ()))
    except VllamaError as error:
        outcome = error
    if isinstance(outcome, Plan):
        bundle = outcome.bundle  # another quantisation of it, where its own does not fit
    more.setdefault("files", files_here(bundle))
    platform = describe(facts.platform)
    return report(facts, bundle, outcome, platform=platform, environ=environ, **more)


def files_here(bundle: Bundle) -> list[dict[str, Any]]:
    """Return name and size of each file of a model that is here."""
    return [
        {"name": str(file), "size_bytes": file.stat().st_size, "here": True}
        for file in bundle.files
        if file.exists()
    ]
