"""The lifecycle of one instance: plan, admission, process, slots, sleep, end.

One task runs it and owns the process. No other code starts or stops the process, so no two tasks
can race to do so. The task does not end before the process tree has ended, so the end of the task
proves that no process is left. Other code requests a change by setting a field of the instance and
then its `wake` event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from vllama.base.errors import EngineError, EngineStartFailed, NoPlan, ShuttingDown, VllamaError
from vllama.dialects.events import MarkKind
from vllama.plan.ladder import Failed
from vllama.plan.types import Plan
from vllama.scheduler.admission import Admission, MemoryFull
from vllama.scheduler.hooks import Hooks, Process
from vllama.scheduler.instance import Instance, InstanceState
from vllama.scheduler.load_progress import watch_load
from vllama.scheduler.policy import Pools
from vllama.scheduler.slot_cache.carry import remove_files
from vllama.scheduler.state import Table
from vllama.supervise.aio import finish
from vllama.supervise.spec import Diagnosis, Fault, State

log = logging.getLogger(__name__)


class Lifecycle:
    """The owner of one instance; `run` does not return before its process tree is gone."""

    def __init__(
        self,
        table: Table,
        hooks: Hooks,
        admission: Admission,
        instance: Instance,
        reload: Callable[..., None],
    ) -> None:
        """Prepare; `reload` loads an instance again: for a reason, or else with more slots."""
        self._table = table
        self._hooks = hooks
        self._admission = admission
        self._instance = instance
        self._reload = reload
        self._error: VllamaError | None = None
        self._last_end_s = 0.0  # of an attempt to run the process; Unix time
        self._next_plan: Plan | None = None  # tried after the one that failed
        self._awake_holds: Pools = {}  # its memory before it fell asleep, in bytes by pool
        self._restarting = False

    async def run(self) -> None:
        """Run the instance: 1. plan, 2. wait for room, 3. run the process, 4. end.

        If the process does not start and another plan may avoid the cause, continue at 2 with that
        plan. Every failure becomes the answer to the waiting requests; only cancellation is raised.
        """
        instance, table = self._instance, self._table
        try:
            plan: Plan | None = await self._plan()
            while plan is not None:
                await self._serve(plan)
                plan, self._next_plan = self._next_plan, None
        except VllamaError as error:
            self._fail(error)
        except Exception:
            # boundary: a bug in one instance must not end the others
            log.exception("%s: unexpected error", instance.key)
            self._fail(EngineStartFailed(f"cannot serve '{instance.bundle.name}': internal error"))
        finally:
            table.retire(instance, "" if self._error else "the server is stopping")
            # requests that arrived since get the same error
            stopping = ShuttingDown("cannot serve: the server is stopping")
            table.fail_queue(instance, self._error or stopping)
            remove_files(instance.carried)
            table.remove(instance)

    async def _serve(self, plan: Plan) -> None:
        """Wait for room, start the process, and serve until it has ended (steps 2 and 3)."""
        instance, hooks = self._instance, self._hooks
        instance.plan, instance.process = plan, None
        if instance.state is not InstanceState.QUEUED:
            instance.enter(InstanceState.QUEUED)
        instance.needs, instance.peak, instance.measured = hooks.needs(plan), {}, False
        instance.placed = None
        instance.is_fallback = plan.bundle.key != instance.key.model
        try:
            await self._admission.wait_for_room(instance, instance.needs)
        except MemoryFull as error:
            if plan.relief.room:  # it was made for what is free
                raise
            try:
                self._next_plan = await hooks.shrink(plan, instance.need, error.available)
            except NoPlan:
                raise error from None
            log.warning("%s: %s", instance.bundle.name, self._next_plan.instead)
            return
        if instance.retiring and not instance.queue:
            return  # unloaded meanwhile, and no request is left
        instance.traits = hooks.traits(plan)
        instance.sleeper = hooks.make_sleeper(plan)
        instance.process = hooks.start(plan)
        await self._run_process(self._table.clock.monotonic())

    def _fail(self, error: VllamaError) -> None:
        instance, process = self._instance, self._instance.process
        log.error("%s: %s", instance.bundle.name, error.sentence())
        if self._error is None:
            diagnosis = process.last_diagnosis if process is not None else None
            fault = diagnosis.fault if diagnosis is not None else None
            self._table.mark(MarkKind.FAIL, instance, error.message, cause=fault or error.kind)
        self._error = error
        self._table.fail_queue(instance, error)
        crashed = instance.loaded and process is not None and process.state is State.FAILED
        if crashed and isinstance(error, EngineError):
            self._table.record_failure(instance, error, pause_s=self._table.limits.cool_down_s)
        elif not instance.loaded:
            self._table.record_failure(instance, error)

    async def _plan(self) -> Plan:
        """Make the plan, then wait until the instance that this one replaces has ended."""
        instance = self._instance
        plan = await self._hooks.plan(instance.bundle, instance.need)
        if plan.may_grow and len(instance.queue) > 1:  # several requests came while planning
            instance.growth.note_crowd(self._table.clock.monotonic())
            instance.need = msgspec.structs.replace(instance.need, concurrent=True)
            plan = await self._hooks.plan(instance.bundle, instance.need)
        instance.plan = plan
        for reason in plan.reasons:
            log.debug("plan %s: %s", instance.bundle.name, reason)
        if instance.replaces:
            instance.waits_for = "waiting for the previous instance"
            await instance.replaces.ended.wait()
            instance.replaces = None
        return plan

    # -- serving ------------------------------------------------------------------------------

    async def _run_process(self, begun_s: float) -> None:
        """Run the process and give its slots to the queue, in order, until it is retired.

        The loop examines everything after each wake-up, whatever the cause, so that two events at
        the same moment need no special case.
        """
        instance, table, process = self._instance, self._table, self._instance.process
        assert process is not None
        async with asyncio.TaskGroup() as group:

            def note_change() -> None:
                self._admission.note_transition()
                self._note_restart()
                last = process.last_diagnosis
                lost = last.cause if last and last.fault is Fault.REMOTE else ""
                if process.state is State.BACKOFF and (instance.sleeping or lost):
                    # a restart would take memory that others have got since, or lacks a machine
                    group.create_task(process.stop())
                    if lost:
                        self._reload(instance, lost)
                instance.wake.set()

            process.subscribe(note_change)
            runner = group.create_task(process.run())
            watching = group.create_task(watch_load(instance, self._hooks.report_progress))
            runner.add_done_callback(lambda _: instance.wake.set())
            try:
                while not (instance.retiring and not instance.leases and not instance.queue):
                    instance.wake.clear()
                    if instance.sleep_wanted:
                        await self._sleep()
                    # a failure is handled here even if no request waits
                    failed = process.state is State.FAILED
                    if not self._has_ended_asleep() and (
                        instance.queue or not instance.loaded or failed
                    ):
                        await self._ensure_ready(begun_s)
                        watching.cancel()
                        table.serve_queue(instance)
                        if instance.loaded and instance.should_grow:
                            self._reload(instance)
                    if self._has_ended_asleep():
                        self._start_over()
                        return
                    if runner.done() or self._next_plan:
                        return
                    if instance.loaded and not instance.measured:
                        await self._admission.measure()  # replaces the estimate
                    table.changed.set()
                    await instance.wake.wait()
            finally:
                watching.cancel()
                # `finish` completes even if this task is canceled: the process must be down first
                await finish(self._end())

    def _note_restart(self) -> None:
        """Mark the crash of a process that had served, or of a replica, and report its return."""
        instance, process = self._instance, self._instance.process
        if process is None:
            return
        end_s = max((one.ended_s for one in process.attempts if one.ended_s), default=0.0)
        before_s, self._last_end_s = self._last_end_s, end_s
        again = process.state in (State.BACKOFF, State.READY)  # one of its replicas may be ready
        if instance.loaded and again and not instance.retiring and end_s > before_s:
            diagnosis = process.last_diagnosis
            reason = diagnosis.cause if diagnosis else "its process exited"
            self._table.mark(MarkKind.RESTART, instance, reason)
            self._restarting = True
        if self._restarting and all(part.endpoints for part in process.parts):
            self._restarting = False
            if instance.plan:
                self._hooks.report_load(instance.plan, True)
                if lost := self._read_load(instance.plan, process):
                    self._table.retire(instance, lost.cause)  # the next request loads it anew

    def _read_load(self, plan: Plan, process: Process) -> Diagnosis | None:
        """Note where the engine says that the model lies; return why its GPU is lost, if it is."""
        try:
            self._instance.placed = placed = self._hooks.read_load(plan, process)
        except (VllamaError, OSError) as error:
            log.warning("%s: cannot read its log: %s", plan.bundle.name, error)
            return None
        if placed and placed.text:
            log.info("%s: %s", plan.bundle.name, placed.text)
        trouble = placed.trouble if placed else None
        if trouble:
            log.warning("%s: %s", plan.bundle.name, trouble.cause)
        return trouble if trouble and trouble.fault and plan.memory.on_gpu else None

    async def _end(self) -> None:
        """Measure for the last time, stop the process, and store the peak for later loads."""
        instance, process = self._instance, self._instance.process
        assert process is not None
        if instance.loaded and process.state is State.READY:
            await self._admission.measure()
            await self._hooks.before_end(process.endpoints)
            next_ = self._table.instances.get(instance.key)
            plan, traits, places = instance.plan, instance.traits, process.endpoints
            # without places, it crashed meanwhile
            if next_ and next_.replaces is instance and plan and traits and places:
                next_.carried = await self._hooks.save_slots(plan, traits, places[0])
        await process.stop()
        self._admission.note_exit(instance)
        self._hooks.on_instance_end()
        # an engine that served no request may have touched only a part of its memory
        if instance.plan and instance.served and instance.measured:
            await self._hooks.record_memory(instance.plan, dict(instance.peak))

    async def _ensure_ready(self, begun_s: float) -> None:
        """Wait until the process serves and is awake; if it fails, fail the waiting requests."""
        instance, process = self._instance, self._instance.process
        assert process is not None
        try:
            endpoint = await process.ensure_ready()
            if instance.sleeping and not await self._wake():
                if self._has_ended_asleep():
                    return
                instance.enter(InstanceState.SERVING)
                process.parts[0].declare_unhealthy(endpoint, "it did not wake up")
                await process.ensure_ready()
            if not instance.loaded and instance.plan:
                lost = self._read_load(instance.plan, process)
                if lost is not None:
                    message = f"cannot load '{instance.bundle.name}' on the GPU: {lost.cause}"
                    await self._replan(EngineStartFailed(message), lost)
                    if self._error is not None:
                        self._table.retire(instance, "")
                    return
        except EngineStartFailed as error:
            await self._replan(error, process.last_diagnosis)
            return
        except VllamaError as error:
            if instance.queue or not instance.retiring:
                self._fail(error)
            return
        if not instance.loaded and instance.plan and instance.traits:
            if carried := instance.carried:
                await self._hooks.restore_slots(instance.plan, instance.traits, endpoint, carried)
            now_s = self._table.clock.monotonic()
            instance.load_s, instance.ready_s = now_s - begun_s, now_s
            instance.enter(InstanceState.SERVING)
            if not carried:  # else it is idle since the instance was that it replaces
                instance.last_used_s = now_s
            self._table.failures.pop(instance.key, None)
            took_s = instance.load_s
            self._table.mark(MarkKind.LOAD, instance, f"in {took_s:.1f} s", seconds=took_s)
            self._table.room_changed.set()
            self._hooks.report_load(instance.plan, False)

    async def _replan(self, error: EngineStartFailed, diagnosis: Diagnosis | None) -> None:
        """Find the next plan for a process that did not start as planned; else fail."""
        instance = self._instance
        if instance.failed_plans and instance.failed_plans[-1].plan is instance.plan:
            return  # handled already; its process is about to end
        wanted = not instance.loaded and (instance.queue or not instance.retiring)
        if instance.plan is None or diagnosis is None or not wanted:
            self._fail(error)
            return
        failed = Failed(plan=instance.plan, message=error.message, diagnosis=diagnosis)
        instance.failed_plans = (*instance.failed_plans, failed)
        try:
            plan = await self._hooks.replan(instance.bundle, instance.need, instance.failed_plans)
        except VllamaError as last:
            self._fail(last)
            return
        log.warning("%s: %s", instance.bundle.name, plan.instead)
        self._next_plan = plan

    # -- sleep --------------------------------------------------------------------------------

    async def _sleep(self) -> None:
        """Put the engine to sleep if it is idle; unload it if it does not fall asleep."""
        instance, table = self._instance, self._table
        endpoint = next(iter(instance.process.endpoints), None) if instance.process else None
        if instance.busy or instance.sleeping or endpoint is None or instance.sleeper is None:
            instance.sleep_wanted = False
            return
        instance.enter(InstanceState.SLEEPING)
        await self._admission.measure()
        self._awake_holds = dict(instance.holds)
        if await instance.sleeper.sleep(endpoint):
            log.info("%s sleeps", instance.bundle.name)
            table.mark(MarkKind.SLEEP, instance, "its memory is free for other models")
            instance.sleep_ends_s = table.clock.monotonic() + table.limits.sleep_s
        elif not self._has_ended_asleep():
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
            for pool, size in self._awake_holds.items()
            if size > instance.holds.get(pool, 0)
        }
        await self._admission.wait_for_room(instance, needs)
        endpoint = next(iter(instance.process.endpoints), None) if instance.process else None
        begun_s = self._table.clock.monotonic()
        awake = False
        if sleeper and endpoint:
            awake = await sleeper.wake(endpoint)
        instance.enter(InstanceState.SERVING if awake else InstanceState.SLEEPING)
        log.info("%s %s", instance.bundle.name, "woke up" if awake else "did not wake up")
        if awake:
            took_s = self._table.clock.monotonic() - begun_s
            self._table.mark(MarkKind.WAKE, instance, f"in {took_s:.1f} s", seconds=took_s)
        return awake

    def _has_ended_asleep(self) -> bool:
        """Return whether the process has ended while asleep; it is not restarted by itself."""
        process = self._instance.process
        return self._instance.sleeping and process is not None and process.state is not State.READY

    def _start_over(self) -> None:
        """Give up a process that ended while asleep; load it again if requests wait.

        Its memory may have been given to other models, so the new load waits for room.
        """
        instance = self._instance
        instance.enter(InstanceState.LOADING)
        if instance.queue:
            self._next_plan = instance.plan
        else:
            self._table.retire(instance, "it exited while asleep")
