# SPDX-License-Identifier: MIT
"""The section of bench/results/ollama.md about a real Ollama: claims, winners, one table. Pure."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from vllama.lab.bench.findings import NEITHER, NOTHING, format_ratio, format_value, make_findings

MARKERS = ("<!-- make bench-ollama: begin -->", "<!-- make bench-ollama: end -->")
NO_GPU = "not measured: needs a GPU"
OURS = "vllama"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim about such systems: a ratio of `metric` that has to reach `limit`.

    The ratio is ours ÷ theirs, or theirs ÷ ours if `inverse`.
    """

    text: str
    metric: str
    ratio: str
    limit: float
    at_least: bool = False
    inverse: bool = False
    alone: bool = False  # of a single client as well, not of the most clients only


CLAIMS = (
    Claim(
        text="4.4 × the throughput under load",
        metric="tokens/s",
        ratio="tokens/s ÷ Ollama's",
        limit=4.4,
        at_least=True,
    ),
    Claim(
        text="the first token 1.6 × sooner",
        metric="first token",
        ratio="Ollama's time ÷ vllama's",
        limit=1.6,
        at_least=True,
        inverse=True,
        alone=True,
    ),
    Claim(text="40 % less memory", metric="peak memory", ratio="memory ÷ Ollama's", limit=0.6),
    Claim(
        text="50 % faster loading",
        metric="cold load",
        ratio="Ollama's time ÷ vllama's",
        limit=1.5,
        at_least=True,
        inverse=True,
    ),
)


def names(result):
    """Return the names of the servers, ours first."""
    return [one["name"] for one in result["servers"]]


def on_gpu(result):
    """Return whether all servers report that the model is on a GPU."""
    loads = [row for row in result["rows"] if row["step"] == "load"]
    return bool(loads) and all(row["gpu_bytes"] for row in loads)


def claims(result):
    """Return the table of the claims, with a line for each."""
    found = make_findings(result["rows"])
    others = names(result)[1:]
    head = ["claim", "measured here", *(f"beside {other}" for other in others), "both on a GPU"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for claim in CLAIMS:
        cells = [against(claim, found, other) for other in others]
        gpu = "as measured" if on_gpu(result) else NO_GPU
        lines.append(f"| {' | '.join([claim.text, claim.ratio, *cells, gpu])} |")
    return "\n".join(lines)


def against(claim, found, other):
    """Return the measurements of a claim, and whether it holds."""
    of = [each for each in found if each.metric == claim.metric]
    if any(each.clients for each in of):
        of = [each for each in of if each.prompt == of[0].prompt]
        fewest, most = (pick(each.clients for each in of) for pick in (min, max))
        wanted = {fewest, most} if claim.alone else {most}
        of = [each for each in of if each.clients in wanted]
    sides = (other, OURS) if claim.inverse else (OURS, other)
    ratios = [(each, each.compute_ratio(*sides)) for each in of]
    ratios = [(each, ratio) for each, ratio in ratios if ratio]
    if not ratios:
        return "not measured"
    words = [
        " at ".join(filter(None, (format_ratio(ratio), each.clients and clients(each.clients))))
        for each, ratio in ratios
    ]
    medians = [ratio.median for _, ratio in ratios]
    so = [value >= claim.limit if claim.at_least else value <= claim.limit for value in medians]
    verdict = "yes" if all(so) else "no" if not any(so) else "in part"
    return f"{'; '.join(words)}: {verdict}"


def clients(number):
    """Return `1 client`, `4 clients`."""
    return "1 client" if number == 1 else f"{number} clients"


def behind(results):
    """Return sentences about the values in which other servers are better."""
    lines = []
    for other in names(results[""])[1:]:
        lost = [
            f"{each.title}{when}"
            for when, result in results.items()
            for each in make_findings(result["rows"])
            if each.find_winner(OURS, other) == other
        ]
        lines.append(f"- {other} is ahead in: {'; '.join(lost) if lost else 'nothing'}.")
    return "\n".join(lines)


def table(results):
    """Return the table of all values of both runs."""
    ours, *others = names(results[""])
    head = ["", ours, *(cell for other in others for cell in (other, "ratio", "ahead"))]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for when, result in results.items():
        for each in make_findings(result["rows"]):
            cells = [each.title + when, format_value(each.median(ours), each.unit)]
            for other in others:
                winner = each.find_winner(ours, other)
                bold = winner if winner in (NEITHER, NOTHING, ours) else f"**{winner}**"
                ratio = format_ratio(each.compute_ratio(ours, other))
                cells += [format_value(each.median(other), each.unit), ratio, bold]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def whole(quiet, busy, facts, minutes, files):
    """Return the text between the markers; `quiet` and `busy` come from `vllama bench --json`."""
    results = {"": quiet, ", busy": busy}
    engines = "; ".join(
        f"{one['name']}: version {one['version']}"
        + (f" with {one['engine']}" if one.get("engine") else "")
        for one in quiet["servers"]
    )
    rounds = "1 round" if quiet["rounds"] == 1 else f"{quiet['rounds']} rounds"
    remarks = dict.fromkeys(quiet["remarks"] + busy["remarks"])
    if quiet["swap"] is None:
        remarks["swap of models not measured: no second model was named (SWAP_FILE)"] = None
    parts = [
        f"Measured {datetime.date.today().isoformat()} by `make bench-ollama` in {minutes:.0f} "
        f"minutes, {rounds}, responses of {quiet['tokens']} tokens.",
        "\n".join(f"- {line}" for line in (*facts, f"`{'`, `'.join(files)}`", engines, *remarks)),
        "A ratio is vllama's value ÷ Ollama's in the same round: the median, and the minimum "
        "and maximum of all rounds. If the range includes 1, neither is faster. `busy`: with one "
        "busy loop per core.",
        behind(results),
        "![tokens/s, first token, loading and memory as bars](../../docs/pictures/ollama.svg)",
        table(results),
        "Claims about similar systems, compared with the measurements:",
        claims(quiet),
    ]
    return "\n\n".join(parts)
