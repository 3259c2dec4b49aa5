# SPDX-License-Identifier: MIT
"""The requests of several apps at once: seconds until all are answered, and loads on the way.

    python -m bench.mixed http://127.0.0.1:11434 http://127.0.0.1:11435 --models plain tooled

Each app has its own route and `num_ctx`, and uses all models, as an editor, a chat and a script do.
Each round begins with no model loaded, and asks the servers in turn with the same requests. A load
is a process `llama-server` below the server.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import urlsplit

import psutil

from bench.prefixes import WORDS, make_prefix

CONTEXTS = (None, 1024, 2048, 4096, 8192)
LOOK_S = 0.05


def call(server: str, path: str, body: dict | None = None) -> dict:
    """Send one request; return the response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.loads(response.read() or b"{}")


def make_app(models: list[str], number: int, requests: int, seed: int) -> list[tuple[str, dict]]:
    """Return the requests of one app, the same for the same seed."""
    chance = random.Random(1000 * seed + number)
    path = ("/api/chat", "/api/generate", "/v1/chat/completions")[number % 3]
    context = CONTEXTS[number % len(CONTEXTS)]
    made = []
    for _ in range(requests):
        words, tokens = chance.choice((5, 20, 60)), chance.choice((4, 16, 32))
        text = f"{make_prefix(words, chance.randrange(10**9))}: what is a {chance.choice(WORDS)}?"
        body: dict = {"model": chance.choice(models), "stream": False}
        talk = [{"role": "user", "content": text}]
        options = {"num_predict": tokens, "temperature": 0, "seed": 1}
        if path.startswith("/v1"):
            body |= {"messages": talk, "max_tokens": tokens, "temperature": 0, "seed": 1}
        else:
            body |= {"options": options | ({"num_ctx": context} if context else {})}
            body |= {"prompt": text} if path == "/api/generate" else {"messages": talk}
        made.append((path, body))
    return made


def run_app(server: str, requests: list[tuple[str, dict]]) -> None:
    """Send the requests of an app one after another."""
    for path, body in requests:
        call(server, path, body)


class Engines(threading.Thread):
    """Counts the engines that a server starts; use as a context manager."""

    def __init__(self, server: str) -> None:
        super().__init__(daemon=True)
        port = urlsplit(server).port
        self.server = next(
            psutil.Process(one.pid)
            for one in psutil.net_connections("tcp")
            if one.status == psutil.CONN_LISTEN and one.laddr.port == port
        )
        self.seen: set[int] = set()
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(LOOK_S):
            for child in self.server.children(recursive=True):
                if child.pid not in self.seen and child.name() == "llama-server":
                    self.seen.add(child.pid)

    def __enter__(self) -> Engines:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()


def unload(server: str) -> None:
    """Unload all models, and wait until none is left."""
    while loaded := call(server, "/api/ps")["models"]:
        for model in loaded:
            call(server, "/api/generate", {"model": model["name"], "keep_alive": 0})
        time.sleep(0.2)


def measure(server: str, apps: list[list[tuple[str, dict]]]) -> tuple[float, int]:
    """Return the seconds until all apps have their responses, and the number of loads."""
    unload(server)
    begun = time.perf_counter()
    with Engines(server) as engines, ThreadPoolExecutor(len(apps)) as pool:
        list(pool.map(partial(run_app, server), apps))
    return time.perf_counter() - begun, len(engines.seen)


def main() -> None:
    """Measure in interleaved rounds, and print a row for each server and the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("servers", nargs="+", metavar="URL", help="the first one is divided by")
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--apps", type=int, default=6)
    parser.add_argument("--requests", type=int, default=65, help="of each app")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    took: dict[str, list[tuple[float, int]]] = {server: [] for server in given.servers}
    for seed in range(given.rounds):
        apps = [make_app(given.models, n, given.requests, seed) for n in range(given.apps)]
        for server in given.servers:
            took[server].append(measure(server, apps))
    first = took[given.servers[0]]
    for server, rounds in took.items():
        ratios = [took_s / base_s for (took_s, _), (base_s, _) in zip(rounds, first, strict=True)]
        each = " ".join(f"{seconds:.1f} s, {loads} loads;" for seconds, loads in rounds)
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        print(f"{server}: {middle:.2f} × [{low:.2f} … {high:.2f}] ({each[:-1]})", flush=True)


if __name__ == "__main__":
    main()
