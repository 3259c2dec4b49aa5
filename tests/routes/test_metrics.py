"""`GET /metrics` of a real server: its numbers are those that clients have seen."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.routes.test_ollama_chat import until, user
from tests.server_process import Server

pytestmark = pytest.mark.slow

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


class Scrape:
    """The samples of one scrape."""

    def __init__(self, server, headers=None) -> None:
        status, self.headers, data = server.request("GET", "/metrics", headers=headers)
        assert status == 200, data
        openmetrics = self.headers["content-type"].startswith("application/openmetrics-text")
        read = read_openmetrics if openmetrics else text_string_to_metric_families
        families = list(read(data.decode()))
        assert len({family.name for family in families}) == len(families)
        self.samples = [sample for family in families for sample in family.samples]
        keys = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in self.samples]
        assert len(set(keys)) == len(keys)

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum of all samples of that name with these labels."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def requests(server, **labels: str) -> float:
    """Return how many requests with these labels have ended."""
    return Scrape(server).sum("vllama_requests_total", **labels)


@pytest.mark.parametrize("headers", [None, OPENMETRICS])
def test_both_formats_are_valid(server, headers):
    assert server.post("/api/chat", {"model": "plain", **user(), "stream": False})[0] == 200
    scrape = Scrape(server, headers)
    assert scrape.sum("vllama_requests_total", route="/api/chat", outcome="ok") >= 1
    assert scrape.sum("vllama_build_info") == 1
    assert scrape.sum("vllama_memory_free_bytes", pool="ram") > 0
    assert scrape.sum("vllama_model_memory_planned_bytes", model="plain:latest") > 0
    assert scrape.sum("vllama_model_state", model="plain:latest", state="ready") == 1


@pytest.mark.parametrize(
    ("path", "dialect", "body", "read"),
    [
        ("/api/chat", "ollama", user(stream=False), ("prompt_eval_count", "eval_count")),
        ("/v1/chat/completions", "openai", user(), ("prompt_tokens", "completion_tokens")),
        (
            "/v1/completions",
            "openai",
            {"prompt": ["a b c", "d e"], "n": 2},
            ("prompt_tokens", "completion_tokens"),
        ),
        ("/v1/messages", "anthropic", user(max_tokens=99), ("input_tokens", "output_tokens")),
        ("/v1/responses", "responses", {"input": "hello"}, ("input_tokens", "output_tokens")),
        ("/v1/embeddings", "openai", {"input": ["a b", "c"]}, ("prompt_tokens", None)),
        ("/api/embed", "ollama", {"input": ["a b", "c"]}, ("prompt_eval_count", None)),
    ],
)
def test_tokens_are_those_that_clients_are_told(server, path, dialect, body, read):
    name = "vectors" if "embed" in path else "counts"
    before = Scrape(server)
    status, reply = server.post(path, {"model": name, **body})
    assert status == 200, reply
    usage = reply.get("usage", reply)
    after = Scrape(server)

    def grown(metric: str, **labels: str) -> float:
        return after.sum(metric, **labels) - before.sum(metric, **labels)

    model = f"{name}:latest"
    assert grown("vllama_prompt_tokens_total", model=model) == usage[read[0]] > 0
    generated = usage[read[1]] if read[1] else 0
    assert grown("vllama_generation_tokens_total", model=model) == generated
    labels = {"model": model, "route": path, "dialect": dialect, "status": "200", "outcome": "ok"}
    assert grown("vllama_requests_total", **labels) == 1
    assert grown("vllama_e2e_request_latency_seconds_count", model=model, route=path) == 1
    assert grown("vllama_request_queue_time_seconds_count", model=model) == 1
    assert grown("vllama_time_to_first_token_seconds_count", model=model) == (read[1] is not None)


def test_failures_are_counted_where_they_happen(server):
    cases = [
        ("POST", "/api/chat", {"model": "nope", **user()}, "", "404", "model_not_found"),
        ("POST", "/v1/chat/completions", {"model": "plain", "messages": 3}, "", "400", None),
        ("POST", "/api/chat", {"model": "vectors", **user(tools=[{}])}, None, "400", None),
        ("GET", "/nowhere", None, "", "404", "status_404"),
        ("PATCH", "/api/chat", None, "", "405", "status_405"),
        ("DELETE", "/api/requests/none", None, "", "404", "not_found"),
    ]
    for method, path, body, model, status, reason in cases:
        before = Scrape(server)
        assert server.request(method, path, body)[0] == int(status)
        labels = {"status": status} | ({} if model is None else {"model": model})
        after = Scrape(server)
        counted = {**labels, "outcome": "error"}
        name = "vllama_requests_total"
        assert after.sum(name, **counted) - before.sum(name, **counted) == 1, path
        name, labels = (
            "vllama_request_errors_total",
            labels | ({"reason": reason} if reason else {}),
        )
        assert after.sum(name, **labels) - before.sum(name, **labels) == 1, path


def test_a_foreign_host_is_counted(server):
    before = requests(server, status="403", outcome="error")
    assert server.request("GET", "/api/version", headers={"Host": "evil.com"})[0] == 403
    assert requests(server, status="403", outcome="error") == before + 1


def test_a_client_that_leaves_is_counted_with_the_tokens_that_came(server):
    name = server.model("leaves-metrics", "--token-interval", "0.02")
    with server.open("/api/chat", {"model": name, **user("@tokens=5000")}) as answer:
        for _ in range(3):
            answer.readline()
    labels = {"model": f"{name}:latest", "status": "200"}
    until(lambda: requests(server, **labels, outcome="aborted") == 1)
    scrape = Scrape(server)
    assert requests(server, **labels, outcome="ok") == 0
    told = scrape.sum("vllama_generation_tokens_total", model=labels["model"])
    assert 3 <= told < 5000
    estimated = scrape.sum("vllama_generation_tokens_estimated_total", model=labels["model"])
    assert estimated == told


def test_who_runs_and_who_waits(server):
    name = server.model("waits-metrics", "--token-interval", "0.02")
    body = {"model": name, **user("@tokens=5000")}
    model = f"{name}:latest"
    with server.open("/api/chat", body) as first:
        first.readline()
        second = server.connect()
        second.request("POST", "/v1/chat/completions", json.dumps(body))
        until(lambda: Scrape(server).sum("vllama_num_requests_waiting", model=model) == 1)
        assert Scrape(server).sum("vllama_num_requests_running", model=model) == 1
        assert Scrape(server).sum("vllama_model_slots", model=model) == 1
        second.close()
    until(lambda: Scrape(server).sum("vllama_num_requests_running", model=model) == 0)


def test_engines_metrics_are_passed_on_with_their_model(server):
    names = [server.model("shows-one"), server.model("shows-two")]
    for name in names:
        assert server.post("/api/chat", {"model": name, **user(), "stream": False})[0] == 200
    for headers in (None, OPENMETRICS):
        until(lambda: Scrape(server).sum("vllama_engine_metrics_up") >= 2)
        scrape = Scrape(server, headers)
        for name in names:
            model = f"{name}:latest"
            assert scrape.sum("fake:requests_total", model=model, exported_model="inside") == 3
            assert scrape.sum("fake:latency_seconds_bucket", model=model, le="0.5") == 1
            assert scrape.sum("vllama_engine_metrics_up", model=model, replica="1") == 1


@pytest.mark.parametrize("fault", ["bad", "hang"])
def test_an_engine_without_an_answer_delays_no_scrape(server, fault):
    name = server.model(f"shows-{fault}", "--metrics", fault)
    assert server.post("/api/chat", {"model": name, **user(), "stream": False})[0] == 200
    model = f"{name}:latest"

    def is_known():
        rows = [one for one in Scrape(server).samples if one.labels.get("model") == model]
        return any(one.name == "vllama_engine_metrics_up" for one in rows)

    until(is_known)
    scrape = Scrape(server)
    assert scrape.sum("vllama_engine_metrics_up", model=model) == 0
    assert scrape.sum("vllama_requests_total", model=model) == 1
    # the engine still counts as healthy: it only has no metrics
    assert scrape.sum("vllama_model_state", model=model, state="ready") == 1
    server.post("/api/generate", {"model": name, "keep_alive": 0})  # or every scrape waits for it


def test_many_scrapers_at_once_ask_an_engine_once(server):
    name = server.model("shows-many")
    assert server.post("/api/chat", {"model": name, **user(), "stream": False})[0] == 200
    begun = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        scrapes = [ask.result() for ask in [pool.submit(Scrape, server) for _ in range(8)]]
    took_s = time.monotonic() - begun
    assert all(one.sum("vllama_build_info") == 1 for one in scrapes)
    assert server.stats(name)["scrapes"] <= 2 + took_s


def test_loads_and_what_happens_to_models_are_counted(server):
    name = server.model("lives-metrics")
    model = f"{name}:latest"

    def count(metric: str, **labels: str) -> float:
        return Scrape(server).sum(metric, model=model, **labels)

    assert server.post("/api/chat", {"model": name, **user(), "stream": False})[0] == 200
    assert count("vllama_model_load_time_seconds_count") == 1
    assert count("vllama_model_load_time_seconds_sum") > 0
    server.engine(name).kill()
    until(lambda: count("vllama_engine_restarts_total") == 1)
    assert server.post("/api/generate", {"model": name, "keep_alive": 0})[0] == 200
    until(lambda: count("vllama_model_unloads_total") == 1)
    assert count("vllama_model_evictions_total") == 0
    assert count("vllama_model_failures_total") == 0


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """Return a server that tries no other plan after one that has failed."""
    with Server(tmp_path_factory.mktemp("strict"), "--strict", "--engine", "fake") as running:
        yield running


@pytest.mark.parametrize(
    ("switches", "cause"),
    [
        (("--exit-before-ready", "--exit-code", "3"), "engine_start_failed"),
        (("--exit-before-ready", "--print", "no such shape"), "architecture"),
        (("--fits", "1"), "memory"),
    ],
)
def test_models_that_fail_are_counted_by_cause(strict, switches, cause):
    name = strict.model(f"fails-{cause.replace('_', '-')}", *switches)
    assert strict.request("POST", "/api/chat", {"model": name, **user()})[0] == 500
    model = f"{name}:latest"
    until(lambda: Scrape(strict).sum("vllama_model_failures_total", model=model, cause=cause) == 1)
    scrape = Scrape(strict)
    assert scrape.sum("vllama_model_state", model=model, state="failed") == 1
    assert scrape.sum("vllama_request_errors_total", model=model, status="500") == 1
