"""Three models where two fit, clients that ask at random, and every ten seconds a dead engine.

Nothing here is forgiven: an answer is right to the last word, or it is a clean error in its own
dialect *and* an engine of that model was killed while the request ran. Memory, processes and the
supervisor's own size are watched all the time.

    python -m tests.chaos.mix --seconds 300                  # the fake engine
    python -m tests.chaos.mix --seconds 300 --real A.gguf B.gguf C.gguf
    python -m tests.chaos.mix --under 'systemd-run --scope -p MemoryMax=2G' --budget-mib 2048

The last form is for memory: two models are all that fits into that limit. Without it they are
limited by number (`--max-loaded-models 2`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shlex
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.chaos import asks
from tests.chaos.asks import CHATS, TEXTS, VECTORS, Answer, Dialect, orphans, report
from tests.server_process import Server

MIB = 1024**2
CLIENTS = 16
FITTING = 2
KILL_EVERY_S = 10.0
WATCH_S = 0.25
ANSWER_LIMIT_S = 180.0
WORDS = ("sky", "sea", "bread", "rust", "glass", "clock")


@dataclass(frozen=True)
class Wish:
    """A question and where it is asked."""

    model: str
    dialect: Dialect
    text: str
    tokens: int


@dataclass
class Kill:
    """An engine that was killed, and when."""

    model: str
    at_s: float


@dataclass
class Failure:
    """A request that got an error."""

    wish: Wish
    began_s: float
    ended_s: float
    answer: Answer


@dataclass
class Mix:
    """One run. `wrong` collects whatever must not happen."""

    server: Server
    models: tuple[str, ...]
    seed: int
    real: bool = False
    budget_bytes: int | None = None
    wrong: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    kills: list[Kill] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    known: dict[Wish, Answer] = field(default_factory=dict)
    sizes: list[tuple[float, int]] = field(default_factory=list)
    longest_s: float = 0.0
    most_bytes: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    # -- clients ------------------------------------------------------------------------------

    def wishes(self) -> list[Wish]:
        """Return all that is ever asked."""
        dialects = (*CHATS, *TEXTS, *VECTORS[:1], VECTORS[1])
        found = []
        for model in self.models:
            for dialect in dialects:
                for number, word in enumerate(WORDS):
                    tokens = 8 if self.real else 1 + 9 * number
                    text = (
                        f"Say something about {word}." if self.real else f"@tokens={tokens} {word}"
                    )
                    found.append(Wish(model, dialect, text, tokens if self.real else 100))
        return found

    async def learn(self, client: httpx.AsyncClient) -> None:
        """Find the right answers: known of a fake engine's texts, else asked for in the calm."""
        for wish in self.wishes():
            if not self.real and wish.dialect not in VECTORS:
                count = int(wish.text.split()[0].removeprefix("@tokens="))
                text = "".join(f"tok{number} " for number in range(count))
                self.known[wish] = Answer(status=200, text=text, done=True)
                continue
            self.known[wish] = answer = await self.asked(client, wish, stream=False)
            if answer.odd or answer.error:
                self.wrong.append(f"in the calm: {wish}: {answer}")
        # a first load goes by an estimate, which a fake engine makes a lie: let it be over
        for model in self.models:
            await self.asked(client, next(w for w in self.known if w.model == model), stream=False)
            await client.post("/api/generate", json={"model": model, "keep_alive": 0})
        async with asyncio.timeout(ANSWER_LIMIT_S):
            while (await client.get("/api/ps")).json()["models"]:  # noqa: ASYNC110
                await asyncio.sleep(WATCH_S)

    async def asked(self, client: httpx.AsyncClient, wish: Wish, *, stream: bool) -> Answer:
        """Ask once."""
        return await asks.ask(
            client, wish.dialect, wish.model, wish.text, wish.tokens, stream=stream
        )

    async def client(self, client: httpx.AsyncClient, over: asyncio.Event) -> None:
        """Ask again and again."""
        wishes = list(self.known)
        while not over.is_set():
            wish, stream = self.random.choice(wishes), self.random.random() < 0.6
            began_s = time.monotonic()
            try:
                answer = await self.asked(client, wish, stream=stream)
            except httpx.HTTPError as error:
                self.note_lost(wish, began_s, error)
                continue
            ended_s = time.monotonic()
            self.longest_s = max(self.longest_s, ended_s - began_s)
            self.seen["waited in a queue"] += answer.queue_position > 0
            self.judge(wish, answer, began_s, ended_s)

    def note_lost(self, wish: Wish, began_s: float, error: httpx.HTTPError) -> None:
        """Note a request whose connection the server has ended."""
        self.wrong.append(f"{wish}: the server itself failed: {error!r}")

    def judge(self, wish: Wish, answer: Answer, began_s: float, ended_s: float) -> None:
        """Compare an answer with the right one, an error with what an error may be."""
        right = self.known[wish]
        if answer.odd:
            self.wrong.append(f"{wish.model} {wish.dialect.path}: {answer.odd}")
        elif answer.error:
            self.seen[f"error {answer.status}: {answer.error[:60]}"] += 1
            self.failures.append(Failure(wish, began_s, ended_s, answer))
            if not right.text.startswith(answer.text):
                self.wrong.append(f"{wish}: wrong words before the error: {answer.text!r}")
            if answer.status not in (200, 500, 502, 503):
                self.wrong.append(f"{wish}: an odd status: {answer}")
        elif answer.text != right.text:
            self.wrong.append(f"{wish}: {answer.text!r}, not {right.text!r}")
        elif not same(answer.vector, right.vector):
            self.wrong.append(f"{wish}: another vector")
        else:
            self.seen["right"] += 1

    # -- kills --------------------------------------------------------------------------------

    def engines(self) -> list[tuple[str, psutil.Process]]:
        """Return the engines that run, with their models, by vllama's own records."""
        found = []
        for path in sorted((self.server.home / "data" / "run").glob("*.json")):
            try:
                record = json.loads(path.read_text())
                if record["engine"]:
                    found.append((str(record["name"]), psutil.Process(record["engine"]["pid"])))
            except (OSError, ValueError, psutil.Error):
                continue
        return found

    def model_of(self, name: str) -> str:
        """Return the model of an engine, by the name that it was loaded by."""
        return name.removesuffix(":latest")

    async def kill(self, over: asyncio.Event, every_s: float) -> None:
        """Kill an engine again and again, whatever it does at that moment."""
        while not over.is_set():
            try:
                async with asyncio.timeout(every_s):
                    await over.wait()
            except TimeoutError:
                pass
            engines = self.engines()
            if over.is_set() or not engines:
                continue
            name, process = self.random.choice(engines)
            self.kills.append(Kill(self.model_of(name), time.monotonic()))
            try:
                process.kill()
                self.seen["killed"] += 1
            except psutil.Error:
                self.seen["gone before it was killed"] += 1

    def explain(self) -> None:
        """Every failure must be that of a request whose engine was killed under it."""
        for failure in self.failures:
            own = [kill.at_s for kill in self.kills if kill.model == failure.wish.model]
            if not any(failure.began_s <= at_s <= failure.ended_s for at_s in own):
                last_s = min((failure.began_s - at_s for at_s in own if at_s < failure.began_s),
                             default=float("inf"))  # fmt: skip
                self.wrong.append(
                    f"{failure.wish.model} {failure.wish.dialect.path} failed, and nobody had "
                    f"killed its engine (the last kill was {last_s:.1f} s before it began, it took "
                    f"{failure.ended_s - failure.began_s:.1f} s): {failure.answer.error}"
                )

    # -- watch --------------------------------------------------------------------------------

    async def watch(self, client: httpx.AsyncClient, over: asyncio.Event, begun_s: float) -> None:
        """Look at memory, at the number of engines, and at the supervisor's size."""
        assert self.server.process
        own = psutil.Process(self.server.process.pid)
        while not over.is_set():
            rows = (await client.get("/api/ps")).json()
            if any(row["state"] == "failed" for row in rows.get("failed", ())):
                self.seen["looks at a failed model"] += 1
            held = await asyncio.to_thread(held_bytes, self.engines())
            self.most_bytes = max(self.most_bytes, sum(held))
            if self.budget_bytes is None and len(held) > FITTING:
                self.wrong.append(f"{len(held)} engines at once")
            if self.budget_bytes and sum(held) > self.budget_bytes:
                at = time.strftime("%H:%M:%S", time.gmtime())
                self.wrong.append(f"{at}: {sum(held) / MIB:.0f} MiB held by engines")
            self.sizes.append((time.monotonic() - begun_s, own.memory_info().rss))
            self.seen["looks"] += 1
            await asyncio.sleep(WATCH_S)

    # -- the run ------------------------------------------------------------------------------

    async def run(self, seconds: float, every_s: float) -> None:
        """Learn, let it go, and see that everything is served afterwards."""
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=self.server.url, timeout=ANSWER_LIMIT_S, limits=limits
        ) as client:
            await self.learn(client)
            begun_s, over = time.monotonic(), asyncio.Event()
            tasks = [asyncio.create_task(self.client(client, over)) for _ in range(CLIENTS)]
            tasks.append(asyncio.create_task(self.kill(over, every_s)))
            tasks.append(asyncio.create_task(self.watch(client, over, begun_s)))
            tasks += [asyncio.create_task(one) for one in self.work(client, over)]
            await asyncio.sleep(seconds)
            over.set()
            await asyncio.gather(*tasks)
            self.explain()
            for wish in self.random.sample(list(self.known), 6):
                answer = await self.asked(client, wish, stream=True)
                self.judge(wish, answer, time.monotonic(), time.monotonic())
                if answer.error:
                    self.wrong.append(f"after it all: {wish}: {answer}")
            await self.stop(client)

    def work(
        self, client: httpx.AsyncClient, over: asyncio.Event
    ) -> list[Coroutine[Any, Any, None]]:
        """Return what else goes on until `over`."""
        return []

    async def stop(self, client: httpx.AsyncClient) -> None:
        """End it; the server is stopped by its owner."""

    def growth(self, from_s: float) -> float:
        """Return by which share the supervisor's size changed between `from_s` and the end."""
        before = median([size for at_s, size in self.sizes if from_s <= at_s <= from_s + 10])
        after = median([size for at_s, size in self.sizes if at_s >= self.sizes[-1][0] - 10])
        return after / before - 1 if before else 0.0


def same(one: list[float], two: list[float]) -> bool:
    """Tell whether two vectors are one, but for the last digits of their numbers."""
    near = all(abs(a - b) < 1e-3 for a, b in zip(one, two, strict=False))
    return len(one) == len(two) and near


def median(values: list[int]) -> int:
    """Return the middle one; 0 of none."""
    return sorted(values)[len(values) // 2] if values else 0


def held_bytes(engines: list[tuple[str, psutil.Process]]) -> list[int]:
    """Return the memory that each engine and what is below it have for themselves."""
    found = []
    for _, process in engines:
        try:
            tree = [process, *process.children(recursive=True)]
            found.append(sum(item.memory_full_info().uss for item in tree))
        except psutil.Error:
            continue
    return found


class WrappedServer(Server):
    """A server that is started by another command."""

    under: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """Return the command line of the server."""
        return [*self.under, *super().command]


def run(
    home: Path, seconds: float, seed: int, *, every_s: float = KILL_EVERY_S,
    real: tuple[Path, ...] = (), under: str = "", budget_bytes: int | None = None,
    hold_mib: int = 24,
) -> Mix:  # fmt: skip
    """Run it with a server of its own; nothing may be left when that has stopped."""
    arguments = ["--strict"]
    if budget_bytes is None:
        arguments += ["--max-loaded-models", str(FITTING)]
    if real:
        arguments += ["--context-length", "1024"]
    server = WrappedServer(home, *arguments, fake=not real)
    server.under = tuple(shlex.split(under))
    if real:
        names = tuple(f"model-{letter}" for letter, _ in zip("abcdef", real, strict=False))
        for name, path in zip(names, real, strict=True):
            shutil.copy(path, server.models / f"{name}.gguf")
    else:
        switches = ("--token-interval", "0.02", "--ready-after", "0.2", "--hold", str(hold_mib))
        more = ("--spawn-child", "--spawn-setsid", "--pids", str(home / "pids"))
        names = ("wide-a", "wide-b", "serial-c")
        for name in names:
            server.model(name, *switches, *more)
    with server:
        mix = Mix(server, names, seed, real=bool(real), budget_bytes=budget_bytes)
        asyncio.run(mix.run(seconds, every_s))
        tree = server.tree()
    _, alive = psutil.wait_procs(tree, timeout=1)
    if alive:
        mix.wrong.append(f"left behind: {alive}")
    if not real:
        mix.wrong += [f"left behind: {item}" for item in orphans(home / "pids")]
    return mix


def main() -> None:
    """Run it and tell what happened."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--every", type=float, default=KILL_EVERY_S, metavar="S")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--real", nargs="+", type=Path, default=(), metavar="GGUF")
    parser.add_argument("--under", default="", metavar="COMMAND")
    parser.add_argument("--budget-mib", type=int)
    parser.add_argument("--hold-mib", type=int, default=24)
    parser.add_argument("--home", type=Path)
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.seconds:g} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        mix = run(
            options.home or Path(folder), options.seconds, options.seed, every_s=options.every,
            real=tuple(options.real), under=options.under, hold_mib=options.hold_mib,
            budget_bytes=options.budget_mib and options.budget_mib * MIB,
        )  # fmt: skip
    from_s = min(60.0, options.seconds / 2)
    sizes = [size for _, size in mix.sizes]
    report(
        mix.seen,
        mix.wrong,
        f"supervisor {mix.growth(from_s):+.1%} after {from_s:g} s, {median(sizes) / MIB:.1f} MiB",
        f"engines held at most {mix.most_bytes / MIB:.0f} MiB",
        f"longest answer {mix.longest_s:.1f} s",
    )


if __name__ == "__main__":
    main()
