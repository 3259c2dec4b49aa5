"""How traces are switched on and off, and closed."""

import logging
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from vllama import config
from vllama.base.errors import ConfigError
from vllama.observe.tracing import setup
from vllama.observe.tracing.setup import Tracing, open_tracing

URL = "http://127.0.0.1:4318"


class SilentCollector(SpanExporter):
    """An exporter that waits for its collector for ever."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()

    def export(self, spans):
        self.asked.set()
        self.answers.wait()
        return SpanExportResult.SUCCESS


def test_a_collector_that_does_not_answer_keeps_no_server_from_stopping(monkeypatch):
    monkeypatch.setattr(setup, "CLOSE_LIMIT_S", 0.01)
    collector = SilentCollector()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(collector, schedule_delay_millis=1))
    provider.get_tracer("test").start_span("x").end()
    assert collector.asked.wait(60)
    Tracing(provider).close()  # would never return
    assert not collector.answers.is_set()
    collector.answers.set()


def read(*flags: str, **environ: str) -> str | None:
    given = {"otlp_endpoint": flags[0]} if flags else {}
    loaded = config.load(given, {"HOME": "/nowhere", **environ})
    return config.choose_collector(loaded, environ)


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        ((), {}, None),
        ((URL,), {}, f"{URL}/v1/traces"),
        ((f"{URL}/",), {}, f"{URL}/v1/traces"),
        ((), {"VLLAMA_OTLP_ENDPOINT": URL}, f"{URL}/v1/traces"),
        ((), {"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, ""),
        ((), {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}, ""),
        ((URL,), {"OTEL_SDK_DISABLED": "TRUE"}, None),
        ((), {"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_TRACES_EXPORTER": "none"}, None),
        ((URL,), {"OTEL_TRACES_EXPORTER": "console, otlp"}, ...),
    ],
)
def test_flags_and_the_variables_of_opentelemetry(flags, environ, expected):
    found = read(*flags, **environ)
    assert found == expected if expected is not ... else found


def test_a_missing_library_is_an_error_only_where_traces_were_asked_for(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError) as error:
        open_tracing(URL)
    assert "pip install opentelemetry-sdk" in error.value.sentence()
    assert open_tracing("") is None
    assert "cannot send traces" in caplog.text
    assert open_tracing(None) is None


class Refusing(BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


def send_span(tracing):
    """Send one span, and wait until it has arrived or is lost."""
    tracing._tracer.start_span("x").end()
    tracing._provider.force_flush()


@pytest.mark.parametrize(
    ("kind", "limit_s", "reason"),
    [
        ("closed", 1.5, "Connection refused"),  # time for a second attempt, after about a second
        ("refusing", 60, "404"),  # where it answers, one attempt is enough
        ("silent", 0.2, "Failed to export spans batch"),
    ],
)
def test_a_collector_that_takes_none_costs_one_line(kind, limit_s, reason, caplog, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", str(limit_s))
    caplog.set_level(logging.INFO)
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        if kind == "refusing":
            threading.Thread(target=server.serve_forever, args=(0.002,), daemon=True).start()
        elif kind == "closed":
            server.server_close()
        url = f"http://me:secret@127.0.0.1:{server.server_port}/v1/traces"
        tracing = open_tracing(url)
        for _ in range(2):
            send_span(tracing)
        tracing.close()
        if kind == "refusing":
            server.shutdown()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("cannot send traces: ") and "still served" in line
    assert reason in line and "secret" not in line


def test_batches_are_as_the_variables_of_opentelemetry_say(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    with pytest.raises(ConfigError, match="cannot send traces"):  # less than a batch
        open_tracing(URL)
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0.2")
    tracing = open_tracing("http://127.0.0.1:1/v1/traces")
    for _ in range(100):  # what does not fit is lost, and nobody waits
        tracing._tracer.start_span("x").end()
    tracing.close()
    assert caplog.text.count("cannot send traces") == 1
