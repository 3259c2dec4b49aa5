"""Counters and histograms in Prometheus' form; written by the gateway, read by no decision."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The numbers of one server; each has its own registry, so two may live in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "vllama_requests", "Requests answered.", ("route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "vllama_request_seconds",
            "Time from a request's head to the end of its answer.",
            ("route",),
            buckets=SECONDS,
            registry=self._registry,
        )
        self._tokens = Counter(
            "vllama_tokens", "Tokens by kind: prompt or completion.", ("model", "kind"),
            registry=self._registry,
        )  # fmt: skip
        self._loaded = Gauge(
            "vllama_models_loaded", "Models that have a process.", registry=self._registry
        )
        self._queued = Gauge(
            "vllama_requests_queued", "Requests that wait for a slot.", registry=self._registry
        )

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count one answer; `route` must be from the route table, so that labels stay few."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def tokens(self, model: str, prompt: int, completion: int) -> None:
        """Count the tokens of one answer; `model` is the display name of a local model."""
        self._tokens.labels(model, "prompt").inc(prompt)
        self._tokens.labels(model, "completion").inc(completion)

    def text(self, *, loaded: int, queued: int) -> bytes:
        """Return everything in Prometheus' text form."""
        self._loaded.set(loaded)
        self._queued.set(queued)
        return generate_latest(self._registry)
