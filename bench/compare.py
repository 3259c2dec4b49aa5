# SPDX-License-Identifier: MIT
"""Compare fronts in interleaved rounds: start engine.py and every target, then
run load.py against one after another, round after round, and report medians and
the median of the per-round ratios to the first target.

    python -m bench.compare bench/targets.toml --scenario steady64 --rounds 5
    python -m bench.compare bench/targets.toml --scenario "streams=128,tokens=200,ramp=1" \\
        --only direct,vllama-chat

A target in the TOML file (name and api are required; no cmd: straight to the engine):

    [[target]]
    name  = "mine"
    api   = "ollama-chat"                 # load.py --api
    cmd   = "mine serve --port {port} --upstream {engine}"
    ready = "/api/version"                # polled until it answers, default: TCP connect
    env   = { KEY = "value {port}" }
    model = "synthetic/model-8b"          # as the proxy calls it
    hint  = "apt-get install mine"        # said if the command is not there

{port}, {engine} (http://host:port), {engine_host}, {engine_port}, {engine_uds}, {tmp} and those of
lab.py (`--set NAME=VALUE` changes one) are filled in. [target.files] writes files into {tmp}.
The whole process tree of a target is watched.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

from bench.bars import dig
from bench.lab import ROOT, Lab, say

CHECK = {"streams": 16, "rate": 0, "tokens": 200, "requests": 64, "validate": 1}
STEADY = {"rate": 50, "tokens": 250}
SCENARIOS = {
    # first-token time of an idle server, one request after another
    "ttft": {"streams": 1, "rate": 0, "tokens": 1, "requests": 400},
    # steady decoding at 50 tok/s a stream
    "steady64": STEADY | {"streams": 64, "ramp": 0.5},
    "steady256": STEADY | {"streams": 256, "ramp": 0.5},
    "steady512": STEADY | {"streams": 512, "ramp": 1.0},
    # the same tokens, four events in one read
    "burst256": STEADY | {"streams": 256, "ramp": 0.5, "prompt": "@burst=4"},
    # few streams, short answers: what the slowest front can carry too
    "small16": {"streams": 16, "rate": 50, "tokens": 80, "ramp": 0.3},
    # many streams that do little: memory
    "many1000": {"streams": 1000, "rate": 10, "tokens": 30, "ramp": 2.0},
    # as fast as it goes
    "flood": {"streams": 32, "rate": 0, "tokens": 4000},
    # many short requests
    "short": {"streams": 32, "rate": 0, "tokens": 8, "requests": 3000},
    # whole answers, not streamed
    "whole": {"streams": 32, "rate": 0, "tokens": 200, "requests": 2000, "stream": 0},
    # every byte of content, in every form
    "check": CHECK,
    "utf8": CHECK | {"prompt": "@utf8"},
    "think": CHECK | {"prompt": "@think=20"},
    "tool": CHECK | {"prompt": "@tool"},
    "whole-check": CHECK | {"prompt": "@utf8 @tool @think=20", "stream": 0},
    # the engine breaks off, or refuses
    "cut": {"streams": 16, "rate": 50, "tokens": 200, "requests": 32, "prompt": "@abort=5"},
    "status": {"streams": 16, "rate": 0, "tokens": 200, "requests": 64, "prompt": "@status=503"},
    # clients that go, and clients that stay and do not read (abort.py)
    "leave": {"abort": ["--streams", "16"]},
    "leave-prefill": {"abort": ["--streams", "16", "--prefill"]},
    "no-read": {"abort": ["--streams", "4", "--no-read", "4"]},
}


def parse_scenario(text):
    if text in SCENARIOS:
        return text, dict(SCENARIOS[text])
    found = {}
    for part in text.split(","):
        k, _, v = part.partition("=")
        if k in SCENARIOS and not v:
            found |= SCENARIOS[k]
        elif v:
            found[k] = v if k == "prompt" else float(v) if "." in v else int(v)
        else:
            raise SystemExit(f"unknown scenario {text!r}; known: {', '.join(SCENARIOS)}")
    return text, found


def abort_command(t, sc, lab, base):
    command = ["bench.abort", base, "--engine", lab.engine_url, "--api", t["api"], *sc["abort"]]
    return command + (["--watch", str(t["_pid"])] if t.get("_pid") else [])


def load_command(a, t, sc, lab, base):
    words = ["Say something.", f"@rate={sc.get('rate', 50)}"]
    if sc.get("ttft_ms"):
        words.append(f"@ttft={sc['ttft_ms']}")
    if sc.get("prompt"):
        words.append(sc["prompt"])
    options = {
        "--api": t["api"],
        "--prompt": " ".join(words),
        "--streams": sc["streams"],
        "--tokens": sc["tokens"],
        "--ramp": sc.get("ramp", 0),
        "--timeout": sc.get("timeout", 60),
        "--procs": sc.get("procs", a.procs),
        "--requests": sc.get("requests"),
        "--duration": sc.get("duration"),
        "--prompt-chars": sc.get("prompt_chars"),
        "--path": t.get("path"),
    }
    command = ["bench.load", base, "--watch", f"engine={lab.engine_pid}"]
    command += [str(x) for k, v in options.items() if v is not None for x in (k, v)]
    command += ["--no-stream"] if sc.get("stream") == 0 else []
    command += ["--validate"] if sc.get("validate") else []
    return command + (["--watch", f"proxy={t['_pid']}"] if t.get("_pid") else [])


def one(a, t, sc, lab):
    """Run one scenario on one target; return its row."""
    base = f"http://127.0.0.1:{t.get('_port') or lab.engine_port}"
    command = (
        abort_command(t, sc, lab, base) if "abort" in sc else load_command(a, t, sc, lab, base)
    )
    command += ["--model", t.get("model", "synthetic/model-8b")]
    command += [x for h in t.get("headers", []) for x in ("--header", h)]
    command = [sys.executable, "-m", *command]
    if a.pin:
        command = ["taskset", "-c", a.pin.split(":")[1], *command]
    limit = sc.get("timeout", 60) + 60
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, cwd=ROOT)
    try:
        row = json.loads(done.stdout)
    except ValueError:
        row = {"failed": done.stderr[-500:], "errors": 1}
    return row | {"target": t["name"]}


COLUMNS = [
    ("tok/s", "tokens_per_s"),
    ("req/s", "requests_per_s"),
    ("ttft p50", "ttft_ms.p50"),
    ("p95", "ttft_ms.p95"),
    ("p99", "ttft_ms.p99"),
    ("lat p50", "token_latency_ms.p50"),
    ("lat p99", "token_latency_ms.p99"),
    ("itl p99", "itl_ms.p99"),
    ("cpu us/tok", "watch.proxy.cpu_us_per_token"),
    ("cpu us/req", "watch.proxy.cpu_us_per_request"),
    ("cpu", "watch.proxy.cpu_share"),
    ("rss MB", "watch.proxy.rss_peak_mb"),
    ("KB/stream", "watch.proxy.rss_kb_per_stream"),
    ("tok/line", "tokens_per_line"),
    ("stopped ms", "all_stopped_ms"),
    ("wasted tok", "tokens_wasted"),
    ("unread tok", "unread_tokens_per_stream"),
    ("MB/client", "grew_mb_per_client"),
    ("errors", "errors"),
]
RATIOS = ("tokens_per_s", "requests_per_s", "ttft_ms.p50")
RATIOS += ("token_latency_ms.p50", "token_latency_ms.p99")


def number(value):
    return "-" if value is None else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def table(rows, names, base, labels=None):
    """Return medians and ratios as a Markdown table, no empty columns; `labels`: only these."""
    columns = []
    for label, path in COLUMNS:
        join = sum if path == "errors" else statistics.median
        cells = []
        for name in names:
            values = [dig(r, path) for r in rows if r["target"] == name]
            values = [v for v in values if v is not None]
            cells.append(join(values) if values else None)
        columns.append((label, cells))
    for path in RATIOS:
        cells = []
        for name in names:
            pairs = []
            for r in (r for r in rows if r["target"] == name):
                b = next((x for x in rows if x["target"] == base and x["round"] == r["round"]), {})
                x, y = dig(r, path), dig(b, path)
                if x is not None and y:
                    pairs.append(x / y)
            cells.append(statistics.median(pairs) if pairs else None)
        columns.append(("x " + next(c for c, p in COLUMNS if p == path), cells))
    columns = [
        (label, cells)
        for label, cells in columns
        if any(c is not None for c in cells) and (labels is None or label in labels)
    ]
    lines = [["target", *(label for label, _ in columns)], ["---"] * (len(columns) + 1)]
    lines += [[n, *(number(cells[i]) for _, cells in columns)] for i, n in enumerate(names)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def choose(targets, only):
    if not only:
        return targets
    order = only.split(",")
    missing = set(order) - {t["name"] for t in targets}
    if missing:
        raise SystemExit(f"no such target: {', '.join(sorted(missing))}")
    return sorted((t for t in targets if t["name"] in order), key=lambda t: order.index(t["name"]))


def measure(a, targets, scenarios, rounds, keep):
    """Start everything once, run `rounds`; give each row to `keep`; return the targets that ran."""
    cpus = [{int(x) for x in part.split(",")} for part in a.pin.split(":")] if a.pin else None
    values = dict(pair.split("=", 1) for pair in a.set)
    with Lab(a.engine, values, cpus, a.ready_seconds) as lab:
        live = lab.start(targets)
        if a.warmup:
            for t in live:  # lazy imports, connection pools, code caches
                one(a, t, {"streams": 8, "rate": 0, "tokens": 20, "requests": 64}, lab)
        for i in rounds:
            for name, sc in scenarios:
                for t in live if i % 2 == 0 else live[::-1]:
                    row = one(a, t, sc, lab) | {"round": i, "scenario": name}
                    if row.get("failed") or row.get("errors"):
                        why = row.get("failed") or row.get("errors_seen") or row
                        say(f"  {t['name']} {name} round {i}: {why}")
                    keep(row)
        return live


def main():
    known = "; ".join(f"{k} {v}" for k, v in SCENARIOS.items())
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=f"scenarios: {known}")
    p.add_argument("targets", help="TOML file")
    p.add_argument("--scenario", action="append", required=True)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--only", help="comma-separated names; the first is the base of the ratios")
    p.add_argument("--fresh", action="store_true", help="start all servers anew for each round")
    p.add_argument("--procs", type=int, default=1, help="load processes")
    p.add_argument("--out", help="append every run as a JSON line here")
    p.add_argument("--pin", help="PROXYCPUS:OTHERCPUS, such as 0:1")
    p.add_argument("--engine", default="", help="more arguments for engine.py")
    p.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    p.add_argument("--no-warmup", dest="warmup", action="store_false")
    p.add_argument("--ready-seconds", type=float, default=90)
    a = p.parse_args()
    targets = choose(tomllib.loads(Path(a.targets).read_text())["target"], a.only)
    scenarios = [parse_scenario(text) for text in a.scenario]
    rows = []

    def keep(row):
        rows.append(row)
        if a.out:
            with Path(a.out).open("a") as f:
                f.write(json.dumps(row) + "\n")

    for rounds in [[i] for i in range(a.rounds)] if a.fresh else [range(a.rounds)]:
        live = [t["name"] for t in measure(a, targets, scenarios, rounds, keep)]
    for name, sc in scenarios:
        print(f"\n### {name} {sc}, {a.rounds} rounds, ratios to {live[0]}\n")
        print(table([r for r in rows if r["scenario"] == name], live, live[0]), flush=True)
    return 1 if any(r.get("failed") or r.get("errors") for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
