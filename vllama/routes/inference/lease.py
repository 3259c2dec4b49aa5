"""The lease of a request, which is replaced when its target fails before the first byte.

A lease is asked for while the client is watched, so that one who leaves while queued takes its
place in the queue along. A request that cannot have reached the engine is sent again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from vllama.base import log_context
from vllama.base.clock import now_ns
from vllama.base.errors import (
    BadRequest,
    CoolingDown,
    EngineCrashed,
    EngineError,
    TemplateRefused,
    UpstreamError,
    VllamaError,
)
from vllama.chat.engine.context import bound_traits
from vllama.chat.engine.traits import Traits, learn_from_refusal
from vllama.models.types import Bundle
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import RESUMED_HEADER, ClientGone, Request
from vllama.net.upstream.connection import AnswerTooLarge, ConnectionLost
from vllama.net.upstream.pool import CrashReports, Upstream
from vllama.plan.draft_model import wants_draft
from vllama.plan.types import Need
from vllama.routes.chain import Chain, current
from vllama.routes.first_token import first_token_in_time
from vllama.routes.inference.demand import Prefix, count_nothing
from vllama.routes.inference.engine_log import find_crash_reports
from vllama.routes.inference.offers import explain_refusal
from vllama.routes.recording.running import RunningRequest
from vllama.routes.recording.traces import enter_queue, fail_queue, leave_queue
from vllama.scheduler.instance import Lease
from vllama.scheduler.turns import Returning

if TYPE_CHECKING:
    from vllama.chat.reply import Reply
    from vllama.routes.context import Gateway

log = logging.getLogger(__name__)

Use = Callable[[Lease, Upstream], Awaitable[None]]
"""Works with a lease."""

SERVED_BY_HEADER = "x-vllama-served-by"
CONTEXT_HEADER = "x-vllama-num-ctx"  # what runs, where a request asked for more
# a killed engine is noticed within some 20 ms, on a busy machine after seconds
RETRY_PAUSES_S = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)
PATIENCE_NS = 30 * 10**9


def with_lease(
    gateway: Gateway,
    request: Request,
    bundle: Bundle,
    need: Need,
    keep_alive_s: float | None,
    use: Use,
    prefix: Prefix | None = None,
    *,
    size: Callable[[Traits | None], int] = count_nothing,
) -> Awaitable[None]:
    """Run `use` with a lease on an instance of `bundle`; what it raises comes through.

    `size` returns the most tokens that the request can take (`inference.demand`), which its key
    has to have left.

    An answer whose engine dies is asked for again where the engine gives it again
    (`_Work.resume`); the client gets the rest. Until a byte of an answer has been sent, a failure
    may also be made good in three ways:

    1. An engine that could not be reached at all (it has just ended and its supervisor is about to
       notice), or was dead before the request was sent, is waited for, ahead of all others.
    2. A refusal that tells how the engine has to be asked lets it be asked in that way.
    3. After any other failure, another target may have the request, once.
    """
    wanted = Wanted(bundle, need, keep_alive_s, prefix)
    return _Work(gateway, request, gateway.running.of(request), wanted, use, size).run()


class Wanted(NamedTuple):
    """What the scheduler is asked for."""

    bundle: Bundle
    need: Need
    keep_alive_s: float | None
    prefix: Prefix | None


@dataclass(slots=True, eq=False)
class _Work:
    """The work of one request with its lease, which may be replaced by another one."""

    gateway: Gateway
    request: Request
    running: RunningRequest
    wanted: Wanted
    use: Use
    size: Callable[[Traits | None], int]
    lease: Lease = field(init=False)
    returning: Returning | None = None
    pool: Upstream | None = None
    crashes: CrashReports | None = None
    was_dead: Callable[[], bool] | None = None  # the engine, before the request was sent
    has_moved: bool = False
    is_paused: bool = False  # others have the engine

    async def run(self) -> None:
        """Do the work; raise what no other attempt could help with."""
        gateway, running, bundle = self.gateway, self.running, self.wanted.bundle
        log_context.model.set(bundle.name)
        running.model = bundle.name
        gateway.lane.enter(bundle.key, self.stop)
        try:
            await gateway.lane.wait_for_rows(bundle.key)
            if self.size is not count_nothing:
                await gateway.meter.reserve(running, self._measure)
            await self._lease_first()
            await self._work()
        finally:
            gateway.lane.leave(bundle.key, self.stop)

    async def _work(self) -> None:
        """Use the lease, and another one where that may help."""
        gateway, running, bundle = self.gateway, self.running, self.wanted.bundle
        count_before = self.lease.instance.served
        try:
            for pause_s in (*RETRY_PAUSES_S, None):
                try:
                    try:
                        await self._begin(self._open_pool())
                    finally:
                        self._close_pool()
                    break
                except TemplateRefused:
                    raise  # what may help was tried
                except BadRequest as refusal:
                    self._learn(refusal)
                except (UpstreamError, EngineCrashed) as failure:
                    error = self._note_failure(failure)
                    if self.request.status or pause_s is None:
                        raise error from None
                    await self._replace_lease(error, pause_s)
            if isinstance(self.request.failure, EngineError):  # after the first byte
                self.gateway.scheduler.note_failure(self.lease, self.request.failure)
        finally:
            lease = self.lease
            if self.returning is not None:
                self.returning.leave()
            was_alone = lease.instance.leases == 1 and lease.instance.served == count_before
            self.gateway.scheduler.release(lease)  # before anything that could be cancelled
            if was_alone and wants_draft(bundle):
                await record_speed(gateway, running, lease)

    @property
    def most_resumed(self) -> int:
        """How often the answer may be asked for again."""
        return self.gateway.in_use.config.resume

    def _open_pool(self) -> Upstream:
        """Return the pool of the lease's endpoint, which is kept until `_close_pool`."""
        self.pool = self.gateway.upstreams.hold(self.lease.endpoint)
        return self.pool

    def _close_pool(self) -> None:
        if self.pool is not None:
            self.pool.users -= 1
            self.pool = None

    async def resume(self, error: EngineError, reply: Reply, *, was_sent: bool) -> Upstream:
        """Wait for an engine that may be asked for the same answer; return it (`net.relay`).

        Raises ClientGone, and `error`, explained, if none may: then the answer has been resumed
        as often as it may be, is the cause of the death, or is better given by another target.
        """
        failed, chain, scheduler = self.lease, current.get(), self.gateway.scheduler
        unsent = isinstance(error, ConnectionLost) and error.unsent
        explained = self._note_failure(error) if isinstance(error, EngineCrashed) else error
        moves = not self.request.status and (
            scheduler.has_other(failed) or (chain is not None and chain.may_pass_on)
        )
        if moves or self.gateway.stopping or not isinstance(explained, EngineCrashed):
            raise explained
        answer = self.returning
        if answer is None:
            gate = failed.instance.readmission
            answer = self.returning = Returning(gate, self.request.started_ns)
        answer.is_empty = reply.is_empty
        if not unsent and self._may_not_resume(answer, failed):
            raise explained
        died_ns = now_ns()
        self._close_pool()
        try:
            if unsent:
                await self._renew_patiently(RETRY_PAUSES_S[0])
            # an engine that has only closed a connection is asked on another; else it has ended
            has_ended = unsent and was_sent and self.lease.endpoint != failed.endpoint
            if has_ended and self._may_not_resume(answer, failed):
                if isinstance(explained, ConnectionLost):
                    explained.unsent = False  # or it would be sent again as one that never was
                raise explained
            await unless_gone(self.request, answer.wait_for_turn())
            for pause_s in RETRY_PAUSES_S:  # an engine that hangs is still to be ended
                if not answer.knows_end_of(self.lease.endpoint):
                    break
                await self._renew_patiently(pause_s)
        except ClientGone:
            raise
        except VllamaError as failure:
            raise (explained if self.request.status else failure) from None
        if has_ended or not unsent:
            self._tell_resumed(answer, (now_ns() - died_ns) / 1e9)
        upstream = self._open_pool()
        self._prepare(upstream)
        return upstream

    def _may_not_resume(self, answer: Returning, failed: Lease) -> bool:
        """Note the death of the engine; return whether the answer ends with it."""
        return answer.note_death(failed.endpoint) or answer.deaths > self.most_resumed

    def _tell_resumed(self, answer: Returning, pause_s: float) -> None:
        """Tell operators, and a client whose answer is whole."""
        name = self.wanted.bundle.name
        log.info("%s: its engine has ended; the answer goes on after %.1f s", name, pause_s)
        self.gateway.metrics.resumed.add((name,))
        self.running.resumed = answer.deaths
        if not self.request.status:
            self.request.set_header(RESUMED_HEADER, str(answer.deaths))

    def stop(self) -> None:
        """Stop a row of a batch: for a while if it can go on from its text, else wholly."""
        if self.is_paused:
            return  # several requests have come
        self.is_paused = self.running.suspend()
        if not self.is_paused:
            self.request.note_disconnect()

    async def wait_for_turn(self) -> Upstream:
        """Let others have the engine until a row may run again (`net.relay`)."""
        gateway, bundle = self.gateway, self.wanted.bundle
        self._close_pool()
        gateway.scheduler.release(self.lease)
        gateway.lane.leave(bundle.key, self.stop)
        gateway.meter.release(self.running)  # the others may be requests of its own key
        await gateway.lane.wait_for_turn(bundle, gateway.scheduler)
        if self.size is not count_nothing:
            await gateway.meter.reserve(self.running, self._measure)
        self.is_paused = False
        gateway.lane.enter(bundle.key, self.stop)
        await self._take(gateway.scheduler.acquire(*self.wanted, self.running.flow))
        upstream = self._open_pool()
        self._prepare(upstream)
        return upstream

    def note_progress(self) -> None:
        """Let the next interrupted answer come back (`net.relay`)."""
        if self.returning is not None:
            self.returning.pass_on()

    def _measure(self) -> int:
        """Return the most tokens that the request can take, as far as its model is known."""
        need = self.wanted.need
        traits = self.gateway.scheduler.find_traits(self.wanted.bundle, need)
        if traits is not None and need.load.num_ctx is not None:
            traits = bound_traits(traits, need.load.num_ctx)
        return self.size(traits)

    async def _lease_first(self) -> None:
        """Take a lease at once if there is one, else after a turn in the queue."""
        gateway, running = self.gateway, self.running
        enter_queue()
        if lease := gateway.scheduler.try_acquire(*self.wanted):
            self.lease = running.lease = lease
        else:
            try:
                with gateway.lane.give_way():
                    await self._take(gateway.scheduler.acquire(*self.wanted, running.flow))
            except VllamaError as error:
                fail_queue(error)
                raise await explain_refusal(gateway, self.wanted.bundle, error) from None
            self.request.queue_position = self.lease.queue_position
        leave_queue(self.lease)
        running.is_running = True
        gateway.meter.shrink(running, self._measure)
        gateway.metrics.queue_time.observe((self.wanted.bundle.name,), self.lease.queued_s)

    async def _take(self, coming: Awaitable[Lease]) -> None:
        """Wait for a lease unless the client leaves."""
        self.lease = await unless_gone(self.request, coming, self.gateway.scheduler.release)
        self.running.lease = self.lease

    def _begin(self, upstream: Upstream) -> Awaitable[None]:
        """Begin to use the lease; how long the answer may take depends on who else could give it.

        Raises TooSlow if no token comes in time and another target could give it. For a link of a
        chain, the chain itself looks after the first token.
        """
        lease, bundle, chain = self.lease, self.wanted.bundle, current.get()
        if chain is not None or bundle.upstream is not None:
            name_server(self.request, bundle, lease, chain)
        if (num_ctx := self.wanted.need.load.num_ctx) is not None:
            if num_ctx > lease.traits.context_length:
                self.request.set_header(CONTEXT_HEADER, str(lease.traits.context_length))
            lease.traits = bound_traits(lease.traits, num_ctx)
        if more := bundle.settings.pass_fields:
            passed = lease.traits.passed_fields.union(more)
            lease.traits = replace(lease.traits, passed_fields=passed)
        self._prepare(upstream)
        may_resume = lease.traits.replays and not lease.endpoint.is_elsewhere
        may_resume &= self.most_resumed > 0
        self.running.resumer = self if may_resume else None
        self.running.read_tokens = 0
        may_move = not self.has_moved and self.gateway.scheduler.has_other(lease)
        if may_move or (chain is not None and chain.may_pass_on):
            hang_s = self.gateway.scheduler.hang_s
            lease.patience_s = hang_s if math.isfinite(hang_s) else None
        if may_move and lease.patience_s is not None:
            return self._use_until_late(upstream, lease.patience_s)
        return self.use(lease, upstream)

    def _prepare(self, upstream: Upstream) -> None:
        """Have the engine's answers understood."""
        lease = self.lease
        upstream.request_id_header = lease.traits.request_id_header
        upstream.tells_counts &= lease.traits.usage_in_stream
        if lease.traits.dead_words and upstream.crashes is None:
            upstream.crashes = find_crash_reports(lease, upstream)
        self.crashes = upstream.crashes
        self.was_dead = self.crashes.begin() if self.crashes else None

    async def _use_until_late(self, upstream: Upstream, limit_s: float) -> None:
        async with first_token_in_time(self.running) as begin:
            begin(limit_s)
            await self.use(self.lease, upstream)

    def _learn(self, refusal: BadRequest) -> None:
        """Have the engine asked in another way from now on; raise `refusal` if it tells of none."""
        lease = self.lease
        learnt = learn_from_refusal(lease.traits, refusal.message)
        if learnt is None or self.request.status:
            raise refusal
        log.info(
            "%s: %s; it is asked differently from now on", self.wanted.bundle.name, refusal.message
        )
        own = lease.instance.traits
        if own is not None:
            lease.instance.traits = learn_from_refusal(own, refusal.message) or own
        lease.traits = learnt

    def _note_failure(self, failure: UpstreamError | EngineCrashed) -> VllamaError:
        """Note that the target of the lease has failed; return the error that tells why."""
        lease = self.lease
        error = self.crashes.explain(failure) if self.crashes else failure
        if lease.endpoint.is_elsewhere and error.status == EngineCrashed.status:
            error.status = UpstreamError.status  # a gateway's: no engine of ours crashed
        if isinstance(error, ConnectionLost):
            self.gateway.scheduler.report_unreachable(lease)
        if not isinstance(error, AnswerTooLarge):
            self.gateway.scheduler.note_failure(lease, error)
        return error

    async def _replace_lease(self, error: VllamaError, pause_s: float) -> None:
        """Wait for the engine's restart, or move to another target. Raises `error` if neither may.

        Raises ClientGone, and the errors of `Scheduler.acquire`.
        """
        scheduler, failed, running = self.gateway.scheduler, self.lease, self.running
        running.resumer = None
        unsent = isinstance(error, ConnectionLost) and error.unsent
        # a request that has crashed an engine must not crash the next one
        late = isinstance(error, EngineCrashed) and self.was_dead is not None and self.was_dead()
        if unsent or late:
            await self._renew_lease(pause_s)
            return
        # another target may have the request, once: no byte of an answer has been sent
        if self.has_moved or isinstance(error, AnswerTooLarge) or not scheduler.has_other(failed):
            raise error from None
        self.has_moved = True
        scheduler.release(failed)
        running.start_over()
        await self._take(scheduler.acquire(*self.wanted, running.flow))
        running.is_running = True
        if self.lease.endpoint == failed.endpoint:  # the others have failed while it waited
            raise error from None

    async def _renew_lease(self, pause_s: float) -> None:
        """Wait for the engine's restart.

        The lease is kept meanwhile: nobody else is sent there, and the turn is not lost.
        """
        enter_queue()
        await asyncio.sleep(pause_s)
        flow = self.running.flow
        await self._take(self.gateway.scheduler.renew(self.lease, *self.wanted, flow))
        leave_queue(self.lease)

    async def _renew_patiently(self, pause_s: float) -> None:
        """Wait for the engine's restart, also through the longer pauses of one that dies often.

        The client reads the answer already: an error that says when to try again is no help to it.
        """
        until_ns = now_ns() + PATIENCE_NS
        while True:
            try:
                return await self._renew_lease(pause_s)
            except CoolingDown as error:
                is_late = now_ns() + error.retry_after_s * 1e9 > until_ns
                if is_late or self.gateway.stopping:
                    raise
                await unless_gone(self.request, asyncio.sleep(error.retry_after_s))
                pause_s = 0.0


def name_server(request: Request, bundle: Bundle, lease: Lease, chain: Chain | None) -> None:
    """Tell the client what serves its request: a link as the user wrote it, or a model here.

    Of an upstream without a link it is NAME:MODEL, or URL#MODEL if it has no name.
    """
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
