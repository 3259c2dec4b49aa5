"""How a request waits in the queue of an instance for a lease."""

from __future__ import annotations

import asyncio
import logging

from vllama.base import log_context
from vllama.base.errors import QueueFull
from vllama.scheduler.fair_queue import Flow
from vllama.scheduler.instance import Instance, Lease, Prefix, Waiter
from vllama.scheduler.state import Table

log = logging.getLogger(__name__)

MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 1.0, 60.0


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
    waiter = _make_waiter(instance, keep_alive_s)
    if renewed is None:
        _make_room(table, instance, flow)
        instance.queue.append(waiter, flow)
    else:
        instance.queue.append_first(waiter)
        table.release(renewed)  # only now, since an idle instance may end
    position = instance.queue.find_place(waiter)
    log.debug("%s: a request waits at position %d", instance.bundle.name, position)
    while True:
        instance.wake.set()
        await _wait_for_turn(table, waiter)
        instance = waiter.instance
        if lease := table.make_lease(instance, prefix):
            break
        if instance.ended.is_set():
            return None
        # the engine has ended at this very moment: the request keeps its position
        waiter = _make_waiter(instance, keep_alive_s)
        instance.queue.append_first(waiter)
    lease.queued_s = lease.began_s - begun_s
    lease.queue_position = position
    log.debug(
        "%s: a request waited %.3f s, from position %d of the queue",
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


def _make_waiter(instance: Instance, keep_alive_s: float | None) -> Waiter:
    trace = log_context.trace.get()
    future = asyncio.get_running_loop().create_future()
    return Waiter(instance, future, keep_alive_s, trace.name if trace else "")


async def _wait_for_turn(table: Table, waiter: Waiter) -> None:
    """Wait until `waiter` has a slot; when cancelled, leave the queue or return the slot."""
    future = waiter.future
    try:
        await future
    except asyncio.CancelledError:
        instance = waiter.instance
        if instance.queue.remove(waiter):
            table.stop_unwanted(instance)
        elif future.done() and not future.cancelled() and future.exception() is None:
            # granted and cancelled in the same iteration of the event loop
            table.count_out(instance)
        raise


def compute_retry_after_s(instance: Instance) -> float:
    """Return the expected time for the queue to drain, as Retry-After of a refused request."""
    drain_s = instance.service_s * len(instance.queue) / max(1, instance.limit)
    return min(max(drain_s, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
