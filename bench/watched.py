# SPDX-License-Identifier: MIT
"""Measure what subscribers of /api/events cost the front while requests come at a steady rate.

    python -m bench.watched --rounds 5 --seconds 60

Each round measures the same load without and with subscribers, in turns. The engine is the one of
the tests, started by vllama as a process of its own, so that memory is measured as in earnest.
The front has a core to itself where there is more than one, so that neither the engine nor the
clients disturb it.
Prints one line of JSON per round, then the median of the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path

from bench.lab import ROOT, Processes, free_port, raise_file_limit, ready

MODEL = "wide"  # the tests' engine takes many requests at once under this name


def read_cpu_s(pid):
    """Return the CPU seconds of one process, without its children."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def pin(pid, core):
    """Keep a running process on one core, without its children."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})


async def request(port, head, body=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    writer.write(head + b"host: localhost\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    return reader, writer


async def ask(port, tokens):
    """Send a chat and read its answer to the end."""
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hi"}],
            "options": {"num_predict": tokens},
        }
    ).encode()
    head = b"POST /api/chat HTTP/1.1\r\nconnection: close\r\n"
    reader, writer = await request(port, head, body)
    answer = await reader.read()
    writer.close()
    assert b'"done":true' in answer, answer[-300:]


async def subscribe(port, counts):
    """Read the event stream until canceled."""
    reader, writer = await request(port, b"GET /api/events HTTP/1.1\r\n")
    try:
        while data := await reader.read(65536):
            counts["bytes"] += len(data)
            counts["events"] += data.count(b"\nevent: ")
    finally:
        writer.close()


async def measure(a, port, pid, subscribers):
    """Return the CPU seconds of the front for one stretch of load."""
    counts = {"bytes": 0, "events": 0}
    watchers = [asyncio.create_task(subscribe(port, counts)) for _ in range(subscribers)]
    await asyncio.sleep(1)
    total = round(a.per_minute * a.seconds / 60)
    before, begun = read_cpu_s(pid), time.monotonic()
    asking = []
    for number in range(total):
        await asyncio.sleep(begun + number * 60 / a.per_minute - time.monotonic())
        asking.append(asyncio.create_task(ask(port, a.tokens)))
    await asyncio.gather(*asking)
    cpu_s, wall_s = read_cpu_s(pid) - before, time.monotonic() - begun
    for one in watchers:
        one.cancel()
    await asyncio.gather(*watchers, return_exceptions=True)
    return {"cpu_s": round(cpu_s, 3), "wall_s": round(wall_s, 1), **counts}


async def run(a, port, pid, core):
    await ask(port, 4)  # starts the engine, which stays on the other cores
    pin(pid, core)
    ratios = []
    for number in range(a.rounds):
        order = (0, a.subscribers) if number % 2 == 0 else (a.subscribers, 0)
        found = {count: await measure(a, port, pid, count) for count in order}
        ratios.append(found[a.subscribers]["cpu_s"] / found[0]["cpu_s"])
        print(json.dumps(found | {"ratio": round(ratios[-1], 4)}), flush=True)
    median = statistics.median(ratios)
    print(json.dumps({"median": round(median, 4), "more_percent": round(100 * (median - 1), 1)}))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=60, help="of load, with and without")
    p.add_argument("--per-minute", type=float, default=1000, help="requests")
    p.add_argument("--tokens", type=int, default=64, help="of each answer")
    p.add_argument("--subscribers", type=int, default=3)
    a = p.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests.tiny import write_tiny_gguf

    raise_file_limit()
    core, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, others or {core})
    with Processes() as processes:
        models = processes.tmp / "models"
        models.mkdir()
        write_tiny_gguf(models / f"{MODEL}.gguf", n_ctx=4096)
        switches = ("--token-interval", "0.01")
        (models / f"{MODEL}.args").write_text("\n".join(switches))
        port = free_port()
        env = {
            "HOME": str(processes.tmp),
            "VLLAMA_FOLDERS": str(models),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'fake_engine'}",
            "VLLAMA_THREADS": "2",
        }
        command = [sys.executable, "-m", "vllama", "serve", "--port", str(port)]
        front = processes.spawn(command, "front", env)
        if not ready(port, "/readyz", front, 60):
            sys.exit((processes.tmp / "front").read_text()[-800:])
        asyncio.run(run(a, port, front.pid, core))


if __name__ == "__main__":
    main()
