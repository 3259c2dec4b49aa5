"""Limits for the first token of an answer, and the end of an engine that is stuck."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from vllama.base.errors import UpstreamError
from vllama.net.http.request import ClientGone
from vllama.net.upstream.pool import Upstream
from vllama.routes.recording.running import RunningRequest, compute_prompt_speed
from vllama.supervise.probe import http_status

TIMED_CONTEXT = 8192  # tokens, for which `first_token_timeout` holds
PROMPT_MARGIN = 4  # as long as the longest prompt took at the slowest speed so far
MEASURED_PROMPT = 100  # tokens; shorter ones tell little of the speed
YIELD_S = 5.0  # for which an engine may go on with a request that has ended
LOOK_S = 1.0
"""How often a request that waits for a token looks whether its server is up, or at work."""


class TooSlow(UpstreamError):
    """A target gave no token in time."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"no token within {limit_s:g} s", status=504)


class ServerDown(UpstreamError):
    """The server of a target has failed its health check before it gave a token."""

    def __init__(self) -> None:
        super().__init__("its server failed the health check", status=503)


@asynccontextmanager
async def first_token_in_time(
    running: RunningRequest,
    server_fails: Callable[[], bool] = lambda: False,
    progress: Callable[[], object] = lambda: None,
) -> AsyncIterator[Callable[[float], None]]:
    """Raise TooSlow or ServerDown if no token comes in time.

    The function that it yields starts the time, with a limit.

    What is answered at once, such as vectors, may take its time once the model has begun. The time
    begins anew when `progress` has changed: the engine was at work for others.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None
    limit_s = 0.0
    last: object = None
    error: UpstreamError | None = None

    def begin(limit: float) -> None:
        nonlocal limit_s
        limit_s = limit
        look(loop.time() + limit_s)

    def look(until_s: float) -> None:
        """Expire when the time is over, or when the server is found to be down before."""
        nonlocal timer, error, last
        now_s = loop.time()
        if running.has_begun:
            return
        # most requests have begun by the second look, so that one is the first to count
        before, last = last, progress() if timer is not None else None
        # tokens of its key, which no other target would give; or none have been asked for yet
        if running.waits_for_tokens or running.expects_no_tokens or last != before:
            until_s = now_s + limit_s
        if now_s >= until_s:
            error = TooSlow(limit_s)
        elif server_fails():
            error = ServerDown()
        if error is not None:
            timeout.reschedule(now_s)
        else:
            timer = loop.call_at(min(until_s, now_s + max(LOOK_S, limit_s / 60)), look, until_s)

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


def compute_limit(each_s: float, context_length: int, tokens_per_s: float | None) -> float:
    """Return how many seconds a prompt of any length may take.

    These are `each_s` for each `TIMED_CONTEXT` of the context. Once the speed of prompts is
    known, a long context gets no more than `PROMPT_MARGIN` times what it should take, and `each_s`.
    """
    limit_s = each_s * max(1.0, context_length / TIMED_CONTEXT)
    if tokens_per_s is None:
        return limit_s
    return min(limit_s, max(each_s, PROMPT_MARGIN * context_length / tokens_per_s))


async def use_until_late(running: RunningRequest, limit_s: float, using: Awaitable[None]) -> None:
    """Use the lease of a request, but raise TooSlow if no token comes in `limit_s`."""
    async with first_token_in_time(running) as begin:
        begin(limit_s)
        await using


async def use_unless_stuck(
    running: RunningRequest,
    list_requests: Callable[[], Iterable[RunningRequest]],
    upstream: Upstream,
    each_s: float,
    using: Awaitable[None],
) -> None:
    """Use the lease of a request unless it keeps the engine from giving any token.

    `each_s`: see `compute_limit`. Raises TooSlow.
    """
    assert running.lease is not None
    context_length = running.lease.traits.context_length
    limit_s = compute_limit(each_s, context_length, upstream.prompt_tokens_per_s)

    def count_tokens() -> object:
        """Return a value that changes while the engine gives tokens, or is waited for."""
        lease, writes = running.lease, running.request.writes
        if lease is None or (writes is not None and writes.is_waiting):
            return object()
        at, rows = lease.endpoint, list_requests()
        return sum(x.generated_tokens for x in rows if x.lease and x.lease.endpoint == at)

    try:
        async with first_token_in_time(running, progress=count_tokens) as begin:
            begin(limit_s)
            await using
        if (speed := compute_prompt_speed(running, MEASURED_PROMPT)) is not None:
            upstream.prompt_tokens_per_s = min(speed, upstream.prompt_tokens_per_s or speed)
    except TooSlow as slow:
        slow.hint = "send a shorter prompt, or increase --first-token-timeout"
        cause = f"no token for {limit_s:g} s, and the engine does not stop"
        await _end_stuck_engine(running, upstream, cause, YIELD_S)
        raise
    except ClientGone:
        # one that reads a long prompt looks up after each batch, of 2048 tokens at most
        if upstream.check is None and not running.has_begun:
            cause, wait_s = "the engine does not stop after its client disconnected", limit_s / 4
            check = _end_stuck_engine(running, upstream, cause, wait_s)
            upstream.check = asyncio.get_running_loop().create_task(check)
        raise


async def _end_stuck_engine(
    running: RunningRequest, upstream: Upstream, cause: str, wait_s: float
) -> None:
    """Restart an engine that has no time for others in `wait_s`: its loop shows no metrics."""
    lease = running.lease
    assert lease is not None
    at, path = lease.endpoint, lease.traits.metrics_path
    status = path and await http_status(at, path, timeout_s=wait_s, api_key=at.api_key)
    upstream.check = None
    if path and status is None and (part := lease.instance.find_part(at)) is not None:
        upstream.abort_answers(part.declare_unhealthy(at, cause))
