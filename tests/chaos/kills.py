"""A real llama-server is killed at random tokens, and every answer has to be whole all the same.

    python -m tests.chaos.kills MODEL.gguf --kills 300            # make test-kills
    python -m tests.chaos.kills MODEL.gguf --kills 60 --together 4

Each question is asked twice in the calm first; one whose two answers differ is left out. Then it is
asked again, in a random dialect, and the engine is killed in the midst of it. The answer has to be
the same, byte for byte, and its counts, too; the pause is the restart and the tokens swallowed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import shutil
import signal
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
import msgspec

from tests.chaos.asks import CHATS, TEXTS, Answer, Dialect, read, report
from tests.server_process import LIMIT_S, Server

TOKENS = 60
PROMPTS = (
    "Write about the sea.", "Count from one to thirty.", "用中文介绍一下北京。",
    "Tell a joke 🙂🎉.", "List five colors, a line each.", "Explain rust in two sentences.",
)  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


class Question(msgspec.Struct, frozen=True):
    """What is asked, and how."""

    dialect: Dialect
    text: str
    kind: str

    def make_body(self, model: str) -> dict:
        """Return the body of the request."""
        body = {"model": model, **self.dialect.ask(self.text, TOKENS), "stream": True}
        is_ollama = self.dialect.path.startswith("/api/")
        target = body["options"] if is_ollama else body
        if self.kind == "sampled" and "seed" in target:
            target["temperature"] = 0.8
        if self.kind == "stop" and (is_ollama or self.dialect.path.startswith("/v1/c")):
            target["stop"] = [" the", "。"]
        if self.kind == "schema" and is_ollama:
            body["format"] = SCHEMA
        return body


class Kills:
    """One run. `wrong` collects what must not happen."""

    def __init__(self, server: Server, model: str, seed: int) -> None:
        self.server, self.model = server, model
        self.random = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.pauses: list[float] = []
        self.known: dict[Question, Answer] = {}

    async def ask(self, client: httpx.AsyncClient, question: Question, kill_at: int = 0) -> Answer:
        """Ask; kill the engine after so many reads of the answer."""
        parts: list[bytes] = []
        path = question.dialect.path
        async with client.stream("POST", path, json=question.make_body(self.model)) as reply:
            last_s = 0.0
            async for part in reply.aiter_raw():
                now_s = time.monotonic()
                if last_s:
                    self.pauses.append(now_s - last_s)
                    last_s = 0.0
                parts.append(part)
                if kill_at and len(parts) == kill_at:
                    os.kill(await asyncio.to_thread(self.find_pid), signal.SIGKILL)
                    self.seen["killed"] += 1
                    last_s = now_s
        raw = b"".join(parts).decode()
        answer = read(question.dialect, reply, raw, stream=True)
        answer.counts = self.count(raw)
        return answer

    def find_pid(self) -> int:
        """Return the engine's process."""
        return self.server.get("/api/ps")["models"][0]["pid"]

    @staticmethod
    def count(raw: str) -> str:
        """Return the counts of tokens that an answer tells."""
        names = "eval_count|prompt_eval_count|output_tokens|completion_tokens"
        return " ".join(re.findall(rf'"(?:{names})": ?\d+', raw)[-2:])

    async def restart(self, client: httpx.AsyncClient) -> None:
        """Load the model anew: nothing is in the engine's cache, and no failure is remembered."""
        await client.post("/api/generate", json={"model": self.model, "keep_alive": 0})
        while (await client.get("/api/ps")).json()["models"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await client.post("/api/generate", json={"model": self.model})

    async def run(self, kills: int, together: int) -> None:
        """Ask and kill."""
        kinds = ("greedy", "sampled", "stop", "schema")
        questions = [
            Question(dialect, text, kind)
            for dialect in (*CHATS, *TEXTS) for text in PROMPTS for kind in kinds
        ]  # fmt: skip
        async with httpx.AsyncClient(base_url=self.server.url, timeout=LIMIT_S) as client:
            while self.seen["killed"] < kills:
                chosen = self.random.sample(questions, together)
                for question in chosen:
                    for _ in range(2):
                        if question not in self.known or self.known[question].done:
                            await self.restart(client)
                            answer = await self.ask(client, question)
                            before = self.known.setdefault(question, answer)
                            if answer != before:
                                before.done = False  # it is not the same twice
                await self.restart(client)
                at = [self.random.randrange(1, TOKENS // 2), *([0] * (together - 1))]
                asked = zip(chosen, at, strict=True)
                answers = await asyncio.gather(*(self.ask(client, q, k) for q, k in asked))
                for question, answer in zip(chosen, answers, strict=True):
                    self.judge(question, answer, self.known[question])

    def judge(self, question: Question, answer: Answer, right: Answer) -> None:
        """Compare an answer with the right one."""
        if answer.error or answer.odd:
            self.seen["errors"] += 1
            if "response differs after" not in answer.error:
                self.wrong.append(f"{question}: {answer}")
            elif not right.text.startswith(answer.text):
                self.wrong.append(f"{question}: {answer.text!r} before the error")
        elif not right.done:
            self.seen["not the same twice without a kill"] += 1
        elif answer == right:
            self.seen["equal"] += 1
        elif answer.text == right.text:
            self.wrong.append(f"{question}: {answer} not {right}")
        else:
            self.seen["another answer"] += 1


def run(home: Path, model: Path, kills: int, seed: int, *, together: int, **more) -> Kills:
    """Run it with a server of its own."""
    arguments = ("--strict", "--context-length", "1024", "--resume", "3")
    with Server(home, *arguments, "--num-parallel", str(together), fake=False, **more) as server:
        shutil.copy(model, server.models / "killed.gguf")
        found = Kills(server, "killed", seed)
        asyncio.run(found.run(kills, together))
    return found


def main() -> None:
    """Run it and tell what happened."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--engine", type=Path, help="a llama-server to use")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    env = {"VLLAMA_ENGINE_PATHS": f"llama-server={options.engine}"} if options.engine else {}
    with tempfile.TemporaryDirectory() as folder:
        found = run(
            Path(folder), options.model, options.kills, options.seed,
            together=options.together, env=env,
        )  # fmt: skip
    cuts = statistics.quantiles(found.pauses, n=20) if len(found.pauses) > 1 else [0.0] * 19
    report(found.seen, found.wrong, f"pause: median {cuts[9]:.2f} s, p95 {cuts[18]:.2f} s")


if __name__ == "__main__":
    main()
