"""Endpoints that have failed: requests go to the others until a probe succeeds."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from vllama.base.clock import wait_for
from vllama.base.errors import UpstreamError, VllamaError
from vllama.supervise.spec import Endpoint
from vllama.targets.choice import PROBED_MOST_S, describe_failure

if TYPE_CHECKING:
    from vllama.scheduler.hooks import Hooks
    from vllama.scheduler.instance import Instance, Key
    from vllama.scheduler.state import Table

log = logging.getLogger(__name__)

TICK_S = 0.25
BUSY_STATUS, SLOW_STATUS = 429, 504


class Recovery:
    """Opens the breakers of endpoints, and closes them after a probe."""

    def __init__(self, table: Table, hooks: Hooks) -> None:
        self._table = table
        self._hooks = hooks
        self._opened = asyncio.Event()

    def find_trouble(self, key: Key, endpoint: Endpoint) -> str:
        """Return why `endpoint` gets no requests for an instance; empty if it is healthy."""
        if reason := self._table.breakers.find_reason((key, endpoint)):
            return f"{endpoint.title} gets no requests until a probe succeeds: {reason}"
        if trouble := self._hooks.find_trouble(endpoint):
            return f"{endpoint.title} gets no requests: {trouble}"
        return ""

    def note_failure(self, instance: Instance, endpoint: Endpoint, error: VllamaError) -> None:
        """Give `endpoint` no requests until a probe succeeds.

        A single engine here gets them all the same, so nothing is noted of it.
        """
        places = instance.process.endpoints if instance.process else ()
        if not endpoint.is_elsewhere and len(places) < 2:
            return
        target, breakers = (instance.key, endpoint), self._table.breakers
        if not breakers.find_reason(target):
            log.warning("%s at %s fails: %s", endpoint.title, endpoint.url, error.message)
        answer = error if isinstance(error, UpstreamError) else UpstreamError("")
        breakers.note_failure(
            target,
            slow=answer.status == SLOW_STATUS,
            reason=describe_failure(error),
            most_s=PROBED_MOST_S,
            wait_s=answer.retry_after_s if answer.status == BUSY_STATUS else 0.0,
        )
        self._opened.set()

    async def run(self) -> None:
        """Probe what has failed, after its pause, until cancelled."""
        probes: dict[tuple[Key, Endpoint], asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                await self._opened.wait()
                self._opened.clear()
                while self._table.breakers.targets:
                    probes = {each: task for each, task in probes.items() if not task.done()}
                    for target, instance in self._find_failed().items():
                        if target not in probes and self._table.breakers.admit(target):
                            work = self._probe(instance, target[1])
                            probes[target] = group.create_task(work, name=f"probe {target[0]}")
                    await wait_for(self._opened, TICK_S)
                    self._opened.clear()

    def _find_failed(self) -> dict[tuple[Key, Endpoint], Instance]:
        """Return what has failed and can be reached; forget what is gone.

        An engine here that is restarted has another endpoint.
        """
        table, failed = self._table, {}
        for target in table.breakers.targets:
            key, endpoint = target
            instance = table.instances.get(key)
            places = instance.process.endpoints if instance and instance.process else ()
            if instance is not None and endpoint in places:
                failed[target] = instance
            elif instance is None or not endpoint.is_elsewhere:
                table.breakers.note_success(target)
        return failed

    async def _probe(self, instance: Instance, endpoint: Endpoint) -> None:
        traits = instance.traits
        if traits is None:
            return
        model = endpoint.model or traits.model_name or instance.bundle.name
        error = await self._hooks.probe(endpoint, model, instance.key.mode)
        if error is not None:
            self.note_failure(instance, endpoint, error)
            return
        log.info("%s at %s answers again", endpoint.title, endpoint.url)
        self._table.breakers.note_success((instance.key, endpoint))
        instance.wake.set()  # requests may wait for the room that it has
