"""Helpers for asyncio: blocking work in its own thread, and clean-up that survives cancellation.

Knows nothing of processes. The default executor is not used, because it has few threads, and
waiting for a child that runs for days would occupy one of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")


def post(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call `callback` in `loop` from another thread; do nothing if the loop is closed."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        pass


async def in_thread(name: str, work: Callable[[], T]) -> T:
    """Run `work`, which must have its own time limit, in a new daemon thread; return its result.

    Cancellation does not wait for the thread.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(outcome: T | None, error: BaseException | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(outcome)  # type: ignore[arg-type]

    def body() -> None:
        try:
            outcome = work()
        except BaseException as error:
            failure = error
            post(loop, lambda: settle(None, failure))
        else:
            post(loop, lambda: settle(outcome, None))

    threading.Thread(target=body, name=name, daemon=True).start()
    return await result


async def finish(cleanup: Coroutine[object, object, T]) -> T:
    """Await `cleanup` to its end, even if the caller is cancelled meanwhile.

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
