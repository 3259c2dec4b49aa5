"""The lease of a request, which is replaced when its target fails before the first byte.

A lease is asked for while the client is watched, so that one who leaves while queued takes its
place in the queue along. A request that cannot have reached the engine is sent again. Everything
else that a request needs on its way is a stage (`recording.stage`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from vllama.base import log_context
from vllama.base.clock import now_ns
from vllama.base.errors import (
    BadRequest,
    EngineCrashed,
    EngineError,
    ModelNotFound,
    TemplateRefused,
    UpstreamError,
    VllamaError,
)
from vllama.chat.engine.context import bound_traits
from vllama.chat.engine.traits import Traits, learn_from_refusal
from vllama.chat.replay import Departed
from vllama.models.types import Bundle
from vllama.net.http.departure import unless_gone
from vllama.net.http.request import RESUMED_HEADER, ClientGone, Request
from vllama.net.upstream.connection import AnswerTooLarge, ConnectionLost
from vllama.net.upstream.pool import CrashReports, Upstream
from vllama.plan.types import Need
from vllama.routes.batches.lane import is_last_attempt
from vllama.routes.chain import current
from vllama.routes.first_token import use_unless_stuck, use_until_late
from vllama.routes.inference.adapters import Use, with_adapter
from vllama.routes.inference.demand import count_nothing, measure
from vllama.routes.inference.engine_log import watch_engine
from vllama.routes.inference.offers import explain_refusal
from vllama.routes.recording.running import RunningRequest, Wanted
from vllama.routes.sign_of_life import show_life
from vllama.scheduler.instance import Lease, Prefix
from vllama.scheduler.turns import Returning

if TYPE_CHECKING:
    from vllama.chat.reply import Reply
    from vllama.routes.context import Gateway

log = logging.getLogger(__name__)

# a killed engine is noticed within some 20 ms, on a busy machine after seconds
RETRY_PAUSES_S = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)


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
    streams: bool = False,
) -> Awaitable[None]:
    """Run `use` with a lease on an instance of `bundle`; what it raises comes through.

    `size` returns the most tokens that the request can take (`inference.demand`), which its key
    has to have left. `streams`: the client is shown that it waits (`routes.sign_of_life`).

    A response is replayed after a crash of its engine if that is deterministic (`_Resumer.resume`);
    the client gets the rest. Until a byte of an answer has been sent, a
    failure may also be made good in three ways:

    1. An engine that could not be reached at all (it has just ended and its supervisor is about to
       notice), or was dead before the request was sent, is waited for, ahead of all others.
    2. A refusal that tells how the engine has to be asked lets it be asked in that way.
    3. After any other failure, another target may have the request, once.
    """
    running = gateway.running.of(request)
    wanted = running.wanted = Wanted(bundle, need, keep_alive_s, prefix)
    sized = size is not count_nothing
    running.measure = partial(measure, gateway.scheduler, wanted, size) if sized else None
    use = use if bundle.lora is None else with_adapter(bundle.lora, use)
    work = _Work(gateway, request, running, wanted, use)
    return _run_in_stream(work) if streams else work.run()


async def _run_in_stream(work: _Work) -> None:
    """Do the work, and show the client that it goes on."""
    with show_life(work.gateway, work.request, work.wanted.bundle.name, streams=True):
        await work.run()


@dataclass(slots=True, eq=False)
class _Work:
    """The work of one request with its lease, which may be replaced by another one."""

    gateway: Gateway
    request: Request
    running: RunningRequest
    wanted: Wanted
    use: Use
    lease: Lease = field(init=False)
    resumer: _Resumer = field(init=False)
    pool: Upstream | None = None
    crashes: CrashReports | None = None
    was_dead: Callable[[], bool] | None = None  # the engine, before the request was sent
    has_moved: bool = False

    async def run(self) -> None:
        """Do the work; raise what no other attempt could help with."""
        gateway, running, bundle = self.gateway, self.running, self.wanted.bundle
        log_context.model.set(bundle.name)
        running.model, running.lease, running.is_paused = bundle.name, None, False
        self.resumer = _Resumer(self)
        running.stop = self.resumer.stop
        try:
            for queued in gateway.stages.queued:
                await queued(running)
            await self._lease_first()
            await self._work()
        finally:
            self.release()

    def release(self) -> None:
        """Release the lease if there is one; nothing here could be canceled."""
        self.resumer.leave()
        self.gateway.stages.released(self.running)
        if self.running.lease is not None:
            self.gateway.scheduler.release(self.lease)

    async def _lease_first(self) -> None:
        """Take a lease at once if there is one, else after a turn in the queue."""
        gateway, running = self.gateway, self.running
        if lease := gateway.scheduler.try_acquire(*self.wanted):
            self.note_lease(lease)
        else:
            gateway.stages.waits(running)
            try:
                await self.take(gateway.scheduler.acquire(*self.wanted, running.flow))
            except VllamaError as error:
                raise await explain_refusal(gateway, self.wanted.bundle, error) from None
            self.request.queue_position = self.lease.queue_position
        running.is_running = True
        gateway.metrics.queue_time.observe((self.wanted.bundle.name,), self.lease.queued_s)

    async def _work(self) -> None:
        """Use the lease, and another one where that may help."""
        for pause_s in (*RETRY_PAUSES_S, None):
            try:
                try:
                    await self._begin()
                finally:
                    self.close_pool()
                break
            except TemplateRefused:
                raise  # what may help was tried
            except BadRequest as refusal:
                if self.request.status:
                    raise
                _learn(self.lease, refusal, self.wanted.bundle.name)
            except Departed:  # of a whole response nothing was sent: the new one does as well
                if self.request.status or pause_s is None:
                    raise
                self.running.start_over()
                self.running.lease, self.running.is_running = self.lease, True
            except (UpstreamError, EngineCrashed) as failure:
                error = self.note_failure(failure)
                if self.request.status or pause_s is None:
                    raise error from None
                await self._replace_lease(error, pause_s)
        if isinstance(self.request.failure, EngineError):  # after the first byte
            self.gateway.scheduler.note_failure(self.lease, self.request.failure)
        elif self.running.first_token_ns and (
            part := self.lease.instance.find_part(self.lease.endpoint)
        ):
            part.note_success()

    def open_pool(self) -> Upstream:
        """Return the pool of the lease's endpoint, which is kept until `close_pool`."""
        pool = self.pool = self.gateway.upstreams.hold(self.lease.endpoint)
        watch_engine(self.lease, pool)
        self.crashes = pool.crashes
        self.was_dead = self.crashes.begin() if self.crashes else None
        return pool

    def close_pool(self) -> None:
        """Let go of the pool, if there is one."""
        if self.pool is not None:
            self.pool.users -= 1
            self.pool = None

    async def take(self, coming: Awaitable[Lease]) -> None:
        """Wait for a lease unless the client leaves."""
        self.note_lease(await unless_gone(self.request, coming, self.gateway.scheduler.release))

    def note_lease(self, lease: Lease) -> None:
        """Use a lease from now on."""
        self.lease = self.running.lease = lease
        self.gateway.stages.leased(self.running)

    def _begin(self) -> Awaitable[None]:
        """Begin to use the lease; how long the answer may take depends on who else could give it.

        Raises TooSlow if no token comes in time and another target could give it. For a link of a
        chain, the chain itself looks after the first token.
        """
        gateway, running, lease = self.gateway, self.running, self.lease
        scheduler, config, chain = gateway.scheduler, gateway.in_use.config, current.get()
        if (num_ctx := self.wanted.need.load.num_ctx) is not None:
            lease.traits = bound_traits(lease.traits, num_ctx)
        if more := self.wanted.bundle.settings.pass_fields:
            passed = lease.traits.passed_fields.union(more)
            lease.traits = replace(lease.traits, passed_fields=passed)
        upstream = self.open_pool()
        may_resume = lease.traits.replays and not lease.endpoint.is_elsewhere and config.resume > 0
        running.resumer = self.resumer if may_resume else None
        running.read_tokens = 0
        may_move = not self.has_moved and scheduler.has_other(lease)
        if may_move or (chain is not None and chain.may_pass_on):
            lease.patience_s = scheduler.hang_s if math.isfinite(scheduler.hang_s) else None
        using = self.use(lease, upstream)
        if may_move and lease.patience_s is not None:
            return use_until_late(running, lease.patience_s, using)
        if config.first_token_timeout_s is None or lease.endpoint.is_elsewhere:
            return using
        each_s, others = config.first_token_timeout_s, gateway.running.list_requests
        return use_unless_stuck(running, others, upstream, each_s, using)

    def note_failure(self, failure: UpstreamError | EngineCrashed) -> VllamaError:
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
        running.resumer, running.is_paused = None, False
        unsent = isinstance(error, ConnectionLost) and error.unsent
        # a request that has crashed an engine must not crash the next one
        late = isinstance(error, EngineCrashed) and self.was_dead is not None and self.was_dead()
        if unsent or late:
            await self.renew_lease(pause_s)
            return
        # no byte was sent: another target may have it, once, or each where the model is gone
        if self.has_moved or isinstance(error, AnswerTooLarge) or not scheduler.has_other(failed):
            raise error from None
        self.has_moved |= error.status != ModelNotFound.status
        scheduler.release(failed)
        running.start_over()
        await self.take(scheduler.acquire(*self.wanted, running.flow))
        running.is_running = True
        if self.lease.endpoint == failed.endpoint:  # the others have failed while it waited
            raise error from None

    async def renew_lease(self, pause_s: float) -> None:
        """Wait for the engine's restart.

        The lease is kept meanwhile: nobody else is sent there, and the turn is not lost.
        """
        self.gateway.stages.waits(self.running)
        await asyncio.sleep(pause_s)
        self.lease.on_trial = self.resumer.is_admitted
        scheduler, flow = self.gateway.scheduler, self.running.flow
        await self.take(scheduler.renew(self.lease, *self.wanted, flow))


class _Resumer:
    """Finds an engine that can resume a response after a crash, or a row after a pause."""

    def __init__(self, work: _Work) -> None:
        self._work = work
        self._returning: Returning | None = None
        self._is_last = is_last_attempt.get()

    async def resume(self, error: EngineError, reply: Reply, *, was_sent: bool) -> Upstream:
        """Wait for an engine that may be asked for the same answer; return it (`net.relay`).

        Raises ClientGone, and `error`, explained, if none may: then the answer has been resumed
        as often as it may be, is the cause of the death, or is better given by another target.
        """
        work, chain = self._work, current.get()
        failed, scheduler, request = work.lease, work.gateway.scheduler, work.request
        unsent = isinstance(error, ConnectionLost) and error.unsent
        explained = work.note_failure(error) if isinstance(error, EngineCrashed) else error
        moves = not request.status and (
            scheduler.has_other(failed) or (chain is not None and chain.may_pass_on)
        )
        if moves or work.gateway.stopping or not isinstance(explained, EngineCrashed):
            raise explained
        answer = self._returning
        if answer is None:
            answer = self._returning = Returning(failed.instance.readmission, request.started_ns)
        answer.is_empty = reply.is_empty
        if not unsent and self._may_not_resume(answer, failed):
            raise explained
        died_ns = now_ns()
        work.close_pool()
        try:
            if unsent:
                await work.renew_lease(RETRY_PAUSES_S[0])
            # an engine that has only closed a connection is asked on another; else it has ended
            has_ended = unsent and was_sent and work.lease.endpoint != failed.endpoint
            if has_ended and self._may_not_resume(answer, failed):
                if isinstance(explained, ConnectionLost):
                    explained.unsent = False  # or it would be sent again as one that never was
                raise explained
            await unless_gone(request, answer.wait_for_turn())
            for pause_s in RETRY_PAUSES_S:  # an engine that hangs is still to be ended
                if not answer.knows_end_of(work.lease.endpoint):
                    break
                await work.renew_lease(pause_s)
        except ClientGone:
            raise
        except VllamaError as failure:
            raise (explained if request.status else failure) from None
        if has_ended or not unsent:
            self._tell_resumed((now_ns() - died_ns) / 1e9)
        return work.open_pool()

    def _may_not_resume(self, answer: Returning, failed: Lease) -> bool:
        """Note the death of the engine; return whether the answer ends with it."""
        was_alone = failed.instance.leases_at.get(failed.endpoint, 0) <= 1
        is_cause = answer.note_death(failed.endpoint, was_alone=was_alone)
        return is_cause or answer.deaths > self._work.gateway.in_use.config.resume

    def _tell_resumed(self, pause_s: float) -> None:
        """Tell operators, and a client whose answer is whole."""
        work, name = self._work, self._work.wanted.bundle.name
        log.info("%s: engine crashed; response resumed after %.1f s", name, pause_s)
        work.gateway.metrics.resumed.add((name,))
        work.running.resumed += 1
        if not work.request.status:
            work.request.set_header(RESUMED_HEADER, str(work.running.resumed))

    def stop(self) -> bool:
        """Stop a row of a batch; return whether it leaves the engine.

        For a while if it can go on from its text; else wholly, unless this is its last attempt.
        """
        running = self._work.running
        if not running.is_paused:  # else several requests have come
            running.is_paused = running.suspend()
        if not (running.is_paused or self._is_last):
            running.request.note_disconnect()
        return running.is_paused or not self._is_last

    async def wait_for_turn(self) -> Upstream:
        """Let others have the engine until a row may run again (`net.relay`)."""
        work, running = self._work, self._work.running
        work.close_pool()
        work.release()
        for queued in work.gateway.stages.queued:
            await queued(running)
        await work.take(work.gateway.scheduler.acquire(*work.wanted, running.flow))
        return work.open_pool()

    def note_progress(self) -> None:
        """Let the next interrupted answer come back (`net.relay`)."""
        if self._returning is not None:
            self._returning.pass_on()

    @property
    def is_admitted(self) -> bool:
        """True if it is its turn to come back."""
        return self._returning is not None and self._returning.is_admitted

    def leave(self) -> None:
        """Let others come back in its place."""
        if self._returning is not None:
            self._returning.leave()


def _learn(lease: Lease, refusal: BadRequest, name: str) -> None:
    """Ask the engine in another way from now on; raise `refusal` if it tells of none."""
    learnt = learn_from_refusal(lease.traits, refusal.message)
    if learnt is None:
        raise refusal
    log.info("%s: %s; requests to this engine are adapted", name, refusal.message)
    own = lease.instance.traits
    if own is not None:
        lease.instance.traits = learn_from_refusal(own, refusal.message) or own
    lease.traits = learnt
