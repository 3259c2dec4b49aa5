"""Requests of three groups through a SIGKILL of the server: each is counted once, to the cent.

Every request names a user of its own, as a proxy does, so that the server's usage can be compared
request by request. A response that the kill has cut may be counted or not, once: no two parties can
agree on that (docs/decisions, 28). Its client asks again, as another user.

    python -m tests.chaos.spend --requests 10000
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

from tests.routes.test_access import ask, command
from tests.routes.test_ollama_chat import until
from tests.server_process import LIMIT_S, Server

Rows: TypeAlias = list[dict[str, Any]]
CLIENTS = 12
GROUPS = {"a": 'budget = "900/month"', "b": 'tokens = "900M/day"', "c": ""}
CONFIG = """
currency = "EUR"
[models.wide-counts]
price = { prompt = 15.13, cached = 2.07, generated = 60.41 }
""" + "".join(f"[groups.{name}]\n{limits}\n" for name, limits in GROUPS.items())
PRICES = Decimal("15.13"), Decimal("2.07"), Decimal("60.41")  # per million tokens
COUNTS = "prompt_tokens", "cached_tokens", "generated_tokens"


def compute_spend(prompt: int, cached: int, generated: int) -> Decimal:
    """Return what tokens cost, by another way than the server's."""
    cached = min(cached, prompt)  # the stand-in for an engine counts letters
    amounts = prompt - cached, cached, generated
    return sum((n * price for n, price in zip(amounts, PRICES, strict=True)), Decimal(0)) / 10**6


@dataclass
class Clients:
    """What the clients of all groups were told, by user; `cut` has what they asked for in vain."""

    server: Server
    keys: dict[str, str]
    whole: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def work(self, numbers: range) -> None:
        """Ask once for each number, again where a response was cut."""
        for number in numbers:
            user = f"{number}"
            while not self.errors:
                try:
                    self.ask(user, number)
                    break
                except (http.client.HTTPException, OSError) as error:
                    if not isinstance(error, ConnectionRefusedError):
                        self.cut[user] = count_wanted(number)
                        user += "-again"
                    time.sleep(0.05)

    def ask(self, user: str, number: int) -> None:
        """Ask as a user. Raises HTTPException or OSError."""
        text = f"@tokens={count_wanted(number)} {'word ' * (number % 11)}"
        is_stream = number % 2 == 0
        body = {
            "model": "wide-counts",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 50,
            "stream": is_stream,
            "stream_options": {"include_usage": True},
        }
        secret = self.keys[[*GROUPS][number % len(GROUPS)]]
        headers = {"authorization": f"Bearer {secret}", "x-forwarded-user": user}
        connection = self.server.connect()
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        usage = read_usage(content) if answer.status == 200 else None
        if usage is not None:
            self.whole[user] = usage
        elif answer.status == 200:
            raise http.client.IncompleteRead(content)
        elif answer.status != 503:
            self.errors.append(f"{user}: {answer.status}: {content[:300]!r}")
        else:
            raise ConnectionRefusedError


def count_wanted(number: int) -> int:
    """Return the tokens of a response."""
    return number % 7 + 1


def read_usage(content: bytes) -> tuple[int, int, int] | None:
    """Return the tokens that a response tells, None for one that was cut."""
    lines = [line.removeprefix(b"data: ") for line in content.splitlines() if line]
    if lines[-1:] == [b"[DONE]"]:
        lines.pop()
    elif not lines or content.startswith(b"data: "):
        return None
    usage = json.loads(lines[-1])["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return usage["prompt_tokens"], cached, usage["completion_tokens"]


def compare(
    clients: Clients, rows: list[dict[str, Any]], groups: list[dict[str, Any]]
) -> list[str]:
    """Return what is wrong with the server's sums by user, and by group."""
    wrong, totals = [], dict.fromkeys(GROUPS, (0, 0, 0, 0, Decimal(0)))
    known = {row["user"]: row for row in rows}
    for user, wanted in clients.whole.items():
        row = known.get(user)
        found = row and (row["requests"], *(row[name] for name in COUNTS), row["spend"])
        if found != (1, *wanted, float(compute_spend(*wanted))):
            wrong.append(f"{user}: told {wanted}, counted {found}")
    for user in known.keys() - clients.whole.keys():
        row, wanted_tokens = known[user], clients.cut.get(user, -1)
        if row["requests"] != 1 or not 0 <= row["generated_tokens"] <= wanted_tokens:
            wrong.append(f"{user}: cut at {wanted_tokens} tokens, counted {row}")
    for row in rows:
        counts = [row[name] for name in COUNTS]
        added = (row["requests"], *counts, compute_spend(*counts))
        before = totals[row["group"]]
        totals[row["group"]] = tuple(map(sum, zip(before, added, strict=True)))  # type: ignore[arg-type]
    for row in groups:
        *counts, spend = totals[row["group"]]
        if [row["requests"], *(row[name] for name in COUNTS)] != counts:
            wrong.append(f"group {row['group']}: {row}, but its requests are {counts}")
        if (row["spend"], row["unpriced"]) != (float(spend), 0):
            wrong.append(f"group {row['group']}: {row['spend']}, but its requests cost {spend}")
    return wrong


def run(home: Path, requests: int) -> list[str]:
    """Ask, kill the server in the middle, and return what is wrong at the end."""
    (home / "slots").mkdir(parents=True)
    (home / "config.toml").write_text(CONFIG)
    server = Server(home, "--config", str(home / "config.toml"), "--hang-timeout", "0")
    server.model("wide-counts", "--token-interval", "0.001", "--slots", str(home / "slots"))
    with server:
        root = command(server, "keys", "add", "root", "--scope", "admin")
        limits = ("--trusts-user", "yes", "--model-tokens", "wide-counts=900M/month")
        keys = {
            name: command(server, "keys", "add", name, "--group", name, *limits, key=root)
            for name in GROUPS
        }
        clients = Clients(server, keys)
        threads = [
            threading.Thread(target=clients.work, args=(range(start, requests, CLIENTS),))
            for start in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        while len(clients.whole) < requests // 2 and not clients.errors:
            time.sleep(0.01)
        assert server.process
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(LIMIT_S)
        until(lambda: not server.tree())
        server.start()
        for thread in threads:
            thread.join()
        rows, groups = (
            ask(server, root, f"/api/usage?by={by}")[1]["usage"] for by in ("group,user", "group")
        )
        counted = len({row["user"] for row in rows} & clients.cut.keys())
        print(f"{len(clients.whole)} responses, {len(clients.cut)} cut, {counted} of them counted")
        print("\n".join(f"group {row['group']}: {row}" for row in groups))
        return clients.errors + compare(clients, rows, groups)


def main() -> None:
    """Run, and exit with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = run(Path(folder), options.requests)
    print("\n".join(wrong[:20]) or "the server's usage is that of its clients, request by request")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
