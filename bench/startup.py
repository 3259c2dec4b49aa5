# SPDX-License-Identifier: MIT
"""How long does the command take to start, against bare Python?

    python -m bench.startup --rounds 40

Each round runs, one right after the other: `python -c pass`, `vllama --version`, `python -c pass`,
`vllama --help`, `python -c pass`, `vllama serve` until its port accepts and until it has answered a
GET. Every figure is paired with the bare start just before it. One JSON line a round with
milliseconds, then the medians of the paired ratios.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.lab import FILL, Lab, free_port

POLL_S = 0.0003
LIMIT_S = 30
PAIRS = {"version": "bare1", "help": "bare2", "accept": "bare3", "answer": "bare3"}


def ms_since(begun):
    return round((time.perf_counter() - begun) * 1000, 3)


def timed(command, lab):
    """Return the wall time of a command in milliseconds. Raises if it fails."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    env = lab.environment({"HOME": str(lab.tmp)})
    begun = time.perf_counter()
    subprocess.run(command, check=True, env=env, cwd=lab.tmp, **quiet)
    return ms_since(begun)


def front(command, lab):
    """Return milliseconds until the front accepts a connection, and until it has answered."""
    port = free_port()
    command = [*command, "serve", "--port", str(port), "--upstream", lab.engine_url]
    begun = time.perf_counter()
    process = lab.spawn(command, "serve.log", {"HOME": str(lab.tmp)})
    try:
        sock = connect(port, process, begun)
        accepted = ms_since(begun)
        with sock:
            sock.settimeout(LIMIT_S)
            sock.sendall(b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = sock.recv(4096)
        answered = ms_since(begun)
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"cannot measure the start: it answered {head[:200]!r}")
        return accepted, answered
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)


def connect(port, process, begun):
    while process.poll() is None and time.perf_counter() - begun < LIMIT_S:
        sock = socket.socket()
        if sock.connect_ex(("127.0.0.1", port)) == 0:
            return sock
        sock.close()
        time.sleep(POLL_S)
    raise SystemExit("cannot measure the start: vllama serve does not accept connections")


def one(command, bare, lab, number):
    row = {"scenario": "startup", "target": "vllama", "round": number}
    row["bare1"], row["version"] = timed(bare, lab), timed([*command, "--version"], lab)
    row["bare2"], row["help"] = timed(bare, lab), timed([*command, "--help"], lab)
    row["bare3"] = timed(bare, lab)
    row["accept"], row["answer"] = front(command, lab)
    return row


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--rounds", type=int, default=40)
    p.add_argument("--vllama", default=FILL["vllama"], help="the command to measure")
    p.add_argument("--python", default=sys.executable, help="the bare Python")
    p.add_argument("--out", help="append every round as a JSON line here")
    a = p.parse_args()
    command, bare = shlex.split(a.vllama), [a.python, "-c", "pass"]
    rows = []
    with Lab() as lab:
        one(command, bare, lab, -1)  # byte code and the disk's cache
        for i in range(a.rounds):
            rows.append(one(command, bare, lab, i))
            line = json.dumps(rows[-1])
            print(line, flush=True)
            if a.out:
                with Path(a.out).open("a") as f:
                    f.write(line + "\n")
    for what, base in PAIRS.items():
        ratio = statistics.median(r[what] / r[base] for r in rows)
        print(f"{what}: {statistics.median(r[what] for r in rows):.1f} ms, {ratio:.2f} x bare")
    return 0


if __name__ == "__main__":
    sys.exit(main())
