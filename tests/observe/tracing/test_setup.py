"""How traces are switched on and off, and closed."""

import sys
import threading

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from vllama import config
from vllama.base.errors import ConfigError
from vllama.observe.tracing import setup
from vllama.observe.tracing.setup import Tracing, TracingSettings, open_tracing

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


def read(*flags: str, **environ: str) -> TracingSettings | None:
    given = {"otlp_endpoint": flags[0]} if flags else {}
    loaded = config.load(given, {"HOME": "/nowhere", **environ})
    return config.tracing_settings(loaded, environ)


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        ((), {}, None),
        ((URL,), {}, TracingSettings(url=f"{URL}/v1/traces", required=True)),
        ((f"{URL}/",), {}, TracingSettings(url=f"{URL}/v1/traces", required=True)),
        ((), {"VLLAMA_OTLP_ENDPOINT": URL}, TracingSettings(url=f"{URL}/v1/traces", required=True)),
        ((), {"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, TracingSettings(url=None, required=False)),
        (
            (),
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL},
            TracingSettings(url=None, required=False),
        ),
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
        open_tracing(TracingSettings(url=URL, required=True))
    assert "pip install opentelemetry-sdk" in error.value.sentence()
    assert open_tracing(TracingSettings(url=None, required=False)) is None
    assert "cannot send traces" in caplog.text
    assert open_tracing(None) is None
