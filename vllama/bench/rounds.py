"""The rounds of a measurement: in each one every server does every step, one after another.

The state of a machine changes within minutes, so only values of one round are compared, and the
servers take turns in going first. Memory is the proportional set size (PSS) of the server's whole
process tree, in which each shared page counts once; only Linux reports it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import psutil

from vllama.bench.load import Server, ask, ask_all, messages
from vllama.errors import ModelNotFound, ServerUnreachable, VllamaError

Row = dict[str, Any]
"""What one server did in one step of one round: `round`, `side`, `step`, and the values."""

FEWEST_REQUESTS = 4
"""A single client asks several times, so that its first token is the median of several."""
LOAD_TOKENS = 8
"""Of an answer of which only the first token counts."""
STAYS = "1h"
"""A model must not be unloaded for being idle while the other servers are asked."""
STAYS_AFTERWARDS = "5m"
"""Ollama's own time, also vllama's."""
GONE_LIMIT_S = 60.0
LOOK_EVERY_S = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What to measure. `salt` makes the prompts of this run differ from those of any other."""

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
            "messages": messages(prompt, f"{self.salt} {key}"),
            "options": {"temperature": 0, "num_predict": self.tokens},
            "think": False,
            "keep_alive": STAYS,
        }

    def brief(self, key: str, model: str) -> dict[str, object]:
        """Return a request of which only the first token counts, of any of the two models."""
        options = {"temperature": 0, "num_predict": LOAD_TOKENS}
        return self.body("short", key) | {"model": model, "options": options}


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """A server, as the table calls it; `memory` is None where it cannot be told."""

    name: str
    server: Server
    memory: Memory | None

    def loaded(self) -> dict[str, int]:
        """Return the models that are loaded, and the bytes of each on a GPU."""
        rows = self.server.get("/api/ps").get("models") or []
        return {str(row.get("name")): int(row.get("size_vram") or 0) for row in rows}

    def memory_bytes(self) -> int | None:
        """Return the memory held now."""
        try:
            return self.memory.read() if self.memory else None
        except NotMeasured:
            return None


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a round; `run` gets the server and what makes the prompts distinct."""

    title: str
    run: Callable[[Side, str], Row]


def warm_up(order: Order, sides: Sequence[Side], hear: Callable[[str], object]) -> None:
    """Load the models once, so that their files are in the page cache. Raises VllamaError."""
    for side in sides:
        for model in (order.swap, order.model):
            if model:
                hear(f"{side.name}: loading {model}")
                with failing(side.name, f"loading {model}"):
                    ask(side.server, order.brief("warm-up", model))


def measure(order: Order, sides: Sequence[Side], hear: Callable[[str], object]) -> list[Row]:
    """Do all rounds; `hear` is told what is being done. Raises VllamaError."""
    steps = steps_of(order)
    rows = []
    for number in range(order.rounds):
        for place, step in enumerate(steps):
            turn = sides if (number + place) % 2 == 0 else sides[::-1]
            for side in turn:
                hear(f"round {number + 1} of {order.rounds}: {side.name}, {step.title}")
                with failing(side.name, step.title):
                    values = step.run(side, f"{number} {place}")
                rows.append({"round": number, "side": side.name, **values})
    for side in sides:
        with failing(side.name, "the end"):
            body = {"model": order.model, "keep_alive": STAYS_AFTERWARDS}
            side.server.post("/api/generate", body)
    return rows


@contextmanager
def failing(name: str, what: str) -> Iterator[None]:
    """Say in an error which server it is about, and what was being done."""
    try:
        yield
    except ServerUnreachable as error:
        raise ServerUnreachable(
            f"cannot measure {name}: it does not answer", hint="start it, and check its address"
        ) from error
    except VllamaError as error:
        hint = error.hint
        if isinstance(error, ModelNotFound):
            hint = "the model must be there, under the same name, on every server"
        raise VllamaError(f"cannot measure {name}: {what}: {error.message}", hint=hint) from error


def steps_of(order: Order) -> list[Step]:
    """Return the steps of each round."""
    found = [Step("cold load", partial(cold_load, order))]
    for prompt in order.prompts:
        for clients in order.clients:
            who = "1 client" if clients == 1 else f"{clients} clients"
            found.append(Step(f"{who}, {prompt} prompts", partial(answers, order, prompt, clients)))
    if order.swap:
        found.append(Step("swap of models", partial(swap, order, order.swap)))
    return found


def answers(order: Order, prompt: str, clients: int, side: Side, key: str) -> Row:
    """Ask from so many clients at once."""
    count = max(clients, FEWEST_REQUESTS)
    bodies = [order.body(prompt, f"{key} {number}") for number in range(count)]
    return {
        "step": "answers",
        "prompt": prompt,
        "clients": clients,
        **ask_all(side.server, bodies, clients),
        "memory_bytes": side.memory_bytes(),
    }


def cold_load(order: Order, side: Side, key: str) -> Row:
    """Unload the model, then take the time to the first token of a short prompt."""
    before = side.loaded()
    side.server.post("/api/generate", {"model": order.model, "keep_alive": 0})
    deadline = time.monotonic() + GONE_LIMIT_S
    while set(before) <= side.loaded().keys():
        if time.monotonic() > deadline:
            raise VllamaError(f"the model is still loaded after {GONE_LIMIT_S:.0f} s")
        time.sleep(LOOK_EVERY_S)
    seconds = ask(side.server, order.brief(key, order.model)).first_token_s
    return {
        "step": "load",
        "seconds": seconds,
        "memory_bytes": side.memory_bytes(),
        "gpu_bytes": sum(side.loaded().values()),
    }


def swap(order: Order, other: str, side: Side, key: str) -> Row:
    """Ask for the other model, and for the first one again: the mean time to the first token.

    None where the server keeps both loaded, which is no swap.
    """
    times = []
    for model in (other, order.model):
        before = side.loaded()
        times.append(ask(side.server, order.brief(f"{key} {model}", model)).first_token_s)
        if set(before) <= side.loaded().keys():
            return {"step": "swap", "seconds": None}
    return {"step": "swap", "seconds": sum(times) / len(times)}


LOOPBACK = ("127.0.0.1", "::1", "localhost")


class NotMeasured(Exception):
    """The memory cannot be told; the text says why."""


class Memory:
    """The process tree of the server that listens at `url`. Raises NotMeasured, all of it."""

    def __init__(self, url: str) -> None:
        if not sys.platform.startswith("linux"):
            raise NotMeasured("only Linux tells the memory of processes that share pages")
        parts = urlsplit(url)
        if parts.hostname not in LOOPBACK:
            raise NotMeasured(f"{parts.hostname} is not this machine")
        self._root = _listener(parts.port or 80)
        self.read()

    def read(self) -> int:
        """Return the bytes that the tree holds now."""
        try:
            tree = [self._root, *self._root.children(recursive=True)]
            total = 0
            for process in tree:
                with suppress(psutil.NoSuchProcess):  # it has ended since
                    total += process.memory_full_info().pss
        except psutil.AccessDenied:
            raise NotMeasured("the server belongs to another user") from None
        except psutil.NoSuchProcess:
            raise NotMeasured("the server has ended") from None
        return total


def _listener(port: int) -> psutil.Process:
    found = [
        connection.pid
        for connection in psutil.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
    ]
    if not found:
        raise NotMeasured(f"no process of this machine listens on port {port}")
    pid = next((pid for pid in found if pid), None)
    if pid is None:
        raise NotMeasured(f"what listens on port {port} belongs to another user")
    return psutil.Process(pid)
