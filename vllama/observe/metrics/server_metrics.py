"""Metrics of one server; no decision depends on them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

LATENCIES_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKEN_TIMES_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)
LOAD_TIMES_S = (0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
LAGS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


MAX_SERIES = 1000
OTHER = "other"
"""The value of every label of what is counted beyond `MAX_SERIES`."""

Labels = tuple[str, ...]


class Counter:
    """A number for each combination of labels, which only grows."""

    __slots__ = ("help", "labels", "name", "values")

    def __init__(self, name: str, help: str, labels: Labels = ()) -> None:
        """`name` is without the suffix `_total`, which the format adds."""
        self.name = name
        self.help = help
        self.labels = labels
        self.values: dict[Labels, float] = {} if labels else {(): 0}

    def add(self, labels: Labels = (), amount: float = 1) -> None:
        """Add `amount`; 0 makes the series exist, so that its first increase is not missed."""
        values = self.values
        if labels in values:
            values[labels] += amount
            return
        if len(values) >= MAX_SERIES:
            labels = (OTHER,) * len(labels)
        values[labels] = values.get(labels, 0) + amount


class Histogram:
    """Counts of values in buckets, and their sum, for each combination of labels."""

    __slots__ = ("bounds", "help", "labels", "name", "values")

    def __init__(
        self, name: str, help: str, labels: Labels = (), *, bounds: Sequence[float]
    ) -> None:
        """`bounds` are the upper ends of the buckets, ascending; one more takes what is larger."""
        self.name = name
        self.help = help
        self.labels = labels
        self.bounds = tuple(bounds)
        # the last number is the sum of the values
        self.values: dict[Labels, list[float]] = {}
        if not labels:
            self.values[()] = self._make_row()

    def observe(self, labels: Labels, value: float) -> None:
        """Count one value."""
        row = self.values.get(labels)
        if row is None:
            if len(self.values) >= MAX_SERIES:
                labels = (OTHER,) * len(labels)
            row = self.values.setdefault(labels, self._make_row())
        row[bisect_left(self.bounds, value)] += 1
        row[-1] += value

    def _make_row(self) -> list[float]:
        return [0] * (len(self.bounds) + 1) + [0.0]


class Gauge:
    """Values of this moment, set while the metrics are collected."""

    __slots__ = ("help", "labels", "name", "values")

    def __init__(self, name: str, help: str, labels: Labels = ()) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        self.values: dict[Labels, float] = {}

    def add(self, labels: Labels, value: float) -> None:
        """Add to the value, which begins with 0."""
        self.values[labels] = self.values.get(labels, 0) + value


Instrument = Counter | Histogram | Gauge


class Metrics:
    """The counters and histograms of one server.

    Where vLLM has a metric with the same meaning, the name is vLLM's, with our prefix. The label
    `model` is the name of a model that exists here, or "" for a request that names none.
    """

    def __init__(self) -> None:
        by_model = ("model",)
        self.requests = Counter(
            "vllama_requests",
            "Finished requests. outcome: ok, error (also within a stream whose status was "
            "200), aborted (the client disconnected) or stopped (by an administrator).",
            ("model", "route", "dialect", "status", "outcome", "key"),
        )
        self.errors = Counter(
            "vllama_request_errors",
            "Failed requests, by reason.",
            ("model", "route", "status", "reason"),
        )
        self.http_refusals = Counter(
            "vllama_http_refusals",
            "Requests rejected before routing: malformed, too large, too "
            "slow, or beyond the limit of connections.",
            ("status",),
        )
        self.queue_refusals = Counter(
            "vllama_queue_refusals",
            "Requests rejected because the queue of their model, or a queue of the "
            'server (model=""), was full.',
            by_model,
        )
        self.queue_refusals.add(("",), 0)
        self.latency = Histogram(
            "vllama_e2e_request_latency_seconds",
            "Time from the arrival of a request to the end of its response.",
            ("model", "route"),
            bounds=LATENCIES_S,
        )
        self.queue_time = Histogram(
            "vllama_request_queue_time_seconds",
            "Time that a request waited for a slot or for its model to load.",
            by_model,
            bounds=LATENCIES_S,
        )
        self.first_token = Histogram(
            "vllama_time_to_first_token_seconds",
            "Time from the arrival of a request to the first token of its response.",
            by_model,
            bounds=LATENCIES_S,
        )
        self.token_time = Histogram(
            "vllama_request_time_per_output_token_seconds",
            "Mean time between the tokens of a response, after the first.",
            by_model,
            bounds=TOKEN_TIMES_S,
        )
        self.prompt_tokens = Counter(
            "vllama_prompt_tokens", "Prompt tokens, including those read from a cache.", by_model
        )
        self.cached_tokens = Counter(
            "vllama_prompt_tokens_cached",
            "Prompt tokens read from a cache.",
            by_model,
        )
        self.generation_tokens = Counter("vllama_generation_tokens", "Generated tokens.", by_model)
        self.estimated_tokens = Counter(
            "vllama_generation_tokens_estimated",
            "Generated tokens with an estimated count: the client disconnected, or the "
            "engine reports no counts.",
            by_model,
        )
        self.usage = Counter(
            "vllama_key_tokens",
            "Tokens by API key. kind: prompt (including cached ones), cached or generated.",
            ("key", "model", "kind"),
        )
        self.fallbacks = Counter(
            "vllama_fallbacks",
            "Attempts with a model, or with a link of its fallback chain, that failed "
            "before the first token and led to the next link.",
            ("model", "link", "reason"),
        )
        self.node_errors = Counter(
            "vllama_node_errors",
            "Requests that failed on a node, or could not be sent to it.",
            ("node",),
        )
        self.slot_cache_written = Counter(
            "vllama_slot_cache_written_bytes", "Bytes of conversations saved to disk."
        )
        self.slot_cache_restored = Counter(
            "vllama_slot_cache_restored",
            "Conversations restored from disk.",
            by_model,
        )
        self.resumed = Counter(
            "vllama_resumed",
            "Responses resumed after an engine crash, by model.",
            by_model,
        )
        self.load_time = Histogram(
            "vllama_model_load_time_seconds",
            "Time from the start of an engine until it can serve.",
            by_model,
            bounds=LOAD_TIMES_S,
        )
        self.model_failures = Counter(
            "vllama_model_failures",
            "Models that failed to load, or were abandoned after crashes, by cause.",
            ("model", "cause"),
        )
        self.evictions = Counter(
            "vllama_model_evictions", "Models evicted to make room for another one.", by_model
        )
        self.unloads = Counter(
            "vllama_model_unloads",
            "Models unloaded for other reasons, such as an expired keep_alive.",
            by_model,
        )
        self.restarts = Counter(
            "vllama_engine_restarts",
            "Engine crashes followed by a restart.",
            by_model,
        )
        self.downloads = Counter("vllama_downloads", "Finished model downloads.", ("outcome",))
        for outcome in ("ok", "error", "cancelled"):
            self.downloads.add((outcome,), 0)
        self.download_bytes = Counter("vllama_download_bytes", "Bytes of models downloaded.")
        self.loop_lag = Histogram(
            "vllama_event_loop_lag_seconds",
            "Event loop delay, sampled about 20 times per second.",
            bounds=LAGS_S,
        )
        self.slow_callbacks = Counter(
            "vllama_slow_callbacks",
            "Callbacks that blocked the event loop for more than 100 ms; `--debug` logs the calls.",
        )

    def list_instruments(self) -> list[Instrument]:
        """Return all of them, in the order in which they are shown."""
        return list(vars(self).values())

    def forget(self, model: str) -> None:
        """Drop the series of a removed model: names that come and go would fill `MAX_SERIES`."""
        for one in self.list_instruments():
            found = [x for x in one.values if ("model", model) in zip(one.labels, x, strict=True)]
            for labels in found:
                del one.values[labels]

    def count_request(
        self,
        *,
        model: str,
        route: str,
        dialect: str,
        status: int,
        outcome: str,
        key: str,
        seconds: float,
        reason: str | None,
    ) -> None:
        """Count a request that has ended.

        `route` is from the route table, which bounds the number of labels. `key` is what may be
        shown of the client's key. `reason` is `VllamaError.kind` of the error that the request
        ended with, even if `status` is 200; None if there was none.
        """
        self.requests.add((model, route, dialect, str(status), outcome, key))
        self.latency.observe((model, route), seconds)
        if reason is not None:
            self.errors.add((model, route, str(status), reason))
        if reason == "queue_full":
            self.queue_refusals.add((model,))

    def count_tokens(
        self, model: str, prompt: int, generated: int, *, cached: int = 0, estimated: bool
    ) -> None:
        """Count the tokens of one answer.

        `cached` prompt tokens came from the engine's cache. `estimated`: the engine did not report
        how many tokens it generated.
        """
        labels = (model,)
        self.prompt_tokens.add(labels, prompt)
        self.cached_tokens.add(labels, cached)
        self.generation_tokens.add(labels, generated)
        self.estimated_tokens.add(labels, generated if estimated else 0)

    def count_usage(
        self, key: str, model: str, *, prompt: int, cached: int, generated: int
    ) -> None:
        """Count the tokens of an answer for the key that asked; `key` is a name, "" without one."""
        self.usage.add((key, model, "prompt"), prompt)
        self.usage.add((key, model, "cached"), cached)
        self.usage.add((key, model, "generated"), generated)

    def observe_tokens(
        self, model: str, *, first_token_s: float, tokens_per_s: float | None
    ) -> None:
        """Count the time to the first token of an answer, and the mean time of the others.

        `tokens_per_s` is None for an answer of one token.
        """
        self.first_token.observe((model,), first_token_s)
        if tokens_per_s:
            self.token_time.observe((model,), 1 / tokens_per_s)

    def count_model(self, kind: str, model: str, *, seconds: float | None, cause: str) -> None:
        """Count what has happened to a model: `kind` is a `MarkKind`.

        `seconds` is the duration of a load, `cause` the kind of a failure.
        """
        labels = (model,)
        if kind == "load":
            self.load_time.observe(labels, seconds or 0.0)
        elif kind == "fail":
            self.model_failures.add((model, cause))
        counters = {"restart": self.restarts, "evict": self.evictions, "unload": self.unloads}
        if (counted := counters.get(kind)) is not None:
            counted.add(labels)

    def expect_troubles(self, model: str) -> None:
        """Create the series of a model's troubles, so that their first increase is not missed.

        It is there from the beginning of a load: queues are full above all while a model loads.
        """
        for counter in (self.restarts, self.evictions, self.unloads, self.queue_refusals):
            counter.add((model,), 0)
