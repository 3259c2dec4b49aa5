"""Helpers for asyncio: blocking work in its own thread, and clean-up that survives cancellation.

Knows nothing of processes. No executor is used, because ending a child must not wait for a thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from vllama.base.executors import Job

log = logging.getLogger(__name__)

RESTART_PAUSE_S = 5.0

T = TypeVar("T")


async def in_thread(name: str, work: Callable[[], T]) -> T:
    """Run `work`, which must have its own time limit, in a new daemon thread; return its result.

    Cancellation does not wait for the thread.
    """
    job = Job(work)
    threading.Thread(target=job.do, name=name, daemon=True).start()
    return await job.result


async def keep_running(
    name: str, run: Callable[[], Awaitable[None]], is_over: Callable[[], bool]
) -> None:
    """Run one of the server's own tasks; one that fails is logged, and begins again after a pause.

    Once `is_over`, it does not.
    """
    while True:
        try:
            return await run()
        except Exception:
            # boundary: what a server does for itself must not end it
            log.exception("task '%s' failed", name)
        if is_over():
            return None
        await asyncio.sleep(RESTART_PAUSE_S)


async def finish(cleanup: Coroutine[object, object, T]) -> T:
    """Await `cleanup` to its end, even if the caller is canceled meanwhile.

    A cancellation is raised afterwards. `cleanup` must have its own time limit.
    """
    task = asyncio.ensure_future(cleanup)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure from cancelled
        raise cancelled
    return task.result()
