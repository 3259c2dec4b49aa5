"""What every inference route does alike: a lease, the relay, and who leaves meanwhile.

A lease is asked for while the client is watched, so that one who leaves while queued takes its
place in the queue along. A request that cannot have reached the engine is sent again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from vllama.base import log_context
from vllama.base.errors import (
    BadRequest,
    EngineCrashed,
    EngineError,
    TemplateRefused,
    UpstreamError,
    VllamaError,
)
from vllama.chat.engine.context import bound_traits
from vllama.chat.engine.traits import Traits, learn_from_refusal
from vllama.chat.request import (
    Call,
)
from vllama.models.types import Bundle
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import Request
from vllama.net.relay import Relay
from vllama.net.upstream.connection import AnswerTooLarge, ConnectionLost
from vllama.net.upstream.pool import CrashReports, Upstream
from vllama.observe.tracing.setup import end_stage
from vllama.plan.draft_model import wants_draft
from vllama.plan.types import Need
from vllama.routes.chain import current
from vllama.routes.inference.demand import Prefix, count_nothing
from vllama.routes.inference.engine_log import find_crash_reports, find_logged_counts
from vllama.routes.inference.first_token import first_token_in_time
from vllama.routes.inference.offers import explain_refusal
from vllama.routes.recording.running import RunningRequest
from vllama.routes.recording.traces import enter_queue, fail_queue, leave_queue
from vllama.scheduler.instance import Lease

if TYPE_CHECKING:
    from vllama.routes.context import Gateway

log = logging.getLogger(__name__)

Use = Callable[[Lease, Upstream], Awaitable[None]]
"""Works with a lease."""

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
    use: Use,
    prefix: Prefix | None = None,
    *,
    size: Callable[[Traits | None], int] = count_nothing,
) -> None:
    """Run `use` with a lease on an instance of `bundle`; what it raises comes through.

    `size` returns the most tokens that the request can take (`inference.demand`), which its key
    has to have left.

    If the engine could not be reached at all (it has just ended and its supervisor is about to
    notice), or was dead before the request was sent, the request waits its turn for the next one.
    If its refusal tells how it has to be asked, it is asked again in that way.
    """
    scheduler = gateway.scheduler
    log_context.model.set(bundle.name)
    running = gateway.running.of(request)
    running.model = bundle.name
    if size is not count_nothing:
        await gateway.meter.reserve(running, lambda: size(find_traits(gateway, bundle, need)))
    enter_queue()
    lease = scheduler.try_acquire(bundle, need, keep_alive_s, prefix)
    if lease is None:
        waiting = scheduler.acquire(bundle, need, keep_alive_s, prefix, running.flow)
        try:
            lease = await unless_gone(request, waiting, scheduler.release)
        except VllamaError as error:
            fail_queue(error)
            raise await explain_refusal(gateway, bundle, error) from None
        request.queue_position = lease.queue_position
    leave_queue(lease)
    running.is_running = True
    running.lease = lease
    gateway.meter.shrink(running, lambda: size(find_traits(gateway, bundle, need)))
    gateway.metrics.queue_time.observe((bundle.name,), lease.queued_s)
    count_before = lease.instance.served
    moved = False
    try:
        for pause_s in (*RETRY_PAUSES_S, None):
            try:
                name_server(request, bundle, lease)
                if (num_ctx := need.load.num_ctx) is not None:
                    if num_ctx > lease.traits.context_length:
                        request.set_header(CONTEXT_HEADER, str(lease.traits.context_length))
                    lease.traits = bound_traits(lease.traits, num_ctx)
                if more := bundle.settings.pass_fields:
                    passed = lease.traits.passed_fields.union(more)
                    lease.traits = replace(lease.traits, passed_fields=passed)
                with gateway.upstreams.use_pool(lease.endpoint) as upstream:
                    crashes = prepare_pool(upstream, lease)
                    was_dead = crashes.begin() if crashes else None
                    running.read_tokens = 0
                    await use_in_time(gateway, running, lease, use, upstream, is_second=moved)
                if isinstance(request.failure, EngineError):  # after the first byte
                    scheduler.note_failure(lease, request.failure)
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
                told, failed = crashes.explain(failure) if crashes else failure, lease.endpoint
                if failed.is_elsewhere and told.status == EngineCrashed.status:
                    told.status = UpstreamError.status  # a gateway's: no engine of ours crashed
                if isinstance(told, ConnectionLost):
                    scheduler.report_unreachable(lease)
                unsent = isinstance(told, ConnectionLost) and told.unsent
                # a request that has crashed an engine must not crash the next one
                late = isinstance(told, EngineCrashed) and was_dead is not None and was_dead()
                if not isinstance(told, AnswerTooLarge):
                    scheduler.note_failure(lease, told)
                if request.status or pause_s is None:
                    raise told from None
                if not (unsent or late):
                    # another target may have the request, once: no byte of an answer has been sent
                    if moved or isinstance(told, AnswerTooLarge) or not scheduler.has_other(lease):
                        raise told from None
                    moved = True
                    scheduler.release(lease)
                    ahead = scheduler.acquire(bundle, need, keep_alive_s, prefix, running.flow)
                    running.start_over()
                    lease = running.lease = await unless_gone(request, ahead, scheduler.release)
                    running.is_running = True
                    if lease.endpoint == failed:  # the others have failed while it waited
                        raise told from None
                    continue
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


def prepare_pool(upstream: Upstream, lease: Lease) -> CrashReports | None:
    """Tell a pool what is known of its engine; return what tells that engine's crashes."""
    traits = lease.traits
    upstream.request_id_header = traits.request_id_header
    if traits.dead_words:
        upstream.crashes = upstream.crashes or find_crash_reports(lease, upstream)
    if not traits.usage_in_stream:
        upstream.begin_counts = upstream.begin_counts or find_logged_counts(lease)
        upstream.tells_counts &= upstream.begin_counts is not None
    return upstream.crashes


def find_traits(gateway: Gateway, bundle: Bundle, need: Need) -> Traits | None:
    """Return the traits with which a loaded model would answer; None if it is not loaded so."""
    traits = gateway.scheduler.find_traits(bundle, need)
    num_ctx = need.load.num_ctx
    return traits if traits is None or num_ctx is None else bound_traits(traits, num_ctx)


def use_in_time(
    gateway: Gateway,
    running: RunningRequest,
    lease: Lease,
    use: Use,
    upstream: Upstream,
    *,
    is_second: bool,
) -> Awaitable[None]:
    """Run `use`; raise TooSlow if no token comes in time and another target could give it.

    For a link of a chain, the chain itself looks after the first token.
    """
    hang_s, chain = gateway.scheduler.hang_s, current.get()
    may_move = not is_second and gateway.scheduler.has_other(lease)
    if math.isfinite(hang_s) and (may_move or (chain and chain.may_pass_on)):
        lease.patience_s = hang_s
    if lease.patience_s is None or not may_move:
        return use(lease, upstream)

    async def use_until_late() -> None:
        async with first_token_in_time(running) as begin:
            begin(hang_s)
            await use(lease, upstream)

    return use_until_late()


def name_server(request: Request, bundle: Bundle, lease: Lease) -> None:
    """Tell the client what serves its request: a link as the user wrote it, or a model here.

    Of an upstream without a link it is NAME:MODEL, or URL#MODEL if it has no name.
    """
    chain = current.get()
    if chain is None and bundle.upstream is None:
        return
    if chain is not None and chain.link:
        server = chain.link
    elif bundle.upstream is None:
        server = bundle.name
    elif name := lease.endpoint.upstream:
        server = f"{name}:{lease.traits.model_name}"
    else:
        server = f"{lease.endpoint.url}#{lease.traits.model_name}"
    request.set_header(SERVED_BY_HEADER, request.mask(server.encode()).decode())


async def record_speed(gateway: Gateway, running: RunningRequest, lease: Lease) -> None:
    """Record how fast an answer was generated, by a model that has a draft model.

    To be called for requests that ran alone, since others would have slowed it down.
    """
    plan, rate = lease.instance.plan, running.tokens_per_s
    if plan is not None and rate and (tokens := running.generated_tokens):
        await gateway.draft_records.add(plan, tokens, tokens / rate)


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
    tally = relay.reply.tally
    try:
        await relay.run(upstream, call, before_finish)
    finally:
        count_prompt = relay.reply.count_prompt
        if tally.left and new_prompt and count_prompt and not tally.usage.prompt_tokens:
            tally.prompt_tokens = await count_prompt()
        usage = tally.usage
        if tally.has_begun:
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
