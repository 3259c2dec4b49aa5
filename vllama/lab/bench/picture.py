"""Draw findings as a bar chart: an SVG that is legible on light and dark pages. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from vllama.lab.bench.findings import Finding, format_value

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
COLOURS = 4


def draw_chart(findings: Sequence[Finding], sides: Sequence[str], title: str) -> str:
    """Return an SVG with a panel per kind of finding, and a bar with its spread per server."""
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
    better = "more is better" if metric == "tokens/s" else "less is better"
    return f"{metric}, {prompt} prompts ({better})" if prompt else f"{metric} ({better})"


def _draw_bars(finding: Finding, sides: Sequence[str], y: float, maximum: float) -> Iterator[str]:
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
        f'<rect class="bar{number % COLOURS}" x="{x:.1f}" y="{y:.1f}" '
        f'width="{width:.1f}" height="{height:.1f}"/>'
    )


def _draw_text(x: float, y: float, text: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escape(text)}</text>'
