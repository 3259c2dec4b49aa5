"""A storm: clients that ask, leave and unload at random, while engines are killed and frozen.

Everything random comes from one seed. `python -m tests.chaos.storm --seconds 600` is `make soak`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
import psutil

from tests.chaos import asks
from tests.chaos.asks import CHATS, VECTORS, Answer, orphans, report
from tests.server_process import Server
from vllama.chat.templates.jinja.worker_process import PROGRAM

MODELS = ("wide-a", "wide-b", "serial-c")
MAX_LOADED = 2
HOLD_MB = 24
# one engine of Python, its memory, and the children that it forks
ENGINE_BYTES = (HOLD_MB + 150) * 1024**2
CLIENTS = 16
MAX_TOKENS = 100
SERVED_LIMIT_S = 240.0
MORE_FDS = 4
"""Handles that may be open after a storm, and were not before it."""
SETTLED_S = 60.0
SWITCHES = (
    "--ready-after", "0.2", "--hold", str(HOLD_MB), "--token-interval", "0.002",
    "--spawn-child", "--spawn-setsid",
)  # fmt: skip
# what goes wrong with the next start of an engine
BAD_STARTS = (
    ("--exit-before-ready", "--exit-code", "3"),
    ("--die-after", "3"),
    ("--stall-after", "2"),
    ("--error-after-200",),
    ("--ready-after", "1.5"),
)


class Storm:
    """One run against one server; `wrong` collects whatever must not happen."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.wrong: list[str] = []
        self.seen: Counter[str] = Counter()
        self.pids = server.home / "pids"

    def prepare(self) -> None:
        """Make the models."""
        for name in MODELS:
            self.server.model(name, *SWITCHES, "--pids", str(self.pids))

    async def rage(self, seconds: float) -> None:
        """Let it rage, then check that everything is served again."""
        async with httpx.AsyncClient(base_url=self.server.url, timeout=240) as client:
            over = asyncio.Event()
            tasks = [asyncio.create_task(self.client(client, over)) for _ in range(CLIENTS)]
            tasks.append(asyncio.create_task(self.faults(over)))
            tasks.append(asyncio.create_task(self.watch(client, over)))
            await asyncio.sleep(seconds)
            over.set()
            await asyncio.gather(*tasks)
            await self.calm(client)

    # -- clients ------------------------------------------------------------------------------

    async def client(self, client: httpx.AsyncClient, over: asyncio.Event) -> None:
        """Ask again and again."""
        steps = (self.ask, self.ask, self.ask, self.ask, self.leave, self.embed, self.unload)
        while not over.is_set():
            model = self.random.choice(MODELS)
            try:
                await self.random.choice(steps)(client, model)
            except httpx.HTTPError as error:
                self.wrong.append(f"{model}: the server itself failed: {error!r}")

    async def ask(self, client: httpx.AsyncClient, model: str) -> Answer:
        """Ask in any dialect, and check every word of the answer."""
        tokens, stream = self.random.randint(1, 60), self.random.random() < 0.7
        dialect, text = self.random.choice(CHATS), f"@tokens={tokens}"
        answer = await asks.ask(client, dialect, model, text, MAX_TOKENS, stream=stream)
        right = "".join(f"tok{number} " for number in range(tokens))
        self.judge(f"{model} {dialect.path}", answer, right)
        return answer

    def judge(self, where: str, answer: Answer, right: str) -> None:
        """Check an answer: whole and right, or the right beginning and a clean error."""
        if answer.odd:
            self.wrong.append(f"{where}: {answer.odd}")
        elif answer.error:
            self.seen[f"error {answer.status}: {answer.error[:70]}"] += 1
            if answer.status not in (200, 500, 502, 503) or not right.startswith(answer.text):
                self.wrong.append(f"{where}: {answer}")
        elif answer.text != right:
            self.wrong.append(f"{where}: {answer.text[-80:]!r}, not {right[-80:]!r}")
        else:
            self.seen["right"] += 1

    async def embed(self, client: httpx.AsyncClient, model: str) -> None:
        """Ask for a vector: a process of its own, which competes for the places."""
        if self.random.random() < 0.8:
            return
        answer = await asks.ask(client, VECTORS[0], model, "word", 0, stream=False)
        self.judge(f"{model} {VECTORS[0].path}", answer, "")
        if len(answer.vector) not in (0, 8):
            self.wrong.append(f"{model}: a wrong vector: {answer.vector}")

    async def leave(self, client: httpx.AsyncClient, model: str) -> None:
        """Go away while the answer, or its turn, is awaited."""
        try:
            async with asyncio.timeout(self.random.random() * 0.3):
                await self.ask(client, model)
        except TimeoutError:
            self.seen["left"] += 1

    async def unload(self, client: httpx.AsyncClient, model: str) -> None:
        """Unload a model, now and then."""
        if self.random.random() < 0.1:
            await client.post("/api/generate", json={"model": model, "keep_alive": 0})

    # -- faults -------------------------------------------------------------------------------

    def engines(self) -> dict[int, psutil.Process]:
        """Return the engines that run, by their ports (an engine's forks have its command line)."""
        found: dict[int, psutil.Process] = {}
        for process in self.server.tree():
            try:
                words = process.cmdline()
                if process.status() == psutil.STATUS_ZOMBIE or "--" in words:
                    continue  # the guard has the engine's arguments behind its own
                if any(word.endswith("engine.py") for word in words):
                    port = int(words[words.index("--port") + 1])
                    if port not in found or process.pid < found[port].pid:
                        found[port] = process
            except (psutil.Error, ValueError):
                continue
        return found

    async def faults(self, over: asyncio.Event) -> None:
        """Kill, freeze, and spoil the next start."""
        while not over.is_set():
            await asyncio.sleep(self.random.uniform(0.2, 1.5))
            kind = self.random.choice(("kill", "kill", "term", "freeze", "spoil", "spoil"))
            if kind == "spoil":
                switches = self.random.choice(BAD_STARTS)
                self.server.model(self.random.choice(MODELS), *switches, once=True)
            else:
                engines = [process for _, process in sorted(self.engines().items())]
                if not engines:
                    continue
                number = {
                    "kill": signal.SIGKILL, "term": signal.SIGTERM, "freeze": signal.SIGSTOP,
                }[kind]  # fmt: skip
                try:
                    self.random.choice(engines).send_signal(number)
                except psutil.Error:
                    continue
            self.seen[kind] += 1

    # -- invariants ---------------------------------------------------------------------------

    async def watch(self, client: httpx.AsyncClient, over: asyncio.Event) -> None:
        """Check at every step what must hold at any time."""
        while not over.is_set():
            answer = await client.get("/api/ps")
            if answer.status_code != 200:
                self.wrong.append(f"ps: {answer.status_code} {answer.text[:200]}")
            engines = await asyncio.to_thread(self.engines)
            if len(engines) > MAX_LOADED:
                self.wrong.append(f"{len(engines)} engines at once")
            held = await asyncio.to_thread(held_bytes, engines)
            if held > MAX_LOADED * ENGINE_BYTES:
                self.wrong.append(f"{held / 1024**2:.0f} MiB held")
            self.seen["checks"] += 1
            await asyncio.sleep(0.2)

    async def calm(self, client: httpx.AsyncClient) -> None:
        """Now every model is served, and nothing waits any more."""
        for name in MODELS:
            (self.server.models / f"{name}.once").unlink(missing_ok=True)
        for name in MODELS:
            await client.post("/api/generate", json={"model": name, "keep_alive": 0})
        deadline = time.monotonic() + SERVED_LIMIT_S
        for name in MODELS:
            while not await self.served(client, name):
                if time.monotonic() > deadline:
                    rows = (await client.get("/api/ps")).text
                    self.wrong.append(f"{name} is not served any more: {rows}")
                    break
                await asyncio.sleep(0.2)
        rows = (await client.get("/api/ps")).json()["models"]
        waiting = [row for row in rows if row["requests"] or row["queued"]]
        if waiting:
            self.wrong.append(f"still busy after the storm: {waiting}")
        for name in MODELS:
            await client.post("/api/generate", json={"model": name, "keep_alive": 0})
        while (await client.get("/api/ps")).json()["models"]:
            if time.monotonic() > deadline:
                self.wrong.append("models that do not go")
                break
            await asyncio.sleep(0.05)

    async def served(self, client: httpx.AsyncClient, name: str) -> bool:
        """Tell whether a model answers."""
        try:
            return not (await self.ask(client, name)).error
        except httpx.TimeoutException:
            return False


def held_bytes(engines: dict[int, psutil.Process]) -> int:
    """Return the resident memory of the engines."""
    total = 0
    for process in engines.values():
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


def renders(process: psutil.Process) -> bool:
    """Tell whether a process renders templates: such stay, a few of them."""
    try:
        return str(PROGRAM) in process.cmdline()
    except psutil.Error:
        return False


def vitals(server: Server) -> dict[str, int]:
    """Return what must not grow: file handles, threads, memory of the server itself."""
    assert server.process
    process = psutil.Process(server.process.pid)
    return {
        "fds": process.num_fds(),
        "threads": process.num_threads(),
        "children": len([child for child in server.tree() if not renders(child)]),
        "rss_kib": process.memory_info().rss // 1024,
    }


def settle(server: Server, most_fds: int) -> dict[str, int]:
    """Wait until the handles of clients that have left are closed; return the server's vitals."""
    until_s = time.monotonic() + SETTLED_S
    while (found := vitals(server))["fds"] > most_fds and time.monotonic() < until_s:
        time.sleep(0.1)
    return found


def run(home: Path, seconds: float, seed: int, *, rounds: int = 1) -> tuple[Storm, list[dict]]:
    """Run a storm, in `rounds` parts; return it, and the vitals before and after each part."""
    arguments = (
        "--max-loaded-models", str(MAX_LOADED), "--hang-timeout", "2s", "--load-timeout", "10s",
    )  # fmt: skip
    # one plan only: a real engine would stand in for a fake one that is killed again and again
    with Server(home, "--strict", *arguments) as server:
        storm = Storm(server, seed)
        storm.prepare()
        asyncio.run(storm.rage(3.0))  # what is loaded once and stays is loaded now
        series = [vitals(server)]
        for _ in range(rounds):
            asyncio.run(storm.rage(seconds / rounds))
            series.append(settle(server, series[0]["fds"] + MORE_FDS))
        if left := orphans(storm.pids):
            storm.wrong.append(f"left behind while the server runs: {left}")
        records = list((server.home / "data" / "run").glob("*.json"))
        if records:
            storm.wrong.append(f"run files of engines that are gone: {records}")
    if left := orphans(storm.pids):
        storm.wrong.append(f"left behind by the server: {left}")
    if storm.wrong:
        storm.wrong.append("the server said last:\n" + server.output[-20_000:])
    return storm, series


def main() -> None:
    """Run a long storm and tell what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.seconds:g} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        rounds = max(1, round(options.seconds / 60))
        storm, series = run(Path(folder), options.seconds, options.seed, rounds=rounds)
    report(storm.seen, storm.wrong, *map(json.dumps, series))


if __name__ == "__main__":
    main()
