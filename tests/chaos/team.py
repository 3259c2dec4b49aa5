"""Twenty clients with five keys, whose sums must be the server's, through restarts and changes.

Each client asks in a dialect at random, as a stream or as a whole, and counts what the answers say.
Meanwhile the server is stopped, killed and started again, and keys are changed and revoked.
At the end `vllama usage` must show what the clients counted. An answer that a kill has cut may be
counted or not: no two parties can agree on that (docs/decisions, 28).

    python -m tests.chaos.team --seconds 300
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.server_process import LIMIT_S, Server

CLIENTS = 20
MODELS = ("wide-counts", "counts")
KEYS = {
    "free": (),
    "rated": ("--rate", "60/min"),
    "daily": ("--tokens", "600"),
    "narrow": ("--concurrent", "1", "--priority", "3"),
    "leaving": ("--models", "wide*"),
}
RATE, PERIOD_S, DAILY_TOKENS = 60, 60.0, 600
MAX_TOKENS = 12
PROMPT_NAMES = ("prompt_tokens", "prompt_eval_count", "input_tokens")
GENERATED_NAMES = ("completion_tokens", "eval_count", "output_tokens")


@dataclass
class Tally:
    """What the clients of one key have counted; times are those of `time.monotonic`."""

    whole: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    cut: int = 0
    largest: int = 0
    spans_s: list[tuple[float, float]] = field(default_factory=list)

    def add(self, prompt: int, generated: int, span_s: tuple[float, float]) -> None:
        """Count an answer that came whole."""
        self.whole.update(requests=1, prompt_tokens=prompt, generated_tokens=generated)
        self.largest = max(self.largest, prompt + generated)
        self.spans_s.append(span_s)


class Team:
    """The server, its keys, and the clients with what they count."""

    def __init__(self, home: Path) -> None:
        self.server = Server(home)
        self.tallies = {name: Tally() for name in KEYS}
        self.secrets: dict[str, str] = {}
        self.ending = threading.Event()
        self.kills = 0
        self._lock = threading.Lock()
        self._errors: list[str] = []

    # -- the operator -------------------------------------------------------------------------

    def command(self, *words: str) -> str:
        """Run a command of vllama, and return what it prints."""
        env = self.server.env | {"OLLAMA_HOST": self.server.url}
        if "root" in self.secrets:
            env["OLLAMA_API_KEY"] = self.secrets["root"]
        command = [sys.executable, "-m", "vllama", *words]
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout

    def begin(self) -> None:
        """Make the models, and add the keys."""
        for name in MODELS:
            self.server.model(name, "--token-interval", "0.002")
        self.secrets["root"] = self.command("keys", "add", "root", "--scope", "admin").strip()
        for name, limits in KEYS.items():
            self.secrets[name] = self.command("keys", "add", name, *limits).strip()

    def restart(self, number: signal.Signals) -> None:
        """End the server with a signal, and start it again on another port."""
        process = self.server.process
        assert process is not None
        self.kills += number == signal.SIGKILL
        process.send_signal(number)
        process.wait(LIMIT_S)
        self.server.start()

    def read_usage(self) -> dict[str, Counter[str]]:
        """Return the server's sums by key."""
        rows = json.loads(self.command("usage", "--by", "key", "--json"))["usage"]
        names = ("requests", "prompt_tokens", "generated_tokens")
        return {row["key"]: Counter({name: row[name] for name in names}) for row in rows}

    # -- the clients --------------------------------------------------------------------------

    def ask_until_the_end(self, name: str, chance: random.Random) -> None:
        """Be a client of the key `name`."""
        try:
            while not self.ending.is_set():
                self.ask(name, chance)
        except Exception as error:  # a thread's own would be lost
            self._errors.append(f"{name}: {error!r}")
            self.ending.set()

    def ask(self, name: str, chance: random.Random) -> None:
        """Ask once, and count the answer."""
        tally, tokens = self.tallies[name], chance.randint(1, MAX_TOKENS)
        path = chance.choice(("/api/chat", "/v1/chat/completions", "/v1/messages", "/api/generate"))
        text = f"@tokens={tokens}" + " word" * chance.randint(0, 5)
        body = {
            "model": "wide-counts" if name == "leaving" else chance.choice(MODELS),
            "stream": chance.random() < 0.5,
            "messages": [{"role": "user", "content": text}],
            "stream_options": {"include_usage": True},
            "max_tokens": chance.choice((MAX_TOKENS, 1000)),  # side by side, or alone
        }
        if path == "/api/generate":
            body["prompt"] = text
        began_s = time.monotonic()
        try:
            status, content = self.exchange(name, path, body)
        except (http.client.HTTPException, OSError) as error:
            if not isinstance(error, ConnectionRefusedError):
                with self._lock:
                    tally.cut += 1
            self.ending.wait(0.05)
            return
        span_s = (began_s, time.monotonic())
        with self._lock:
            tally.statuses[status] += 1
            if status == 200:
                tally.add(*read_counts(path, content), span_s)
        if status != 200:
            if status not in (401, 429, 503):
                raise AssertionError(f"{path} answered {status}: {content[:300]!r}")
            self.ending.wait(0.02)

    def exchange(self, name: str, path: str, body: object) -> tuple[int, bytes]:
        """Send a request and return status and content. Raises HTTPException or OSError."""
        connection = self.server.connect()
        headers = {"authorization": f"Bearer {self.secrets[name]}"}
        try:
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def leave(self, chance: random.Random) -> int:
        """Begin to read a stream and leave; return how many tokens had come."""
        text = f"@tokens={chance.randint(50, 200)}"
        body = {"model": "wide-counts", "messages": [{"role": "user", "content": text}]}
        headers = {"authorization": f"Bearer {self.secrets['leaving']}"}
        connection = self.server.connect()
        try:
            connection.request("POST", "/api/chat", json.dumps(body), headers)
            answer = connection.getresponse()
            return sum(b'"done":false' in answer.readline() for _ in range(chance.randint(1, 9)))
        finally:
            connection.close()

    def wait_for_refusal(self, name: str, status: int) -> None:
        """Wait until clients of a key were refused."""
        deadline_s = time.monotonic() + LIMIT_S
        while not self.tallies[name].statuses[status] and not self.ending.is_set():
            assert time.monotonic() < deadline_s, f"{name} was never refused with {status}"
            self.ending.wait(0.05)

    # -- the verdict --------------------------------------------------------------------------

    def check(self, left_tokens: int, departures: int) -> list[str]:
        """Return what is wrong."""
        wrong, found = list(self._errors), self.read_usage()
        for name, tally in self.tallies.items():
            server, cut = found.get(name, Counter()), tally.cut if self.kills else 0
            more = Counter(server)
            more.subtract(tally.whole)
            print(f"{name}: {dict(tally.whole)}, statuses {dict(tally.statuses)}, cut {tally.cut}")
            if name == "leaving":
                if more["generated_tokens"] < left_tokens or more["requests"] > departures + cut:
                    wrong.append(f"{name}: {left_tokens} tokens were read, and {more} are counted")
                continue
            if min(more.values(), default=0) < 0 or more["requests"] > cut:
                wrong.append(f"{name}: clients counted {tally.whole}, the server {server}")
            if not more["requests"] and any(more.values()):
                wrong.append(f"{name}: the same requests, but {more} more")
        wrong += check_rate(self.tallies["rated"].spans_s)
        daily = self.tallies["daily"]
        used = found["daily"]["prompt_tokens"] + found["daily"]["generated_tokens"]
        if used > DAILY_TOKENS + daily.largest:
            wrong.append(f"daily: {used} tokens, {daily.largest} more than {DAILY_TOKENS} at most")
        if used < DAILY_TOKENS:
            wrong.append(f"daily: refused with {used} of {DAILY_TOKENS} tokens")
        return wrong


def check_rate(spans_s: list[tuple[float, float]]) -> list[str]:
    """Return what is wrong if more requests than allowed were admitted within a period.

    A request was admitted somewhere between its beginning and its end.
    """
    ordered = sorted(spans_s)
    for index in range(len(ordered) - RATE):
        span = ordered[index : index + RATE + 1]
        took_s = max(end_s for _, end_s in span) - span[0][0]
        if took_s < PERIOD_S:
            return [f"rated: {RATE + 1} requests within {took_s:.3f} s"]
    return []


def read_counts(path: str, content: bytes) -> tuple[int, int]:
    """Return the tokens of prompt and answer that an answer names, streamed or whole."""
    prompt = generated = 0
    for line in content.splitlines():
        data = line.removeprefix(b"data: ")
        if not data.startswith(b"{"):
            continue
        value = json.loads(data)
        assert "error" not in value, value
        usage = value.get("usage") or value
        # the last ones count: those at the beginning of Anthropic's streams are estimates
        prompt = next((usage[name] for name in PROMPT_NAMES if name in usage), prompt)
        generated = next((usage[name] for name in GENERATED_NAMES if name in usage), generated)
    assert generated, content
    return prompt, generated


def run(home: Path, seconds: float, seed: int = 1) -> list[str]:
    """Let the team work, and disturb it; return what is wrong at the end."""
    team, chance = Team(home), random.Random(seed)
    left_tokens = departures = 0
    with team.server:
        team.begin()
        names = list(itertools.islice(itertools.cycle(KEYS), CLIENTS))
        clients = [
            threading.Thread(
                target=team.ask_until_the_end, args=(name, random.Random(f"{seed}{i}"))
            )
            for i, name in enumerate(names)
        ]
        for client in clients:
            client.start()
        steps = (
            lambda: team.restart(signal.SIGTERM),
            lambda: team.command("keys", "change", "narrow", "--concurrent", "2"),
            lambda: team.restart(signal.SIGKILL),
            lambda: team.secrets.update(narrow=team.command("keys", "rotate", "narrow").strip()),
        )
        ends_s = time.monotonic() + seconds
        for number, step in enumerate(itertools.cycle(steps)):
            for _ in range(5):
                left_tokens += team.leave(chance)
                departures += 1
                team.ending.wait(seconds / 40)
            late = number >= len(steps) and time.monotonic() > ends_s
            if team.ending.is_set() or late:
                break
            step()
        team.command("keys", "revoke", "free")
        team.wait_for_refusal("free", 401)
        team.wait_for_refusal("daily", 429)
        team.ending.set()
        for client in clients:
            client.join(LIMIT_S)
        return team.check(left_tokens, departures)


def main() -> None:
    """Run, and exit with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = run(Path(folder), options.seconds, options.seed)
    print("\n".join(wrong) or "the server's sums are those of its clients")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
