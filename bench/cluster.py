# SPDX-License-Identifier: MIT
"""Which node gets a request: `vllama.targets.nodes.choose` on a cluster that is only simulated.

    python -m bench.cluster                     # 1,000 nodes, 10^6 requests a run: 15 minutes
    python -m bench.cluster --requests 50000    # a look

Events on a heap, no sockets and no clock. Three rules choose among the nodes that have the model on
their disk: vllama's; the node with the fewest requests for any model; and any node. Everything else
is the same, and what a node does with a request is what vllama's scheduler does: a model that is
not loaded takes the place of those that nobody uses, the longest unused first, and waits for one if
all are in use, while these take nothing that came later.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from vllama.lab.bench.findings import Metric, draw_chart, format_value
from vllama.targets.nodes.choose import ROOM, NodeView, choose_node

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "pictures" / "cluster.svg"
RESULTS = ROOT / "bench" / "results" / "nodes.md"
BEGIN, END = "<!-- bench.cluster: begin -->", "<!-- bench.cluster: end -->"
GB = 10**9

GPU_BYTES = 24 * GB
SLOTS = 4
MODELS = 300
SIZES_GB = (2, 5, 9, 17)
# vLLM on an H200 (docs/reference/engines.md): ready after 73 s, of which 2 s for 6 GB of weights
LOAD_S, READ_RATE = 71.0, 3 * GB
ANSWER_S = 20.0  # mean, log-normal
THINK_S = 30.0  # between an answer and the next turn of its conversation, mean
TURNS = 4.0  # of a conversation, mean
READ_AGAIN_S = 1.5  # for each earlier turn, on a node that has not answered it
WARM_UP = 0.3
"""The share of the requests that come before anything is counted: all nodes begin empty."""
LOADS = (0.5, 0.7, 0.9)
"""Of what the nodes could answer if each had one model loaded and never another one."""


@dataclass(slots=True)
class Request:
    """A turn of a conversation."""

    came_s: float
    model: int
    talk: int
    turn: int = 0
    counts: bool = False


@dataclass(slots=True)
class Engine:
    """A model in a node's memory; until `ready_s` it is loading."""

    ready_s: float
    busy: int = 0
    used_s: float = 0.0
    queue: deque[Request] = field(default_factory=deque)


@dataclass(slots=True)
class Node:
    """A machine; `waiting` has the requests for models that found no room."""

    name: str
    free: int = GPU_BYTES
    loaded: dict[int, Engine] = field(default_factory=dict)
    waiting: deque[Request] = field(default_factory=deque)
    requests: int = 0


def count_need(model: int) -> int:
    """Return the bytes of memory that a model takes."""
    return int(size_of(model) * ROOM)


def size_of(model: int) -> int:
    """Return the bytes of a model's files."""
    return SIZES_GB[model % len(SIZES_GB)] * GB


Rule = Callable[[Sequence[Node], int, str | None, random.Random], str]


def choose_as_vllama(nodes: Sequence[Node], model: int, known: str | None, _: object) -> str:
    """Choose with what the head of a cluster knows of its nodes."""
    rows = []
    for node in nodes:
        engine = node.loaded.get(model)
        rows.append(
            NodeView(
                name=node.name,
                loaded=engine is not None,
                slots=SLOTS,
                requests=engine.busy + len(engine.queue) if engine else 0,
                size_bytes=size_of(model),
                free=(node.free, 0),
            )
        )
    choice = choose_node(rows, known)
    assert choice is not None
    return choice.name


def choose_fewest(nodes: Sequence[Node], *_: object) -> str:
    """Choose the node with the fewest requests, as a proxy does that knows no models."""
    return min(nodes, key=lambda node: (node.requests, node.name)).name


def choose_any(nodes: Sequence[Node], _: int, __: str | None, dice: random.Random) -> str:
    """Choose by chance, as DNS does."""
    return dice.choice(nodes).name


RULES: dict[str, Rule] = {
    "vllama": choose_as_vllama,
    "fewest requests": choose_fewest,
    "by chance": choose_any,
}


DRAWN = ("vllama", "fewest requests")


class Cluster:
    """The simulation of one rule at one load."""

    def __init__(self, rule: Rule, load: float, nodes: int, requests: int, seed: int) -> None:
        self.rule, self.wanted = rule, requests
        self.dice, self.rule_dice = random.Random(seed), random.Random(seed)
        self.nodes = {f"n{place:04}": Node(f"n{place:04}") for place in range(nodes)}
        self.shares = [1 / (rank + 1) for rank in range(MODELS)]  # Zipf
        total = sum(self.shares)
        copies = [min(nodes, 3 + round(1.5 * nodes * share / total)) for share in self.shares]
        everybody = list(self.nodes.values())
        self.holders = [self.dice.sample(everybody, min(nodes, count)) for count in copies]
        self.rate = load * nodes * SLOTS / ANSWER_S / TURNS  # of new conversations
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers, self.talks = itertools.count(), itertools.count()
        self.now_s, self.sent = 0.0, 0
        self.known: dict[int, str] = {}
        self.waits: list[float] = []
        self.loads = self.evictions = self.moved = self.later_turns = 0
        self.choosing_s = 0.0

    def run(self) -> dict[str, float]:
        """Return the results of one run."""
        self.at(0.0, self.begin_talk)
        while self.events:
            self.now_s, _, action = heapq.heappop(self.events)
            action()
        cuts = statistics.quantiles(self.waits, n=100)
        counted = len(self.waits)
        return {
            "requests": self.sent,
            "wait p50": cuts[49],
            "wait p95": cuts[94],
            "wait p99": cuts[98],
            "loads": 1000 * self.loads / counted,
            "evictions": 1000 * self.evictions / counted,
            "moved": self.moved / max(1, self.later_turns),
            "choice_us": 1e6 * self.choosing_s / self.sent,
        }

    @property
    def is_warm(self) -> bool:
        """Whether what happens now counts."""
        return self.sent > self.wanted * WARM_UP

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Note what happens at some time."""
        heapq.heappush(self.events, (time_s, next(self.numbers), action))

    def begin_talk(self) -> None:
        """Begin a conversation, and set the time of the next one; at the end there is none."""
        if self.sent >= self.wanted:
            return
        (model,) = self.dice.choices(range(MODELS), self.shares)
        self.send(Request(self.now_s, model, next(self.talks)))
        self.at(self.now_s + self.dice.expovariate(self.rate), self.begin_talk)

    def send(self, request: Request) -> None:
        """Let the rule choose a node."""
        self.sent += 1
        request.counts = self.is_warm
        holders, known = self.holders[request.model], self.known.get(request.talk)
        begun_s = time.perf_counter()
        node = self.nodes[self.rule(holders, request.model, known, self.rule_dice)]
        self.choosing_s += time.perf_counter() - begun_s
        if request.turn and request.counts:
            self.later_turns += 1
            self.moved += node.name != known
        node.requests += 1
        self.queue(node, request)

    def queue(self, node: Node, request: Request) -> None:
        """Let a request wait on its node."""
        node.waiting.append(request)
        self.settle(node)

    def settle(self, node: Node) -> None:
        """Give the requests of a node engines as long as there is room, and start what may start.

        One that finds no room does not let later ones load another model before it.
        """
        self.start_all(node)  # before what waits takes an idle engine's place
        waiting, node.waiting = node.waiting, deque()
        for request in sorted(waiting, key=lambda one: one.came_s):
            engine = node.loaded.get(request.model)
            if engine is None and not node.waiting:
                engine = self.load(node, request.model)
            if engine is None:
                node.waiting.append(request)
            else:
                engine.queue.append(request)
        self.start_all(node)

    def start_all(self, node: Node) -> None:
        """Start what may start on a node."""
        for engine in list(node.loaded.values()):
            self.start_next(node, engine)

    def load(self, node: Node, model: int) -> Engine | None:
        """Begin to load a model; None if those in use leave no room."""
        need = count_need(model)
        idle = sorted((one.used_s, key) for key, one in node.loaded.items() if not one.busy)
        room, gone = node.free, []
        for _, key in idle:
            if room >= need:
                break
            if node.loaded[key].ready_s <= self.now_s:
                room += count_need(key)
                gone.append(key)
        if room < need:
            return None
        for key in gone:
            node.free += count_need(key)
            node.waiting.extend(node.loaded.pop(key).queue)
        self.evictions += self.is_warm * len(gone)
        self.loads += self.is_warm
        node.free -= need
        ready_s = self.now_s + LOAD_S + size_of(model) / READ_RATE
        engine = node.loaded[model] = Engine(ready_s, used_s=ready_s)
        self.at(ready_s, lambda: self.settle(node))
        return engine

    def start_next(self, node: Node, engine: Engine) -> None:
        """Start what may start: nothing that came after a request that waits for room."""
        while engine.queue and engine.busy < SLOTS and engine.ready_s <= self.now_s:
            if node.waiting and node.waiting[0].came_s < engine.queue[0].came_s:
                break
            request = engine.queue.popleft()
            engine.busy += 1
            if request.counts:
                self.waits.append(self.now_s - request.came_s)
            answer_s = self.dice.lognormvariate(math.log(ANSWER_S) - 0.5, 1.0)
            if self.known.get(request.talk) != node.name:
                answer_s += READ_AGAIN_S * request.turn
            self.known[request.talk] = node.name
            self.at(self.now_s + answer_s, lambda done=request: self.end(node, engine, done))

    def end(self, node: Node, engine: Engine, request: Request) -> None:
        """End an answer; its conversation goes on or not."""
        engine.busy -= 1
        engine.used_s = self.now_s
        node.requests -= 1
        if self.dice.random() < 1 - 1 / TURNS:
            back_s = self.now_s + self.dice.expovariate(1 / THINK_S)
            turn = Request(back_s, request.model, request.talk, request.turn + 1)
            self.at(back_s, lambda: self.send(turn))
        else:
            self.known.pop(request.talk, None)
        self.settle(node)


def measure(task: tuple[str, float, int, int, int]) -> dict[str, float]:
    """Run one simulation, in a process of its own."""
    name, load, nodes, requests, seed = task
    return Cluster(RULES[name], load, nodes, requests, seed).run()


def make_findings(results: dict[tuple[str, float], dict[str, float]]) -> list[Metric]:
    """Return the waiting times as what `vllama bench` draws."""
    return [
        Metric(
            metric=f"{metric}, load {load:.0%}",
            unit="s",
            values={rule: {0: results[rule, load][metric]} for rule in DRAWN},
        )
        for load in LOADS
        for metric in ("wait p95", "wait p99")
    ]


def write_section(results: dict[tuple[str, float], dict[str, float]], nodes: int) -> str:
    """Return the section of the results."""
    lines = [
        "| load | rule | requests | wait p50 | p95 | p99 | loads | evictions | moved |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (rule, load), row in results.items():
        waits = (format_value(row[f"wait {part}"], "s") for part in ("p50", "p95", "p99"))
        lines += [
            f"| {load:.0%} | {rule} | {row['requests']:,.0f} | {' | '.join(waits)} | "
            f"{row['loads']:.2f} | {row['evictions']:.2f} | {row['moved']:.1%} |"
        ]
    cost = statistics.median(
        row["choice_us"] for (rule, _), row in results.items() if rule == "vllama"
    )
    lines += [
        "",
        f"`python -m bench.cluster --write`: {nodes:,} nodes of {GPU_BYTES // GB} GB with {SLOTS} "
        f"slots a model; {MODELS} models of {SIZES_GB[0]} to {SIZES_GB[-1]} GB, as popular as Zipf "
        f"has it, the first on a quarter of the disks, the last on three. A load takes "
        f"{LOAD_S:.0f} s and {READ_RATE // GB} GB/s, as measured with vLLM on an H200; an answer "
        f"{ANSWER_S:.0f} s, a conversation has {TURNS:.0f} turns. Waits include loads. Loads "
        "and evictions are those of 1,000 requests; `moved` is the share of later turns "
        f"that another node answered. A choice took {cost:.0f} µs. By chance the nodes never "
        "catch up, so the picture leaves that out.",
        "",
        "![waiting times as bars](../../docs/pictures/cluster.svg)",
    ]
    return "\n".join(lines)


def main() -> None:
    """Simulate each rule at each load; print the table, or write it with --write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=10**6, help="of each run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="into RESULTS.md, with a picture")
    given = parser.parse_args()
    keys = [(rule, load) for load in LOADS for rule in RULES]
    tasks = [(rule, load, given.nodes, given.requests, given.seed) for rule, load in keys]
    with ProcessPoolExecutor() as pool:
        results = dict(zip(keys, pool.map(measure, tasks), strict=True))
    if given.json:
        print(json.dumps([{"rule": r, "load": n} | row for (r, n), row in results.items()]))
        return
    section = write_section(results, given.nodes)
    print(section)
    if given.write:
        before, _, rest = RESULTS.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        RESULTS.write_text(f"{before}{BEGIN}\n{section}\n{END}{after}")
        title = f"Time until an answer starts, {given.nodes:,} nodes simulated"
        PICTURE.write_text(draw_chart(make_findings(results), DRAWN, title))


if __name__ == "__main__":
    main()
