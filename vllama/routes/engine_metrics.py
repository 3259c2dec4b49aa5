"""The engines' own metrics, fetched when somebody asks for ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllama.base import executors
from vllama.base.errors import VllamaError
from vllama.net.upstream.pool import Upstream
from vllama.observe.metrics.exposition import parse_text
from vllama.observe.metrics.server_metrics import Labels
from vllama.supervise.spec import Endpoint

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from vllama.scheduler.instance import Instance

log = logging.getLogger(__name__)

LIMIT_S = 1.0
"""How long a scrape waits for an engine."""
MAX_AGE_S = 1.0
"""How long an answer serves other scrapers too."""
MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class MetricsTarget:
    """One process to ask; `labels` are the values of `exposition.TARGET_LABELS`."""

    labels: Labels
    endpoint: Endpoint
    path: str


def list_targets(instances: Sequence[Instance]) -> list[MetricsTarget]:
    """Return the processes that serve and have metrics.

    The processes of one model are numbered from 1, whether they are replicas or serve different
    modes. A server elsewhere may stand behind several models: it is asked once.
    """
    targets: dict[Endpoint, MetricsTarget] = {}
    numbers: dict[str, int] = {}
    for item in instances:
        path = item.traits.metrics_path if item.traits is not None else None
        if path is None or not item.ready or item.process is None:
            continue
        for endpoint in item.process.endpoints:
            if endpoint not in targets:
                number = numbers[item.bundle.name] = numbers.get(item.bundle.name, 0) + 1
                targets[endpoint] = MetricsTarget((item.bundle.name, str(number)), endpoint, path)
    return list(targets.values())


Fetched = Mapping[Labels, "Sequence[Metric] | None"]
"""The families of each process; None for one that did not answer well."""


class EngineMetrics:
    """Asks all engines at once; scrapers that come meanwhile, or soon after, share the answer."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Fetched] | None = None
        self._until_s = 0.0

    async def fetch(self, targets: Sequence[MetricsTarget]) -> Fetched:
        """Return the metrics that the engines report within `LIMIT_S`."""
        now_s = asyncio.get_running_loop().time()
        if self._task is None or (self._task.done() and now_s >= self._until_s):
            self._until_s = now_s + LIMIT_S + MAX_AGE_S
            self._task = asyncio.create_task(self._fetch_all(targets), name="engine metrics")
        return await asyncio.shield(self._task)

    async def _fetch_all(self, targets: Sequence[MetricsTarget]) -> Fetched:
        answers = await asyncio.gather(*(fetch_families(target) for target in targets))
        self._until_s = asyncio.get_running_loop().time() + MAX_AGE_S
        return {target.labels: answer for target, answer in zip(targets, answers, strict=True)}


async def fetch_families(target: MetricsTarget) -> Sequence[Metric] | None:
    """Return the metrics of one process; None, with a line in the log, if it has none to show.

    Its connection is not one of the pool for requests, where a silent engine would look hung.
    """
    upstream = Upstream(target.endpoint)
    try:
        async with asyncio.timeout(LIMIT_S):
            answer = await upstream.get(target.path)
        if answer.status != 200 or len(answer.body) > MAX_BYTES:
            raise ValueError(f"HTTP {answer.status}, {len(answer.body)} bytes")
        return await executors.codec.run(parse_text, answer.body.decode())
    except (VllamaError, TimeoutError, ValueError) as error:
        log.debug("cannot read the metrics of %s: %s", target.labels[0], error or "no response")
        return None
    finally:
        upstream.close()
