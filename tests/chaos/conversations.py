"""Long conversations over an unload, a stop and a kill, with a real llama-server.

    python -m tests.chaos.conversations MODEL.gguf --rounds 20         # make test-conversations

Each round makes a new conversation of some thousand tokens, and asks its second turn after one of
three events, in turn: the model was unloaded; the server was stopped and started; everything was
killed, 15 s after the last answer. The answer should equal that of a second server, which nothing
disturbs, byte for byte, and begin in a fifth of the time that a cold one takes, each with the start
of the engine. Then the engine is killed in the midst of the same answer, which is resumed
(`--no-kills` leaves that out).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import msgspec
import psutil

from tests.server_process import LIMIT_S, Server

WORDS = (
    "river", "stone", "light", "garden", "window", "story", "winter", "summer", "paper", "engine",
    "signal", "matter", "number", "people", "water", "house", "bread", "music", "table", "cloud",
    "forest", "letter", "market", "bridge",
)  # fmt: skip
EVENTS = ("unload", "stop", "kill")
SILENT_S = 15.0
MODEL = "conversation"
BAR = 0.2


class Asked(msgspec.Struct):
    """An answer, when its first token came, and how much of its prompt was cached."""

    text: str
    first_s: float
    prompt: int
    cached: int


def ask(server: Server, messages: list[dict], tokens: int = 40) -> Asked:
    """Ask by a stream; the model is loaded if need be, which takes its time."""
    options = {"num_predict": tokens, "temperature": 0, "seed": 1}
    body = {"model": MODEL, "messages": messages, "options": options}
    begun_s, first_s, text, last = time.monotonic(), 0.0, "", {}
    with (
        httpx.Client(base_url=server.url, timeout=10 * LIMIT_S) as client,
        client.stream("POST", "/api/chat", json=body) as reply,
    ):
        for line in reply.iter_lines():
            last = msgspec.json.decode(line)
            if "error" in last:
                raise SystemExit(f"an answer failed: {last}")
            text += last["message"]["content"]
            first_s = first_s or time.monotonic() - begun_s
    cached = last.get("prompt_eval_cached_count", 0)
    return Asked(text=text, first_s=first_s, prompt=last["prompt_eval_count"], cached=cached)


def unload(server: Server) -> None:
    """Unload the model, and wait until its engine has ended."""
    server.post("/api/generate", {"model": MODEL, "keep_alive": 0})
    deadline_s = time.monotonic() + LIMIT_S
    while server.get("/api/ps")["models"] or any("llama" in p.name() for p in server.tree()):
        if time.monotonic() > deadline_s:
            raise SystemExit("the model was not unloaded")
        time.sleep(0.05)


def kill_all(server: Server) -> None:
    """Kill the server and all that it has started, after a silence in which it may save."""
    time.sleep(SILENT_S)
    for process in (*server.tree(), psutil.Process(server.process.pid)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    server.process.wait()


def kill_in_the_midst(server: Server, messages: list[dict], after_s: float) -> Asked:
    """Ask again, and kill the engine while it answers."""
    killer = threading.Timer(after_s, lambda: server.engine(MODEL).send_signal(signal.SIGKILL))
    killer.start()
    try:
        return ask(server, messages)
    finally:
        killer.join()


def main(args: list[str] | None = None) -> int:
    """Play all rounds; return 1 if an answer differs too often, or comes too late."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--no-kills", action="store_true")
    parser.add_argument("--engine", type=Path, help="its environment")
    given = parser.parse_args(args)
    home = Path(tempfile.mkdtemp(prefix="conversations-"))
    paths = {"VLLAMA_ENGINE_PATHS": f"llama-server={given.engine}"} if given.engine else {}
    context = str(given.tokens + 1024)
    flags = ("--engine", "llama-server", "--context-length", context, "--cache-disk", "2GB")

    def start(name: str = "disturbed") -> Server:
        env = paths | {"PATH": os.environ["PATH"]}
        server = Server(home / name, *flags, fake=False, env=env)
        if not (link := server.models / f"{MODEL}.gguf").exists():
            link.symlink_to(given.gguf.resolve())
        server.start()
        return server

    quiet, server = start("quiet"), start()
    found: Counter[str] = Counter()
    shares: list[float] = []
    try:
        for number, event in zip(range(given.rounds), itertools.cycle(EVENTS), strict=False):
            numbers = random.Random(number)
            text = " ".join(numbers.choice(WORDS) for _ in range(int(given.tokens * 0.98)))
            talk = [{"role": "user", "content": f"Story {number}: {text}. What is it about?"}]
            unload(server)
            cold = ask(server, talk)
            talk += [
                {"role": "assistant", "content": cold.text},
                {"role": "user", "content": "And what happens next?"},
            ]
            ask(quiet, talk[:1])
            expected = ask(quiet, talk).text
            unload(quiet)  # so that it takes no memory or processor from the other
            ask(server, talk)
            if event == "unload":
                unload(server)
            elif event == "stop":
                server.process.send_signal(signal.SIGTERM)
                server.process.wait()
                server = start()
            else:
                kill_all(server)
                server = start()
            again = ask(server, talk)
            share = again.first_s / cold.first_s
            shares.append(share)
            equal = again.text == expected
            found[f"{event}: {'equal' if equal else 'different'}"] += 1
            line = f"{number:3d} {event:6s} {cold.prompt} tokens, cold {cold.first_s:.1f} s, again "
            line += f"{again.first_s:.2f} s ({share:.1%}), {again.cached} cached, equal: {equal}"
            if not given.no_kills:
                unload(server)  # so that it is saved
                ask(server, talk, 1)
                resumed = kill_in_the_midst(server, talk, 0.15 + numbers.random() / 4)
                whole = resumed.text == expected
                found[f"resumed: {'equal' if whole else 'different'}"] += 1
                line += f", resumed equal: {whole}"
            print(line, flush=True)
    finally:
        for one in (server, quiet):
            one.process.send_signal(signal.SIGTERM)
            one.process.wait()
        shutil.rmtree(home, ignore_errors=True)
    print(dict(found), f"first token: median {statistics.median(shares):.1%} of cold,",
          f"most {max(shares):.1%}")  # fmt: skip
    different = sum(count for name, count in found.items() if name.endswith("different"))
    late = sum(share > BAR for share in shares)
    return int(different > 0.1 * sum(found.values()) or late > 0.1 * given.rounds)


if __name__ == "__main__":
    sys.exit(main())
