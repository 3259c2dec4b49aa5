"""What the log says of a collector that takes no traces: two lines, however long that lasts."""

import logging
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import requests
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from vllama.observe.tracing.delivery import Delivery, ObservedSession, make_processor

PLACE = "the collector"


class Fickle(SpanExporter):
    """An exporter whose collector is there or not, as the test says."""

    works = True

    def export(self, spans):
        return SpanExportResult.SUCCESS if self.works else SpanExportResult.FAILURE


@pytest.fixture
def lines(caplog):
    """Return a function that lists what was logged since it was asked last."""
    caplog.set_level(logging.INFO)

    def take():
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    return take


def make(processor):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("test")

    def end_spans(count):
        for _ in range(count):
            tracer.start_span("x").end()

    return end_spans


def test_one_line_when_it_fails_and_one_when_it_is_back(lines):
    exporter = Fickle()
    delivery = Delivery(exporter, ObservedSession(), 100)
    end_spans = make(delivery)
    exporter.works = False
    for _ in range(5):
        end_spans(10)
        delivery.force_flush()
    assert lines() == [
        f"cannot send traces to {PLACE}: the exporter failed; requests are served as ever, their "
        "traces are lost"
    ]
    exporter.works = True
    for _ in range(3):
        end_spans(10)
        delivery.force_flush()
    assert lines() == [f"traces reach {PLACE} again; 50 spans were lost"]
    exporter.works = False
    end_spans(1)
    delivery.force_flush()
    assert "cannot send traces" in lines()[0]
    delivery.shutdown()
    assert lines() == [f"traces did not reach {PLACE} any more; one span was lost"]


class Slow(SpanExporter):
    """An exporter that waits for its collector."""

    def __init__(self):
        self.asked, self.answers = threading.Event(), threading.Event()

    def export(self, spans):
        self.asked.set()
        self.answers.wait()
        return SpanExportResult.SUCCESS


def test_a_collector_that_never_answers_costs_the_spans_that_do_not_fit(lines):
    exporter = Slow()
    delivery = Delivery(exporter, ObservedSession(), 8)
    end_spans = make(delivery)
    end_spans(8)
    flushing = threading.Thread(target=delivery.force_flush)
    flushing.start()
    assert exporter.asked.wait(60)
    end_spans(20)  # 8 of them wait
    assert (delivery.waiting, delivery.lost) == (8, 12)
    assert len(told := lines()) == 1 and "more slowly than they come" in told[0]
    exporter.answers.set()
    flushing.join()
    delivery.force_flush()
    assert lines() == [f"traces reach {PLACE} again; 12 spans were lost"]
    delivery.shutdown()


class Refusing(BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


class Foreign(Refusing):
    def do_POST(self):
        self.wfile.write(b"\0\0\x12\4\0\0\0\0\0")  # a frame of HTTP/2, as gRPC's servers send
        self.close_connection = True


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("closed", "Connection refused"),
        ("refusing", "it answers 404 Not Found"),
        ("silent", "it does not answer in time"),
    ],
)
def test_the_reason_is_that_of_the_connection(kind, reason, lines, monkeypatch):
    limit_s = 60 if kind == "refusing" else 0.2  # for all attempts; where it answers, one is enough
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", str(limit_s))
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.002,), daemon=True)
    if kind == "refusing":
        thread.start()
    elif kind == "closed":
        server.server_close()
    delivery = make_processor(f"http://127.0.0.1:{port}/v1/traces", 100)
    make(delivery)(3)
    delivery.force_flush()
    told = lines()
    assert told == [
        f"cannot send traces to 127.0.0.1:{port}: {reason}; requests are served as ever, their "
        "traces are lost"
    ]
    delivery.shutdown()
    if kind == "refusing":
        server.shutdown()
    server.server_close()


def test_the_port_of_grpc_is_recognised():
    with HTTPServer(("127.0.0.1", 0), Foreign) as server, ObservedSession() as session:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(requests.ConnectionError):
            session.post(f"http://127.0.0.1:{server.server_port}/v1/traces", timeout=60)
        thread.join()
        assert session.trouble.endswith("the port of OTLP over HTTP is usually 4318")


def test_the_place_has_no_password(lines, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0.2")
    delivery = make_processor("http://me:secret@127.0.0.1:1/v1/traces", 100)
    make(delivery)(1)
    delivery.force_flush()
    assert "cannot send traces to 127.0.0.1:1: " in lines()[0]
    delivery.shutdown()
