# SPDX-License-Identifier: MIT
"""Bursts of requests that begin with one new system prompt: seconds until the last has ended.

Several servers are asked in turn, so that what else the machine does falls on all of them. Each
burst has a prefix of its own, which no server has read before.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial

TEXT = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work number night"
)
WORDS = TEXT.split()


def make_prefix(words: int, seed: int) -> str:
    """Return a text of some words; another for each seed."""
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(words))


def ask(server: str, model: str, prefix: str, question: str) -> None:
    """Ask for 16 tokens, and wait for all of them."""
    talk = [{"role": "system", "content": prefix}, {"role": "user", "content": question}]
    options = {"num_predict": 16, "temperature": 0, "seed": 1}
    body = {"model": model, "messages": talk, "stream": False, "options": options}
    asked = urllib.request.Request(f"{server}/api/chat", json.dumps(body).encode())
    asked.add_header("content-type", "application/json")
    with urllib.request.urlopen(asked) as answer:
        answer.read()


def measure_burst(server: str, model: str, clients: int, prefix: str) -> float:
    """Return the seconds until all clients have their responses."""
    begun = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        questions = (f"What is a {word}?" for word in WORDS[:clients])
        list(pool.map(partial(ask, server, model, prefix), questions))
    return time.perf_counter() - begun


def main() -> None:
    """Measure, and print a row for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servers", nargs="+", metavar="URL")
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--words", type=int, default=900)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for server in given.servers:
        ask(server, given.model, "", "hi")  # it loads
    for clients in given.clients:
        took: dict[str, list[float]] = {server: [] for server in given.servers}
        for number in range(given.rounds):
            prefix = make_prefix(given.words, 1000 * clients + number)
            for server in given.servers:
                took[server].append(measure_burst(server, given.model, clients, prefix))
        for server, all_s in took.items():
            median, rounds = statistics.median(all_s), " ".join(f"{one:.2f}" for one in all_s)
            print(f"{clients} clients, {server}: {median:.2f} s ({rounds})", flush=True)


if __name__ == "__main__":
    main()
