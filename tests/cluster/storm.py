"""Three machines behind one address, sixteen clients in all dialects, and a fault every 30 seconds.

Engines, guards, servers and the head are killed, stopped and restarted, cables pulled, machines
switched off, models removed. An answer is right to the last word, or it is an error in its own
dialect while something was broken. No answer is silent for long, no process is left, and the head
has counted each request. The cluster's answers to rare questions are those of a single server, and
from another machine nothing answers without a key.

    make test-cluster MINUTES=20                    # the fake engine
    python -m tests.cluster.storm --seconds 1200 --real A.gguf B.gguf C.gguf D.gguf

It runs itself in namespaces of its own, which need no root where users may make them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.chaos import asks
from tests.chaos.asks import CHATS, TEXTS, VECTORS, Answer, report
from tests.chaos.mix import FITTING, Failure, Mix, Wish
from tests.cluster.machines import PORT, Machine, find_enclosure, open_lan
from tests.ports import free_port
from tests.server_process import Server
from vllama.targets.nodes.node import SILENT_S

NODES = 3
NAMES = ("wide-a", "wide-b", "wide-replays", "serial-d")
SEEN_WITHIN_S = SILENT_S + 2.0
"""When a fault has to be known, and nothing fails of it any more."""
HANG_S = 5.0
BROKEN_S = 12.0
"""How long a cable is out, a server stopped: longer than it takes to be seen."""
BACK_S = 60.0
KEY = "sk-between-the-servers"
DRAIN_S = 0.5
KINDS = ("engine", "guard", "engine stopped", "server", "server stopped", "server restarted",
         "cable", "machine", "model", "head")  # fmt: skip
OPEN = ("/", "/livez", "/readyz", "/health", "/openapi.json")
ASKED_ALOUD = ("/api/tags", "/api/ps", "/api/version", "/v1/models", "/metrics", "/api/nodes")
CHANGING = {"created_at", "created", "id", "expires_at", "modified_at", "system_fingerprint"}
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
TALK: dict[str, Any] = {"messages": [{"role": "user", "content": "Say something."}]}
CALM: dict[str, Any] = {"temperature": 0, "seed": 1, "num_predict": 8}
RARE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/api/generate", {"prompt": "Once", "raw": True, "options": CALM}),
    ("/api/generate", {"prompt": "Once", "options": CALM | {"num_ctx": 512}}),
    ("/api/chat", TALK | {"format": "json", "options": CALM}),
    ("/api/chat", TALK | {"think": False, "options": CALM}),
    ("/api/chat", TALK | {"tools": [TOOL], "options": CALM}),
    ("/api/chat", TALK | {"logprobs": True, "top_logprobs": 2, "options": CALM}),
    (
        "/v1/chat/completions",
        TALK | {"logprobs": True, "temperature": 0, "seed": 1, "max_tokens": 8},
    ),
    ("/api/show", {}),
    ("/api/show", {"verbose": True}),
    ("/api/tokenize", {"text": "Once upon"}),
)


@dataclass
class Fault:
    """What was broken where, and when."""

    kind: str
    machine: str
    at_s: float


@dataclass
class ClusterMix(Mix):
    """One run; `server` is the head."""

    machines: list[Machine] = field(default_factory=list)
    kinds: tuple[str, ...] = KINDS
    patience: float = 1.0
    """What the limits are multiplied by, for a machine that has other work."""
    faults: list[Fault] = field(default_factory=list)
    silent_s: float = 0.0
    """The longest time in which nothing came of an answer."""
    sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The requests that were answered, by path and outcome."""
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """What the head had counted before."""

    async def asked(self, client: httpx.AsyncClient, wish: Wish, *, stream: bool) -> Answer:
        """Ask once, and note how long nothing came."""
        body = {"model": wish.model, **wish.dialect.ask(wish.text, wish.tokens)}
        if wish.dialect.event:
            body["stream"] = stream
        last_s, parts = time.monotonic(), []
        async with client.stream("POST", wish.dialect.path, json=body) as reply:
            async for part in reply.aiter_raw():
                parts.append(part)
                now_s = time.monotonic()
                self.silent_s, last_s = max(self.silent_s, now_s - last_s), now_s
        return asks.read(wish.dialect, reply, b"".join(parts).decode(), stream=stream)

    def note_lost(self, wish: Wish, began_s: float, error: httpx.HTTPError) -> None:
        """A killed head loses what it answers, and nobody listens until it is back."""
        self.failures.append(
            Failure(wish, began_s, time.monotonic(), Answer(error=f"no head: {error!r}"))
        )
        self.seen["lost with the head"] += 1

    def judge(self, wish: Wish, answer: Answer, began_s: float, ended_s: float) -> None:
        """Count it, too."""
        super().judge(wish, answer, began_s, ended_s)
        self.sent[wish.dialect.path, "error" if answer.error else "ok"] += 1

    def count_requests(self) -> Counter[tuple[str, str]]:
        """Return what the head has counted, by path and outcome."""
        text, found = httpx.get(f"{self.server.url}/metrics").text, Counter[tuple[str, str]]()
        for line in text.splitlines():
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            if line.startswith("vllama_requests_total{"):
                found[labels["route"], labels["outcome"]] += int(float(line.rsplit(" ", 1)[1]))
        return found

    async def stop(self, client: httpx.AsyncClient) -> None:
        """Compare what the head has counted with what was sent."""
        if "head" in self.kinds:
            return  # its metrics begin anew
        counted = self.count_requests() - self.counted
        for key in {(d.path, o) for d in (*CHATS, *TEXTS, *VECTORS) for o in ("ok", "error")}:
            if counted[key] != self.sent[key]:
                self.wrong.append(f"{key}: {self.sent[key]} sent, {counted[key]} counted")
        self.seen["counted"] += counted.total()

    # -- faults -------------------------------------------------------------------------------

    async def kill(self, over: asyncio.Event, every_s: float) -> None:
        """Break one thing after another, and mend it."""
        chosen: list[str] = []
        while not over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await over.wait()
            if over.is_set():
                return
            chosen = chosen or self.random.sample(self.kinds, len(self.kinds))
            kind, machine = chosen.pop(), self.random.choice(self.machines)
            self.faults.append(Fault(kind, machine.name, time.monotonic()))
            print(f"{time.strftime('%H:%M:%S')} {kind} of {machine.name}", flush=True)
            self.seen[f"fault: {kind}"] += 1
            await self.break_and_mend(kind, machine)
            await self.wait_for_all()

    async def break_and_mend(self, kind: str, machine: Machine) -> None:
        """Let one fault happen; return when somebody has mended what does not mend itself."""
        match kind:
            case "engine" | "guard" | "engine stopped":
                engines = find_engines(machine)
                if not engines:
                    return
                process = self.random.choice(engines)[1]
                with suppress(psutil.Error):
                    process = process.parent() or process if kind == "guard" else process
                    stops = kind.endswith("stopped")
                    process.send_signal(signal.SIGSTOP if stops else signal.SIGKILL)
            case "server":
                machine.server.find_own().kill()
                await self.see_none_left(machine)
                await asyncio.to_thread(machine.server.start)
            case "server stopped":
                machine.server.find_own().suspend()
                await asyncio.sleep(BROKEN_S)
                machine.server.go_on()
            case "server restarted":
                machine.server.find_own().terminate()
                await self.see_none_left(machine)
                await asyncio.to_thread(machine.server.start)
            case "model":
                file = machine.server.models / f"{self.random.choice(self.models)}.gguf"
                file.rename(file.with_suffix(".away"))
                await asyncio.sleep(BROKEN_S)
                file.with_suffix(".away").rename(file)
            case "head":
                assert self.server.process
                self.server.process.kill()
                self.server.process.wait()
                await asyncio.to_thread(self.server.start)
            case "cable":
                machine.plug(into=False)
                await asyncio.sleep(BROKEN_S)
                machine.plug(into=True)
            case "machine":
                machine.power_off()
                await asyncio.sleep(BROKEN_S)
                await asyncio.to_thread(machine.boot)

    async def wait_for_all(self) -> None:
        """Wait until the head uses all machines again."""
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + BACK_S * self.patience:
            nodes = (await asyncio.to_thread(self.server.get, "/api/nodes"))["nodes"]
            if [row["state"] for row in nodes] == ["up"] * len(self.machines):
                return
            await asyncio.sleep(0.1)
        self.wrong.append(f"a node does not come back: {nodes}")

    async def see_none_left(self, machine: Machine) -> None:
        """Note processes that are left without their server."""
        begun_s = time.monotonic()
        while left := machine.find_processes():
            if time.monotonic() > begun_s + SEEN_WITHIN_S * self.patience:
                self.wrong.append(f"left on {machine.name} without its server: {left}")
                return
            await asyncio.sleep(0.1)

    def explain(self) -> None:
        """Every failure must be that of a request under way when something had just broken.

        A restart only breaks streams that outlast it and cannot resume; a removed model nothing.
        """
        for failure in self.failures:
            resumes = failure.answer.status != 200 or "replays" in failure.wish.model
            harmless = ("model", "server restarted") if resumes else ("model",)
            if not any(
                fault.at_s <= failure.ended_s
                and failure.began_s <= fault.at_s + SEEN_WITHIN_S * self.patience
                for fault in self.faults
                if fault.kind not in harmless
            ):
                since = [failure.began_s - one.at_s for one in self.faults]
                self.wrong.append(
                    f"{failure.wish.model} {failure.wish.dialect.path} failed, and nothing had "
                    f"just broken ({min((s for s in since if s > 0), default=-1):.1f} s since): "
                    f"{failure.answer.error}"
                )

    # -- watch --------------------------------------------------------------------------------

    async def watch(self, client: httpx.AsyncClient, over: asyncio.Event, begun_s: float) -> None:
        """Look at the head's lists, and at the number of engines."""
        assert self.server.process
        own = psutil.Process(self.server.process.pid)
        while not over.is_set():
            for path in ("/api/ps", "/api/tags", "/api/nodes", "/v1/models"):
                with suppress(httpx.HTTPError if "head" in self.kinds else ()):
                    if (reply := await client.get(path)).status_code != 200:
                        self.wrong.append(f"{path}: {reply.status_code} {reply.text}")
            for machine in self.machines:
                engines = await asyncio.to_thread(find_engines, machine)
                if len(engines) > FITTING:
                    self.wrong.append(f"{len(engines)} engines at once on {machine.name}")
            with suppress(psutil.Error):  # the head may be another process by now
                self.sizes.append((time.monotonic() - begun_s, own.memory_info().rss))
            self.seen["looks"] += 1
            await asyncio.sleep(1.0)

    # -- in the calm --------------------------------------------------------------------------

    async def learn(self, client: httpx.AsyncClient) -> None:
        """Find the right answers, and compare the cluster with a single server."""
        await super().learn(client)
        await self.compare(client)
        await asyncio.to_thread(self.scan)
        self.counted = self.count_requests()

    async def compare(self, client: httpx.AsyncClient) -> None:
        """Ask head and node alike for what forwarding might lose."""
        node = self.machines[0].server.url
        headers = {"authorization": f"Bearer {KEY}"}
        for path, fields in RARE:
            for model in self.models:
                body = {"model": model, "stream": False} | fields
                there = await client.post(node + path, json=body, headers=headers)
                here = await client.post(path, json=body)
                if settle(here.json()) != settle(there.json()):
                    self.wrong.append(f"{path} {fields}: {here.text}, not {there.text}")
                self.seen["compared"] += 1
        deadline_s = time.monotonic() + 15.0  # the head may just have found that node again
        while (listed := await self.list_digests(client, "")) != (
            there := await self.list_digests(client, node, headers)
        ):
            if time.monotonic() > deadline_s:
                self.wrong.append(f"/api/tags: {listed}, not {there}")
                break
            await asyncio.sleep(0.5)

    @staticmethod
    async def list_digests(
        client: httpx.AsyncClient, url: str, headers: dict[str, str] | None = None
    ) -> dict[str, tuple[str, int]]:
        """Return digest and size of each model that a server lists."""
        reply = await client.get(f"{url}/api/tags", headers=headers)
        return {row["name"]: (row["digest"], row["size"]) for row in reply.json()["models"]}

    def scan(self) -> None:
        """Look from one machine for what answers on another without a key."""
        target, other = self.machines[:2]
        command = [*other.enter(), sys.executable, "-c", SCAN, target.address]
        found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        if found != [PORT]:
            self.wrong.append(f"ports that are open on {target.name}: {found}")
        for path in (*OPEN, *ASKED_ALOUD):
            status = httpx.get(target.server.url + path).status_code
            if status != 401 and path not in OPEN:
                self.wrong.append(f"{path} of {target.name} is answered without a key: {status}")
        for machine in self.machines:
            for process in machine.find_processes():
                with suppress(psutil.Error):
                    if any(KEY in word for word in process.cmdline()):
                        self.wrong.append(f"the key is in the arguments of {process}")


SCAN = """
import json, socket, sys
found = []
for port in range(1, 65536):
    with socket.socket() as one:
        one.settimeout(1)
        if one.connect_ex((sys.argv[1], port)) == 0:
            found.append(port)
print(json.dumps(found))
"""


def settle(value: Any) -> Any:
    """Return an answer without its times, its identifiers, what was cached, and where files are."""
    if isinstance(value, str):
        return re.sub(r"/box\d+/", "/box/", value)
    if isinstance(value, dict):
        return {
            name: settle(inner)
            for name, inner in value.items()
            if name not in CHANGING and "duration" not in name and "cached" not in name
        }
    return [settle(inner) for inner in value] if isinstance(value, list) else value


def find_engines(machine: Machine) -> list[tuple[str, psutil.Process]]:
    """Return the engines of a machine, with their models; a fork of one has its command line."""
    found: dict[str, tuple[str, psutil.Process]] = {}
    for process in machine.find_processes():
        try:
            words = process.cmdline()
            if "--" in words or "--port" not in words or "-m" not in words[2:]:
                continue  # a guard has its engine's arguments behind its own
            port, file = (words[words.index(flag, 2) + 1] for flag in ("--port", "-m"))
            if port not in found or process.pid < found[port][1].pid:
                found[port] = (Path(file).stem, process)
        except (psutil.Error, ValueError):
            continue
    return list(found.values())


def run(
    home: Path, seconds: float, seed: int, *, every_s: float, kinds: tuple[str, ...],
    real: tuple[Path, ...], patience: float,
) -> ClusterMix:  # fmt: skip
    """Run it; nothing may be left when all have stopped."""
    open_lan()
    key = home / "node.key"
    key.write_text(f"{KEY}\n")
    key.chmod(0o600)
    own = ["--strict", "--node-key-file", str(key)]
    names = tuple(f"model-{letter}" for letter, _ in zip("abcdef", real, strict=False)) or NAMES
    settings = {"VLLAMA_HANG_TIMEOUT": f"{HANG_S:g}s", "VLLAMA_MAX_LOADED_MODELS": str(FITTING)}
    settings["VLLAMA_DRAIN_TIMEOUT"] = f"{DRAIN_S:g}s"  # so that responses outlast it
    settings |= {"VLLAMA_CTX": "1024"} if real else {}
    machines = [
        Machine(number, home / f"box{number}", *own, fake=not real, env=settings)
        for number in range(1, NODES + 1)
    ]
    switches = ("--token-interval", "0.02", "--ready-after", "0.2", "--spawn-child")
    begun_s = time.time()
    for machine in machines:
        for name, path in zip(names, real, strict=False):
            shutil.copy(path, machine.server.models / f"{name}.gguf")
        for name in () if real else names:
            machine.server.model(name, *switches, "--spawn-setsid")
        for path in machine.server.models.iterdir():
            os.utime(path, (begun_s, begun_s))  # equal files everywhere, so equal digests
    nodes = [word for one in machines for word in ("--node", one.server.url)]
    given = ["--no-local", "--node-key-file", str(key), "--port", str(free_port()), *nodes]
    for machine in machines:
        machine.boot()
    with Server(home / "head", *given, fake=not real) as head:
        mix = ClusterMix(
            head,
            names,
            seed,
            real=bool(real),
            machines=machines,
            kinds=kinds,
            patience=patience,
        )
        asyncio.run(mix.wait_for_all())
        asyncio.run(mix.run(seconds, every_s))
        for machine in machines:
            machine.server.find_own().terminate()
            asyncio.run(mix.see_none_left(machine))
    for one in (head, *(machine.server for machine in machines)):
        if "Traceback" in one.output:
            mix.wrong.append(f"a traceback in {one.log}:\n{one.output[-6000:]}")
    for machine in machines:
        machine.power_off()
    return mix


def main() -> None:
    """Run it and tell what happened."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--every", type=float, default=30.0, metavar="S", help="between faults")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--real", nargs="+", type=Path, default=(), metavar="GGUF")
    parser.add_argument("--faults", nargs="+", choices=KINDS, default=KINDS, metavar="FAULT")
    parser.add_argument("--patience", type=float, default=1.0, metavar="FACTOR")
    parser.add_argument("--home", type=Path)
    parser.add_argument("--enclosed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.enclosed:
        enclosure = find_enclosure()
        if enclosure is None:
            sys.exit("cannot make namespaces: run it as root, with util-linux and iproute2")
        again = [sys.executable, "-m", "tests.cluster.storm", *sys.argv[1:], "--enclosed"]
        sys.exit(subprocess.run([*enclosure, *again], check=False).returncode)
    print(f"seed {options.seed}, {options.seconds:g} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        home = options.home or Path(folder)
        mix = run(
            home, options.seconds, options.seed, every_s=options.every,
            kinds=tuple(options.faults), real=tuple(options.real),
            patience=options.patience,
        )  # fmt: skip
    times = f"longest silence {mix.silent_s:.1f} s; longest answer {mix.longest_s:.1f} s"
    report(mix.seen, mix.wrong, times)


if __name__ == "__main__":
    main()
