"""Hooks of the scheduler: loading a model, and the start, memory and sleep of engines.

`Planner` gathers the facts for the pure planner and reports its plan; `EngineHooks` carries it out.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from vllama.base import executors, private
from vllama.base.clock import Clock, RealClock
from vllama.base.errors import EngineError
from vllama.base.units import format_amount, format_load
from vllama.chat.engine.traits import Traits
from vllama.chat.templates.jinja.renderer import Renderer
from vllama.engines.base import Engine, Mode
from vllama.machine.detect import with_free_memory
from vllama.machine.types import Accelerator, name_pool
from vllama.machine.visible import show_only
from vllama.models.headers.info import describe_template
from vllama.models.types import Bundle, Format, ModelInfo
from vllama.net.upstream.pool import Upstreams
from vllama.plan.distribution import list_usable
from vllama.plan.ladder import MOST, Failed, make_first_plan, make_last_error, make_next_plan
from vllama.plan.quant_fallback import list_forms_here, names_form
from vllama.plan.remote import add_remote
from vllama.plan.report import shorten
from vllama.plan.resources import leaves_gpus
from vllama.plan.types import Facts, Need, Plan
from vllama.routes.in_use import InUse
from vllama.scheduler.hooks import (
    Hooks,
    LoadedBytes,
    Measured,
    Placed,
    Process,
    Sleeper,
    save_nothing,
)
from vllama.scheduler.memory import DraftRecords, MemoryMeter, MemoryRecords
from vllama.scheduler.policy import Pools
from vllama.scheduler.replicas import Replicas
from vllama.scheduler.slot_cache.carry import restore_slots, save_slots
from vllama.server.reporter import Reporter
from vllama.supervise.backoff import RestartPolicy
from vllama.supervise.logs import RING_LINES
from vllama.supervise.spec import Endpoint, Fault, LaunchSpec
from vllama.supervise.supervisor import SupervisedProcess
from vllama.targets.attached import AttachedProcess
from vllama.targets.monitor import UpstreamMonitor, probe_target

if TYPE_CHECKING:
    from vllama.scheduler.slot_cache.cache import SlotCache

log = logging.getLogger(__name__)

MORE_TEMPLATES = "tokenizer.chat_template."
"""A GGUF's other templates, such as `tool_use`, which llama-server reads as it starts."""


@dataclass(slots=True, eq=False)
class Planner:
    """Plans for all models of one server; remembers which plans it reported, and which failed."""

    _in_use: InUse
    _renderer: Renderer
    _reporter: Reporter
    _draft_records: DraftRecords
    _reported: set[tuple[str, Mode]] = field(default_factory=set)
    _instead: dict[tuple[str, Mode], Plan] = field(default_factory=dict)

    def forget(self) -> None:
        """Report all plans again, and try those that failed: other settings hold."""
        self._reported.clear()
        self._instead.clear()

    async def plan(self, bundle: Bundle, need: Need) -> Plan:
        """Return the plan for a load. Raises NoPlan, BadModelFile, TemplateTooCostly.

        It starts with the plan that worked last if the model's first plan cannot work here, and
        with a smaller quantization on this disk if the model's own does not fit into memory.
        """
        info = await executors.upkeep.run(self._in_use.library.plan_info, bundle)
        bundle = need.apply(bundle)
        facts, key = await self._now(bundle), (bundle.key, need.mode)
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
                log.warning("%s runs on the CPU despite a GPU: see its plan", bundle.name)
            if (
                need.mode is Mode.CHAT
                and not info.chat_template
                and describe_template(bundle, info)
            ):
                log.warning("%s has no chat template: prompts are sent as plain text", bundle.name)
        self._reporter.loading(f"loading {bundle.name}")
        if need.mode is Mode.CHAT or bundle.format is not Format.GGUF:
            more = [x for name, x in info.metadata.items() if name.startswith(MORE_TEMPLATES)]
            for template in (info.chat_template, *more):
                if isinstance(template, str) and template:
                    await self._renderer.judge(template)
        return plan

    async def replan(self, bundle: Bundle, need: Need, failed: Sequence[Failed]) -> Plan:
        """Return the next plan after those that failed. Raises EngineStartFailed if none is left.

        An engine that cannot serve the model is not tried for it again while this server runs. One
        that ran out of memory, or lost the GPU, is: both come and go.
        """
        if failed[-1].diagnosis.fault is Fault.REMOTE and len(failed) <= MOST:
            return replace(await self.plan(bundle, need), instead=f"retried: {failed[-1].message}")
        forms = await executors.upkeep.run(list_forms_here, self._in_use.library, bundle)
        facts, key = await self._now(bundle), (bundle.key, need.mode)
        plan = make_next_plan(facts, need, failed, forms)
        if plan is None:
            self._instead.pop(key, None)
            raise make_last_error(self._in_use.facts, failed, forms)
        if not {one.diagnosis.fault for one in failed} & {Fault.MEMORY, Fault.DEVICE}:
            self._instead[key] = plan
        self._reporter.loading(f"loading {bundle.name}: {plan.instead}")
        return plan

    async def shrink(self, plan: Plan, need: Need, room: Pools) -> Plan:
        """Return the plan for a load that others leave less memory than the machine has.

        Raises NotEnoughMemory.
        """
        facts = replace(await self._now(plan.bundle), relief=replace(plan.relief, room=room))
        smaller = await self._first(facts, plan.bundle, plan.info, need)
        free = ", ".join(f"{format_amount(size)} of {pool}" for pool, size in room.items())
        instead = f"planned for the memory left by other programs: {free}"
        return replace(smaller, instead=instead, reasons=(instead, *smaller.reasons))

    async def _first(self, facts: Facts, bundle: Bundle, info: ModelInfo, need: Need) -> Plan:
        """Return the first plan that fits; in a thread, because it looks for files."""
        forms = partial(list_forms_here, self._in_use.library, bundle)
        return await executors.upkeep.run(make_first_plan, facts, bundle, info, need, forms)

    async def _now(self, bundle: Bundle) -> Facts:
        """Return the facts with what changes: free memory, remote devices, measured speeds."""
        facts = self._in_use.facts
        platform = await executors.upkeep.run(with_free_memory, facts.platform)
        speeds = await executors.upkeep.run(self._draft_records.read)
        ours = {  # since the start of the server; if others took it, admission plans once more
            name_pool(now.index): max(0, before.free_bytes - now.free_bytes)
            for before, now in zip(facts.platform.accelerators, platform.accelerators, strict=True)
        }
        facts = replace(facts, platform=platform, ours=ours, draft_speeds=speeds)
        return await executors.upkeep.run(add_remote, facts, bundle)


@dataclass(eq=False)
class EngineHooks:
    """Carries out what the scheduler decides about engines, with the settings in use."""

    _in_use: InUse
    _environ: Mapping[str, str]
    _upstreams: Upstreams
    _watch: UpstreamMonitor
    _slot_cache: SlotCache | None
    _reporter: Reporter
    _clock: Clock = field(default_factory=RealClock)

    def __post_init__(self) -> None:
        facts, data_dir = self._in_use.facts, self._in_use.config.data_dir
        self._meter = MemoryMeter(facts.platform, facts.reserve_of)
        self._records = MemoryRecords(data_dir / "memory.json")

    def make_hooks(self, planner: Planner) -> Hooks:
        """Return all that the scheduler may ask."""
        return Hooks(
            plan=planner.plan,
            replan=planner.replan,
            shrink=planner.shrink,
            start=self._start,
            traits=self._traits,
            needs=self._needs,
            measure=self._measure,
            read_load=self._read_load,
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
            save_slots=partial(save_slots, self._upstreams),
            restore_slots=partial(restore_slots, self._upstreams),
        )

    def _engine(self, plan: Plan) -> Engine:
        return self._in_use.facts.found.engines[plan.engine]

    def _traits(self, plan: Plan) -> Traits:
        engine = self._engine(plan)
        traits = engine.traits(plan.bundle, plan.settings)
        wanted = plan.settings.parallel or 0
        if wanted > traits.max_concurrency:
            self._reporter.note(
                f"{engine.title} runs {traits.max_concurrency} request at a time, not {wanted}: "
                "the others are queued"
            )
        return traits

    def _start(self, plan: Plan) -> Process:
        engine = self._engine(plan)
        if self._slot_cache is not None:
            self._slot_cache.set_share(plan.bundle)
        if (folder := plan.settings.slot_dir) is not None:
            private.make_folder(folder)  # llama-server does not start without it
        if engine.attaches:
            endpoints, _ = engine.attach(plan.bundle)
            return AttachedProcess(endpoints, self._watch)

        def launch(endpoint: Endpoint) -> LaunchSpec:
            spec = engine.launch(
                plan.bundle, plan.settings, plan.installation, endpoint, self._environ
            )
            seen = list_usable(self._in_use.facts.platform)
            shown = show_only(self._list_gpus(plan) or seen, seen, self._environ)
            return replace(
                spec,
                env={**spec.env, **shown},
                memory_limit_bytes=plan.memory.find_limit(spare_bytes),
            )

        # what the user's arguments take is in no plan
        spare_bytes = None if plan.settings.extra_args else engine.spare_bytes

        def make_process(name: str) -> SupervisedProcess:
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
            return make_process(plan.bundle.name)
        names = [f"{plan.bundle.name}-{number}" for number in range(1, count + 1)]
        return Replicas([partial(make_process, name) for name in names])

    async def _probe(self, endpoint: Endpoint, model: str, mode: str) -> EngineError | None:
        with self._upstreams.use_pool(endpoint) as pool:
            return await probe_target(pool, model, embeds=mode == Mode.EMBED)

    def _list_gpus(self, plan: Plan) -> list[Accelerator]:
        """Return the GPUs of a plan, in its order."""
        gpus = {gpu.index: gpu for gpu in self._in_use.facts.platform.accelerators}
        return [gpus[index] for index in plan.settings.gpus if index in gpus]

    def _read_load(self, plan: Plan, process: Process) -> Placed | None:
        """Return where a model lies by its engine's log; None if that does not tell."""
        output = process.parts[0].output()
        engine = self._engine(plan)
        report = engine.read_load(output.tail(RING_LINES), plan.settings) if output else None
        if report is None:
            return None
        gpus, count = self._list_gpus(plan), len(process.parts)
        trouble = report.find_trouble(plan.settings.gpu_layers, (*plan.remote, *gpus))
        return Placed(
            text=report.text,
            vram_bytes=report.vram_bytes * count,
            pools={pool: size * count for pool, size in report.by_pool(gpus).items()},
            trouble=trouble if plan.settings.gpu_layers else None,
        )

    def _report_progress(self, plan: Plan, load: LoadedBytes) -> None:
        told = format_load(load.completed_bytes, load.total_bytes, load.started_s)
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
