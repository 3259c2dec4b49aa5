"""What the scheduler asks: how a model is loaded, and of engines their start, memory and sleep.

`Planner` gathers the facts for the pure planner and reports its plan; `EngineHooks` carries it out.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from vllama.base import executors
from vllama.base.clock import RealClock
from vllama.base.errors import EngineError
from vllama.base.units import format_load
from vllama.chat.engine.traits import Traits
from vllama.chat.templates.jinja.renderer import Renderer
from vllama.dialects.ollama.answer_types import LoadProgress
from vllama.engines.base import Engine, Mode
from vllama.machine.detect import with_free_memory
from vllama.machine.visible import show_only
from vllama.models.headers.info import describe_template
from vllama.models.types import Bundle, ModelInfo
from vllama.plan.ladder import Failed, last_word, make_first_plan, make_next_plan
from vllama.plan.quant_fallback import list_forms_here, names_form
from vllama.plan.report import shorten
from vllama.plan.resources import leaves_gpus
from vllama.plan.types import Facts, Need, Plan
from vllama.routes.context import Gateway
from vllama.routes.in_use import InUse
from vllama.scheduler.hooks import Hooks, Measured, Process, Sleeper, save_nothing
from vllama.scheduler.memory import DraftRecords, MemoryMeter, MemoryRecords
from vllama.scheduler.policy import Pools
from vllama.scheduler.replicas import Replicas
from vllama.server.reporter import Reporter
from vllama.supervise.backoff import RestartPolicy
from vllama.supervise.spec import Endpoint, Fault, LaunchSpec
from vllama.supervise.supervisor import SupervisedProcess
from vllama.targets.attached import AttachedProcess
from vllama.targets.monitor import probe_target

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
        if engine := need.load.engine:  # as if the user had set it for this model
            bundle = replace(bundle, settings=replace(bundle.settings, engine=engine))
        facts, key = await self._now(), (bundle.key, need.mode)
        known = self._instead.get(key)
        if (
            known
            and not need.load.engine
            and (known.bundle.key == bundle.key or not names_form(bundle))
        ):
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


class EngineHooks:
    """Carries out what the scheduler decides about engines, with the settings in use."""

    def __init__(self, gateway: Gateway, reporter: Reporter) -> None:
        in_use = gateway.in_use
        self._in_use = in_use
        self._environ = gateway.environ
        self._upstreams = gateway.upstreams
        self._watch = gateway.watch
        self._slot_cache = gateway.slot_cache
        self._reporter = reporter
        self._clock = RealClock()
        self._meter = MemoryMeter(in_use.facts.platform, in_use.facts.reserve_bytes)
        self._records = MemoryRecords(in_use.config.data_dir / "memory.json")

    def make_hooks(self, planner: Planner) -> Hooks:
        """Return all that the scheduler may ask."""
        return Hooks(
            plan=planner.plan,
            replan=planner.replan,
            start=self._start,
            traits=self._traits,
            needs=self._needs,
            measure=self._measure,
            record_memory=self._record_memory,
            report_progress=self._report_progress,
            report_load=self._report_load,
            read_progress=self._upstreams.read_progress,
            abort_answers=self._upstreams.abort_answers,
            probe=self._probe,
            find_trouble=self._watch.find_trouble,
            make_sleeper=self._make_sleeper,
            before_end=self._slot_cache.end if self._slot_cache else save_nothing,
            on_instance_end=self._clean_up,
        )

    def _engine(self, plan: Plan) -> Engine:
        return self._in_use.facts.found.engines[plan.engine]

    def _traits(self, plan: Plan) -> Traits:
        engine = self._engine(plan)
        traits = engine.traits(plan.bundle, plan.settings)
        wanted = plan.settings.parallel or 0
        if wanted > traits.max_concurrency:
            self._reporter.note(
                f"{engine.title} takes {traits.max_concurrency} request at a time, not {wanted}: "
                "the others wait in order"
            )
        return traits

    def _start(self, plan: Plan) -> Process:
        engine = self._engine(plan)
        if self._slot_cache is not None:
            self._slot_cache.set_share(plan.bundle)
        if engine.attaches:
            endpoints, _ = engine.attach(plan.bundle)
            return AttachedProcess(endpoints, self._watch)

        def launch(endpoint: Endpoint) -> LaunchSpec:
            spec = engine.launch(
                plan.bundle, plan.settings, plan.installation, endpoint, self._environ
            )
            return replace(spec, env={**spec.env, **self._show_gpus(plan)})

        def supervised(name: str) -> SupervisedProcess:
            return SupervisedProcess(
                name=name,
                launch=launch,
                policy=RestartPolicy(),
                log_dir=self._in_use.config.log_dir,
                run_dir=self._in_use.config.run_dir,
                clock=self._clock,
                on_progress=lambda line: self._reporter.loading(f"{plan.bundle.name}: {line}"),
            )

        count = self._replicas(plan)
        if count == 1:
            return supervised(plan.bundle.name)
        names = [f"{plan.bundle.name}-{number}" for number in range(1, count + 1)]
        return Replicas([partial(supervised, name) for name in names])

    async def _probe(self, endpoint: Endpoint, model: str, mode: str) -> EngineError | None:
        with self._upstreams.use_pool(endpoint) as pool:
            return await probe_target(pool, model, embeds=mode == Mode.EMBED)

    def _show_gpus(self, plan: Plan) -> Mapping[str, str]:
        """Return the variable that shows an engine the GPUs of its plan only.

        A plan knows only the GPUs that this server sees. The user's variable stays where it names
        instances of a divided GPU.
        """
        gpus = {gpu.index: gpu for gpu in self._in_use.facts.platform.accelerators}
        chosen = [gpus[index] for index in plan.settings.gpus if index in gpus]
        if len(chosen) == len(gpus) and plan.bundle.settings.gpus is None:
            return {}
        divided = any(gpu.is_divided for gpu in chosen)
        shown = show_only(chosen)
        return {name: x for name, x in shown.items() if not divided or name not in self._environ}

    def _report_progress(self, plan: Plan, load: LoadProgress) -> None:
        told = format_load(load.completed, load.total, load.started_at)
        self._reporter.loading(f"loading {plan.bundle.name}: {told}")

    def _report_load(self, plan: Plan, again: bool) -> None:
        self._reporter.note(f"{plan.bundle.name} is loaded{' again' if again else ''}")

    def _clean_up(self) -> None:
        """End the display of a load that failed; the request that asked for it reports why."""
        self._reporter.loading("")
        gc.collect()  # errors and tasks leave cycles behind

    def _needs(self, plan: Plan) -> Pools:
        """Return the memory that a plan takes: what it took the last time, else the estimate."""
        single = self._records.needs(plan) or self._meter.needs(plan)
        return {pool: size * self._replicas(plan) for pool, size in single.items()}

    async def _record_memory(self, plan: Plan, held: Pools) -> None:
        count = self._replicas(plan)
        single = {pool: size // count for pool, size in held.items()}
        await executors.upkeep.run(self._records.add, plan, single)

    async def _measure(self, processes: Mapping[Hashable, Process], gpus: bool) -> Measured:
        return await self._meter.measure(processes, gpus=gpus)

    def _replicas(self, plan: Plan) -> int:
        if self._engine(plan).attaches:
            return 1
        return plan.bundle.settings.replicas or self._in_use.config.replicas

    def _make_sleeper(self, plan: Plan) -> Sleeper | None:
        engine = self._engine(plan)
        if not engine.sleeps(plan.settings):
            return None
        if self._replicas(plan) > 1:
            return None  # replicas share one set of routes, and would have to sleep together
        return Sleeper(engine)
