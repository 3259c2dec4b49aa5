"""The life of one instance: plan, room, process, slots, end. Its task owns the process."""

from __future__ import annotations

import asyncio
import logging
import math

from vllama.errors import (
    EngineError,
    EngineStartFailed,
    NotEnoughMemory,
    ShuttingDown,
    VllamaError,
)
from vllama.models.types import Bundle
from vllama.plan.types import Plan
from vllama.scheduler.instance import Instance
from vllama.scheduler.policy import Action, Decision, Loaded, make_room
from vllama.scheduler.table import Ports, Table
from vllama.supervise.spec import State

log = logging.getLogger(__name__)

GIB = 1024**3


class Life:
    """Owner of one instance; `run` does not return before its process tree is gone."""

    def __init__(self, table: Table, ports: Ports, instance: Instance, bundle: Bundle) -> None:
        self._table = table
        self._ports = ports
        self._instance = instance
        self._bundle = bundle

    async def run(self) -> None:
        """Live: 1. plan, 2. wait for room, 3. run the process and hand out slots, 4. leave.

        Turns every failure into an answer for those who wait; raises nothing but cancellation.
        """
        instance, table = self._instance, self._table
        try:
            plan = await self._plan()
            await self._room_for(plan)
            instance.traits = self._ports.traits(plan)
            instance.process = self._ports.start(plan)
            await self._hand_out()
        except VllamaError as error:
            self._failed(error)
        except Exception:
            # boundary: one instance's bug must not end the others
            log.exception("%s: unexpected error", instance.key)
            self._failed(EngineStartFailed(f"cannot serve '{self._bundle.name}': internal error"))
        finally:
            table.retire(instance, "it has ended")
            table.fail_queue(instance, ShuttingDown("cannot serve: the server is stopping"))
            table.ended(instance)

    def _failed(self, error: VllamaError) -> None:
        log.warning("%s: %s", self._bundle.name, error.sentence())
        self._table.fail_queue(self._instance, error)
        if self._instance.plan and not self._instance.loaded:
            self._ports.told(self._instance.plan, error)

    async def _plan(self) -> Plan:
        """Decide how, then wait until the instance that this one replaces is gone."""
        instance = self._instance
        plan = instance.plan = await self._ports.plan(self._bundle, instance.need)
        for reason in plan.reasons:
            log.info("plan %s: %s", self._bundle.name, reason)
        if instance.replaces:
            await instance.replaces.ended.wait()
            instance.replaces = None
        return plan

    # -- room ---------------------------------------------------------------------------------

    async def _room_for(self, plan: Plan) -> None:
        """Evict or wait until `plan` fits. Raises NotEnoughMemory if it never will."""
        table = self._table
        while True:
            free_bytes = await self._ports.free_bytes(plan)
            # from here to the return nothing is awaited: two loads cannot take the same room
            decision = self._decide(plan, free_bytes)
            leaving = [item for item in table.leaving if item is not self._instance]
            if decision.action is Action.LOAD:
                return
            if decision.action is Action.REFUSE and not leaving:
                raise NotEnoughMemory(
                    f"cannot load '{plan.bundle.name}': model requires more system memory "
                    f"({plan.memory.total_bytes / GIB:.1f} GiB) than is available "
                    f"({max(0, free_bytes) / GIB:.1f} GiB): {decision.reason}",
                    hint="stop another model, or use a smaller context or quantisation",
                )
            for instance in list(table.instances.values()):
                if str(instance.key) in decision.evict:
                    table.retire(instance, f"room for {plan.bundle.name}: {decision.reason}")
                    leaving.append(instance)
            if decision.evict:
                await asyncio.gather(*(instance.ended.wait() for instance in leaving))
            else:
                # a release, or memory that another program frees: nothing tells us of that one
                await asyncio.sleep(table.limits.retry_room_s)

    def _decide(self, plan: Plan, free_bytes: int) -> Decision:
        """Ask the policy about the models that have a process."""
        others = [
            item
            for item in self._table.instances.values()
            if item is not self._instance and item.process
        ]
        loading_bytes = sum(item.memory_bytes for item in others if not item.loaded)
        loaded = [
            Loaded(
                key=str(item.key),
                memory_bytes=item.memory_bytes,
                busy=item.busy,
                pinned=math.isinf(item.keep_alive_s),
                last_used_s=item.last_used_s,
            )
            for item in others
        ]
        need_bytes = plan.memory.total_bytes
        most = self._table.limits.max_loaded
        return make_room(need_bytes, free_bytes - loading_bytes, loaded, most)

    # -- serving ------------------------------------------------------------------------------

    async def _hand_out(self) -> None:
        """Run the process and give its slots to the queue, in order, until it is retired."""
        instance, table, process = self._instance, self._table, self._instance.process
        assert process is not None
        async with asyncio.TaskGroup() as group:
            runner = group.create_task(process.run())
            runner.add_done_callback(lambda _: instance.wake.set())
            try:
                while not (instance.retiring and not instance.leases and not instance.queue):
                    instance.wake.clear()
                    if instance.queue or not instance.loaded:
                        await self._ready()
                        table.serve_queue(instance)
                    if runner.done():
                        return
                    table.changed.set()
                    await instance.wake.wait()
            finally:
                # the process is down before the instance is gone, whatever happens here
                await asyncio.shield(process.stop())

    async def _ready(self) -> None:
        """Wait until the process serves; tell those who wait if it does not."""
        instance, process = self._instance, self._instance.process
        assert process is not None
        try:
            await process.ensure_ready()
        except VllamaError as error:
            failed = process.state is State.FAILED
            if isinstance(error, EngineError) and instance.loaded and failed:
                self._table.cool_down(instance.key, error)
            self._failed(error)
            return
        if not instance.loaded and instance.plan:
            instance.loaded = True
            instance.last_used_s = self._table.clock.monotonic()
            self._ports.told(instance.plan, None)
