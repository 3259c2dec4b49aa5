"""The life of one instance: plan, room, process, slots, sleep, end. Its task owns the process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from vllama.engines.capabilities import Sleeping
from vllama.errors import (
    EngineError,
    EngineStartFailed,
    ShuttingDown,
    VllamaError,
)
from vllama.plan.ladder import Failed
from vllama.plan.types import Plan
from vllama.scheduler.admission import Admission
from vllama.scheduler.instance import Instance, InstanceState
from vllama.scheduler.state import Hooks, Table
from vllama.supervise.aio import finish
from vllama.supervise.probe import http_status
from vllama.supervise.spec import Endpoint, State

log = logging.getLogger(__name__)


class Lifecycle:
    """Owner of one instance; `run` does not return before its process tree is gone."""

    def __init__(
        self,
        table: Table,
        hooks: Hooks,
        admission: Admission,
        instance: Instance,
        grow: Callable[[Instance], None],
    ) -> None:
        """`grow` has an instance loaded again for several requests at once."""
        self._table = table
        self._hooks = hooks
        self._admission = admission
        self._instance = instance
        self._grow = grow
        self._error: VllamaError | None = None

    async def run(self) -> None:
        """Live: 1. plan, 2. wait for room, 3. run the process and hand out slots, 4. leave.

        A process that did not start for a reason that another plan may avoid: from 2 with that.
        Turns every failure into an answer for those who wait; raises nothing but cancellation.
        """
        instance, table = self._instance, self._table
        try:
            plan: Plan | None = await self._plan()
            while plan is not None:
                await self._serve(plan)
                plan, instance.another = instance.another, None
        except VllamaError as error:
            self._failed(error)
        except Exception:
            # boundary: one instance's bug must not end the others
            log.exception("%s: unexpected error", instance.key)
            self._failed(
                EngineStartFailed(f"cannot serve '{instance.bundle.name}': internal error")
            )
        finally:
            table.retire(instance, "" if self._error else "the server is stopping")
            # who came in the last moment hears what the others heard
            stopping = ShuttingDown("cannot serve: the server is stopping")
            table.fail_queue(instance, self._error or stopping)
            table.ended(instance)

    async def _serve(self, plan: Plan) -> None:
        """Wait for room, start the process and serve by it until it has ended (2 and 3)."""
        instance, hooks = self._instance, self._hooks
        instance.plan, instance.process = plan, None
        if instance.state is not InstanceState.QUEUED:
            instance.enter(InstanceState.QUEUED)
        instance.needs, instance.peak, instance.measured = hooks.needs(plan), {}, False
        instance.stands_in = plan.bundle.key != instance.key.model
        await self._admission.enter(instance, instance.needs)
        if instance.retiring and not instance.queue:
            return  # all who wanted it have gone, and so did it
        instance.traits = hooks.traits(plan)
        instance.sleeper = hooks.sleeper(plan)
        instance.process = hooks.start(plan)
        await self._hand_out(self._table.clock.monotonic())

    def _failed(self, error: VllamaError) -> None:
        instance, process = self._instance, self._instance.process
        log.warning("%s: %s", instance.bundle.name, error.sentence())
        self._error = error
        self._table.fail_queue(instance, error)
        crashed = instance.loaded and process is not None and process.state is State.FAILED
        if crashed and isinstance(error, EngineError):
            self._table.fail(instance, error, pause_s=self._table.limits.cool_down_s)
        elif not instance.loaded:
            self._table.fail(instance, error)
        if instance.plan and not instance.loaded:
            self._hooks.told(instance.plan, error)

    async def _plan(self) -> Plan:
        """Decide how, then wait until the instance that this one replaces is gone."""
        instance = self._instance
        plan = await self._hooks.plan(instance.bundle, instance.need)
        if plan.may_grow and len(instance.queue) > 1:  # they are here already
            self._table.concurrent.add(instance.key)
            instance.need = msgspec.structs.replace(instance.need, concurrent=True)
            plan = await self._hooks.plan(instance.bundle, instance.need)
        instance.plan = plan
        for reason in plan.reasons:
            log.debug("plan %s: %s", instance.bundle.name, reason)
        if instance.replaces:
            instance.waits_for = "the one that it replaces still serves"
            await instance.replaces.ended.wait()
            instance.replaces = None
        return plan

    # -- serving ------------------------------------------------------------------------------

    async def _hand_out(self, begun_s: float) -> None:
        """Run the process and give its slots to the queue, in order, until it is retired."""
        instance, table, process = self._instance, self._table, self._instance.process
        assert process is not None
        async with asyncio.TaskGroup() as group:

            def changed() -> None:
                self._admission.moved()
                if instance.sleeping and process.state is State.BACKOFF:
                    # started again, it would take memory that others have been given
                    group.create_task(process.stop())
                instance.wake.set()

            process.listen(changed)
            runner = group.create_task(process.run())
            runner.add_done_callback(lambda _: instance.wake.set())
            try:
                while not (instance.retiring and not instance.leases and not instance.queue):
                    instance.wake.clear()
                    if instance.sleep_wanted:
                        await self._sleep()
                    # a failure is judged here also if nobody waits
                    failed = process.state is State.FAILED
                    if not self._ended_asleep() and (
                        instance.queue or not instance.loaded or failed
                    ):
                        await self._ready(begun_s)
                        table.serve_queue(instance)
                        if instance.loaded and instance.crowded:
                            self._grow(instance)
                    if self._ended_asleep():
                        self._start_over()
                        return
                    if runner.done() or instance.another:
                        return
                    if instance.loaded and not instance.measured:
                        await self._admission.measure()  # from now on the truth, not the estimate
                    table.changed.set()
                    await instance.wake.wait()
            finally:
                # the process is down before the instance is gone, whatever happens here
                await finish(self._end())

    async def _end(self) -> None:
        """Measure for the last time, stop, and keep what was measured."""
        instance, process = self._instance, self._instance.process
        assert process is not None
        if instance.loaded and process.state is State.READY:
            await self._admission.measure()
        await process.stop()
        self._admission.left(instance)
        self._hooks.over()
        # one that served nobody may have touched only a part of its memory
        if instance.plan and instance.served and instance.measured:
            await self._hooks.remember(instance.plan, dict(instance.peak))

    async def _ready(self, begun_s: float) -> None:
        """Wait until the process serves, awake; tell those who wait if it does not."""
        instance, process = self._instance, self._instance.process
        assert process is not None
        try:
            endpoint = await process.ensure_ready()
            if instance.sleeping and not await self._wake():
                if self._ended_asleep():
                    return
                instance.enter(InstanceState.SERVING)
                process.parts[0].condemn(endpoint, "it did not wake up")
                await process.ensure_ready()
        except EngineStartFailed as error:
            await self._step(error)
            return
        except VllamaError as error:
            self._failed(error)
            return
        if not instance.loaded and instance.plan:
            now_s = self._table.clock.monotonic()
            instance.load_s, instance.ready_s = now_s - begun_s, now_s
            instance.enter(InstanceState.SERVING)
            instance.last_used_s = now_s
            self._table.room_changed.set()
            self._hooks.told(instance.plan, None)

    async def _step(self, error: EngineStartFailed) -> None:
        """Find another plan for a process that did not start; if there is none, tell why."""
        instance = self._instance
        if instance.failed and instance.failed[-1].plan is instance.plan:
            return  # judged already; its process is about to be gone
        diagnosis = instance.process.last_diagnosis if instance.process else None
        wanted = not instance.loaded and (instance.queue or not instance.retiring)
        if instance.plan is None or diagnosis is None or not wanted:
            self._failed(error)
            return
        one = Failed(plan=instance.plan, message=error.message, diagnosis=diagnosis)
        instance.failed = (*instance.failed, one)
        try:
            plan = await self._hooks.another(instance.bundle, instance.need, instance.failed)
        except VllamaError as last:
            self._failed(last)
            return
        log.warning("%s: %s", instance.bundle.name, plan.instead)
        instance.another = plan

    # -- sleep --------------------------------------------------------------------------------

    async def _sleep(self) -> None:
        """Put the engine to sleep if nobody uses it; unload it if it cannot."""
        instance, table = self._instance, self._table
        endpoint = instance.process.endpoint if instance.process else None
        if instance.busy or instance.sleeping or endpoint is None or instance.sleeper is None:
            instance.sleep_wanted = False
            return
        instance.enter(InstanceState.SLEEPING)
        await self._admission.measure()
        instance.awake_holds = dict(instance.holds)
        if await instance.sleeper.sleep(endpoint):
            log.info("%s sleeps", instance.bundle.name)
            instance.sleep_ends_s = table.clock.monotonic() + table.limits.sleep_s
        elif not self._ended_asleep():
            instance.enter(InstanceState.SERVING)
            instance.sleeper = None
            table.retire(instance, "it did not fall asleep")
        instance.sleep_wanted = False
        await self._admission.measure()
        table.room_changed.set()

    async def _wake(self) -> bool:
        """Wait for room, then wake the engine. Raises NotEnoughMemory."""
        instance, sleeper = self._instance, self._instance.sleeper
        needs = {
            pool: size - instance.holds.get(pool, 0)
            for pool, size in instance.awake_holds.items()
            if size > instance.holds.get(pool, 0)
        }
        await self._admission.enter(instance, needs)
        endpoint = instance.process.endpoint if instance.process else None
        awake = False
        if sleeper and endpoint:
            awake = await sleeper.wake(endpoint)
        instance.enter(InstanceState.SERVING if awake else InstanceState.SLEEPING)
        log.info("%s %s", instance.bundle.name, "is awake" if awake else "did not wake up")
        return awake

    def _ended_asleep(self) -> bool:
        """Tell whether the process has ended while it slept: it is not started again by itself."""
        process = self._instance.process
        return self._instance.sleeping and process is not None and process.state is not State.READY

    def _start_over(self) -> None:
        """Let go of a process that ended in its sleep; for those who wait there will be another.

        That one waits for room as any load does.
        """
        instance = self._instance
        instance.enter(InstanceState.LOADING)
        if instance.queue:
            instance.another = instance.plan
        else:
            self._table.retire(instance, "it ended in its sleep")


# weights go to RAM and come back: seconds, minutes for the largest
LIMIT_S = 120.0


class EngineSleeper:
    """The `Sleeper` of an engine that has such routes."""

    def __init__(self, engine: Sleeping) -> None:
        self._engine = engine

    async def sleep(self, endpoint: Endpoint) -> bool:
        """Let it give its memory back; False if it did not say that it has."""
        return await self._ask(endpoint, *self._engine.sleep())

    async def wake(self, endpoint: Endpoint) -> bool:
        """Let it take its memory again; False if it did not say that it has."""
        return await self._ask(endpoint, *self._engine.wake())

    @staticmethod
    async def _ask(endpoint: Endpoint, method: str, path: str) -> bool:
        status = await http_status(
            endpoint,
            path,
            timeout_s=LIMIT_S,
            api_key=endpoint.api_key,
            post=b"" if method == "POST" else None,
        )
        return status == 200
