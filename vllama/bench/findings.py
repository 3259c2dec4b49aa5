"""Rows of a measurement made into ratios with their spread, a table, and remarks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from vllama.bench.rounds import Row
from vllama.units import format_bytes_binary

NOTHING = "-"
NEITHER = "neither"
DIFFERENT = 0.02
"""The share by which counts of tokens may differ without a remark."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """Values of one server divided by those of another in the same round."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the table: what was measured, and each server's value in each round.

    `unit` is `tokens/s`, `s` or `bytes`; more is better of the first, less of the others.
    """

    metric: str
    unit: str
    prompt: str | None = None
    clients: int | None = None
    values: dict[str, dict[int, float]]

    @property
    def what(self) -> str:
        """Name it: `first token, long prompts, 4 clients`."""
        who = {None: None, 1: "1 client"}.get(self.clients, f"{self.clients} clients")
        parts = (self.metric, self.prompt and f"{self.prompt} prompts", who)
        return ", ".join(part for part in parts if part)

    def median(self, side: str) -> float | None:
        """Return the median of a server's rounds, None if it has no value."""
        found = self.values.get(side)
        return median(found.values()) if found else None

    def ratio(self, one: str, other: str) -> Ratio | None:
        """Return what `one` has ÷ what `other` has; None without a round that both have."""
        a, b = self.values.get(one, {}), self.values.get(other, {})
        found = [a[number] / b[number] for number in a if b.get(number)]
        if not found:
            return None
        return Ratio(median=median(found), least=min(found), most=max(found))

    def ahead(self, one: str, other: str) -> str:
        """Return the name of the better server; `neither` if the rounds do not agree on it."""
        ratio = self.ratio(one, other)
        if ratio is None:
            return NOTHING
        if ratio.least <= 1 <= ratio.most:
            return NEITHER
        return one if (ratio.least > 1) == (self.unit == "tokens/s") else other


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Return the lines of the table in their order."""
    asked = [row for row in rows if row["step"] == "answers"]
    kinds = list(dict.fromkeys((row["prompt"], row["clients"]) for row in asked))
    found = []
    for metric, unit, field in (
        ("tokens/s", "tokens/s", "tokens_per_s"),
        ("first token", "s", "first_token_s"),
    ):
        for prompt, clients in kinds:
            of = [row for row in asked if (row["prompt"], row["clients"]) == (prompt, clients)]
            values = _values(of, field)
            found.append(
                Finding(metric=metric, unit=unit, prompt=prompt, clients=clients, values=values)
            )
    loads = [row for row in rows if row["step"] == "load"]
    swaps = [row for row in rows if row["step"] == "swap"]
    found += [
        Finding(metric="cold load", unit="s", values=_values(loads, "seconds")),
        Finding(metric="swap of models", unit="s", values=_values(swaps, "seconds")),
        Finding(metric="memory, loaded", unit="bytes", values=_values(loads, "memory_bytes")),
        Finding(metric="memory, most", unit="bytes", values=_values(rows, "memory_bytes")),
    ]
    return [finding for finding in found if finding.values]


def _values(rows: Sequence[Row], field: str) -> dict[str, dict[int, float]]:
    """Return the largest value of each server in each round."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if (value := row.get(field)) is not None:
            rounds = found.setdefault(row["side"], {})
            rounds[row["round"]] = max(value, rounds.get(row["round"], value))
    return found


def table(
    found: Sequence[Finding], sides: Sequence[str]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and the rows; the first of `sides` is held against each of the others."""
    ours, *others = sides
    header = ["", ours.upper()]
    for other in others:
        header += [other.upper(), "RATIO", "AHEAD"]
    rows = []
    for finding in found:
        cells = [finding.what, shown(finding.median(ours), finding.unit)]
        for other in others:
            cells += [
                shown(finding.median(other), finding.unit),
                shown_ratio(finding.ratio(ours, other)),
                finding.ahead(ours, other),
            ]
        rows.append(tuple(cells))
    return tuple(header), rows


def shown(value: float | None, unit: str) -> str:
    """Write a value for people."""
    if value is None:
        return NOTHING
    if unit == "bytes":
        return format_bytes_binary(round(value))
    if unit == "s":
        return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
    return f"{value:.1f}"


def shown_ratio(ratio: Ratio | None) -> str:
    """Write a ratio with its spread."""
    if ratio is None:
        return NOTHING
    return f"{ratio.median:.2f} × [{ratio.least:.2f} … {ratio.most:.2f}]"


def remarks(rows: Sequence[Row], sides: Sequence[str]) -> list[str]:
    """Return what a reader has to know before believing the ratios."""
    asked = [row for row in rows if row["step"] == "answers"]
    told = []
    for kind in dict.fromkeys(row["prompt"] for row in asked):
        for field, what in (("prompt_tokens", "prompts have"), ("tokens", "answers have")):
            means = {side: _mean(asked, side, kind, field) for side in sides}
            if _differ(list(means.values())):
                each = ", ".join(f"{mean:.1f} tokens at {side}" for side, mean in means.items())
                told.append(f"not the same work: {kind} {what} {each}")
        for side in sides:
            counted = [_mean(asked, side, kind, field) for field in ("tokens", "pieces")]
            if _differ(counted):
                tokens, pieces = counted
                told.append(
                    f"{side} counts {tokens:.1f} tokens where {pieces:.1f} pieces came "
                    f"({kind} prompts)"
                )
    swaps = [row for row in rows if row["step"] == "swap"]
    told += [
        f"no swap at {side}: it keeps both models loaded; OLLAMA_MAX_LOADED_MODELS=1 makes it swap"
        for side in sides
        if any(row["side"] == side and row["seconds"] is None for row in swaps)
    ]
    return told


def _mean(rows: Sequence[Row], side: str, kind: str, field: str) -> float:
    return fmean(row[field] for row in rows if (row["side"], row["prompt"]) == (side, kind))


def _differ(values: Sequence[float]) -> bool:
    return max(values) - min(values) > DIFFERENT * max(values)


def plain(found: Sequence[Finding], sides: Sequence[str]) -> list[dict[str, Any]]:
    """Return the findings as values for programs."""
    ours, *others = sides
    told = []
    for finding in found:
        ratios = {}
        for other in others:
            if ratio := finding.ratio(ours, other):
                ratios[other] = {"median": ratio.median, "min": ratio.least, "max": ratio.most}
        told.append(
            {
                "metric": finding.metric,
                "unit": finding.unit,
                "prompt": finding.prompt,
                "clients": finding.clients,
                "medians": {side: finding.median(side) for side in sides},
                "ratios": ratios,
            }
        )
    return told
