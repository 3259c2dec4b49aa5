"""Noticing that a client leaves, without a task for each stream.

A task that only waits takes more memory than the rest of the relay, and two turns of the loop to
end. uvicorn's `receive()` waits for one future of asyncio; it is enough to go on when that is done.
Any other server's may do what only a task can, and gets one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from vllama.gateway.http import Request


class Watch:
    """Calls `gone` when the client has closed its connection. The body must have been read."""

    __slots__ = ("_gone", "_request", "_task", "_waiting")

    def __init__(self, request: Request, gone: Callable[[], None]) -> None:
        self._request = request
        self._gone = gone
        self._waiting: Coroutine[Any, Any, Any] | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start to wait, until `end`."""
        receive: Any = self._request.receive
        cycle = getattr(receive, "__self__", None)
        if isinstance(getattr(cycle, "message_event", None), asyncio.Event):
            self._waiting = receive()
            self._go_on(None)
        else:
            self._task = asyncio.get_running_loop().create_task(self._wait())

    def end(self) -> None:
        """Wait no longer."""
        if self._task is not None:
            self._task.cancel()
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.close()

    async def _wait(self) -> None:
        await self._request.gone()
        self._gone()

    def _go_on(self, _done: object) -> None:
        """Do what a task does when the future that it waits for is done."""
        if self._waiting is None:
            return
        try:
            future = self._waiting.send(None)
        except StopIteration as stop:
            self._waiting = None
            if stop.value["type"] == "http.disconnect":
                self._gone()
            else:
                self.begin()
            return
        future._asyncio_future_blocking = False  # taken from the coroutine, as a task would
        future.add_done_callback(self._go_on)
