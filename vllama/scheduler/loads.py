"""The loads of instances: of a model that has none, and of one that another instance replaces.

Like `state`, nothing here suspends; each instance that is created gets a task of its own.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from functools import partial

import msgspec

from vllama.base import log_context
from vllama.base.errors import ShuttingDown
from vllama.models.types import Bundle
from vllama.plan.quant_fallback import names_form
from vllama.plan.types import Need
from vllama.scheduler.admission import Admission
from vllama.scheduler.hooks import Hooks
from vllama.scheduler.instance import Instance, Key
from vllama.scheduler.lifecycle import Lifecycle
from vllama.scheduler.recovery import Recovery
from vllama.scheduler.state import STOPPING, Table


class Loads:
    """Creates instances and starts their tasks, in `group` while the scheduler runs."""

    def __init__(
        self, table: Table, hooks: Hooks, admission: Admission, recovery: Recovery
    ) -> None:
        self._table = table
        self._hooks = hooks
        self._admission = admission
        self._recovery = recovery
        self.group: asyncio.TaskGroup | None = None

    def ensure(self, bundle: Bundle, need: Need) -> Instance:
        """Return the instance for a request with `need`; create or replace it if necessary."""
        if self._table.closing or self.group is None:
            raise ShuttingDown(STOPPING)
        key = Key(bundle.key, need.mode)
        self._table.check_failure(key)
        old = self._table.instances.get(key)
        if old and old.fits(bundle, need):
            old.note_name(bundle)
            return old
        if old:
            need = widen_need(old, need)
            self._table.retire(old, "a request needs other settings", replaced=True)
        return self._create(self.group, key, bundle, need, old)

    def _grow(self, old: Instance) -> None:
        """Load `old` again with several slots, and move its queue to the new instance."""
        if self._table.closing or self.group is None or old.retiring or old.plan is None:
            return
        if old.unload_reason:  # it serves its queue, and ends
            return
        reason = f"several requests came at once: it gets {old.plan.most_parallel} slots"
        self._table.retire(old, reason, replaced=True)
        self._table.concurrent.add(old.key)
        new = self._create(self.group, old.key, old.bundle, old.need, old)
        self._table.move_queue(old, new)

    def _create(
        self, group: asyncio.TaskGroup, key: Key, bundle: Bundle, need: Need, old: Instance | None
    ) -> Instance:
        """Create an instance, which replaces `old`, and start its task."""
        now_s = self._table.clock.monotonic()
        if key in self._table.concurrent:
            need = msgspec.structs.replace(need, concurrent=True)
        ending = (item for item in self._table.retiring if item.key == key)
        # an unload that was asked for concerns the old one only
        inherits = old is not None and not old.unload_reason
        instance = Instance(
            key=key,
            bundle=bundle,
            need=need,
            keep_alive_s=old.keep_alive_s
            if old and inherits
            else self._table.default_keep_alive_s(bundle),
            last_used_s=now_s,
            replaces=old or next(ending, None),
            form_named=names_form(bundle),
            names={bundle.name, *(old.names if old else ())},
            find_trouble=partial(self._recovery.find_trouble, key),
        )
        self._table.instances[key] = instance
        lifecycle = Lifecycle(self._table, self._hooks, self._admission, instance, self._grow)
        # a fresh context, or log lines would name the request that happened to start the load
        context = Context()
        context.run(log_context.model.set, bundle.name)
        instance.task = group.create_task(lifecycle.run(), name=str(key), context=context)
        return instance


def widen_need(old: Instance, need: Need) -> Need:
    """Return `need` widened by the old instance's, so that two clients do not reload in turns."""
    had, asked = old.plan.settings if old.plan else None, old.need
    contexts = (need.context_length, asked.context_length, had and had.context_length)
    context = max((each for each in contexts if each), default=None)
    logprobs = need.logprobs or asked.logprobs or bool(had and had.logprobs)
    return msgspec.structs.replace(need, context_length=context, logprobs=logprobs)
