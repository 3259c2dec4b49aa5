"""Users whom a proxy names, and limits of single models, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.routes.test_access import command
from tests.routes.test_keys_over_http import ask
from tests.server_process import Server

pytestmark = pytest.mark.slow

CONFIG = '[groups.team]\nmodel_rate = { "counts" = "2/day" }\n'
SAY = [{"role": "user", "content": "@tokens=5 two words"}]
CHAT = {"model": "counts", "messages": SAY, "max_tokens": 50, "stream": False}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "config.toml").write_text(CONFIG)
    with Server(tmp_path, "--config", str(tmp_path / "config.toml")) as running:
        for name in ("counts", "plain"):
            running.model(name)
        yield running


def add(server: Server, name: str, *words: str, root: str = "") -> str:
    return command(server, "keys", "add", name, *words, key=root)


def test_a_user_is_believed_from_the_proxys_key_only(server: Server) -> None:
    root = add(server, "root", "--scope", "admin")
    web = add(server, "web", "--trusts-user", "yes", root=root)
    other = add(server, "other", root=root)
    for key, headers in (
        (web, {"x-forwarded-email": "ann@x.org", "x-forwarded-user": "4711"}),
        (web, {"x-forwarded-user": "bob"}),
        (web, {"x-forwarded-email": "", "x-forwarded-user": "bob"}),
        (web, {}),
        (web, {"x-forwarded-email": "x" * 300}),
        (web, {"x-forwarded-email": "a\tb"}),
        (other, {"x-forwarded-email": "ann@x.org"}),
        (root, {"x-forwarded-email": "ann@x.org"}),
    ):
        assert ask(server, key, "POST", "/api/chat", CHAT, **headers)[0] == 200
    rows = ask(server, root, "GET", "/api/usage?by=key,user")[1]["usage"]
    assert {(row["key"], row["user"]): row["requests"] for row in rows} == {
        ("web", "ann@x.org"): 1,
        ("web", "bob"): 2,
        ("web", ""): 3,
        ("other", ""): 1,
        ("root", ""): 1,
    }
    ann, bob = ({"x-forwarded-email": name} for name in ("ann@x.org", "bob"))
    own = ask(server, web, "GET", "/api/usage?by=user", **ann)[1]["usage"]
    assert [(row["user"], row["requests"]) for row in own] == [("ann@x.org", 1)]
    body = {"model": "counts", "input": "@tokens=5"}
    stored = ask(server, web, "POST", "/v1/responses", body, **ann)[1]["id"]
    for headers, status in ((ann, 200), (bob, 404), ({}, 404)):
        assert ask(server, web, "GET", f"/v1/responses/{stored}", **headers)[0] == status
    ask(server, root, "PATCH", "/api/keys/web", {"trusts_user": False})
    assert ask(server, web, "GET", f"/v1/responses/{stored}", **ann)[0] == 404
    assert not ask(server, root, "GET", "/api/keys")[1]["keys"][1]["trusts_user"]


def test_who_acted_by_a_proxys_key_is_in_the_audit_log(server: Server) -> None:
    root = add(server, "root", "--scope", "admin")
    web = add(server, "web", "--scope", "admin", "--trusts-user", "yes", root=root)
    copy = {"source": "plain", "destination": "copied"}
    server.request(
        "POST",
        "/api/copy",
        copy,
        {"authorization": f"Bearer {web}", "x-forwarded-email": "ann@x.org"},
    )
    server.wait_for("audit: web for ann@x.org: models copy")


@pytest.mark.parametrize("of", ["key", "group"])
@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/v1/messages"])
def test_a_limit_of_one_model(of: str, path: str, server: Server) -> None:
    root = add(server, "root", "--scope", "admin")
    words = ("--group", "team") if of == "group" else ("--model-tokens", "counts=40/day,other=1")
    key = add(server, "ann", *words, root=root)

    def chat(model: str = "counts") -> tuple[int, dict[str, str], Any]:
        headers = {"authorization": f"Bearer {key}"}
        return server.request("POST", path, CHAT | {"model": model}, headers)

    kind, allowed = "requests" if of == "group" else "tokens", 0
    while (answer := chat())[0] == 200 and allowed < 40:
        assert any(f"-{kind}" in name for name in answer[1])
        allowed += 1
    status, headers, told = answer
    reason = {"key": "has used its 40 tokens of today", "group": "is limited to 2 requests per day"}
    assert status == 429 and f"', for the model 'counts:latest', {reason[of]}" in told.decode()
    (row,) = ask(server, root, "GET", "/api/usage?by=model")[1]["usage"]
    tokens = row["prompt_tokens"] + row["generated_tokens"]
    assert allowed == 2 if of == "group" else 40 <= tokens < 40 + tokens / allowed
    assert int(headers["retry-after"]) > 60
    assert chat("plain")[0] == 200
    assert server.process
    server.__exit__()
    server.start()
    assert chat()[0] == 429, "usage of a model survives a restart"
    assert chat("plain")[0] == 200


def test_a_head_applies_the_limits_of_models(tmp_path: Path) -> None:
    with Server(tmp_path / "a") as node, Server(tmp_path / "h", "--node", node.url) as head:
        node.model("there")
        root = add(head, "root", "--scope", "admin")
        key = add(head, "ann", "--model-rate", "there=2/day", root=root)
        for status in (200, 200, 429):
            found, told = ask(head, key, "POST", "/api/chat", CHAT | {"model": "there"})
            assert found == status, told
