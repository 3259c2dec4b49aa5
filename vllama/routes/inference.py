"""What every inference route does alike: a lease, the relay, and who leaves meanwhile.

A lease is asked for while the client is watched, so that one who leaves while queued takes its
place in the queue along. A request that cannot have reached the engine is sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from vllama import log_context
from vllama.chat.engine.context import LEAST, bound_traits
from vllama.chat.engine.traits import learn_from_refusal
from vllama.chat.request import (
    Call,
    LoadOptions,
)
from vllama.engines.base import Mode
from vllama.errors import (
    BadRequest,
    CapabilityMissing,
    EngineCrashed,
    TemplateRefused,
    UpstreamError,
    VllamaError,
)
from vllama.http.departure import unless_gone
from vllama.http.request import Request
from vllama.models.types import Bundle
from vllama.plan.draft_model import wants_draft
from vllama.plan.types import Need
from vllama.relay.relay import Relay
from vllama.routes.affinity import Prefix
from vllama.routes.chain import Chain, current
from vllama.routes.crashes import find_crash_reports
from vllama.routes.log_counts import find_logged_counts
from vllama.routes.running import RunningRequest
from vllama.routes.traces import enter_queue, fail_queue, leave_queue
from vllama.scheduler.instance import Lease
from vllama.tracing.current import end_stage
from vllama.upstream.connection import ConnectionLost
from vllama.upstream.pool import Upstream

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

log = logging.getLogger(__name__)

SERVED_BY_HEADER = "x-vllama-served-by"
CONTEXT_HEADER = "x-vllama-num-ctx"  # what runs, where a request asked for more
# a killed engine is noticed within some 20 ms, on a busy machine after seconds
RETRY_PAUSES_S = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)


async def with_lease(
    gateway: Gateway,
    request: Request,
    bundle: Bundle,
    need: Need,
    keep_alive_s: float | None,
    use: Callable[[Lease, Upstream], Awaitable[None]],
    prefix: Prefix | None = None,
) -> None:
    """Run `use` with a lease on an instance of `bundle`; what it raises comes through.

    If the engine could not be reached at all (it has just ended and its supervisor is about to
    notice), or was dead before the request was sent, the request waits its turn for the next one.
    If its refusal tells how it has to be asked, it is asked again in that way.
    """
    scheduler = gateway.scheduler
    log_context.model.set(bundle.name)
    running = gateway.running.of(request)
    running.model = bundle.name
    enter_queue()
    lease = scheduler.try_acquire(bundle, need, keep_alive_s, prefix)
    if lease is None:
        waiting = scheduler.acquire(bundle, need, keep_alive_s, prefix, running.flow)
        try:
            lease = await unless_gone(request, waiting, scheduler.release)
        except VllamaError as error:
            fail_queue(error)
            raise
        request.queue_position = lease.queue_position
    leave_queue(lease)
    if (chain := current.get()) is not None or bundle.upstream is not None:
        request.set_header(SERVED_BY_HEADER, name_server(bundle, lease, chain))
    running.is_running = True
    running.lease = lease
    gateway.metrics.queue_time.observe((bundle.name,), lease.queued_s)
    count_before = lease.instance.served
    try:
        for pause_s in (*RETRY_PAUSES_S, None):
            try:
                if need.context_length is not None:
                    if need.context_length > lease.traits.context_length:
                        request.set_header(CONTEXT_HEADER, str(lease.traits.context_length))
                    lease.traits = bound_traits(lease.traits, need.context_length)
                upstream = gateway.upstreams.get_pool(lease.endpoint)
                upstream.request_id_header = lease.traits.request_id_header
                crashes = upstream.crashes = upstream.crashes or find_crash_reports(lease, upstream)
                if not lease.traits.usage_in_stream:
                    upstream.counts = upstream.counts or find_logged_counts(lease)
                    upstream.tells_counts &= upstream.counts is not None
                was_dead = crashes.begin() if crashes else None
                await use(lease, upstream)
                return
            except TemplateRefused:
                raise  # what may help was tried
            except BadRequest as error:
                learnt = learn_from_refusal(lease.traits, error.message)
                if learnt is None or request.status:
                    raise
                log.info("%s: %s; it is asked differently from now on", bundle.name, error.message)
                own = lease.instance.traits
                if own is not None:
                    lease.instance.traits = learn_from_refusal(own, error.message) or own
                lease.traits = learnt
                continue
            except (UpstreamError, EngineCrashed) as failure:
                told = crashes.explain(failure) if crashes else failure
                if isinstance(told, ConnectionLost):
                    scheduler.report_unreachable(lease)
                unsent = isinstance(told, ConnectionLost) and told.unsent
                # a request that has crashed an engine must not crash the next one
                late = isinstance(told, EngineCrashed) and was_dead is not None and was_dead()
                if not (unsent or late) or request.status or pause_s is None:
                    raise told from None
            # the lease is kept meanwhile: nobody else is sent there, and the turn is not lost
            enter_queue()
            await asyncio.sleep(pause_s)
            renewed = scheduler.renew(lease, bundle, need, keep_alive_s, prefix, running.flow)
            lease = running.lease = await unless_gone(request, renewed, scheduler.release)
            leave_queue(lease)
    finally:
        was_alone = lease.instance.leases == 1 and lease.instance.served == count_before
        scheduler.release(lease)  # before anything that could be cancelled
        if was_alone and wants_draft(bundle):
            await record_speed(gateway, running, lease)


def name_server(bundle: Bundle, lease: Lease, chain: Chain | None) -> str:
    """Return what serves a request: a link as the user wrote it, or a model here.

    Of an upstream without a link it is NAME:MODEL, or URL#MODEL if it has no name.
    """
    if chain is not None and chain.link:
        return chain.link
    if bundle.upstream is None:
        return bundle.name
    if name := lease.endpoint.upstream:
        return f"{name}:{lease.traits.model_name}"
    return f"{lease.endpoint.url}#{lease.traits.model_name}"


async def record_speed(gateway: Gateway, running: RunningRequest, lease: Lease) -> None:
    """Record how fast an answer was generated, by a model that has a draft model.

    To be called for requests that ran alone, since others would have slowed it down.
    """
    plan, rate = lease.instance.plan, running.tokens_per_s
    if plan is not None and rate and running.tokens:
        await gateway.draft_records.add(plan, running.tokens, running.tokens / rate)


async def run_relay(
    gateway: Gateway,
    request: Request,
    bundle: Bundle,
    relay: Relay,
    upstream: Upstream,
    call: Call,
    before_finish: Callable[[], Awaitable[None]] | None = None,
    *,
    new_prompt: bool = True,
) -> None:
    """Run a relay and count its tokens, also those of an answer that nobody waited for.

    `new_prompt` False: the prompt is that of another choice, which has been counted. A call that
    the engine did not begin to answer has no tokens; it may be sent again.
    """
    running = gateway.running.of(request)
    running.follow(relay, new_prompt=new_prompt)
    if running.recorder is not None:
        running.recorder.call = call
    end_stage()
    try:
        await relay.run(upstream, call, before_finish)
    finally:
        tally = relay.reply.tally
        usage = tally.usage
        if tally.first_token_ns is not None or tally.ended:
            gateway.metrics.count_tokens(
                bundle.name,
                usage.prompt_tokens if new_prompt else 0,
                usage.completion_tokens,
                cached=(usage.cached_tokens or 0) if new_prompt else 0,
                estimated=usage.estimated,
            )


def count_inputs(gateway: Gateway, request: Request, bundle: Bundle, tokens: int) -> None:
    """Count the tokens of inputs for which no text is generated."""
    gateway.running.of(request).read_tokens += tokens
    gateway.metrics.count_tokens(bundle.name, tokens, 0, estimated=False)


def make_need(load: LoadOptions, mode: Mode, *, logprobs: bool = False) -> Need:
    """Return what the load-time options ask of an instance."""
    return Need(
        mode=mode,
        context_length=None if load.num_ctx is None else max(LEAST, load.num_ctx),
        gpu_layers=load.num_gpu if load.num_gpu is not None and load.num_gpu >= 0 else None,
        threads=load.num_thread or None,
        logprobs=logprobs,
    )


class NotSupported(CapabilityMissing):
    """No engine here can do it."""

    status = 501
