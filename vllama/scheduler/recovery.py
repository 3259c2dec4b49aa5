"""Endpoints that have failed: requests go to the others until a probe succeeds."""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from typing import TYPE_CHECKING

from vllama.base.errors import UpstreamError, VllamaError
from vllama.supervise.spec import Endpoint
from vllama.targets.choice import PROBED_MOST_S, Breakers, describe_failure

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
        self._breakers: Breakers[tuple[Key, Endpoint]] = Breakers(table.clock)
        self._group: asyncio.TaskGroup | None = None
        self._failing: set[tuple[Key, Endpoint]] = set()  # each has a task that probes it

    def find_trouble(self, key: Key, endpoint: Endpoint) -> str:
        """Return why `endpoint` gets no requests for an instance; empty if it is healthy."""
        if reason := self._breakers.find_reason((key, endpoint)):
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
        target = (instance.key, endpoint)
        if not self._breakers.find_reason(target):
            log.warning("%s at %s fails: %s", endpoint.title, endpoint.url, error.message)
        answer = error if isinstance(error, UpstreamError) else UpstreamError("")
        self._breakers.note_failure(
            target,
            slow=answer.status == SLOW_STATUS,
            reason=describe_failure(error),
            most_s=PROBED_MOST_S,
            wait_s=answer.retry_after_s if answer.status == BUSY_STATUS else 0.0,
        )
        if target not in self._failing and self._group is not None:
            self._failing.add(target)
            # a fresh context: a probe is no part of the request that has failed
            probing = self._recover(target)
            self._group.create_task(probing, name=f"probe {instance.key}", context=Context())

    async def run(self) -> None:
        """Probe what fails until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None

    async def _recover(self, target: tuple[Key, Endpoint]) -> None:
        """Probe a target after each of its pauses, until it is well or gone."""
        key, endpoint = target
        while True:
            await asyncio.sleep(TICK_S)
            instance = self._table.instances.get(key)
            if instance is None or instance.find_part(endpoint) is None:
                if instance is None or not endpoint.is_elsewhere:
                    break  # an engine here that is restarted has another endpoint
            elif instance.traits is not None and self._breakers.admit(target):
                model = endpoint.model or instance.traits.model_name or instance.bundle.name
                error = await self._hooks.probe(endpoint, model, key.mode)
                if error is None:
                    log.info("%s at %s answers again", endpoint.title, endpoint.url)
                    break
                self.note_failure(instance, endpoint, error)
        self._breakers.note_success(target)
        self._failing.discard(target)
        if instance is not None:
            instance.wake.set()  # requests may wait for the room that it has
