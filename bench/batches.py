# SPDX-License-Identifier: MIT
"""What a batch costs a live client: times with 1,000 rows waiting, and without.

    python -m bench.batches MODEL.gguf --engine .venv/data/environments/llama-server

Rounds are interleaved: in each, a live answer is streamed while a batch has rows to run, and one
without a batch. Told are the medians of the time per token and of the first token, and their
ratios, on one slot and on four.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.server_process import Server

TOKENS = 60
ROWS = 1000


def ask(url: str, model: str) -> tuple[float, float]:
    """Return the time to the first token of a live answer, and per token after that, in s."""
    options = {"num_predict": TOKENS, "temperature": 0}
    talk = [{"role": "user", "content": "Write a long story about a river."}]
    begun_s = time.monotonic()
    times = []
    with (
        httpx.Client(timeout=120) as client,
        client.stream(
            "POST", f"{url}/api/chat", json={"model": model, "messages": talk, "options": options}
        ) as reply,
    ):
        for _ in reply.iter_lines():
            times.append(time.monotonic())
    return times[0] - begun_s, (times[-1] - times[0]) / (len(times) - 1)


def start_batch(url: str, model: str) -> str:
    """Start a batch of many rows; return its id."""
    rows = b"".join(
        json.dumps(
            {
                "custom_id": str(number),
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": model,
                    "max_tokens": 100,
                    "messages": [{"role": "user", "content": f"Tell me about number {number}."}],
                },
            }
        ).encode()
        + b"\n"
        for number in range(ROWS)
    )
    form = {"files": {"file": ("rows.jsonl", rows)}, "data": {"purpose": "batch"}}
    file = httpx.post(f"{url}/v1/files", timeout=60, **form).json()["id"]
    asked = {
        "input_file_id": file,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    identity: str = httpx.post(f"{url}/v1/batches", json=asked, timeout=60).json()["id"]
    return identity


def count(url: str, identity: str) -> int:
    """Return how many rows of a batch have ended."""
    completed: int = httpx.get(f"{url}/v1/batches/{identity}").json()["request_counts"]["completed"]
    return completed


def main() -> int:
    """Measure; return 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    for slots in (1, 4):
        home = Path(tempfile.mkdtemp(prefix="batches-"))
        env = {
            "PATH": os.environ["PATH"],
            "VLLAMA_ENGINE_PATHS": f"llama-server={given.engine}",
        }
        flags = (
            "--engine",
            "llama-server",
            "--context-length",
            "1024",
            "--num-parallel",
            str(slots),
        )
        server = Server(home, *flags, fake=False, env=env)
        (server.models / "live.gguf").symlink_to(given.gguf.resolve())
        server.start()
        try:
            ask(server.url, "live")
            found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
            done = 0
            for _ in range(given.rounds):
                batch = start_batch(server.url, "live")
                time.sleep(4)  # rows run now
                done += count(server.url, batch)
                found[True].append(ask(server.url, "live"))
                httpx.post(f"{server.url}/v1/batches/{batch}/cancel", timeout=60)
                time.sleep(1)
                found[False].append(ask(server.url, "live"))
            for number, name in ((1, "time per token"), (0, "first token")):
                beside, alone = (
                    statistics.median(row[number] for row in found[kind]) for kind in (True, False)
                )
                print(
                    f"{slots} slots, {name}: {beside * 1e3:.2f} ms beside a batch, "
                    f"{alone * 1e3:.2f} ms without: {beside / alone:.3f}"
                )
            print(f"{slots} slots: {done} rows had ended before the live answers")
        finally:
            server.process.terminate()
            server.process.wait()
            shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
