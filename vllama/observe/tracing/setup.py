"""Setup of tracing: an OTLP collector, over HTTP.

Everything else is configured by OpenTelemetry's own variables, which its library reads: headers,
time-outs, batches, sampling (`OTEL_TRACES_SAMPLER`), the name of the service, and so on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import wait
from contextvars import ContextVar
from typing import TYPE_CHECKING

from vllama import __version__
from vllama.base.errors import ConfigError
from vllama.base.threads import begin

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from vllama.observe.tracing.request_trace import Attributes, RequestTrace


log = logging.getLogger(__name__)

SERVICE = "vllama"
CLOSE_LIMIT_S = 3.0
SENDERS = ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal")
"""The loggers of what sends spans."""


trace: ContextVar[RequestTrace | None] = ContextVar("request_trace", default=None)


def end_stage() -> None:
    """End the stage that the request is in: what follows is the engine's work."""
    if (current := trace.get()) is not None:
        current.end_stage()


class FirstFailure(logging.Handler):
    """Logs the first failure to send spans in the library's words; it would log each attempt."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._is_logged = False

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record of the library's, if it is the first."""
        if not self._is_logged:
            self._is_logged = True
            log.warning(
                "cannot send traces: %s; requests are still served, and further failures are not "
                "logged",
                record.getMessage().rstrip("."),
            )


class Tracing:
    """The traces of one server."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("vllama", __version__)

    def begin(
        self,
        name: str,
        headers: Mapping[bytes, bytes],
        *,
        started_ns: int,
        attributes: Attributes,
    ) -> None:
        """Begin the trace of the request that the running task answers."""
        from vllama.observe.tracing.request_trace import RequestTrace

        trace.set(
            RequestTrace(self._tracer, headers, name, started_ns=started_ns, attributes=attributes)
        )

    def close(self) -> None:
        """Send the pending spans; blocks for at most `CLOSE_LIMIT_S`.

        The library would try again and again to reach a collector that does not answer, so it is
        left to a thread that ends with the process.
        """
        wait([begin(self._provider.shutdown)], CLOSE_LIMIT_S)


def open_tracing(url: str | None) -> Tracing | None:
    """Return the traces of a server, sent to `url` ("": where OpenTelemetry's variables say).

    None if they are off. Raises ConfigError if OpenTelemetry's variables contradict each other, or
    if it is not installed. With its variables alone that is only a warning, because they may be
    meant for other programs.
    """
    if url is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        missing = ConfigError(
            "cannot send traces: OpenTelemetry is not installed",
            hint="pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
        )
        if url:
            raise missing from error
        log.warning("%s", missing.sentence())
        return None
    resource = Resource.create({"service.version": __version__})
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: SERVICE}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    try:
        processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=url or None))
    except ValueError as error:
        raise ConfigError(
            f"cannot send traces: {error}", hint="correct OpenTelemetry's variables (OTEL_BSP_…)"
        ) from error
    provider.add_span_processor(processor)
    failures = FirstFailure()
    for name in SENDERS:
        sender = logging.getLogger(name)
        sender.propagate, sender.handlers = False, [failures]
    return Tracing(provider)
