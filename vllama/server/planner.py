"""Decides how a model is loaded: gathers the facts for the pure planner, and reports its plan."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from vllama.base import executors
from vllama.chat.templates.jinja.renderer import Renderer
from vllama.engines.base import Mode
from vllama.machine.detect import with_free_memory
from vllama.models.headers.info import describe_template
from vllama.models.types import Bundle, ModelInfo
from vllama.plan.ladder import Failed, last_word, make_first_plan, make_next_plan
from vllama.plan.placement import leaves_gpus
from vllama.plan.quant_fallback import list_forms_here, names_form
from vllama.plan.report import shorten
from vllama.plan.types import Facts, Need, Plan
from vllama.routes.in_use import InUse
from vllama.scheduler.memory import DraftRecords
from vllama.server.reporter import Reporter
from vllama.supervise.spec import Fault

log = logging.getLogger(__name__)


class Planner:
    """Plans for all models of one server; remembers which plans it reported, and which failed."""

    def __init__(
        self,
        in_use: InUse,
        renderer: Renderer,
        reporter: Reporter,
        draft_records: DraftRecords,
    ) -> None:
        self._in_use = in_use
        self._renderer = renderer
        self._reporter = reporter
        self._draft_records = draft_records
        self._reported: set[tuple[str, Mode]] = set()
        self._instead: dict[tuple[str, Mode], Plan] = {}

    def forget(self) -> None:
        """Report all plans again, and try those that failed: other settings hold."""
        self._reported.clear()
        self._instead.clear()

    async def plan(self, bundle: Bundle, need: Need) -> Plan:
        """Return the plan for a load. Raises NoPlan, BadModelFile.

        It starts with the plan that worked last if the model's first plan cannot work here, and
        with a smaller quantisation on this disk if the model's own does not fit into memory.
        """
        info = await executors.upkeep.run(self._in_use.library.info, bundle)
        facts, key = await self._now(), (bundle.key, need.mode)
        known = self._instead.get(key)
        if known and (known.bundle.key == bundle.key or not names_form(bundle)):
            facts = replace(facts, relief=known.relief)
            plan = await self._first(facts, known.bundle, known.info, need)
            reasons = (known.instead, *plan.reasons)
            plan = replace(plan, instead=known.instead, reasons=reasons)
        else:
            plan = await self._first(facts, bundle, info, need)
        if key not in self._reported:
            self._reported.add(key)
            for line in shorten(plan):
                self._reporter.note(line)
            if self._in_use.facts.platform.accelerators and leaves_gpus(plan):
                log.warning("%s runs on the CPU, though there is a GPU: see its plan", bundle.name)
            if (
                need.mode is Mode.CHAT
                and not info.chat_template
                and describe_template(bundle, info)
            ):
                log.warning("%s has no chat template: prompts are sent as bare text", bundle.name)
        self._reporter.loading(f"loading {bundle.name}")
        if need.mode is Mode.CHAT and info.chat_template:
            self._renderer.prepare(info.chat_template)
        return plan

    async def replan(self, bundle: Bundle, need: Need, failed: Sequence[Failed]) -> Plan:
        """Return the next plan after those that failed. Raises EngineStartFailed if none is left.

        An engine that cannot serve the model is not tried for it again while this server runs. One
        that ran out of memory is, since memory comes and goes.
        """
        forms = await executors.upkeep.run(list_forms_here, self._in_use.library, bundle)
        plan, key = make_next_plan(await self._now(), need, failed, forms), (bundle.key, need.mode)
        if plan is None:
            self._instead.pop(key, None)
            raise last_word(self._in_use.facts, failed, forms)
        if all(one.diagnosis.fault is not Fault.MEMORY for one in failed):
            self._instead[key] = plan
        self._reporter.loading(f"loading {bundle.name}: {plan.instead}")
        return plan

    async def _first(self, facts: Facts, bundle: Bundle, info: ModelInfo, need: Need) -> Plan:
        """Return the first plan that fits; in a thread, because it looks for files."""
        forms = partial(list_forms_here, self._in_use.library, bundle)
        return await executors.upkeep.run(make_first_plan, facts, bundle, info, need, forms)

    async def _now(self) -> Facts:
        """Return the facts with what changes meanwhile: free memory, and measured speeds."""
        platform = await executors.upkeep.run(with_free_memory, self._in_use.facts.platform)
        speeds = await executors.upkeep.run(self._draft_records.read)
        return replace(self._in_use.facts, platform=platform, draft_speeds=speeds)
