"""The metrics of engines, merged into one exposition with a label that names the model.

Every engine has its own `/metrics` in the text format of Prometheus. In one exposition each family
may have only one HELP and one TYPE, and all its series must stand together, so texts cannot simply
be joined.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vllama.observe.metrics.instruments import Labels

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
                log.debug("an engine's metric '%s' clashes with another one", family.name)
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
