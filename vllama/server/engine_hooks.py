"""What the scheduler asks of engines: starting one, what it takes, and how it sleeps."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import partial

from vllama.chat.engine.traits import Traits
from vllama.clock import RealClock
from vllama.config import Config
from vllama.engines.base import Engine
from vllama.engines.capabilities import Attachable, Sleeping
from vllama.errors import VllamaError
from vllama.hardware.cpu import read_cpu_time
from vllama.hardware.visible import show_only
from vllama.plan.types import Facts, Plan
from vllama.scheduler.hooks import Hooks
from vllama.scheduler.lifecycle import EngineSleeper
from vllama.scheduler.memory import Measurable, Measured, MemoryMeter, MemoryRecords
from vllama.scheduler.policy import Pools
from vllama.scheduler.process import Process, Sleeper
from vllama.scheduler.replicas import Replicas
from vllama.server.planner import Planner
from vllama.server.reporter import Reporter
from vllama.supervise.external import AttachedProcess
from vllama.supervise.spec import Endpoint, LaunchSpec, RestartPolicy
from vllama.supervise.supervisor import SupervisedProcess
from vllama.upstream.pool import Upstreams


class EngineHooks:
    """Carries out what the scheduler decides about engines, with the settings in use."""

    def __init__(
        self, config: Config, facts: Facts, environ: Mapping[str, str], reporter: Reporter
    ) -> None:
        self._config, self._facts = config, facts
        self._environ = environ
        self._reporter = reporter
        self._clock = RealClock()
        self._meter = MemoryMeter(facts.platform, facts.preferences.reserve_bytes)
        self._records = MemoryRecords(config.data_dir / "memory.json")

    def use(self, config: Config, facts: Facts) -> None:
        """Go by other settings from now on."""
        self._config, self._facts = config, facts

    def make_hooks(self, planner: Planner, upstreams: Upstreams) -> Hooks:
        """Return all that the scheduler may ask."""
        return Hooks(
            plan=planner.plan,
            replan=planner.replan,
            start=self._start,
            traits=self._traits,
            needs=self._needs,
            measure=self._measure,
            record_memory=self._record_memory,
            report_load=self._report_end_of_load,
            read_progress=upstreams.read_progress,
            abort_answers=upstreams.abort_answers,
            make_sleeper=self._make_sleeper,
            read_cpu_time=read_cpu_time,
            on_instance_end=gc.collect,  # errors and tasks leave cycles behind
        )

    def _engine(self, plan: Plan) -> Engine:
        return self._facts.found.engines[plan.engine]

    def _traits(self, plan: Plan) -> Traits:
        engine = self._engine(plan)
        traits = engine.traits(plan.bundle, plan.settings)
        wanted = plan.settings.parallel or 0
        if wanted > traits.max_concurrency:
            self._reporter.note(
                f"{engine.title} takes {traits.max_concurrency} request at a time, not {wanted}: "
                "the others wait in order"
            )
        limits = (self._config.max_tokens, plan.bundle.settings.max_tokens)
        most = min((limit for limit in limits if limit is not None), default=None)
        return replace(traits, max_answer_tokens=most)

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
                log_dir=self._config.log_dir,
                run_dir=self._config.run_dir,
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
        gpus = {gpu.index: gpu for gpu in self._facts.platform.accelerators}
        chosen = [gpus[index] for index in plan.settings.gpus if index in gpus]
        if len(chosen) == len(gpus) and plan.bundle.settings.gpus is None:
            return {}
        divided = any(gpu.is_divided for gpu in chosen)
        shown = show_only(chosen)
        return {name: x for name, x in shown.items() if not divided or name not in self._environ}

    def _report_end_of_load(self, plan: Plan, error: VllamaError | None) -> None:
        """End the display of a load; a failed one is reported by whoever asked for it."""
        if error is None:
            self._reporter.note(f"{plan.bundle.name} is loaded")
        else:
            self._reporter.loading("")

    def _needs(self, plan: Plan) -> Pools:
        """Return the memory that a plan takes: what it took the last time, else the estimate."""
        single = self._records.needs(plan) or self._meter.needs(plan)
        return {pool: size * self._replicas(plan) for pool, size in single.items()}

    async def _record_memory(self, plan: Plan, held: Pools) -> None:
        count = self._replicas(plan)
        single = {pool: size // count for pool, size in held.items()}
        await asyncio.to_thread(self._records.add, plan, single)

    async def _measure(self, processes: Mapping[Hashable, Measurable], gpus: bool) -> Measured:
        return await self._meter.measure(processes, gpus=gpus)

    def _replicas(self, plan: Plan) -> int:
        if isinstance(self._engine(plan), Attachable):
            return 1
        return plan.bundle.settings.replicas or self._config.replicas

    def _make_sleeper(self, plan: Plan) -> Sleeper | None:
        engine = self._engine(plan)
        if not isinstance(engine, Sleeping) or not engine.sleeps(plan.settings):
            return None
        if self._replicas(plan) > 1:
            return None  # replicas share one set of routes, and would have to sleep together
        return EngineSleeper(engine)
