# SPDX-License-Identifier: MIT
"""The goals, and whether the rows of `compare.py` and `startup.py` reach them. Pure functions.

A row is the output of one run, with `step`, `scenario`, `target` and `round`. Only rows of the same
step and round are compared, because they ran directly after each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

CPU = "watch.proxy.cpu_us_per_token"
CPU_OF_REQUEST = "watch.proxy.cpu_us_per_request"
TTFT = "ttft_ms.p50"
OURS = (("/api/chat", "vllama-chat"), ("/v1", "vllama-v1"))
EXACT = ("check", "utf8", "think", "tool", "whole-check", "cut", "status")
Row = dict
Key = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the verdict: the median of `values`, one per round, is compared with `limit`."""

    bar: int
    what: str
    values: tuple[float, ...]
    limit: float
    at_least: bool = False
    unit: str = "×"
    note: str = ""

    @property
    def median(self) -> float | None:
        """The median of the rounds, None if nothing was measured."""
        return statistics.median(self.values) if self.values else None

    @property
    def reached(self) -> bool | None:
        """Whether the median meets the goal; None: not measured."""
        if self.median is None:
            return None
        return self.median >= self.limit if self.at_least else self.median <= self.limit


def dig(row: Row, path: str) -> float | None:
    """Return `row["a"]["b"]` for the path `a.b`, None if it is missing."""
    value: object = row
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, int | float) else None


def pick(rows: Iterable[Row], scenario: str, target: str, path: str) -> dict[Key, float]:
    """Return one value per run, by step and round."""
    found = {}
    for row in rows:
        if row.get("scenario") == scenario and row.get("target") == target:
            value = dig(row, path)
            if value is not None:
                found[row.get("step", ""), row["round"]] = value
    return found


def together(how: Callable[..., float | None], *columns: dict[Key, float]) -> tuple[float, ...]:
    """Apply `how` to the values of each round that all columns have; drop results of None."""
    keys = [key for key in columns[0] if all(key in column for column in columns[1:])]
    results = [how(*(column[key] for column in columns)) for key in sorted(keys)]
    return tuple(value for value in results if value is not None)


def over(a: float, b: float) -> float | None:
    """Return a / b, None if it is meaningless."""
    return a / b if b > 0 else None


def over_added(a: float, b: float, direct: float) -> float | None:
    """Return the overhead of a over direct divided by that of b; None if b has no overhead."""
    return over(max(0.0, a - direct), b - direct)


def bars(rows: list[Row]) -> list[Finding]:
    """Return all findings, in the order of the bars."""

    def ratio(scenario: str, a: str, b: str, path: str) -> tuple[float, ...]:
        return together(over, pick(rows, scenario, a, path), pick(rows, scenario, b, path))

    def added(scenario: str, a: str, b: str, path: str) -> tuple[float, ...]:
        columns = (pick(rows, scenario, target, path) for target in (a, b, "direct"))
        return together(over_added, *columns)

    def each(scenario: str, target: str, path: str) -> tuple[float, ...]:
        return tuple(pick(rows, scenario, target, path).values())

    def add(bar: int, what: str, values: tuple[float, ...], limit: float, **more: object) -> None:
        findings.append(Finding(bar=bar, what=what, values=values, limit=limit, **more))

    findings: list[Finding] = []
    for (api, mine), limit in zip(OURS, (1.6, 1.4), strict=True):
        what = f"`{api}`: CPU per token, 256 streams at 50 tok/s, ÷ nginx's raw relay"
        add(1, what, ratio("steady256", mine, "nginx", CPU), limit)
    for api, mine in OURS:
        what = f"`{api}`: CPU of a request of one token ÷ nginx's"
        add(1, what, ratio("ttft", mine, "nginx", CPU_OF_REQUEST), 5)
    for scenario, mine, peer, streams, limit in (
        ("steady256", "vllama-chat", "naive", 256, 4),
        ("small16", "vllama-v1", "litellm", 16, 15),
        ("small16", "vllama-v1", "oai2ollama", 16, 10),
    ):
        what = f"tokens/s per core at {streams} streams, `{mine}` ÷ {peer}'s"
        add(2, what, ratio(scenario, peer, mine, CPU), limit, at_least=True)
    for api, mine in OURS:
        what = f"`{api}`: first token p50, what it adds to direct ÷ what nginx adds"
        add(3, what, added("ttft", mine, "nginx", TTFT), 3)
    floor = added("ttft", "nginx", "litellm", TTFT)  # the goal may lie below it
    shown = f" (nginx: {statistics.median(floor):.3g} ×)" if floor else ""
    for api, mine in OURS:
        what = f"`{api}`: first token p50, what it adds ÷ what litellm adds{shown}"
        add(3, what, added("ttft", mine, "litellm", TTFT), 0.01)
    for api, mine in OURS:
        what = f"`{api}`: tokens/s delivered at 512 streams ÷ direct"
        add(4, what, ratio("steady512", mine, "direct", "tokens_per_s"), 0.95, at_least=True)
        wrong = each("steady512", mine, "errors")
        total = (sum(wrong),) if wrong else ()
        add(4, f"`{api}`: errors at 512 streams, all rounds", total, 0, unit="")
    for api, mine in OURS:
        for quantile, limit in (("p50", 1.5), ("p99", 2)):
            for streams in (64, 256):
                what = f"`{api}`: token latency {quantile} added at {streams} streams ÷ nginx's"
                path = f"token_latency_ms.{quantile}"
                add(4, what, added(f"steady{streams}", mine, "nginx", path), limit)
    for api, mine in OURS:
        kb = each("many1000", mine, "watch.proxy.rss_kb_per_stream")
        add(5, f"`{api}`: memory per stream at 1,000 streams", kb, 20, unit="KiB")
        memory = ratio("many1000", mine, "nginx", "watch.proxy.rss_peak_mb")
        add(5, f"`{api}`: memory at 1,000 streams ÷ nginx's", memory, 2)
    for api, mine in OURS:
        for scenario, when in (("leave", "while streaming"), ("leave-prefill", "in prefill")):
            times = each(scenario, mine, "all_stopped_ms")
            note = f"worst {max(times):.0f} ms" if times else ""
            what = f"`{api}`: 16 clients leave {when}: the engine has stopped after"
            add(6, what, times, 50, unit="ms", note=note)
        grown = each("no-read", mine, "grew_mb_per_client")
        add(6, f"`{api}`: growth per client that does not read", grown, 1, unit="MB")
    for api, mine in OURS:
        pair = (pick(rows, scenario, mine, CPU) for scenario in ("burst256", "steady256"))
        what = f"`{api}`: CPU per token, four events in one read ÷ one event"
        add(7, what, together(over, *pair), 0.5)
    for api, mine in OURS:
        findings.append(exact(rows, api, mine))
    for what, limit, text in (
        ("version", 150, "`vllama --version`"),
        ("help", 400, "`vllama --help`"),
        ("answer", 1000, "`vllama serve` has answered its first request"),
    ):
        add(9, text, each("startup", "vllama", what), limit, unit="ms")
    return findings


def exact(rows: list[Row], api: str, target: str) -> Finding:
    """Return the number of wrong replies in the correctness scenarios."""
    mine = [r for r in rows if r.get("target") == target and r.get("scenario") in EXACT]
    ok = sum(r.get("ok", 0) for r in mine)
    wrong = {}
    for r in mine:
        if r["errors"]:
            wrong[r["scenario"]] = wrong.get(r["scenario"], 0) + r["errors"]
    ran = [name for name in EXACT if any(r["scenario"] == name for r in mine)]
    note = f"{ok} right; " + ", ".join(f"{n} in {name}" for name, n in wrong.items())
    return Finding(
        bar=8,
        what=f"`{api}`: wrong replies ({', '.join(ran)})",
        values=(sum(wrong.values()),) if mine else (),
        limit=0,
        unit="",
        note=note.removesuffix("; "),
    )


def amount(value: float, unit: str) -> str:
    """Format a number with three significant digits: `1.38 ×`, `0.0048 ×`, `12.4 ms`."""
    digits = f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{digits} {unit}".strip()


def verdict(findings: list[Finding]) -> str:
    """Return the findings as a Markdown table, and a line that counts them."""
    lines = ["| # | what | median [rounds] | goal | reached |", "|---|---|---|---|---|"]
    for f in findings:
        if f.median is None:
            measured = "not measured"
        else:
            measured = amount(f.median, f.unit)
            if len(f.values) > 1:
                low, high = (amount(x, "") for x in (min(f.values), max(f.values)))
                measured += f" [{low} … {high}]"
            measured += f"; {f.note}" if f.note else ""
        goal = f"{'≥' if f.at_least else '≤'} {amount(f.limit, f.unit)}"
        goal = "0" if f.limit == 0 else goal
        reached = {True: "yes", False: "**no**", None: "–"}[f.reached]
        lines.append(f"| {f.bar} | {f.what} | {measured} | {goal} | {reached} |")
    yes, no = (sum(f.reached is value for f in findings) for value in (True, False))
    count = f"{yes} reached, {no} not, {len(findings) - yes - no} not measured."
    return "\n".join(lines) + "\n\n" + count
