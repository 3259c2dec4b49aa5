"""Turn the rows of a measurement into ratios with their spread, a table, remarks, a chart. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import groupby
from statistics import fmean, median
from typing import Any

from vllama.base.units import format_bytes_binary
from vllama.lab.bench.rounds import MOST_REPEATS, Row

NOTHING = "-"
NEITHER = "neither"
TOKEN_TOLERANCE = 0.02
"""Counts of tokens may differ by this share without a remark."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """Statistics of the values of one server divided by those of another in the same round."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One line of the table: what was measured, and each server's value in each round.

    `unit` is `tokens/s`, of which more is better, or `s` or `bytes`, of which less is better.
    """

    metric: str
    unit: str
    prompt: str | None = None
    clients: int | None = None
    values: dict[str, dict[int, float]]

    @property
    def title(self) -> str:
        """The name of the line: `first token, long prompts, 4 clients`."""
        clients = {None: None, 1: "1 client"}.get(self.clients, f"{self.clients} clients")
        parts = (self.metric, self.prompt and f"{self.prompt} prompts", clients)
        return ", ".join(part for part in parts if part)

    def median(self, side: str) -> float | None:
        """Return the median of a server's rounds, None if it has no value."""
        values = self.values.get(side)
        return median(values.values()) if values else None

    def compute_ratio(self, one: str, other: str) -> Ratio | None:
        """Return the values of `one` divided by those of `other`; None without a common round."""
        a, b = self.values.get(one, {}), self.values.get(other, {})
        ratios = [a[number] / b[number] for number in a if b.get(number)]
        if not ratios:
            return None
        return Ratio(median=median(ratios), min=min(ratios), max=max(ratios))

    def find_winner(self, one: str, other: str) -> str:
        """Return the name of the better server; `neither` if the rounds disagree."""
        ratio = self.compute_ratio(one, other)
        if ratio is None:
            return NOTHING
        if ratio.min <= 1 <= ratio.max:
            return NEITHER
        return one if (ratio.min > 1) == (self.unit == "tokens/s") else other


def make_findings(rows: Sequence[Row]) -> list[Metric]:
    """Return the lines of the table in their order."""
    answers = [row for row in rows if row["step"] == "answers"]
    kinds = list(dict.fromkeys((row["prompt"], row["clients"]) for row in answers))
    findings = []
    for metric, unit, field in (
        ("tokens/s", "tokens/s", "tokens_per_s"),
        ("first token", "s", "first_token_s"),
    ):
        for prompt, clients in kinds:
            kind = [row for row in answers if (row["prompt"], row["clients"]) == (prompt, clients)]
            values = _collect_values(kind, field)
            findings.append(
                Metric(metric=metric, unit=unit, prompt=prompt, clients=clients, values=values)
            )
    loads = [row for row in rows if row["step"] == "load"]
    swaps = [row for row in rows if row["step"] == "swap"]
    loaded = _collect_values(loads, "memory_bytes")
    findings += [
        Metric(metric="cold load", unit="s", values=_collect_values(loads, "seconds")),
        Metric(metric="swap of models", unit="s", values=_collect_values(swaps, "seconds")),
        Metric(metric="memory, loaded", unit="bytes", values=loaded),
        Metric(metric="peak memory", unit="bytes", values=_collect_values(rows, "memory_bytes")),
    ]
    return [finding for finding in findings if finding.values]


def _collect_values(rows: Sequence[Row], field: str) -> dict[str, dict[int, float]]:
    """Return the largest value of each server in each round."""
    values: dict[str, dict[int, float]] = {}
    for row in rows:
        if (value := row.get(field)) is not None:
            rounds = values.setdefault(row["side"], {})
            rounds[row["round"]] = max(value, rounds.get(row["round"], value))
    return values


def make_table(
    findings: Sequence[Metric], sides: Sequence[str]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and the rows; the first of `sides` is compared with each of the others."""
    ours, *others = sides
    header = ["", ours.upper()]
    for other in others:
        header += [other.upper(), "RATIO", "AHEAD"]
    rows = []
    for finding in findings:
        cells = [finding.title, format_value(finding.median(ours), finding.unit)]
        for other in others:
            cells += [
                format_value(finding.median(other), finding.unit),
                format_ratio(finding.compute_ratio(ours, other)),
                finding.find_winner(ours, other),
            ]
        rows.append(tuple(cells))
    return tuple(header), rows


def format_value(value: float | None, unit: str) -> str:
    """Format a value for people."""
    if value is None:
        return NOTHING
    if unit == "bytes":
        return format_bytes_binary(round(value))
    if unit == "s":
        return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
    return f"{value:.1f}"


def format_ratio(ratio: Ratio | None) -> str:
    """Format a ratio with its spread."""
    if ratio is None:
        return NOTHING
    return f"{ratio.median:.2f} × [{ratio.min:.2f} … {ratio.max:.2f}]"


def make_remarks(rows: Sequence[Row], sides: Sequence[str]) -> list[str]:
    """Return the reasons why the ratios may mislead."""
    answers = [row for row in rows if row["step"] == "answers"]
    remarks = []
    for kind in dict.fromkeys(row["prompt"] for row in answers):
        for field, subject in (("prompt_tokens", "prompts have"), ("tokens", "responses have")):
            means = {side: _compute_mean(answers, side, kind, field) for side in sides}
            if _differ(list(means.values())):
                each = ", ".join(f"{mean:.1f} tokens at {side}" for side, mean in means.items())
                remarks.append(f"different workload: {kind} {subject} {each}")
        for side in sides:
            tokens = _compute_mean(answers, side, kind, "tokens")
            pieces = _compute_mean(answers, side, kind, "pieces")
            if _differ([tokens, pieces]):
                remarks.append(
                    f"{side} reports {tokens:.1f} tokens but sent {pieces:.1f} pieces ({kind} "
                    "prompts)"
                )
    for row in answers:
        if reloads := row.get("reloads"):
            kept = "its values include one" if reloads > MOST_REPEATS else "it was repeated"
            times = "once" if reloads == 1 else f"{reloads} times"
            clients = "1 client" if row["clients"] == 1 else f"{row['clients']} clients"
            remarks.append(
                f"{row['side']} reloaded the model {times} in a measurement: round "
                f"{row['round'] + 1}, {clients}, {row['prompt']} prompts; {kept}"
            )
    swaps = [row for row in rows if row["step"] == "swap"]
    remarks += [
        f"no swap at {side}: it keeps both models loaded; OLLAMA_MAX_LOADED_MODELS=1 makes it swap"
        for side in sides
        if any(row["side"] == side and row["seconds"] is None for row in swaps)
    ]
    return remarks


def _compute_mean(rows: Sequence[Row], side: str, kind: str, field: str) -> float:
    return fmean(row[field] for row in rows if (row["side"], row["prompt"]) == (side, kind))


def _differ(values: Sequence[float]) -> bool:
    return max(values) - min(values) > TOKEN_TOLERANCE * max(values)


def serialize(findings: Sequence[Metric], sides: Sequence[str]) -> list[dict[str, Any]]:
    """Return the findings as values for JSON."""
    ours, *others = sides
    return [
        {
            "metric": finding.metric,
            "unit": finding.unit,
            "prompt": finding.prompt,
            "clients": finding.clients,
            "medians": {side: finding.median(side) for side in sides},
            "ratios": {
                other: asdict(ratio)
                for other in others
                if (ratio := finding.compute_ratio(ours, other))
            },
        }
        for finding in findings
    ]


WIDTH, LEFT, RIGHT = 760, 150, 110
BAR, GAP, LINE = 14, 7, 28
MARGIN = 16
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.spread { stroke: #1f2328; stroke-width: 1.2 }
.bar0 { fill: #2f6fdb } .bar1 { fill: #c77d1f } .bar2 { fill: #8a8f98 } .bar3 { fill: #7a4fb5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .spread { stroke: #e6edf3 }
  .bar0 { fill: #5b94f5 } .bar1 { fill: #e0a04a } .bar2 { fill: #9aa2ad } .bar3 { fill: #a98be0 }
}
"""
COLORS = 4


def draw_chart(findings: Sequence[Metric], sides: Sequence[str], title: str) -> str:
    """Return an SVG with a panel per kind of finding, and a bar with its spread per server.

    It is legible on light and dark pages.
    """
    parts = [_draw_text(MARGIN, MARGIN + 8, title, "title")]
    y = MARGIN + LINE
    x = MARGIN
    for number, side in enumerate(sides):
        parts.append(_draw_rect(x, y - 9, 10, 10, number))
        parts.append(_draw_text(x + 15, y, side))
        x += 40 + 7 * len(side)
    y += LINE
    for name, group in groupby(findings, lambda finding: (finding.metric, finding.prompt)):
        parts.append(_draw_text(MARGIN, y, _panel_title(*name), "title"))
        y += GAP
        panel = list(group)
        maximum = max(
            value
            for finding in panel
            for rounds in finding.values.values()
            for value in rounds.values()
        )
        for finding in panel:
            parts += _draw_bars(finding, sides, y, maximum)
            y += BAR * len(sides) + GAP
        y += LINE - GAP
    body = "\n".join(parts)
    size = f'width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
    label = f'role="img" aria-label="{escape(title)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>\n'
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def _panel_title(metric: str, prompt: str | None) -> str:
    better = "higher is better" if metric == "tokens/s" else "lower is better"
    return f"{metric}, {prompt} prompts ({better})" if prompt else f"{metric} ({better})"


def _draw_bars(finding: Metric, sides: Sequence[str], y: float, maximum: float) -> Iterator[str]:
    scale = (WIDTH - LEFT - RIGHT) / maximum if maximum else 0.0
    if finding.clients:
        clients = "1 client" if finding.clients == 1 else f"{finding.clients} clients"
        yield _draw_text(MARGIN, y + BAR * len(sides) / 2 + 4, clients)
    for number, side in enumerate(sides):
        middle = finding.median(side)
        top = y + BAR * number
        if middle is None:
            yield _draw_text(LEFT, top + BAR - 1, "not measured")
            continue
        values = finding.values[side].values()
        lowest, highest = LEFT + min(values) * scale, LEFT + max(values) * scale
        line = top + (BAR - 2) / 2
        yield _draw_rect(LEFT, top, middle * scale, BAR - 2, number)
        yield (
            f'<line class="spread" x1="{lowest:.1f}" x2="{highest:.1f}" '
            f'y1="{line:.1f}" y2="{line:.1f}"/>'
        )
        end = max(highest, LEFT + middle * scale)
        yield _draw_text(end + 6, top + BAR - 1, format_value(middle, finding.unit))


def _draw_rect(x: float, y: float, width: float, height: float, number: int) -> str:
    return (
        f'<rect class="bar{number % COLORS}" x="{x:.1f}" y="{y:.1f}" '
        f'width="{width:.1f}" height="{height:.1f}"/>'
    )


def _draw_text(x: float, y: float, text: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escape(text)}</text>'
