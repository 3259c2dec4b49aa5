"""`GET /metrics`: what has been counted, the state of the models, and the engines' own metrics."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllama import __version__
from vllama.base import executors
from vllama.base.meaning import TEXT
from vllama.observe.metrics.exposition import (
    TARGET_LABELS,
    collect_process_families,
    make_families,
    merge_families,
    write_families,
)
from vllama.observe.metrics.server_metrics import Gauge
from vllama.routes.engine_metrics import Fetched, list_targets
from vllama.routes.route import Route, RouteKind
from vllama.scheduler.views import Phase, find_phase

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from vllama.chat.templates.jinja.renderer import Renderer
    from vllama.net.http.request import Request
    from vllama.routes.context import Gateway
    from vllama.scheduler.scheduler import Scheduler
    from vllama.targets.nodes.node import Node

MEMORY_MAX_AGE_S = 5.0
MEMORY_LIMIT_S = 1.0


async def get_metrics(gateway: Gateway, request: Request) -> None:
    """Export metrics for Prometheus, as text or OpenMetrics."""
    scheduler = gateway.scheduler
    fetched, _ = await asyncio.gather(
        gateway.engine_metrics.fetch(list_targets(scheduler.list_instances())),
        measure_memory(scheduler),
    )
    state = read_state(scheduler, gateway.renderer, fetched)
    state.usage_recording.add((), not gateway.meter.recorder.failure)
    if gateway.certificate is not None:
        state.certificate_expiry.add((), gateway.certificate.expires_s)
    for node in gateway.nodes.nodes.values() if gateway.nodes is not None else ():
        state.add_node(node)
        gateway.metrics.node_errors.add((node.name,), 0)  # a rate needs its beginning
    for item in scheduler.list_instances():
        gateway.metrics.expect_troubles(item.bundle.name)
    # copied here, where nothing is counted meanwhile
    own = make_families([*gateway.metrics.list_instruments(), *state.list_instruments()])
    accept = request.header(b"accept")
    body, content_type = await executors.codec.run(compose, own, fetched, accept)
    request.respond(200, request.mask(body), content_type.encode())


def compose(own: Sequence[Metric], fetched: Fetched, accept: str) -> tuple[bytes, str]:
    """Return all families in the format that a scraper takes; takes milliseconds per engine."""
    engines = {labels: families for labels, families in fetched.items() if families is not None}
    return write_families(merge_families([*own, *collect_process_families()], engines), accept)


async def measure_memory(scheduler: Scheduler) -> None:
    """Measure memory if that was long ago; a driver that is slow to answer delays no scrape."""
    try:
        async with asyncio.timeout(MEMORY_LIMIT_S):
            await scheduler.measure(max_age_s=MEMORY_MAX_AGE_S, unloaded=True)
    except TimeoutError:
        pass


class StateGauges:
    """The state of the server and its models; empty until `read_state` fills it."""

    def __init__(self) -> None:
        self.build_info = Gauge(
            "vllama_build_info", "Constant 1, with the versions as labels.", ("version", "python")
        )
        self.running = Gauge(
            "vllama_num_requests_running", "Requests with a slot of their model.", ("model",)
        )
        self.waiting = Gauge(
            "vllama_num_requests_waiting",
            "Requests waiting for a slot or for their model to load.",
            ("model",),
        )
        self.slots = Gauge(
            "vllama_model_slots", "Maximum parallel requests of a model.", ("model",)
        )
        self.state = Gauge(
            "vllama_model_state",
            "Instances of a model by state: loading, ready, sleeping, backoff, stopping or failed.",
            ("model", "engine", "state"),
        )
        self.planned = Gauge(
            "vllama_model_memory_planned_bytes",
            "Planned memory of a model. Pools: ram, gpu0, gpu1, etc.",
            ("model", "pool"),
        )
        self.measured = Gauge(
            "vllama_model_memory_measured_bytes",
            "Memory of a model's processes at the last measurement.",
            ("model", "pool"),
        )
        self.free = Gauge(
            "vllama_memory_free_bytes",
            "Memory available to models, without the reserve.",
            ("pool",),
        )
        self.engines_up = Gauge(
            "vllama_engine_metrics_up",
            "1 if the engine returned its own metrics within a second.",
            TARGET_LABELS,
        )
        by_node = ("node",)
        self.node_up = Gauge(
            "vllama_node_up", "1 if the cluster node responds to its head.", by_node
        )
        self.node_models = Gauge("vllama_node_models_loaded", "Models loaded on a node.", by_node)
        self.node_running = Gauge(
            "vllama_node_requests_running", "Requests with a slot on a node.", by_node
        )
        self.node_waiting = Gauge(
            "vllama_node_requests_waiting", "Requests waiting for a slot on a node.", by_node
        )
        self.node_free = Gauge(
            "vllama_node_memory_free_bytes",
            "Memory available to models on a node, without the reserve.",
            ("node", "pool"),
        )
        self.usage_recording = Gauge(
            "vllama_usage_recording",
            "1 if usage is written to disk; 0 if it is held in memory.",
        )
        self.certificate_expiry = Gauge(
            "vllama_certificate_expiration_timestamp_seconds",
            "Time at which the server's own certificate expires, in Unix seconds.",
        )
        self.jobs_running = Gauge(
            "vllama_executor_jobs_running",
            "Running blocking jobs: disk (look-ups), storage (writing models), codec, "
            "downloads, web and upkeep (the server's own); cpu: those in a process of their own.",
            ("executor",),
        )
        self.jobs_waiting = Gauge(
            "vllama_executor_jobs_waiting",
            "Blocking jobs waiting for a thread or process.",
            ("executor",),
        )

    def add_node(self, node: Node) -> None:
        """Add what a node has told last."""
        labels = (node.name,)
        self.node_up.add(labels, node.is_up)
        if not node.is_up:
            return  # the rest is what was
        self.node_models.add(labels, len(node.loaded))
        for gauge, field in ((self.node_running, "requests"), (self.node_waiting, "queued")):
            told = (getattr(row, field) for row in node.loaded.values())
            gauge.add(labels, sum(one for one in told if isinstance(one, int)))
        for pool, use in node.pools.items():
            self.node_free.add((node.name, pool), use.free)

    def list_instruments(self) -> list[Gauge]:
        """Return all of them, in the order in which they are shown."""
        return list(vars(self).values())


def read_state(scheduler: Scheduler, renderer: Renderer, fetched: Fetched) -> StateGauges:
    """Return the state at this moment."""
    gauges = StateGauges()
    gauges.build_info.add((__version__, platform.python_version()), 1)
    for item in scheduler.list_instances():
        labels = (item.bundle.name,)
        gauges.running.add(labels, item.leases)
        gauges.waiting.add(labels, len(item.queue))
        gauges.slots.add(labels, item.limit if item.ready else 0)
        engine = item.plan.engine if item.plan is not None else ""
        gauges.state.add((*labels, engine, find_phase(item)), 1)
        for pool, size in item.needs.items():
            gauges.planned.add((*labels, pool), size)
        for pool, size in item.holds.items():
            gauges.measured.add((*labels, pool), size)
    for failure in scheduler.list_failures():
        gauges.state.add((failure.name, "", Phase.FAILED), 1)
    for pool, size in scheduler.free.items():
        gauges.free.add((pool,), max(0, size))
    for executor in (*executors.ALL, renderer):
        gauges.jobs_running.add((executor.name,), executor.running)
        gauges.jobs_waiting.add((executor.name,), executor.waiting)
    for target, families in fetched.items():
        gauges.engines_up.add(target, families is not None)
    return gauges


_FORMATS = ("text/plain", "application/openmetrics-text")
ROUTES = (
    Route("GET /metrics", get_metrics, RouteKind.OBSERVES, media=dict.fromkeys(_FORMATS, TEXT)),
)
