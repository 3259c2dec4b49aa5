"""Spans on their way to the collector.

A collector that cannot be reached costs two lines of the log, one when that begins and one when it
is over, with the number of spans that were lost. The library would log each attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

log = logging.getLogger(__name__)

MAX_BATCH = 512
"""Spans that the library sends at once, if it may keep so many."""


def make_processor(url: str | None, most_waiting: int) -> Delivery:
    """Return what sends spans to `url`; None: where OpenTelemetry's variables say."""
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    session = ObservedSession()
    return Delivery(OTLPSpanExporter(endpoint=url, session=session), session, most_waiting)


class ObservedSession(requests.Session):
    """Remembers why its last request failed, which the exporter tells nobody but its log.

    `place` is the address that it was for.
    """

    place = "the collector"
    trouble = ""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send a request, as `requests` does."""
        self.place = urlsplit(request.url or "").netloc.rpartition("@")[2] or self.place
        try:
            response = super().send(request, **options)
        except requests.RequestException as error:
            self.trouble = describe(error)
            raise
        self.trouble = "" if response.ok else f"it answers {response.status_code} {response.reason}"
        return response


def describe(error: requests.RequestException) -> str:
    """Return why a request failed, in a few words."""
    if isinstance(error, requests.Timeout):
        return "it does not answer in time"
    causes = list(_list_causes(error))
    if any(isinstance(one, HTTPException) for one in causes):  # as at the port of OTLP over gRPC
        return "it does not answer in HTTP; the port of OTLP over HTTP is usually 4318"
    reasons = (one.strerror for one in causes if isinstance(one, OSError))
    return next(filter(None, reasons), None) or type(error).__name__


def _list_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, what it wraps, and what came before it."""
    while error is not None:
        yield error
        wrapped = (*error.args, getattr(error, "reason", None))
        inner = next((one for one in wrapped if isinstance(one, BaseException)), None)
        error = inner or error.__cause__ or error.__context__


class Delivery(BatchSpanProcessor):
    """Sends spans in batches from a thread of its own, and counts what is lost."""

    def __init__(self, exporter: SpanExporter, session: ObservedSession, most_waiting: int) -> None:
        """`session` is that of the exporter."""
        self._most = most_waiting
        self._session = session
        self._attempts = _Attempts(self, exporter, session)
        self._accepted = self._dropped = 0  # changed by the loop's thread only
        self._is_failing = False
        self._told = 0  # lost spans that the log has told of
        batch = most_waiting if most_waiting < MAX_BATCH else None  # None: as the variables say
        super().__init__(self._attempts, max_queue_size=most_waiting, max_export_batch_size=batch)

    @property
    def waiting(self) -> int:
        """How many spans wait to be sent."""
        return self._accepted - self._attempts.taken

    @property
    def lost(self) -> int:
        """How many spans were lost since the log told of any."""
        return self._dropped + self._attempts.failed - self._told

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span that has ended, unless too many wait."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if self.waiting >= self._most:
            self._dropped += 1
            self.note_trouble(self._session.trouble or "it takes them more slowly than they come")
            return
        self._accepted += 1
        super().on_end(span)

    def note_trouble(self, reason: str) -> None:
        """Log that spans are being lost, unless the log has that already."""
        if not self._is_failing:
            self._is_failing = True
            log.warning(
                "cannot send traces to %s: %s; requests are served as ever, their traces are lost",
                self._session.place,
                reason,
            )

    def note_success(self) -> None:
        """Log that the trouble is over, once few spans wait."""
        if self._is_failing and self.waiting <= self._most // 2:
            self._is_failing = False
            log.info("traces reach %s again; %s", self._session.place, self._count_lost())

    def shutdown(self) -> None:
        """Send what waits; in trouble, count it as lost, since it will hardly arrive."""
        if self._is_failing:
            self._dropped += self.waiting
            log.info(
                "traces did not reach %s any more; %s", self._session.place, self._count_lost()
            )
        super().shutdown()  # type: ignore[no-untyped-call]

    def _count_lost(self) -> str:
        count = self.lost
        self._told += count
        return "one span was lost" if count == 1 else f"{count} spans were lost"


class _Attempts(SpanExporter):
    """Tells the delivery how each batch fared."""

    def __init__(
        self, delivery: Delivery, exporter: SpanExporter, session: ObservedSession
    ) -> None:
        self._delivery, self._exporter, self._session = delivery, exporter, session
        self.taken = self.failed = 0  # changed by the sending thread only

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            # boundary: a bug of the library must not end its thread
            reason, result = f"{type(error).__name__}: {error}", SpanExportResult.FAILURE
        else:
            reason = self._session.trouble or "the exporter failed"
        if result is SpanExportResult.SUCCESS:
            self._delivery.note_success()
        else:
            self.failed += len(spans)
            self._delivery.note_trouble(reason)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
