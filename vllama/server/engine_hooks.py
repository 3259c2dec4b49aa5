"""What the scheduler asks of engines: starting one, what it takes, and how it sleeps."""

from __future__ import annotations

import gc
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import partial

from vllama.base import executors
from vllama.base.clock import RealClock
from vllama.base.errors import EngineError
from vllama.chat.engine.traits import Traits
from vllama.engines.base import Engine, Mode
from vllama.engines.capabilities import Attachable, Sleeping
from vllama.machine.visible import show_only
from vllama.net.upstream.monitor import UpstreamMonitor
from vllama.net.upstream.pool import Upstreams
from vllama.plan.types import Plan
from vllama.routes.in_use import InUse
from vllama.scheduler.hooks import Hooks, Measured, Process, Sleeper
from vllama.scheduler.lifecycle import EngineSleeper
from vllama.scheduler.memory import MemoryMeter, MemoryRecords
from vllama.scheduler.policy import Pools
from vllama.scheduler.replicas import Replicas
from vllama.server.planner import Planner
from vllama.server.reporter import Reporter
from vllama.supervise.external import AttachedProcess
from vllama.supervise.spec import Endpoint, LaunchSpec, RestartPolicy
from vllama.supervise.supervisor import SupervisedProcess
from vllama.targets.probe import probe_target


class EngineHooks:
    """Carries out what the scheduler decides about engines, with the settings in use."""

    def __init__(self, in_use: InUse, environ: Mapping[str, str], reporter: Reporter) -> None:
        self._in_use = in_use
        self._environ = environ
        self._reporter = reporter
        self._clock = RealClock()
        self._meter = MemoryMeter(in_use.facts.platform, in_use.facts.reserve_bytes)
        self._records = MemoryRecords(in_use.config.data_dir / "memory.json")

    def make_hooks(self, planner: Planner, upstreams: Upstreams, watch: UpstreamMonitor) -> Hooks:
        """Return all that the scheduler may ask."""

        async def probe(endpoint: Endpoint, model: str, mode: str) -> EngineError | None:
            with upstreams.use_pool(endpoint) as pool:
                return await probe_target(pool, model, embeds=mode == Mode.EMBED)

        return Hooks(
            plan=planner.plan,
            replan=planner.replan,
            start=self._start,
            traits=self._traits,
            needs=self._needs,
            measure=self._measure,
            record_memory=self._record_memory,
            report_load=self._report_load,
            read_progress=upstreams.read_progress,
            abort_answers=upstreams.abort_answers,
            probe=probe,
            find_trouble=watch.find_trouble,
            make_sleeper=self._make_sleeper,
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
        if isinstance(engine, Attachable):
            return AttachedProcess(*engine.attach(plan.bundle))

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
        if isinstance(self._engine(plan), Attachable):
            return 1
        return plan.bundle.settings.replicas or self._in_use.config.replicas

    def _make_sleeper(self, plan: Plan) -> Sleeper | None:
        engine = self._engine(plan)
        if not isinstance(engine, Sleeping) or not engine.sleeps(plan.settings):
            return None
        if self._replicas(plan) > 1:
            return None  # replicas share one set of routes, and would have to sleep together
        return EngineSleeper(engine)
