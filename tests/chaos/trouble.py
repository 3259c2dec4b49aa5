"""The mix, and all that people do to a server meanwhile, where memory is short.

Clients leave, models are unloaded, copied, created, deleted and pulled, settings are read again,
and in the end it is told to stop while everybody asks. What a request may be told is as strict as
in `mix`; beside that there must be no traceback in the log, and no process or temporary file left.

    python -m tests.chaos.trouble --seconds 60 --seed 7

Memory is for two of three models: by a control group of its own where one can be made (as root, as
a rule), else by their number.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.asks import CHATS, TEXTS, orphans, report
from tests.chaos.mix import FITTING, MIB, Mix, WrappedServer
from tests.hub import Fault, StandInHub
from tests.server_process import LIMIT_S
from tests.tiny import write_tiny_gguf

NAMES = ("wide-a", "wide-b", "serial-c")
HOLD_MIB, PEAK_MIB = 200, 260  # an engine takes more while it starts; some 45 are its processes'
CONTEXT = 48 * 1024  # of which the plan says, before anything is measured, that it takes as much
GROUP_BYTES = 1000 * MIB  # an eighth stays free, some 150 are the server's
COPY = "-copy"
PULLED = "hf.co/test/Tiny-GGUF:Q8_0"
REPO = "test/Tiny-GGUF"
SLOW = Fault(bytes_per_s=200_000)


@dataclass
class Trouble(Mix):
    """One run with everything at once."""

    def model_of(self, name: str) -> str:
        """Return whose engine it is: a copy shares that of its model."""
        return super().model_of(name).partition(COPY)[0]

    def work(
        self, client: httpx.AsyncClient, over: asyncio.Event
    ) -> list[Coroutine[Any, Any, None]]:
        """Return what goes on beside the clients."""
        chores = (self.leave, self.leave, self.unload, self.copy, self.create, self.pull)
        return [*(self.again(chore, client, over) for chore in chores), self.reload(over)]

    async def again(self, chore: Any, client: httpx.AsyncClient, over: asyncio.Event) -> None:
        """Do one thing again and again."""
        number = 0
        while not over.is_set():
            number += 1
            try:
                await chore(client, number)
            except httpx.HTTPError as error:
                self.wrong.append(f"{chore.__name__}: the server itself failed: {error!r}")
            await asyncio.sleep(self.random.random())

    async def leave(self, client: httpx.AsyncClient, number: int) -> None:
        """Ask, and go away before or in the midst of the answer."""
        wish = self.random.choice(list(self.known))
        try:
            async with asyncio.timeout(self.random.random() * 0.5):
                await self.asked(client, wish, stream=self.random.random() < 0.5)
        except TimeoutError:
            self.seen["left"] += 1

    async def unload(self, client: httpx.AsyncClient, number: int) -> None:
        """Unload a model; who uses it or waits for it is served all the same."""
        body = {"model": self.random.choice(self.models), "keep_alive": 0}
        self.expect("unload", await client.post("/api/generate", json=body), 200)

    async def copy(self, client: httpx.AsyncClient, number: int) -> None:
        """Copy a model, use the copy, and delete it, now and then while it answers."""
        model = self.random.choice(self.models)
        body = {"source": model, "destination": f"{model}{COPY}{number}"}
        self.expect("copy", await client.post("/api/copy", json=body), 200)
        await self.use_and_delete(client, f"{model}{COPY}{number}")

    async def create(self, client: httpx.AsyncClient, number: int) -> None:
        """Create a model of another, use and delete it."""
        model = self.random.choice(self.models)
        name = f"{model}{COPY}-made{number}"
        body = {"model": name, "from": model, "system": "Be kind.", "stream": False}
        self.expect("create", await client.post("/api/create", json=body), 200)
        await self.use_and_delete(client, name)

    async def use_and_delete(self, client: httpx.AsyncClient, name: str) -> None:
        dialect, tokens = self.random.choice(CHATS), self.random.randrange(1, 40)
        wish = next(wish for wish in self.known if wish.dialect is dialect)
        asking = asyncio.ensure_future(self.ask_copy(client, name, wish, tokens))
        if self.random.random() < 0.5:
            await asking
        reply = await client.request("DELETE", "/api/delete", json={"model": name})
        self.expect("delete", reply, 200)
        await asking

    async def ask_copy(self, client: httpx.AsyncClient, name: str, wish: Any, tokens: int) -> None:
        """Ask a model that may be deleted, or whose engine may be killed, meanwhile."""
        right = "".join(f"tok{number} " for number in range(tokens))
        text = f"@tokens={tokens} x"
        answer = await self.asked(client, type(wish)(name, wish.dialect, text, 100), stream=True)
        if answer.odd or not right.startswith(answer.text):
            self.wrong.append(f"{name} {wish.dialect.path}: {answer}")
        elif not answer.error and answer.text != right:
            self.wrong.append(f"{name}: {answer.text!r}, not {right!r}")
        elif answer.error and answer.status not in (200, 404, 500, 502, 503):
            self.wrong.append(f"{name}: an odd status: {answer}")
        self.seen["error of a copy" if answer.error else "right copy"] += 1

    async def pull(self, client: httpx.AsyncClient, number: int) -> None:
        """Pull a model, now and then only the beginning of it, and delete what came."""
        body = {"model": PULLED}
        try:
            async with asyncio.timeout(self.random.random() if number % 2 else None):
                reply = await client.post("/api/pull", json=body)
        except TimeoutError:
            self.seen["left a pull"] += 1
            return
        self.expect("pull", reply, 200)
        if '"success"' not in reply.text:
            self.wrong.append(f"pull: {reply.text[-300:]}")
            return
        self.seen["pulled"] += 1
        self.expect("delete", await client.request("DELETE", "/api/delete", json=body), 200)

    def expect(self, what: str, reply: httpx.Response, status: int) -> None:
        """Note an answer that is not as it should be."""
        self.seen[what] += 1
        if reply.status_code != status:
            self.wrong.append(f"{what}: {reply.status_code} {reply.text[:300]}")

    async def reload(self, over: asyncio.Event) -> None:
        """Have the settings read again."""
        assert self.server.process
        while not over.is_set():
            await asyncio.sleep(1.0)
            self.server.process.send_signal(signal.SIGHUP)
            self.seen["reloaded"] += 1

    async def stop(self, client: httpx.AsyncClient) -> None:
        """Tell the server to stop while everybody asks."""
        assert self.server.process
        wishes = [wish for wish in self.known if wish.dialect in (*CHATS, *TEXTS)]
        asks = [
            asyncio.ensure_future(self.last_answer(client, self.random.choice(wishes)))
            for _ in range(16)
        ]
        await asyncio.sleep(self.random.random())
        self.server.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*asks)
        try:
            code = await asyncio.to_thread(self.server.process.wait, LIMIT_S)
        except subprocess.TimeoutExpired:
            self.wrong.append("it does not stop")
            return
        if code != 0:
            self.wrong.append(f"it stopped with code {code}")

    async def last_answer(self, client: httpx.AsyncClient, wish: Any) -> None:
        """Take an answer that the end of the server may cut, or refuse."""
        try:
            answer = await self.asked(client, wish, stream=True)
        except httpx.ConnectError:
            self.seen["not accepted any more"] += 1
            return
        except httpx.HTTPError as error:
            self.wrong.append(f"at the end: {wish}: {error!r}")
            return
        right = self.known[wish].text
        whole = answer.text == right if answer.done else bool(answer.error)
        if answer.odd or not right.startswith(answer.text) or not whole:
            self.wrong.append(f"at the end: {wish}: {answer}")
        self.seen["right at the end" if answer.done else "refused at the end"] += 1


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path | None]:
    """Make a control group with a memory limit; None where that is not possible."""
    mount = Path("/sys/fs/cgroup")
    second = (mount / "cgroup.controllers").exists()
    folder = (mount if second else mount / "memory") / f"vllama-test-{time.monotonic_ns()}"
    try:
        folder.mkdir()
        limit = "memory.max" if second else "memory.limit_in_bytes"
        (folder / limit).write_text(str(limit_bytes))
    except OSError:
        if folder.is_dir():
            folder.rmdir()
        yield None
        return
    try:
        yield folder
    finally:
        folder.rmdir()  # with a process in it that is not possible: it would be left behind


def run(home: Path, seconds: float, seed: int, *, every_s: float) -> Trouble:
    """Run it with a server of its own."""
    repo, temporary = home / "repo", home / "tmp"
    for folder in (repo, temporary):
        folder.mkdir(parents=True)
    write_tiny_gguf(repo / "Tiny-Q8_0.gguf", n_ctx=4096)
    with StandInHub() as hub, memory_group(GROUP_BYTES) as group:
        hub.add_repo(REPO, repo)
        hub.fault = lambda method, path, headers, origin: SLOW if origin == "cdn" else None
        arguments = ("--strict", "--context-length", str(CONTEXT))
        arguments += () if group else ("--max-loaded-models", str(FITTING))
        env = {"HF_ENDPOINT": hub.url, "TMPDIR": str(temporary)}
        server = WrappedServer(home, *arguments, env=env)
        if group:
            server.under = ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
        switches = ("--token-interval", "0.01", "--ready-after", "0.2", "--hold", str(HOLD_MIB),
                    "--peak", str(PEAK_MIB), "--spawn-child", "--spawn-setsid",
                    "--pids", str(home / "pids"))  # fmt: skip
        for name in NAMES:
            write_tiny_gguf(server.models / f"{name}.gguf", n_embd=512, n_kv=2, n_ctx=CONTEXT)
            server.model(name, *switches)
        with server:
            mix = Trouble(server, NAMES, seed, budget_bytes=GROUP_BYTES if group else None)
            asyncio.run(mix.run(seconds, every_s))
        mix.wrong += [f"left behind: {item}" for item in orphans(home / "pids")]
        mix.wrong += [f"left in TMPDIR: {item}" for item in temporary.iterdir()]
        mix.wrong += [f"left in the run folder: {p}" for p in (home / "data/run").glob("*.json")]
        for found in re.finditer("Traceback|never retrieved", server.output):
            begin = max(found.start() - 2000, 0)
            mix.wrong.append(f"a traceback in the log:\n{server.output[begin : begin + 6000]}")
    return mix


def main() -> None:
    """Run it and tell what happened."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=4.0, metavar="S", help="between kills")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.seconds:g} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        mix = run(Path(folder), options.seconds, options.seed, every_s=options.every)
    held = f"engines held at most {mix.most_bytes / MIB:.0f} MiB"
    report(mix.seen, mix.wrong, f"{held}; longest {mix.longest_s:.1f} s")


if __name__ == "__main__":
    main()
