"""Metrics for endpoint pickers of Gateway API's inference extension, on a port of their own.

A picker scrapes without a key, so this port shows these rows and nothing else. Their names are
vLLM's (kubernetes-sigs/gateway-api-inference-extension, proposal 003). Each is there once, for all
models of the server: a pool has one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from vllama.base import executors
from vllama.base.errors import VllamaError
from vllama.net.http.server import HttpServer
from vllama.net.upstream.pool import Upstream
from vllama.observe.metrics.exposition import make_families, write_families
from vllama.observe.metrics.server_metrics import Gauge
from vllama.routes.engine_metrics import list_targets
from vllama.scheduler.slot_cache.conversations import list_slots

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from vllama.net.http.request import Request
    from vllama.routes.context import Gateway
    from vllama.scheduler.instance import Instance

WAITING = "vllm:num_requests_waiting"
RUNNING = "vllm:num_requests_running"
CACHE = "vllm:kv_cache_usage_perc"
PASSED = ("vllm:lora_requests_info", "vllm:cache_config_info")  # if the engine has them


async def serve_picker(gateway: Gateway, listener: socket.socket) -> None:
    """Serve the metrics on `listener` until canceled."""

    async def respond(request: Request) -> None:
        if request.path != "/metrics":
            request.text(404, "only /metrics is served here")
            return
        families = await collect(gateway)
        body, kind = await executors.codec.run(write_families, families, request.header(b"accept"))
        request.respond(200, body, kind.encode())

    await HttpServer(respond, drain_s=0).serve(listener)


async def collect(gateway: Gateway) -> Sequence[Metric]:
    """Return the families that a picker reads."""
    instances = gateway.scheduler.list_instances()
    fetched = await gateway.engine_metrics.fetch(list_targets(instances))
    shown = [family for families in fetched.values() for family in families or ()]

    def read(name: str) -> list[float]:
        return [one.value for family in shown if family.name == name for one in family.samples]

    waiting = Gauge(WAITING, "Requests waiting for a model or an engine.")
    running = Gauge(RUNNING, "Requests being processed by an engine.")
    cache = Gauge(CACHE, "Fraction of the KV cache in use by running requests, from 0 to 1.")
    in_engines = sum(read(WAITING))
    waiting.add((), sum(len(item.queue) for item in instances) + in_engines)
    running.add((), max(0, sum(item.leases for item in instances) - in_engines))
    slots = await asyncio.gather(*map(measure_slots, instances))
    cache.add((), max([*read(CACHE), *slots], default=0))
    passed = {family.name: family for family in shown if family.name in PASSED}
    return [*make_families([waiting, running, cache]), *passed.values()]


async def measure_slots(item: Instance) -> float:
    """Return the share of an instance's KV cache that its busy slots use; 0 if it cannot tell."""
    traits, process, shares = item.traits, item.process, [0.0]
    if traits is None or traits.lists_slots is None or process is None or not item.ready:
        return 0
    for endpoint in process.endpoints:
        with closing(Upstream(endpoint)) as upstream, suppress(VllamaError, TimeoutError):
            slots = await list_slots(upstream, traits.lists_slots)
            used = sum(slot.tokens for slot in slots if not slot.is_idle)
            shares.append(used / (traits.context_length * max(1, len(slots))))
    return max(shares)
