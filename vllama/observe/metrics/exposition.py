"""Exposition for scrapers: our metrics, and the engines' with a label that names the model.

Every engine has its own `/metrics` in the text format of Prometheus. In one exposition each family
may have only one HELP and one TYPE, and all its series must stand together, so texts cannot simply
be joined.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from vllama.observe.metrics.server_metrics import Counter, Histogram, Instrument, Labels

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


log = logging.getLogger(__name__)

TARGET_LABELS = ("model", "replica")
"""The labels that are added; an engine's own label of that name is kept as `exported_…`."""
CREATED = "_created"

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def parse_text(text: str) -> list[Metric]:
    """Return the families of an engine's text. Raises ValueError for one that is not valid."""
    from prometheus_client.parser import text_string_to_metric_families

    return list(text_string_to_metric_families(text))


def merge_families(
    own: Sequence[Metric], engines: Mapping[Labels, Sequence[Metric]]
) -> list[Metric]:
    """Return our families and those of all engines, each family once.

    `engines` has the families of each process by the values of `TARGET_LABELS`. A family that an
    engine declares with another type than ours, or than an earlier engine's, is left out, and
    so is one with names that not every scraper can read.
    """
    from prometheus_client.metrics_core import Metric

    merged = {family.name: family for family in own}
    taken = {name for family in own for name in _sample_names(family)}
    for values, families in engines.items():
        names = {family.name for family in families}
        for family in families:
            if family.name.endswith(CREATED) and family.name.removesuffix(CREATED) in names:
                continue  # the library's own time stamps of counters, which OpenMetrics reserves
            if not _is_plain(family):
                continue
            if family.name not in merged and taken.isdisjoint(_sample_names(family)):
                merged[family.name] = Metric(family.name, family.documentation, family.type)
                taken.update(_sample_names(family))
            known = merged.get(family.name)
            if known is None or known.type != family.type:
                log.debug("metric '%s' of an engine conflicts with another metric", family.name)
                continue
            added = dict(zip(TARGET_LABELS, values, strict=True))
            known.samples += [
                sample._replace(labels=_with_labels(sample.labels, added))
                for sample in family.samples
            ]
    return list(merged.values())


def _with_labels(labels: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Return labels with `added` first, the way Prometheus treats labels of a target."""
    kept = {f"exported_{name}" if name in added else name: text for name, text in labels.items()}
    return {**added, **kept}


_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "counter": ("_total", CREATED),
    "histogram": ("_bucket", "_count", "_sum", CREATED),
    "summary": ("", "_count", "_sum", CREATED),
    "info": ("_info",),
}


def _is_plain(family: Metric) -> bool:
    """Return whether all names are of the form that all versions of Prometheus read."""
    labels = {label for sample in family.samples for label in sample.labels}
    return bool(_NAME.fullmatch(family.name)) and all(map(_LABEL.fullmatch, labels))


def _sample_names(family: Metric) -> set[str]:
    """Return the names that the samples of a family may have."""
    suffixes = _SUFFIXES.get(family.type, ("",))
    return {family.name, *(f"{family.name}{suffix}" for suffix in suffixes)}


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
