"""Traces of requests, with the attributes of OpenTelemetry's conventions.

The attributes are those of HTTP servers and of generative AI (`gen_ai.*`); ours begin with
`vllama.`. No text of a prompt or an answer is among them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from vllama.base import log_context
from vllama.base.clock import EPOCH_NS, now_ns
from vllama.base.errors import EngineStartFailed, ModelNotFound, VllamaError
from vllama.observe.tracing import setup
from vllama.routes.recording.running import RunningRequest, find_cached_tokens, sum_prompt_tokens
from vllama.routes.recording.stage import Stage
from vllama.routes.route import Dialect

if TYPE_CHECKING:
    from vllama.dialects.events import EndedRow
    from vllama.observe.tracing.setup import Tracing


class Traces(Stage):
    """Traces requests, unless their route is no part of a dialect, such as /health."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def began(self, running: RunningRequest) -> None:
        request, route = running.request, running.route
        if route.dialect is Dialect.NONE:
            return
        label = route.make_label(request.path)
        self._tracing.begin(
            f"{request.method} {label}",
            request.headers,
            started_ns=request.started_ns,
            attributes={
                "http.request.method": request.method,
                "http.route": label,
                "url.path": request.path,
                "client.address": request.client_host or None,
                "user_agent.original": request.header(b"user-agent") or None,
                "vllama.request.id": request.id,
            },
        )

    async def queued(self, running: RunningRequest) -> None:
        self._enter_queue()

    def waits(self, running: RunningRequest) -> None:
        if running.lease is not None:
            self._enter_queue()

    @staticmethod
    def _enter_queue() -> None:
        if (trace := setup.trace.get()) is not None:
            trace.enter_stage("queue")

    def leased(self, running: RunningRequest) -> None:
        """Say what a request has waited for."""
        lease, trace = running.lease, setup.trace.get()
        if trace is None or lease is None:
            return
        instance = lease.instance
        plan = instance.plan
        loaded = instance.ready_s >= lease.began_s - lease.queued_s and plan is not None
        if loaded and plan is not None:
            ready_ns = EPOCH_NS + int(instance.ready_s * 1e9)
            trace.add_load(
                ready_ns - int(instance.load_s * 1e9),
                ready_ns,
                {
                    "vllama.engine": plan.engine,
                    "vllama.engine.version": plan.installation.version,
                    "vllama.load.attempts": len(instance.failed_plans) + 1,
                    "vllama.load.instead": plan.instead or None,
                    "vllama.load.memory_bytes": sum(instance.needs.values()),
                    "vllama.context_length": plan.settings.context_length,
                },
            )
        waited_for = "nothing"
        if lease.queue_position:
            waited_for = "load" if loaded else "slot"
        trace.end_stage(
            {
                "vllama.queue.waited_for": waited_for,
                "vllama.queue.reason": instance.waited_for or None if loaded else None,
                "vllama.queue.position": lease.queue_position,
            }
        )
        trace.enter_stage("prepare")

    def released(self, running: RunningRequest) -> None:
        """Say why a request has waited in vain."""
        trace, error = setup.trace.get(), sys.exception()
        if trace is None or running.lease is not None or not isinstance(error, VllamaError):
            return
        failure = {"error.type": error.kind, "exception.message": error.message}
        if isinstance(error, EngineStartFailed):
            trace.add_load(trace.stage_from_ns, now_ns(), failure)
        trace.end_stage(failure)

    def ended(self, running: RunningRequest, row: EndedRow) -> None:
        if (trace := setup.trace.get()) is None:
            return
        model, outcome = log_context.model.get(), row.outcome
        request, error = running.request, running.request.failure
        operation = running.route.task
        instance = running.lease.instance if running.lease is not None else None
        plan = instance.plan if instance is not None else None
        reasons = (answer.tally.finish_reason for answer in running.answers)
        first_ns = running.first_token_ns
        attributes: dict[str, str | int | float | list[str] | None] = {
            "http.response.status_code": request.status or None,
            "vllama.outcome": outcome,
            "vllama.key": running.key or None,
            "gen_ai.operation.name": operation,
            "gen_ai.request.model": model
            or (error.name if isinstance(error, ModelNotFound) else None),
            "gen_ai.response.finish_reasons": [x for x in reasons if x is not None] or None,
        }
        if operation is not None:
            attributes["gen_ai.provider.name"] = plan.engine if plan is not None else "vllama"
        if running.answers:
            attributes |= {
                "gen_ai.usage.input_tokens": sum_prompt_tokens(running),
                "gen_ai.usage.output_tokens": running.generated_tokens,
                "gen_ai.usage.cache_read.input_tokens": find_cached_tokens(running),
            }
        if first_ns is not None:
            waited_s = (first_ns - request.started_ns) / 1e9
            attributes["gen_ai.response.time_to_first_chunk"] = waited_s
        label = running.route.make_label(request.path)
        name = f"{operation} {model}" if operation and model else f"{request.method} {label}"
        late = outcome == "error" and request.status < 400
        trace.end(name, attributes, error=error, failed=late or request.status >= 500)
