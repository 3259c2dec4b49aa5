"""Leases of requests: the instance of each, and its turn in that instance's queue.

An instance is created for a model that has none, or in the place of another one. Nothing in that
suspends, as in `state`; each instance that is created gets a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from functools import partial

import msgspec

from vllama.base import log_context
from vllama.base.errors import QueueFull, ShuttingDown
from vllama.models.types import Bundle
from vllama.plan.quant_fallback import names_form
from vllama.plan.types import Need
from vllama.scheduler.admission import Admission
from vllama.scheduler.health import Recovery
from vllama.scheduler.hooks import Hooks
from vllama.scheduler.instance import Instance, Key, Lease, Prefix, Waiter
from vllama.scheduler.lifecycle import Lifecycle
from vllama.scheduler.state import STOPPING, Table
from vllama.scheduler.turns import Flow

log = logging.getLogger(__name__)

MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 1.0, 60.0


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
        key, now_s = Key(bundle.key, need.mode), self._table.clock.monotonic()
        self._table.growths[key].note_context(need.load.num_ctx, now_s)
        failure, old = self._table.failures.get(key), self._table.instances.get(key)
        if failure and failure.bundle.state != bundle.state:
            del self._table.failures[key]  # of files that are no longer there
        self._table.check_failure(key)
        if old and old.fits(bundle, need):
            old.note_name(bundle)
            return old
        if old:
            need = widen_need(old, need)
            is_same = old.bundle.state == bundle.state
            reason = "a request needs other settings" if is_same else "its files have changed"
            self._table.retire(old, reason, replaced=True)
        return self._create(self.group, key, bundle, need, old)

    def shrink(self) -> None:
        """Load idle models again that are larger than their requests have needed lately."""
        now_s = self._table.clock.monotonic()
        for old in list(self._table.instances.values()):
            if old.shrinks_s <= now_s and old.plan:
                need, reason, _ = old.growth.reduce(old.need, old.plan)
                old.growth.concurrent = False
                self._reload(old, reason, need)

    def _reload(self, old: Instance, reason: str = "", need: Need | None = None) -> None:
        """Load `old` again and move its queue; without another reason, with several slots."""
        if self._table.closing or self.group is None or old.retiring or old.plan is None:
            return
        if old.unload_reason:  # it serves its queue, and ends
            return
        if not reason:
            reason = f"parallel requests arrived: reloading with {old.plan.most_parallel} slots"
            old.growth.note_crowd(self._table.clock.monotonic())
        self._table.retire(old, reason, replaced=True)
        new = self._create(self.group, old.key, old.bundle, need or old.need, old)
        self._table.move_queue(old, new)

    def _create(
        self, group: asyncio.TaskGroup, key: Key, bundle: Bundle, need: Need, old: Instance | None
    ) -> Instance:
        """Create an instance, which replaces `old`, and start its task."""
        now_s = self._table.clock.monotonic()
        if self._table.growths[key].concurrent:
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
            last_used_s=old.last_used_s if old else now_s,
            growth=self._table.growths[key],
            replaces=old or next(ending, None),
            form_named=names_form(bundle),
            names={**(old.names if old else {}), bundle.name: bundle},
            find_trouble=partial(self._recovery.find_trouble, key),
        )
        self._table.instances[key] = instance
        lifecycle = Lifecycle(self._table, self._hooks, self._admission, instance, self._reload)
        # a fresh context, or log lines would name the request that happened to start the load
        context = Context()
        context.run(log_context.model.set, bundle.name)
        instance.task = group.create_task(lifecycle.run(), name=str(key), context=context)
        return instance


def widen_need(old: Instance, need: Need) -> Need:
    """Return `need` widened by the old instance's, so that two clients do not reload in turns."""
    had, asked = old.plan.settings if old.plan else None, old.need
    contexts = (need.load.num_ctx, asked.load.num_ctx, had and had.context_length)
    context = max((each for each in contexts if each), default=None)
    logprobs = need.logprobs or asked.logprobs or bool(had and had.logprobs)
    given = {name: x for name, x in msgspec.structs.asdict(need.load).items() if x is not None}
    load = msgspec.structs.replace(asked.load, **given | {"num_ctx": context})
    return msgspec.structs.replace(need, load=load, logprobs=logprobs)


async def wait_in_queue(
    table: Table,
    instance: Instance,
    keep_alive_s: float | None,
    prefix: Prefix | None,
    flow: Flow,
    renewed: Lease | None = None,
) -> Lease | None:
    """Wait in the queue of `instance` for a lease; return None if the instance has ended.

    `renewed` is a lease whose engine has ended. Its request had its turn, so it goes first. Raises
    QueueFull, and the error that ended the queue.
    """
    begun_s = table.clock.monotonic()
    waiter = _make_waiter(instance, keep_alive_s, renewed)
    if renewed is None:
        _make_room(table, instance, flow)
        instance.queue.append(waiter, flow)
    else:
        instance.queue.append_first(waiter)
        table.release(renewed)  # only now, since an idle instance may end
    position = instance.queue.find_place(waiter)
    log.debug("%s: request queued at position %d", instance.bundle.name, position)
    while True:
        instance.wake.set()
        await _wait_for_turn(table, waiter)
        instance = waiter.instance
        if lease := table.make_lease(instance, prefix):
            break
        if instance.ended.is_set():
            return None
        # the engine has ended at this very moment: the request keeps its position
        waiter = _make_waiter(instance, keep_alive_s, renewed)
        instance.queue.append_first(waiter)
    lease.queued_s = lease.began_s - begun_s
    lease.queue_position = position
    log.debug(
        "%s: request waited %.3f s, from queue position %d",
        *(instance.bundle.name, lease.queued_s, position),
    )
    return lease


def _make_room(table: Table, instance: Instance, flow: Flow) -> None:
    """Make room in a full queue for a request of `flow`.

    The last request of the flow that has the most is refused, so that nobody can keep others out by
    filling the queue. Raises QueueFull if that is `flow` itself.
    """
    if len(instance.queue) < table.limits.max_queue:
        return
    # the two spaces are Ollama's: clients match the text
    refusal = QueueFull(
        "server busy, please try again.  maximum pending requests exceeded",
        retry_after_s=compute_retry_after_s(instance),
    )
    refused = instance.queue.pop_from_longest(flow)
    if refused is None:
        raise refusal
    if not refused.future.done():
        refused.future.set_exception(refusal)


def _make_waiter(instance: Instance, keep_alive_s: float | None, renewed: Lease | None) -> Waiter:
    on_trial = renewed is not None and renewed.on_trial
    trace = log_context.trace.get()
    future = asyncio.get_running_loop().create_future()
    return Waiter(instance, future, keep_alive_s, trace.name if trace else "", on_trial)


async def _wait_for_turn(table: Table, waiter: Waiter) -> None:
    """Wait until `waiter` has a slot; when canceled, leave the queue or return the slot."""
    future = waiter.future
    try:
        await future
    except asyncio.CancelledError:
        instance = waiter.instance
        if instance.queue.remove(waiter):
            table.stop_unwanted(instance)
        elif future.done() and not future.cancelled() and future.exception() is None:
            # granted and canceled in the same iteration of the event loop
            table.count_out(instance)
        raise


def compute_retry_after_s(instance: Instance) -> float:
    """Return the expected time for the queue to drain, as Retry-After of a refused request."""
    drain_s = instance.service_s * len(instance.queue) / max(1, instance.limit)
    return min(max(drain_s, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
