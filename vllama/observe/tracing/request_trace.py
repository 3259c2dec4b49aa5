"""The spans of one request.

The root covers the whole request and has the attributes of OpenTelemetry's conventions for HTTP
servers and for generative AI. Its children say where the time went: `receive` (reading and checking
the request), `queue` (waiting for a slot), within it `load`, `prepare` (rendering and counting the
prompt), and an `engine` for each answer of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from opentelemetry import propagate
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    format_span_id,
    format_trace_id,
    set_span_in_context,
)

from vllama.base.clock import now_ns
from vllama.base.errors import VllamaError

if TYPE_CHECKING:
    from opentelemetry.context import Context

Attributes = Mapping[str, str | int | float | bool | list[str] | None]
"""Attributes of a span; those that are None are left out."""


class RequestTrace:
    """The trace of one request, from its arrival to the end of its answer."""

    def __init__(
        self,
        tracer: Tracer,
        headers: Mapping[bytes, bytes],
        name: str,
        *,
        started_ns: int,
        attributes: Attributes,
    ) -> None:
        """Begin the root and `receive`; `headers` may name a parent (W3C Trace Context)."""
        carrier = {key.decode("latin-1"): text.decode("latin-1") for key, text in headers.items()}
        self._tracer = tracer
        self._remote = propagate.extract(carrier)
        self._root = tracer.start_span(
            name,
            self._remote,
            SpanKind.SERVER,
            attributes=_drop_unknown(attributes),
            start_time=started_ns,
        )
        self._context = set_span_in_context(self._root, self._remote)
        self._stage: Span | None = None
        self.enter_stage("receive", at_ns=started_ns)

    @property
    def trace_id(self) -> str:
        """The id of the trace, in hexadecimal digits."""
        return format_trace_id(self._root.get_span_context().trace_id)

    @property
    def span_id(self) -> str:
        """The id of the root, in hexadecimal digits."""
        return format_span_id(self._root.get_span_context().span_id)

    def enter_stage(self, name: str, *, at_ns: int | None = None) -> None:
        """End the present stage, and begin the next one."""
        now = at_ns or now_ns()
        self.end_stage()
        self._stage = self._tracer.start_span(name, self._context, start_time=now)
        self.stage_from_ns = now

    def end_stage(self, attributes: Attributes | None = None) -> None:
        """End the present stage, if there is one."""
        if self._stage is not None:
            self._stage.set_attributes(_drop_unknown(attributes or {}))
            self._stage.end(now_ns())
            self._stage = None

    def add_load(self, start_ns: int, end_ns: int, attributes: Attributes) -> None:
        """Add the span of a load that is already over to the present stage."""
        context = set_span_in_context(self._stage, self._remote) if self._stage else self._context
        span = self._tracer.start_span(
            "load", context, attributes=_drop_unknown(attributes), start_time=start_ns
        )
        span.end(end_ns)

    def begin_call(self, url: str, host: str, port: int) -> CallSpan:
        """Begin the span of a call to an engine.

        A call within a stage, such as one that counts the tokens of a prompt, belongs to that stage
        and is named after its path; any other is the `engine`'s work on the answer.
        """
        name, context = "engine", self._context
        if self._stage is not None:
            name = f"POST {urlsplit(url).path}"
            context = set_span_in_context(self._stage, self._remote)
        span = self._tracer.start_span(
            name,
            context,
            SpanKind.CLIENT,
            attributes={
                "http.request.method": "POST",
                "url.full": url,
                "server.address": host,
                "server.port": port,
            },
            start_time=now_ns(),
        )
        return CallSpan(span, self._remote)

    def end(
        self, name: str, attributes: Attributes, *, error: VllamaError | None, failed: bool
    ) -> None:
        """End the trace; `failed`: the error is the server's, not the client's."""
        self.end_stage()
        self._root.update_name(name)
        self._root.set_attributes(_drop_unknown(attributes))
        if error is not None:
            self._root.set_attribute("error.type", error.kind)
            self._root.set_attribute("exception.message", error.message)
        if failed:
            self._root.set_status(Status(StatusCode.ERROR, error.sentence() if error else None))
        self._root.end(now_ns())


class CallSpan:
    """The span of one call to an engine; a context manager that ends it."""

    def __init__(self, span: Span, remote: Context) -> None:
        self._span = span
        carrier: dict[str, str] = {}
        propagate.inject(carrier, set_span_in_context(span, remote))
        lines = (f"{name}: {value}\r\n" for name, value in carrier.items())
        self.headers = "".join(lines).encode("latin-1", "replace")
        """Lines for the head of the call, which make the engine's spans children of this one."""

    def note_answer(
        self, status: int, first_token_s: float | None = None, error: VllamaError | None = None
    ) -> None:
        """Note the engine's answer: when its first token came, and an error within a stream."""
        attributes = {
            "http.response.status_code": status or None,
            "gen_ai.response.time_to_first_chunk": first_token_s,
        }
        self._span.set_attributes(_drop_unknown(attributes))
        if status >= 400 or error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error.message if error else None))
            self._span.set_attribute("error.type", error.kind if error else str(status))

    def __enter__(self) -> CallSpan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the span, with the error that ended the call.

        Any other exception means that nobody waits for the answer any more: the client has left, or
        an administrator has ended the request. That is no error of the engine.
        """
        if isinstance(error, VllamaError):
            self._span.set_attribute("error.type", error.kind)
            self._span.set_status(Status(StatusCode.ERROR, str(error) or None))
        elif kind is not None:
            self._span.set_attribute("vllama.outcome", "aborted")
        self._span.end(now_ns())


def _drop_unknown(attributes: Attributes) -> dict[str, str | int | float | bool | list[str]]:
    return {name: value for name, value in attributes.items() if value is not None}
