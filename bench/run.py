# SPDX-License-Identifier: MIT
"""`make bench`: install what is missing, run every scenario, compare the results with the goals.

    make bench                  # at most 40 minutes; writes bench/results/front.md
    make bench QUICK=1          # 3 to 6 minutes; prints only
    make bench ARGS="--scenario steady256 --scenario ttft --only direct,nginx,vllama-chat"

The last run is stored in .venv/bench/last.json; `--from FILE` writes the report from such a file.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench import peers, report
from bench.bars import EXACT, bars, verdict
from bench.lab import FILL, ROOT, say

TARGET = ROOT / "bench" / "results" / "front.md"
STORE = ROOT / ".venv" / "bench"
RELAYS = ("direct", "nginx", "vllama-chat", "vllama-v1")
SLOW = ("naive", "litellm", "oai2ollama", "ollama-proxy-plus")
SHORT = ",tokens=100"  # of a quick run


@dataclass(frozen=True, kw_only=True)
class Step:
    """One call of compare.py: the servers start once, then `rounds` rounds, or `quick` if QUICK."""

    name: str
    targets: tuple[str, ...]
    scenarios: tuple[str, ...]
    rounds: int
    quick: int
    shorter: bool = False
    fresh: bool = False

    def command(self, a) -> list[str] | None:
        """Return the arguments of the module; None if the options leave nothing to do."""
        rounds = ["--rounds", str(a.rounds or (self.quick if a.quick else self.rounds))]
        scenarios = [s for s in self.scenarios if not a.scenario or s.split(",")[0] in a.scenario]
        if not scenarios:
            return None
        if scenarios == ["startup"]:
            return ["bench.startup", *rounds]
        targets = [t for t in self.targets if not a.only or t in a.only.split(",")]
        if not targets:
            return None
        more = SHORT if a.quick and self.shorter else ""
        named = [x for s in scenarios for x in ("--scenario", s + more)]
        fresh = ["--fresh"] if self.fresh else []
        only = ["--only", ",".join(targets)]
        return ["bench.compare", "bench/targets.toml", *only, *named, *rounds, *fresh]


STEPS = (
    Step(name="exactness", targets=RELAYS, scenarios=EXACT, rounds=3, quick=1),
    Step(name="leaving", targets=RELAYS, scenarios=("leave", "leave-prefill"), rounds=9, quick=3),
    Step(name="not reading", targets=RELAYS, scenarios=("no-read",), rounds=3, quick=1),
    Step(
        name="relay",
        targets=RELAYS,
        scenarios=("steady64", "steady256", "burst256", "steady512"),
        rounds=5,
        quick=1,
        shorter=True,
    ),
    Step(name="first token", targets=RELAYS, scenarios=("ttft",), rounds=15, quick=3),
    Step(name="memory", targets=RELAYS, scenarios=("many1000",), rounds=3, quick=1, fresh=True),
    Step(
        name="naive",
        targets=("direct", "vllama-chat", "naive"),
        scenarios=("steady256",),
        rounds=3,
        quick=1,
        shorter=True,
    ),
    Step(
        name="peers",
        targets=("direct", "nginx", "vllama-chat", "vllama-v1", *SLOW),
        scenarios=("small16", "ttft,requests=100"),
        rounds=5,
        quick=1,
    ),
    Step(name="start-up", targets=(), scenarios=("startup",), rounds=40, quick=8),
)


def measure(step, command, a):
    """Run one step; return its rows, each with the step's name and the bare scenario name."""
    out = STORE / "step.jsonl"
    out.unlink(missing_ok=True)
    own = [] if a.vllama == FILL["vllama"] else [a.vllama]
    if command[0] == "bench.startup":
        own = [x for value in own for x in ("--vllama", value)]
    else:
        own = [x for value in own for x in ("--set", f"vllama={value}")]
    subprocess.run(
        [sys.executable, "-m", *command, *own, "--out", str(out)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    lines = out.read_text().splitlines() if out.exists() else []
    rows = [json.loads(line) for line in lines]
    return [r | {"step": step.name, "scenario": r["scenario"].split(",")[0]} for r in rows]


def shown(command):
    """Return the command line as typed in the root of the repository."""
    return f".venv/bin/python -m {shlex.join(command)}"


def parser():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--quick", action="store_true", help="few rounds; print, do not write")
    p.add_argument("--only", help="comma-separated targets of targets.toml")
    p.add_argument("--scenario", action="append", default=[], help="one of a step; repeatable")
    p.add_argument("--rounds", type=int, help="instead of each step's own number")
    p.add_argument("--vllama", default=FILL["vllama"], help="the command to measure")
    p.add_argument("--python", help="a newer interpreter for peers that need one")
    p.add_argument("--write", action="store_true", help="write the results after any run")
    p.add_argument("--from", dest="source", metavar="FILE", help="report rows of an earlier run")
    return p


def partial(a):
    """Return whether this run has less than the results have."""
    return bool(a.quick or a.only or a.scenario or a.rounds)


def collect(a):
    """Install what is missing and run the steps; return the data of the report."""
    STORE.mkdir(parents=True, exist_ok=True)
    plan = [(step, step.command(a)) for step in STEPS]
    plan = [(step, command) for step, command in plan if command]
    if not plan:
        known = sorted({s.split(",")[0] for step in STEPS for s in step.scenarios})
        raise SystemExit(f"nothing to run; scenarios: {', '.join(known)} (others: bench.compare)")
    if any(peer in word for _, command in plan for word in command for peer in SLOW):
        for name in peers.SETS:
            peers.install(name, a.python)
    facts = report.machine()
    facts.append(", ".join(f"{k} {v}" for k, v in report.versions().items()))
    begun, rows, commands = time.monotonic(), [], {}
    for step, command in plan:
        commands[step.name] = shown(command)
        say(f"\n[{(time.monotonic() - begun) / 60:4.1f} min] {step.name}: {commands[step.name]}")
        rows += measure(step, command, a)
    return {
        "rows": rows,
        "commands": commands,
        "facts": facts,
        "minutes": (time.monotonic() - begun) / 60,
        "command": shlex.join(["bench/run.py", *sys.argv[1:]]) if partial(a) else "make bench",
    }


def main():
    a = parser().parse_args()
    if a.source:
        result = json.loads(Path(a.source).read_text())
    else:
        result = collect(a)
        (STORE / "last.json").write_text(json.dumps(result))
    text = report.whole(**result)
    (STORE / "last.md").write_text(text + "\n")
    if a.write or not (partial(a) or a.source):
        TARGET.write_text(report.insert(TARGET.read_text(), text))
        say(f"\nwritten: {TARGET.name}")
    findings = bars(result["rows"])
    if a.only or a.scenario:
        findings = [f for f in findings if f.values]
    print(verdict(findings))
    print("\nall tables: .venv/bench/last.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
