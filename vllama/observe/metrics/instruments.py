"""Counters and histograms with labels, as plain arithmetic."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

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
