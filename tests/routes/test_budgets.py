"""Groups of keys, prices and budgets over HTTP. Spend through a kill: see tests/chaos/spend.py."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.routes.test_access import ask, command
from tests.server_process import Server

pytestmark = pytest.mark.slow

CONFIG = """
currency = "EUR"
[models.counts]
price = { prompt = 0.15, cached = 0.02, generated = 0.60 }
[models.dear]
price = { generated = 70000 }
[groups.poor]
budget = "1/month"
[groups.few]
tokens = "12/day"
[groups.rich]
budget = "999/day"
"""
SAY = [{"role": "user", "content": "@tokens=5 two words"}]
BODIES: dict[str, dict[str, Any]] = {
    "/api/chat": {"messages": SAY, "stream": False, "options": {"num_predict": 50}},
    "/v1/chat/completions": {"messages": SAY, "max_tokens": 50},
    "/v1/messages": {"messages": SAY, "max_tokens": 50},
}


def start(folder: Path) -> Server:
    (folder / "config.toml").write_text(CONFIG)
    server = Server(folder, "--config", str(folder / "config.toml"), "--hang-timeout", "0")
    for name in ("counts", "dear", "plain"):
        server.model(name)
    return server


def list_usage(server: Server, key: str, by: str) -> list[dict[str, Any]]:
    told = ask(server, key, f"/api/usage?by={by}")[1]
    assert told["currency"] == "EUR"
    return list(told["usage"])


@pytest.mark.parametrize("path", BODIES)
def test_over_budget_is_told_in_each_dialect(path: str, tmp_path: Path) -> None:
    with start(tmp_path) as server:
        root = command(server, "keys", "add", "root", "--scope", "admin")
        ann, bob = (
            command(server, "keys", "add", name, "--group", "poor", key=root)
            for name in ("ann", "bob")
        )
        for model in ("plain", "counts", "dear", "dear"):
            assert ask(server, ann, path, {"model": model, **BODIES[path]})[0] == 200
        assert "group 'poor' has used 80 % of its budget of this month" not in server.output
        assert ask(server, ann, path, {"model": "dear", **BODIES[path]})[0] == 200  # 1.05 by now
        server.wait_for("group 'poor' has used 80 % of its budget of this month")
        status, told = ask(server, bob, path, {"model": "plain", **BODIES[path]})
        assert status == 429, "the budget is that of both, and of all models"
        assert "group 'poor' has used its budget of this month" in str(told)
        assert "first day of the month" in str(told)
        assert int(told["headers"]["retry-after"]) > 0
        assert told["headers"]["x-should-retry"] == "false"
        rows = {row["model"]: row for row in list_usage(server, root, "group,model")}
        assert rows["plain:latest"]["spend"] is None and rows["plain:latest"]["unpriced"] == 1
        assert rows["dear:latest"]["spend"] == 1.05 and rows["dear:latest"]["group"] == "poor"


@pytest.mark.parametrize(("group", "model"), [("few", "counts"), ("poor", "dear")])
def test_a_running_response_ends_though_its_group_is_over_its_limit(
    group: str, model: str, tmp_path: Path
) -> None:
    with start(tmp_path) as server:
        root = command(server, "keys", "add", "root", "--scope", "admin")
        key = command(server, "keys", "add", "ann", "--group", group, key=root)
        body = {"model": model, "messages": [{"role": "user", "content": "@tokens=40"}]}
        status, told = ask(server, key, "/v1/chat/completions", body)
        assert status == 200 and told["usage"]["completion_tokens"] == 40
        assert ask(server, key, "/v1/chat/completions", body)[0] == 429


def test_a_new_price_changes_no_earlier_spend(tmp_path: Path) -> None:
    with start(tmp_path) as server:
        root = command(server, "keys", "add", "root", "--scope", "admin")
        body = {"model": "dear", **BODIES["/v1/chat/completions"]}

        def chat() -> float:
            assert ask(server, root, "/v1/chat/completions", body)[0] == 200
            (row,) = list_usage(server, root, "model")
            return float(row["spend"])

        assert chat() == 0.35
        config = tmp_path / "config.toml"
        config.write_text(CONFIG.replace("70000", "20000"))
        assert server.process
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("settings reloaded")
        assert chat() == 0.45
