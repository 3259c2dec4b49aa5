# SPDX-License-Identifier: MIT
"""What it costs to send a request on to a node, beside `--upstream` and beside no second server.

    python -m bench.forward --rounds 7

One node answers, with the synthetic engine as its upstream: 8 streams, a token each 10 ms. Two
fronts stand before it, which know it as a node and as an upstream; the node alone is the third.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

from bench.lab import FILL, ROOT, Lab, free_port, ready

STREAMS, TOKENS = 8, 400
KEY = "sk-bench"
ROWS = ("cpu us/token", "first token ms", "gap p99 ms")


def start(lab, name, *words, key):
    """Start a server; return its port and process."""
    port = free_port()
    command = [FILL["vllama"], "serve", "--port", str(port), "--node-key-file", key, *words]
    env = {"HOME": str(lab.tmp / f"{name}.home"), "VLLAMA_UPSTREAM_KEY": KEY}
    process = lab.spawn(command, name, env)
    if not ready(port, "/readyz", process, 30):
        raise SystemExit(f"{name} did not start: {(lab.tmp / name).read_text()[-800:]}")
    return port, process.pid


def measure(port, pid):
    """Return the figures of one run."""
    words = ("--api", "openai-chat", "--streams", str(STREAMS), "--tokens", str(TOKENS))
    command = [sys.executable, "-m", "bench.load", f"http://127.0.0.1:{port}", *words]
    command += ["--header", f"authorization: Bearer {KEY}", "--watch", f"front={pid}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    figures = (
        found["watch"]["front"]["cpu_us_per_token"],
        found["ttft_ms"]["p50"],
        found["itl_ms"]["p99"],
    )
    return dict(zip(ROWS, figures, strict=True))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--rounds", type=int, default=7)
    a = p.parse_args()
    with Lab("--rate 100") as lab:
        key = lab.tmp / "node.key"
        key.write_text(KEY)
        key.chmod(0o600)
        node = start(lab, "node", "--upstream", lab.engine_url, key=str(key))
        url = f"http://127.0.0.1:{node[0]}"
        fronts = {
            "as a node": start(lab, "head", "--no-local", "--node", url, key=str(key)),
            "as an upstream": start(lab, "front", "--upstream", url, key=str(key)),
            "alone": node,
        }
        rows = {name: [] for name in fronts}
        for number in range(-1, a.rounds):
            for name, (port, pid) in fronts.items():
                found = measure(port, pid)
                if number >= 0:  # the first round warms up
                    rows[name].append(found)
    print(f"| {' | '.join(('', *ROWS))} |\n|{' --- |' * (len(ROWS) + 1)}")
    for name, found in rows.items():
        cells = []
        for row in ROWS:
            values = [one[row] for one in found]
            median = statistics.median(values)
            cells.append(f"{median:.1f} ({min(values):.1f} to {max(values):.1f})")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
