"""The limit for the first token of an answer that something else could give."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from vllama.base.errors import UpstreamError
from vllama.routes.recording.running import RunningRequest

LOOK_S = 1.0
"""How often a request that waits for a token looks whether its server is still up."""


class TooSlow(UpstreamError):
    """A target gave no token in time."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"no token within {limit_s:g} s", status=504)


class ServerDown(UpstreamError):
    """The server of a target has failed its health check before it gave a token."""

    def __init__(self) -> None:
        super().__init__("its server fails its health check", status=503)


@asynccontextmanager
async def first_token_in_time(
    running: RunningRequest, server_fails: Callable[[], bool] = lambda: False
) -> AsyncIterator[Callable[[float], None]]:
    """Raise TooSlow or ServerDown if no token comes in time.

    The function that it yields starts the time, with a limit.

    What is answered at once, such as vectors, may take its time once the model has begun.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None
    limit_s = 0.0
    error: UpstreamError | None = None

    def begin(limit: float) -> None:
        nonlocal limit_s
        limit_s = limit
        look(loop.time() + limit_s)

    def look(until_s: float) -> None:
        """Expire when the time is over, or when the server is found to be down before."""
        nonlocal timer, error
        now_s = loop.time()
        if running.has_begun:
            return
        # tokens of its key, which no other target would give; or none have been asked for yet
        if running.waits_for_tokens or running.expects_no_tokens:
            until_s = now_s + limit_s
        if now_s >= until_s:
            error = TooSlow(limit_s)
        elif server_fails():
            error = ServerDown()
        if error is not None:
            timeout.reschedule(now_s)
        else:
            timer = loop.call_at(min(until_s, now_s + LOOK_S), look, until_s)

    try:
        async with asyncio.timeout(None) as timeout:
            try:
                yield begin
            finally:
                if timer is not None:
                    timer.cancel()
    except TimeoutError:
        if error is None or not timeout.expired():
            raise
        raise error from None
