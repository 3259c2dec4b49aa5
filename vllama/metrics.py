"""Counters and histograms in Prometheus format; no decision depends on them.

Every request counts, so counting is plain arithmetic. The library that writes the format is
imported at the first request for the metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        # per route: one count per bucket, and one for longer times
        self._buckets: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(SECONDS) + 1))
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._errors: Counter[tuple[str, int, str]] = Counter()
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._cached: Counter[str] = Counter()
        self._estimated: Counter[str] = Counter()
        self._slow_callbacks = 0
        self._slowest_callback_s = 0.0

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count one answer; `route` is from the route table, which bounds the number of labels."""
        self._requests[route, status] += 1
        self._buckets[route][bisect_left(SECONDS, seconds)] += 1
        self._seconds[route] += seconds

    def count_error(self, route: str, status: int, reason: str) -> None:
        """Count an answer that ended with an error; `status` may still be 200.

        `reason` is `VllamaError.kind`.
        """
        self._errors[route, status, reason] += 1

    def count_tokens(
        self, model: str, prompt: int, completion: int, *, cached: int = 0, estimated: bool
    ) -> None:
        """Count the tokens of one answer; `model` is the display name of a local model.

        `cached` prompt tokens came from the engine's cache. `estimated`: the engine did not report
        how many tokens it generated.
        """
        self._tokens[model, "prompt"] += prompt
        self._tokens[model, "completion"] += completion
        if cached:
            self._cached[model] += cached
        if estimated:
            self._estimated[model] += completion

    def count_slow_callback(self, seconds: float) -> None:
        """Count a callback that blocked the event loop; only one thread may call this."""
        self._slow_callbacks += 1
        self._slowest_callback_s = max(self._slowest_callback_s, seconds)

    def format(self, *, loaded: int, queued: int) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        from prometheus_client.exposition import generate_latest
        from prometheus_client.registry import CollectorRegistry

        registry = CollectorRegistry()
        registry.register(_Collector(self._make_families(loaded, queued)))
        return generate_latest(registry)

    def _make_families(self, loaded: int, queued: int) -> Iterator[Metric]:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        requests = CounterMetricFamily(
            "vllama_requests", "Requests answered.", labels=("route", "status")
        )
        for (route, status), count in self._requests.items():
            requests.add_metric((route, str(status)), count)
        yield requests
        seconds = HistogramMetricFamily(
            "vllama_request_seconds",
            "Time from a request's head to the end of its answer.",
            labels=("route",),
        )
        for route, counts in self._buckets.items():
            total, rows = 0, []
            for bound, count in zip((*map(str, map(float, SECONDS)), "+Inf"), counts, strict=True):
                total += count
                rows.append((bound, total))
            seconds.add_metric((route,), rows, self._seconds[route])
        yield seconds
        errors = CounterMetricFamily(
            "vllama_request_errors",
            "Requests that ended with an error, also within a stream whose status was 200.",
            labels=("route", "status", "reason"),
        )
        for (route, status, reason), count in self._errors.items():
            errors.add_metric((route, str(status), reason), count)
        yield errors
        tokens = CounterMetricFamily(
            "vllama_tokens", "Tokens by kind: prompt or completion.", labels=("model", "kind")
        )
        for (model, kind), count in self._tokens.items():
            tokens.add_metric((model, kind), count)
        yield tokens
        cached = CounterMetricFamily(
            "vllama_tokens_cached",
            "Prompt tokens that the engine took from its cache; the prompt tokens include them.",
            labels=("model",),
        )
        for model, count in self._cached.items():
            cached.add_metric((model,), count)
        yield cached
        estimated = CounterMetricFamily(
            "vllama_tokens_estimated",
            "Estimated completion tokens: the client left, or the engine reports no counts.",
            labels=("model",),
        )
        for model, count in self._estimated.items():
            estimated.add_metric((model,), count)
        yield estimated
        yield CounterMetricFamily(
            "vllama_slow_callbacks",
            "Callbacks that blocked the event loop for more than 100 ms; see the log.",
            value=self._slow_callbacks,
        )
        yield GaugeMetricFamily(
            "vllama_slowest_callback_seconds",
            "Duration of the slowest callback since the start.",
            value=self._slowest_callback_s,
        )
        yield GaugeMetricFamily("vllama_models_loaded", "Models that have a process.", value=loaded)
        yield GaugeMetricFamily(
            "vllama_requests_queued", "Requests that wait for a slot.", value=queued
        )


class _Collector:
    """The collector that a registry reads."""

    def __init__(self, families: Iterator[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families

    def describe(self) -> tuple[Metric, ...]:
        """Return nothing; without this method, registering would already collect."""
        return ()
