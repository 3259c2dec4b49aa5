"""The text formats of Prometheus and OpenMetrics, and which of them a scraper gets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from vllama.observe.metrics.instruments import Counter, Histogram, Instrument

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def make_families(instruments: Iterable[Instrument]) -> list[Metric]:
    """Return a copy of what has been counted, as the library wants it."""
    return [_make_family(instrument) for instrument in instruments]


def write_families(families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """Return families in a format that a scraper takes, and its content type.

    `accept` is the header of that name: OpenMetrics where it is named, otherwise the text format
    0.0.4, which every scraper takes.
    """
    from prometheus_client import exposition
    from prometheus_client.openmetrics import exposition as openmetrics
    from prometheus_client.registry import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(_Collector(families))
    if accepts_openmetrics(accept):
        # without this escaping, the library replaces the colons in the names of samples alone
        text = openmetrics.generate_latest(registry, openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call]
        return text, OPENMETRICS
    return exposition.generate_latest(registry), TEXT


def accepts_openmetrics(accept: str) -> bool:
    """Return whether an Accept header (RFC 9110, section 12.5.1) names OpenMetrics."""
    for item in accept.lower().split(","):
        media, *parameters = (part.strip() for part in item.split(";"))
        refused = any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
        if media == "application/openmetrics-text" and not refused:
            return True
    return False


def collect_process_families() -> list[Metric]:
    """Return CPU time, memory and open files of this process; an empty list except on Linux."""
    from prometheus_client.process_collector import ProcessCollector

    return list(ProcessCollector(registry=None).collect())


def _make_family(instrument: Instrument) -> Metric:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    if isinstance(instrument, Histogram):
        histogram = HistogramMetricFamily(
            instrument.name, instrument.help, labels=instrument.labels
        )
        bounds = (*map(str, map(float, instrument.bounds)), "+Inf")
        for labels, (*counts, total) in instrument.values.items():
            rows, count = [], 0.0
            for bound, more in zip(bounds, counts, strict=True):
                count += more
                rows.append((bound, count))
            histogram.add_metric(labels, rows, total)
        return histogram
    kind = CounterMetricFamily if isinstance(instrument, Counter) else GaugeMetricFamily
    family = kind(instrument.name, instrument.help, labels=instrument.labels)
    for labels, value in instrument.values.items():
        family.add_metric(labels, value)
    return family


class _Collector:
    """The collector that a registry reads."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)

    def describe(self) -> tuple[Metric, ...]:
        """Return nothing; without this method, registering would already collect."""
        return ()
