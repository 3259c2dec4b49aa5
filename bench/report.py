# SPDX-License-Identifier: MIT
"""Format rows as Markdown (the machine, the verdict, one table per scenario) for bench/results."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from bench import bars, compare, peers, startup

BEGIN, END = "<!-- make bench: begin -->", "<!-- make bench: end -->"
LABELS = {
    "ttft": "ttft p50|p95|p99|x ttft p50|errors",
    "many1000": "rss MB|KB/stream|x tok/s|errors",
    "small16": "cpu us/tok|cpu us/req|x tok/s|ttft p50|x lat p50|x lat p99|rss MB|errors",
    "exact": "req/s|errors",
    "steady": "cpu us/tok|cpu|x tok/s|lat p50|lat p99|x lat p50|x lat p99|ttft p50|errors",
}


def versions():
    """Return the names and versions of the compared programs."""
    found = {"Python": platform.python_version()}
    for name in ("vllama-serve", "uvloop", "httptools", "msgspec"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    if shutil.which("nginx"):
        text = subprocess.run(["nginx", "-v"], capture_output=True, text=True).stderr
        found["nginx"] = text.strip().rpartition("/")[2]
    theirs = peers.versions()
    return found | {f"{k} (peers)" if k in found else k: v for k, v in sorted(theirs.items())}


def machine():
    """Return lines about this machine and its current load."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    pressure = Path("/proc/pressure/cpu")
    busy = re.search(r"avg60=([\d.]+)", pressure.read_text()) if pressure.exists() else None
    lines = [
        f"{found[1] if found else platform.processor() or platform.machine()}, "
        f"{os.cpu_count()} CPUs, {memory:.0f} GiB; {platform.system()} {platform.release()}",
        "load average " + " ".join(f"{x:.1f}" for x in os.getloadavg()),
    ]
    if busy:
        lines[-1] += f", CPU pressure {busy[1]} % (one minute) before the first run"
    return lines


def table(rows, scenario):
    """Return the table of one scenario, with only the columns that matter for it."""
    names = list(dict.fromkeys(r["target"] for r in rows))
    names = [n for n in ("direct", "nginx") if n in names] + [
        n for n in names if n not in ("direct", "nginx")
    ]
    kind = "exact" if scenario in bars.EXACT else re.sub(r"(steady|burst)\d+", "steady", scenario)
    labels = LABELS.get(kind)
    return compare.table(rows, names, names[0], labels and labels.split("|"))


def startup_table(rows):
    """Return the medians of the start-up times in milliseconds."""
    lines = ["| | ms, median | ÷ bare Python |", "|---|---|---|"]
    median = bars.statistics.median
    lines.append(f"| `python -c pass` | {median(r['bare1'] for r in rows):.1f} | 1 |")
    for what, base in startup.PAIRS.items():
        if what not in rows[0]:
            continue  # rows of an earlier run
        ratio = median(r[what] / r[base] for r in rows)
        lines.append(f"| {what} | {median(r[what] for r in rows):.1f} | {ratio:.2f} |")
    return "\n".join(lines)


def whole(rows, commands, facts, minutes, command="make bench"):
    """Return the text between the markers; `commands` maps steps to their command lines."""
    today = datetime.date.today().isoformat()
    parts = [
        f"Measured {today} by `{command}` in {minutes:.0f} minutes.",
        "\n".join(f"- {line}" for line in facts),
        "## Goals\n\n" + bars.verdict(bars.bars(rows)),
        "## Runs\n\nMedians of all rounds; `x` columns are medians of the ratios to the first row "
        "within one round; `lat` and `ttft` are milliseconds; `cpu` is of one core.",
    ]
    for step, line in commands.items():
        mine = [r for r in rows if r["step"] == step]
        if not mine:
            continue
        parts.append(f"### {step}\n\n```\n{line}\n```")
        if step == "start-up":
            parts.append(startup_table(mine))
            continue
        for scenario in dict.fromkeys(r["scenario"] for r in mine):
            of = [r for r in mine if r["scenario"] == scenario]
            rounds = len({r["round"] for r in of})
            title = f"{scenario}, {rounds} round{'s' if rounds > 1 else ''}"
            parts.append(f"{title}\n\n{table(of, scenario)}")
    return "\n\n".join(parts)


def insert(text, body, markers=(BEGIN, END)):
    """Return `text` with `body` between the markers. Raises ValueError if they are missing."""
    before, begin, rest = text.partition(markers[0])
    _, end, after = rest.partition(markers[1])
    if not (begin and end):
        raise ValueError("cannot write the report: the markers are not in the file")
    return f"{before}{begin}\n{body}\n{end}{after}"
