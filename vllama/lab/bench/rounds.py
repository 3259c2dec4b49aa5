"""The rounds of a measurement. In each round every server does every step, one after another.

The state of a machine changes within minutes. Only values of the same round are therefore compared,
and the servers take turns at going first. Memory is the proportional set size (PSS) of the server's
whole process tree, in which each shared page counts once; only Linux reports it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import psutil

from vllama.base.errors import ModelNotFound, ServerUnreachable, VllamaError
from vllama.base.units import format_duration
from vllama.cli.client import Client
from vllama.lab.bench.load import ask, ask_all, make_messages
from vllama.models.names.ref import list_spellings

Row = dict[str, Any]
"""The results of one server in one step of one round: `round`, `side`, `step`, and the values."""

MIN_REQUESTS = 4
"""A single client sends several requests, so that its first token is a median."""
LOAD_TOKENS = 8
"""Length of an answer of which only the first token counts."""
KEEP_ALIVE = "1h"
"""A model must not be unloaded as idle while the other servers are measured."""
KEEP_ALIVE_AFTERWARDS = "5m"
"""The default of Ollama and of vllama."""
MOST_REPEATS = 2
"""Of a measurement in which the model was loaded again."""
FEW_SLOTS = 4
"""Requests that a server is taken to answer at once, to guess how long a measurement takes."""
UNLOAD_LIMIT_S = 60.0
POLL_S = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """Order of a measurement; `salt` makes the prompts differ from those of any other run."""

    model: str
    clients: tuple[int, ...]
    prompts: tuple[str, ...]
    rounds: int
    tokens: int
    swap: str | None
    salt: str

    def body(self, prompt: str, key: str) -> dict[str, object]:
        """Return a request for a greedy answer of limited length."""
        return {
            "model": self.model,
            "messages": make_messages(prompt, f"{self.salt} {key}"),
            "options": {"temperature": 0, "num_predict": self.tokens},
            "think": False,
            "keep_alive": KEEP_ALIVE,
        }

    def brief(self, key: str, model: str) -> dict[str, object]:
        """Return a request to either model of which only the first token counts."""
        options = {"temperature": 0, "num_predict": LOAD_TOKENS}
        return self.body("short", key) | {"model": model, "options": options}


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """A server and its name in the table; `memory` is None where it cannot be measured."""

    name: str
    server: Client
    memory: TreeMemory | None

    def list_loaded(self) -> dict[str, int]:
        """Return the loaded models, with the bytes of each on a GPU."""
        rows = self.server.get("/api/ps").get("models") or []
        return {str(row.get("name")): int(row.get("size_vram") or 0) for row in rows}

    def list_engines(self, model: str) -> list[tuple[object, object]]:
        """Return process and restarts of what serves a model; empty if the server does not tell."""
        wanted = list_spellings(model)
        return [
            (row["pid"], row.get("restarts"))
            for row in self.server.get("/api/ps").get("models") or []
            if row.get("pid") and wanted & list_spellings(str(row["name"]))
        ]

    def memory_bytes(self) -> int | None:
        """Return the memory that the server holds now."""
        try:
            return self.memory.read() if self.memory else None
        except NotMeasured:
            return None


@dataclass(frozen=True, slots=True)
class RoundStep:
    """A part of a round; `run` gets the server and a key that makes the prompts distinct."""

    title: str
    run: Callable[[Side, str], Row]


def warm_up(order: Order, sides: Sequence[Side], report: Callable[[str], object]) -> float:
    """Bring the servers to the state that is measured; return how long the rounds may take, in s.

    The models' files are in the page cache then, and a server that loads a model again because
    several requests come at once has done so. Raises VllamaError.
    """
    round_s = 0.0
    for side in sides:
        for model in (order.swap, order.model):
            if model:
                report(f"{side.name}: loading {model}")
                with naming_failures(side.name, f"loading {model}"):
                    begun_s = time.monotonic()
                    ask(side.server, order.brief("warm-up", model))
                    round_s += time.monotonic() - begun_s
        with naming_failures(side.name, "warm-up"):
            for prompt in order.prompts:
                report(f"{side.name}: warming up, {prompt} prompts")
                begun_s = time.monotonic()
                ask(side.server, order.body(prompt, "warm-up"))
                answer_s = time.monotonic() - begun_s
                for clients in order.clients:
                    turns = max(clients, MIN_REQUESTS) / min(clients, FEW_SLOTS)
                    round_s += answer_s * turns
            warm_clients(order, side, max(order.clients), "warm-up")
    return order.rounds * round_s


def warm_clients(order: Order, side: Side, clients: int, key: str) -> None:
    """Send requests of so many clients at once, unmeasured."""
    bodies = [order.brief(f"{key} {number} warm", order.model) for number in range(clients)]
    ask_all(side.server, bodies, clients)


def measure(order: Order, sides: Sequence[Side], report: Callable[[str], object]) -> list[Row]:
    """Do all rounds, and call `report` with the progress. Raises VllamaError."""
    steps = make_steps(order)
    rows: list[Row] = []
    begun_s, total = time.monotonic(), order.rounds * len(steps) * len(sides)
    for number in range(order.rounds):
        for place, step in enumerate(steps):
            turn = sides if (number + place) % 2 == 0 else sides[::-1]
            for side in turn:
                left = describe_left(time.monotonic() - begun_s, len(rows), total)
                report(f"round {number + 1} of {order.rounds}{left}: {side.name}, {step.title}")
                with naming_failures(side.name, step.title):
                    values = step.run(side, f"{number} {place}")
                rows.append({"round": number, "side": side.name, **values})
    for side in sides:
        with naming_failures(side.name, "the end"):
            body = {"model": order.model, "keep_alive": KEEP_ALIVE_AFTERWARDS}
            side.server.post("/api/generate", body)
    return rows


def describe_left(passed_s: float, done: int, total: int) -> str:
    """Return how long `total` steps will still take if all take as long as those that are done."""
    if not done:
        return ""
    left_s = passed_s / done * (total - done)
    return f", {format_duration(math.ceil(left_s / 10) * 10).lower()} left"


@contextmanager
def naming_failures(name: str, step: str) -> Iterator[None]:
    """Add the name of the server and of the step to errors."""
    try:
        yield
    except ServerUnreachable as error:
        raise ServerUnreachable(
            f"cannot measure {name}: {error.message}", hint="start it, or correct its address"
        ) from error
    except VllamaError as error:
        hint = error.hint
        if isinstance(error, ModelNotFound):
            hint = "pull the model, with the same name, on every server"
        raise VllamaError(f"cannot measure {name}: {step}: {error.message}", hint=hint) from error


def make_steps(order: Order) -> list[RoundStep]:
    """Return the steps of each round."""
    steps = [RoundStep("cold load", partial(measure_cold_load, order))]
    for prompt in order.prompts:
        for clients in order.clients:
            title = "1 client" if clients == 1 else f"{clients} clients"
            run = partial(measure_answers, order, prompt, clients)
            steps.append(RoundStep(f"{title}, {prompt} prompts", run))
    if order.swap:
        steps.append(RoundStep("swap of models", partial(measure_swap, order, order.swap)))
    return steps


def measure_answers(order: Order, prompt: str, clients: int, side: Side, key: str) -> Row:
    """Measure the answers to several clients at once, after a warm-up with as many.

    A measurement in which the model was loaded again is repeated; `reloads` counts those.
    """
    count, reloads = max(clients, MIN_REQUESTS), 0
    while True:
        warm_clients(order, side, clients, f"{key} {reloads}")
        bodies = [order.body(prompt, f"{key} {reloads} {number}") for number in range(count)]
        before = side.list_engines(order.model)
        values = ask_all(side.server, bodies, clients)
        is_clean = side.list_engines(order.model) == before
        reloads += not is_clean
        if is_clean or reloads > MOST_REPEATS:
            break
    return {
        "step": "answers",
        "prompt": prompt,
        "clients": clients,
        **values,
        "reloads": reloads,
        "memory_bytes": side.memory_bytes(),
    }


def measure_cold_load(order: Order, side: Side, key: str) -> Row:
    """Unload the model, then measure the time to the first token of a short prompt."""
    before = side.list_loaded()
    side.server.post("/api/generate", {"model": order.model, "keep_alive": 0})
    deadline = time.monotonic() + UNLOAD_LIMIT_S
    while set(before) <= side.list_loaded().keys():
        if time.monotonic() > deadline:
            raise VllamaError(f"the model is still loaded after {UNLOAD_LIMIT_S:.0f} s")
        time.sleep(POLL_S)
    seconds = ask(side.server, order.brief(key, order.model)).first_token_s
    return {
        "step": "load",
        "seconds": seconds,
        "memory_bytes": side.memory_bytes(),
        "gpu_bytes": sum(side.list_loaded().values()),
    }


def measure_swap(order: Order, other: str, side: Side, key: str) -> Row:
    """Measure the mean time to the first token after a change to the other model and back.

    The time is None if the server keeps both models loaded.
    """
    times = []
    for model in (other, order.model):
        before = side.list_loaded()
        times.append(ask(side.server, order.brief(f"{key} {model}", model)).first_token_s)
        if set(before) <= side.list_loaded().keys():
            return {"step": "swap", "seconds": None}
    return {"step": "swap", "seconds": sum(times) / len(times)}


LOOPBACK = ("127.0.0.1", "::1", "localhost")


class NotMeasured(Exception):
    """The memory cannot be measured, for the reason in the text."""


class TreeMemory:
    """The process tree of the server that listens at `url`. All methods raise NotMeasured."""

    def __init__(self, url: str) -> None:
        if not sys.platform.startswith("linux"):
            raise NotMeasured("only Linux reports the memory of processes that share pages")
        parts = urlsplit(url)
        if parts.hostname not in LOOPBACK:
            raise NotMeasured(f"{parts.hostname} is another machine")
        self._root = _find_listener(parts.port or 80)
        self.read()

    def read(self) -> int:
        """Return the bytes that the tree holds now."""
        try:
            tree = [self._root, *self._root.children(recursive=True)]
            total = 0
            for process in tree:
                with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                    total += process.memory_full_info().pss
        except psutil.AccessDenied:
            raise NotMeasured("only root can measure vllama, or another user's server") from None
        except psutil.NoSuchProcess:
            raise NotMeasured("the server has stopped") from None
        return total


def _find_listener(port: int) -> psutil.Process:
    pids = [
        connection.pid
        for connection in psutil.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
    ]
    if not pids:
        raise NotMeasured(f"no process on this machine listens on port {port}")
    pid = next((pid for pid in pids if pid), None)
    if pid is None:
        raise NotMeasured("only root can measure vllama, or another user's server")
    return psutil.Process(pid)
