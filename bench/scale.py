# SPDX-License-Identifier: MIT
"""Measure what a request costs as the things around it grow: `make bench-scale`.

    python -m bench.scale --only keys,nodes --sizes 10,1000

Each axis makes one thing large (models of each kind of store, keys, connections, nodes, ...) and
starts a server for each size. Figures are CPU times of the server's processes (user and system), so
that other work on the machine disturbs them little; each is the median of some rounds. The slope
tells by which power of the size a cost grows from the smallest to the largest: 0 is flat, 1 linear.
A limit is a multiple of the figure of the smallest size, or ms at the largest. Prints a table;
exits with 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import math
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import scale_stores as stores
from bench.lab import FILL, ROOT, Lab, free_port, ready, say
from bench.watch import usage
from vllama.base import private

SERVED = "synthetic/model-8b"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
IDLE_S = 3.0
SETTLED_MS = 20.0  # in a second


@dataclass
class Server:
    """A running server with a home of its own; requests have `headers`."""

    home: Path
    port: int
    pid: int
    headers: dict[str, str] = field(default_factory=dict)

    def send(self, method: str, path: str, body: bytes | None = None, status: int = 200) -> None:
        """Send a request and read its response, which has this status."""
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        ) as sent:
            sent.request(method, path, body, self.headers)
            response = sent.getresponse()
            content = response.read()
        if response.status != status:
            raise SystemExit(f"{method} {path}: {response.status} {content[:300]!r}")

    def used_ms(self) -> float:
        """Return the CPU time that its processes have used."""
        return usage(self.pid)[0] * 1000


Act = Callable[[Server, int], Any]


@contextlib.contextmanager
def keep_connections(server: Server, size: int) -> Iterator[None]:
    """Hold so many idle connections."""
    with contextlib.ExitStack() as stack:
        for _ in range(size):
            held = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            held.sendall(b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            held.recv(4096)
        yield


def ask(path: str) -> Act:
    """Return an act that sends one request."""
    return lambda server, size: server.send("GET", path)


def ask_unknown(server: Server, size: int) -> None:
    """Ask about a model that does not exist."""
    server.send("POST", "/api/show", b'{"model": "none"}', 404)


def chat(server: Server, size: int, content: str = "Say something.", images: Any = ()) -> None:
    """Send a chat that is answered with a few tokens."""
    message = {"role": "user", "content": content, "images": images}
    body = {"model": SERVED, "messages": [message], "stream": False, "options": {"num_predict": 4}}
    server.send("POST", "/api/chat", json.dumps(body).encode())


def chat_with_last_key(server: Server, size: int) -> None:
    """Send a chat with the key that comes last in the file."""
    server.headers = {"authorization": f"Bearer sk-{size - 1}"}
    chat(server, size)


def chat_after_change(server: Server, size: int) -> None:
    """Send a chat after the file of the keys was written anew."""
    file = server.home / "data" / "keys.json"
    private.replace(file, file.read_bytes())
    chat_with_last_key(server, size)


def chat_of_tokens(server: Server, size: int) -> None:
    """Send a conversation of so many tokens of four characters."""
    chat(server, size, "abc " * size)


def chat_of_images(server: Server, size: int) -> None:
    """Send images of so many MB."""
    chat(server, size, images=[base64.b64encode(PNG + bytes(size * 1_000_000)).decode()])


def copy_model(server: Server, size: int) -> None:
    """Copy a model to a name that is new."""
    server.send(
        "POST",
        "/api/copy",
        json.dumps({"source": "copy:0", "destination": f"new:{time.time_ns()}"}).encode(),
    )


def stream(server: Server, size: int) -> float:
    """Return the CPU in µs that a token takes with so many streams."""
    words = ("--api", "ollama-chat", "--streams", str(size), "--tokens", "100", "--ramp", "1")
    command = [sys.executable, "-m", "bench.load", f"http://127.0.0.1:{server.port}", *words]
    command += ["--watch", f"front={server.pid}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["watch"]["front"]["cpu_us_per_token"]


@dataclass(frozen=True)
class Row:
    """What is done at each size, and its limit: at most `times` that of the smallest, or `ms`."""

    name: str
    act: Act
    times: float | None = None
    ms: float | None = None
    repeat: int = 20


@dataclass(frozen=True)
class Axis:
    """What grows: `fill` writes it, `flags` and `around` are for the server and beside it."""

    name: str
    sizes: tuple[int, ...]
    rows: tuple[Row, ...]
    fill: Callable[[Path, int], None] = lambda home, size: None
    around: Callable[[Server, int], contextlib.AbstractContextManager[Any]] = lambda server, size: (
        contextlib.nullcontext()
    )
    has_nodes: bool = False


STARTS = (Row("start", chat, times=1.3), Row("all read", chat), Row("a second idle", chat, ms=5))
CHAT = Row("chat", chat, times=1.1)
MODEL_ROWS = (
    CHAT,
    Row("GET /api/tags", ask("/api/tags"), ms=60),
    Row("request for an unknown name", ask_unknown, ms=20),
)
MODELS = (10, 300, 3000)
AXES = (
    Axis("models in folders", MODELS, MODEL_ROWS, stores.fill_folder),
    Axis("own models", MODELS, (*MODEL_ROWS, Row("copy", copy_model, ms=50)), stores.fill_own),
    Axis("models of Ollama", MODELS, MODEL_ROWS, stores.fill_ollama),
    Axis("models of the hub's cache", MODELS, MODEL_ROWS, stores.fill_hub),
    Axis(
        "keys",
        (10, 1000, 50_000),
        (
            Row("chat", chat_with_last_key, times=1.1),
            Row("chat after a change", chat_after_change, ms=500, repeat=3),
        ),
        stores.fill_keys,
    ),
    Axis(
        "days of usage",
        (10, 90, 365),
        (CHAT, Row("GET /api/usage", ask("/api/usage"))),
        stores.fill_usage,
    ),
    Axis("idle connections", (1, 100, 2000), (CHAT,), around=keep_connections),
    Axis("streams", (1, 64, 512), (Row("token", stream, times=1.1, repeat=1),)),
    Axis(
        "tokens of a conversation", (1000, 16_000, 128_000), (Row("chat", chat_of_tokens, ms=100),)
    ),
    Axis("MB of images", (1, 10, 30), (Row("chat", chat_of_images, ms=1000, repeat=3),)),
    Axis(
        "nodes", (2, 20, 100), (CHAT, Row("GET /api/tags", ask("/api/tags"), ms=60)), has_nodes=True
    ),
)


def measure(axis: Axis, size: int, lab: Lab, rounds: int) -> dict[str, float]:
    """Return the CPU in ms of each row at that size."""
    home = lab.tmp / f"{axis.name.replace(' ', '-').replace(chr(39), '')}-{size}"
    home.mkdir()
    axis.fill(home, size)
    with contextlib.ExitStack() as stack:
        flags = ["--upstream", lab.engine_url]
        if axis.has_nodes:
            key = home / "node.key"
            private.replace(key, b"sk-node")
            node = stack.enter_context(
                serve(
                    lab, home / "node", [*flags, "--host", "0.0.0.0", "--node-key-file", str(key)]
                )
            )
            flags = ["--no-local", "--node-key-file", str(key)]
            flags += [
                word
                for n in range(size)
                for word in ("--node", f"http://127.0.0.{n + 1}:{node.port}")
            ]
        server = stack.enter_context(serve(lab, home, flags))
        found = {"start": server.used_ms(), "all read": settle(server)}
        time.sleep(IDLE_S)
        found["a second idle"] = (server.used_ms() - found["all read"]) / IDLE_S
        if axis.has_nodes:
            server.headers = {"authorization": "Bearer sk-node"}
        stack.enter_context(axis.around(server, size))
        for row in axis.rows:
            found[row.name] = cost(server, row, size, rounds)
    return found


def settle(server: Server) -> float:
    """Wait until the server has read what it reads in the background; return its CPU in ms."""
    used_ms = 0.0
    while server.used_ms() - used_ms > SETTLED_MS:
        used_ms = server.used_ms()
        time.sleep(1)
    return server.used_ms()


def cost(server: Server, row: Row, size: int, rounds: int) -> float:
    """Return the CPU in ms of one act: the median of the rounds; an act may know it by itself."""
    row.act(server, size)
    figures = []
    for _ in range(rounds):
        before_ms, told = server.used_ms(), None
        for _ in range(row.repeat):
            told = row.act(server, size)
        figures.append((server.used_ms() - before_ms) / row.repeat if told is None else told)
    return statistics.median(figures)


@contextlib.contextmanager
def serve(lab: Lab, home: Path, flags: Sequence[str]) -> Iterator[Server]:
    """Run a server until the context ends."""
    port = free_port()
    home.mkdir(exist_ok=True)
    command = [FILL["vllama"], "serve", "--port", str(port), *flags]
    process = lab.spawn(command, f"{home.name}.log", stores.own(home))
    if not ready(port, "/api/version", process, 60):
        raise SystemExit((lab.tmp / f"{home.name}.log").read_text()[-800:])
    try:
        yield Server(home, port, process.pid)
    finally:
        process.terminate()
        process.wait(30)


def judge(row: Row, sizes: Sequence[int], figures: Sequence[float]) -> tuple[str, bool]:
    """Return the end of a table's line, slope and limit, and whether the limit holds."""
    slope = math.log(figures[-1] / max(figures[0], 1e-3)) / math.log(sizes[-1] / sizes[0])
    if row.times is not None:
        holds = figures[-1] <= row.times * figures[0]
        limit = f"{row.times} ×"
    elif row.ms is not None:
        holds, limit = figures[-1] <= row.ms, f"{row.ms:g} ms"
    else:
        holds, limit = True, ""
    return f"{slope:.2f} | {limit}{'' if holds else ' **missed**'}", holds


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--only", help="some axes, by words of their names, with commas between")
    p.add_argument("--sizes", help="in place of those of the axes, with commas between")
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()
    wanted = a.only.split(",") if a.only else [""]
    all_hold = True
    print("| What grows | Cost | at each size: CPU in ms | Slope | Limit |")
    print("| --- | --- | --- | --- | --- |")
    for axis in AXES:
        if not any(word in axis.name for word in wanted):
            continue
        sizes = tuple(map(int, a.sizes.split(","))) if a.sizes else axis.sizes
        with Lab("--rate 0") as lab:
            found = []
            for size in sizes:
                say(f"{axis.name}: {size}")
                found.append(measure(axis, size, lab, a.rounds))
        for row in (*STARTS, *axis.rows):
            figures = [one[row.name] for one in found]
            end, holds = judge(row, sizes, figures)
            all_hold &= holds
            cells = ", ".join(
                f"{size:,}: {value:.2f}" for size, value in zip(sizes, figures, strict=True)
            )
            print(f"| {axis.name} | {row.name} | {cells} | {end} |", flush=True)
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
