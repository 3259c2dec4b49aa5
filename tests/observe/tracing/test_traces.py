"""Traces that a real server sends to a real OTLP receiver."""

import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.routes.test_ollama_chat import until, user
from tests.server_process import Server

pytestmark = pytest.mark.slow

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT_HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "shop=x1"}


class Collector:
    """An OTLP/HTTP receiver: keeps the spans of all traces."""

    def __init__(self) -> None:
        self.spans = []
        self.resources = []
        self.headers = []
        kept = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                kept.take(self.path, dict(self.headers), body)
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path, headers, body) -> None:
        assert path == "/v1/traces"
        self.headers.append(headers)
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(read_attributes(group.resource.attributes))
            for scope in group.scope_spans:
                self.spans += scope.spans

    def trace(self, id_: str) -> dict:
        """Return the spans of the request with that id by name, once its root has come."""
        until(lambda: self.find_root(id_) is not None)
        root = self.find_root(id_)
        spans = {"root": root}
        for span in self.spans:
            if span.trace_id == root.trace_id and span.span_id != root.span_id:
                spans.setdefault(span.name, span)
        return spans

    def find_root(self, id_: str):
        for span in self.spans:
            if read_attributes(span.attributes).get("vllama.request.id") == id_:
                return span
        return None


def read_attributes(attributes) -> dict:
    """Return attributes as plain values."""
    found = {}
    for item in attributes:
        kind = item.value.WhichOneof("value")
        value = getattr(item.value, kind)
        if kind == "array_value":
            value = [getattr(one, one.WhichOneof("value")) for one in value.values]
        found[item.key] = value
    return found


@pytest.fixture(scope="module")
def collector():
    collector = Collector()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()


@pytest.fixture(scope="module")
def traced(collector, tmp_path_factory):
    """Return a server that sends its traces to the collector every few milliseconds."""
    env = {"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=blue"}
    arguments = ("--otlp-endpoint", collector.url, "--log-format", "json")
    with Server(tmp_path_factory.mktemp("traced"), *arguments, env=env) as server:
        yield server


def ask(server, path, body, id_, **headers):
    return server.request("POST", path, body, {"x-request-id": id_, **headers})


def test_the_spans_of_a_request_say_where_its_time_went(traced, collector):
    name = traced.model("counts-traced")
    status, _, data = ask(traced, "/v1/chat/completions", {"model": name, **user()}, "first")
    assert status == 200
    usage = json.loads(data)["usage"]
    spans = collector.trace("first")
    root = spans["root"]
    assert set(spans) == {"root", "receive", "queue", "load", "prepare", "engine"}
    assert root.name == f"chat {name}:latest"
    assert root.kind == root.SPAN_KIND_SERVER and not root.parent_span_id
    assert root.status.code == root.status.STATUS_CODE_UNSET
    attributes = read_attributes(root.attributes)
    assert attributes["http.route"] == "/v1/chat/completions"
    assert attributes["http.request.method"] == "POST"
    assert attributes["http.response.status_code"] == 200
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.provider.name"] == "fake"
    assert attributes["gen_ai.request.model"] == f"{name}:latest"
    assert attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert attributes["gen_ai.response.time_to_first_chunk"] > 0
    assert attributes["vllama.outcome"] == "ok"
    for stage in ("receive", "queue", "prepare", "engine"):
        assert spans[stage].parent_span_id == root.span_id
    assert spans["load"].parent_span_id == spans["queue"].span_id
    assert read_attributes(spans["queue"].attributes)["vllama.queue.waited_for"] == "load"
    assert read_attributes(spans["load"].attributes)["vllama.engine"] == "fake"
    order = [spans[stage] for stage in ("receive", "queue", "prepare", "engine")]
    starts = [root.start_time_unix_nano, *(span.start_time_unix_nano for span in order)]
    assert starts == sorted(starts)
    for span in spans.values():
        assert root.start_time_unix_nano <= span.start_time_unix_nano
        assert span.start_time_unix_nano <= span.end_time_unix_nano <= root.end_time_unix_nano
    engine = read_attributes(spans["engine"].attributes)
    assert engine["http.response.status_code"] == 200
    assert engine["url.full"].endswith("/v1/chat/completions")
    assert spans["engine"].kind == root.SPAN_KIND_CLIENT


def test_the_resource_and_the_standard_variables(traced, collector):
    assert ask(traced, "/api/show", {"model": traced.model("plain")}, "resource")[0] == 200
    collector.trace("resource")
    resource = collector.resources[-1]
    assert resource["service.name"] == "vllama"
    assert "service.version" in resource and "telemetry.sdk.name" in resource
    assert {headers.get("x-tenant") for headers in collector.headers} == {"blue"}


@pytest.mark.parametrize(
    ("path", "body", "operation"),
    [
        ("/api/chat", user(), "chat"),
        ("/api/generate", {"prompt": "hi"}, "text_completion"),
        ("/v1/completions", {"prompt": "hi"}, "text_completion"),
        ("/v1/messages", user(max_tokens=9), "chat"),
        ("/v1/responses", {"input": "hi"}, "chat"),
        ("/api/embed", {"input": "hi"}, "embeddings"),
        ("/v1/embeddings", {"input": "hi"}, "embeddings"),
    ],
)
def test_every_route_to_a_model_is_traced_and_a_parent_is_continued(
    traced, collector, path, body, operation
):
    embeds = "embed" in path
    name = traced.model("vectors", "--embed-per-token") if embeds else traced.model("counts-parent")
    id_ = f"parent{path.replace('/', '-')}"
    status, _, data = ask(traced, path, {"model": name, **body}, id_, **PARENT_HEADERS)
    assert status == 200, data
    spans = collector.trace(id_)
    root = spans["root"]
    assert root.trace_id.hex() == TRACE and root.parent_span_id.hex() == PARENT
    assert root.trace_state == "shop=x1"
    assert read_attributes(root.attributes)["gen_ai.operation.name"] == operation
    mine = [one for one in collector.spans if one.parent_span_id == root.span_id]
    assert {"receive", "queue", "prepare", "engine"} <= {one.name for one in mine}
    # the engine was told which span it works for
    calls = {one.span_id.hex() for one in mine if one.name == "engine"}
    told = traced.stats(name)["parents"][-1]
    assert told["tracestate"] == "shop=x1"
    assert re.fullmatch(rf"00-{TRACE}-([0-9a-f]{{16}})-01", told["traceparent"])[1] in calls


def test_a_request_that_waits_for_a_slot(traced, collector):
    name = traced.model("waits-traced", "--token-interval", "0.02")
    body = {"model": name, **user("@tokens=20"), "stream": False}
    assert ask(traced, "/api/chat", body, "warm")[0] == 200
    with ThreadPoolExecutor(3) as pool:
        asks = [pool.submit(ask, traced, "/api/chat", body, f"slot-{n}") for n in range(3)]
        assert all(one.result()[0] == 200 for one in asks)
    queues = [collector.trace(f"slot-{number}") for number in range(3)]
    found = [read_attributes(one["queue"].attributes) for one in queues]
    assert sorted(one["vllama.queue.position"] for one in found) == [0, 1, 2]
    waited = [one["vllama.queue.waited_for"] for one in found]
    assert sorted(waited) == ["nothing", "slot", "slot"]
    assert not any("load" in one for one in queues)


def test_errors_are_in_the_trace(traced, collector):
    assert ask(traced, "/api/chat", {"model": "nope", **user()}, "missing")[0] == 404
    root = collector.trace("missing")["root"]
    assert read_attributes(root.attributes)["error.type"] == "model_not_found"
    assert read_attributes(root.attributes)["gen_ai.request.model"] == "nope"
    assert root.status.code == root.status.STATUS_CODE_UNSET  # the client's error, not ours
    name = traced.model("dies-traced", "--die-after", "3", once=True)
    status, _, _ = ask(traced, "/api/chat", {"model": name, **user()}, "broken")
    assert status == 200
    spans = collector.trace("broken")
    for span in (spans["root"], spans["engine"]):
        assert read_attributes(span.attributes)["error.type"] == "connection_lost"
        assert span.status.code == span.status.STATUS_CODE_ERROR
    tokenize = spans["POST /extras/tokenize"]
    assert tokenize.parent_span_id == spans["prepare"].span_id
    name = traced.model("ends-traced", "--exit-before-ready", "--exit-code", "3")
    status, _, _ = ask(traced, "/api/chat", {"model": name, **user()}, "never")
    assert status == 500
    spans = collector.trace("never")
    assert read_attributes(spans["queue"].attributes)["error.type"] == "engine_start_failed"
    assert read_attributes(spans["load"].attributes)["error.type"] == "engine_start_failed"
    assert "engine" not in spans


def test_a_client_that_leaves_ends_the_trace(traced, collector):
    name = traced.model("leaves-traced", "--token-interval", "0.02")
    connection = traced.connect()
    body = json.dumps({"model": name, **user("@tokens=5000")})
    connection.request("POST", "/api/chat", body, {"x-request-id": "left"})
    connection.getresponse().readline()
    connection.sock.close()
    connection.close()
    spans = collector.trace("left")
    for span in (spans["root"], spans["engine"]):
        assert read_attributes(span.attributes)["vllama.outcome"] == "aborted"
        assert "error.type" not in read_attributes(span.attributes)
        assert span.status.code == span.status.STATUS_CODE_UNSET


def test_log_lines_have_the_ids_of_the_trace(traced, collector):
    body = {"model": traced.model("plain"), **user(), "stream": False}
    assert ask(traced, "/api/chat", body, "logged", **PARENT_HEADERS)[0] == 200
    root = collector.trace("logged")["root"]
    traced.wait_for('"request_id": "logged"')
    lines = [line for line in traced.output.splitlines() if '"request_id": "logged"' in line]
    fields = json.loads(lines[-1])
    assert (fields["trace_id"], fields["span_id"]) == (TRACE, root.span_id.hex())


def test_health_and_metrics_are_not_traced(traced, collector):
    for path in ("/", "/health", "/livez", "/metrics"):
        assert traced.request("GET", path, headers={"x-request-id": f"no{path}"})[0] == 200
    assert ask(traced, "/api/show", {"model": traced.model("plain")}, "after-health")[0] == 200
    collector.trace("after-health")
    assert not [path for path in ("/", "/metrics") if collector.find_root(f"no{path}")]


def test_a_stop_sends_what_waits(collector, tmp_path):
    env = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces",
        "OTEL_SERVICE_NAME": "mine",
        "OTEL_BSP_SCHEDULE_DELAY": "600000",
    }
    with Server(tmp_path, env=env) as server:
        assert ask(server, "/api/show", {"model": server.model("plain")}, "at-the-end")[0] == 200
    assert collector.find_root("at-the-end") is not None
    assert collector.resources[-1]["service.name"] == "mine"


def test_without_tracing_nothing_is_imported_and_nothing_is_sent_on(server):
    name = server.model("counts-untraced")
    status, _, _ = ask(server, "/api/chat", {"model": name, **user()}, "off", **PARENT_HEADERS)
    assert status == 200
    assert server.stats(name)["parents"][-1] == {"traceparent": None, "tracestate": None}
    program = "import sys, vllama.server.startup; print('opentelemetry' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.stdout == "False\n", told.stderr
