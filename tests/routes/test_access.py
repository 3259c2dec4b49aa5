"""What keys may do over HTTP, in every dialect, and what is counted of what they do."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.server_process import LIMIT_S, Server
from tests.tiny import write_tiny_gguf

pytestmark = pytest.mark.slow

TEXT = "@tokens=5 two words"
CHAT = {"model": "counts", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 100}
ROUTES = {
    "/api/chat": CHAT,
    "/api/generate": {"model": "counts", "prompt": TEXT},
    "/v1/chat/completions": {**CHAT, "stream_options": {"include_usage": True}},
    "/v1/completions": {"model": "counts", "prompt": TEXT},
    "/v1/messages": CHAT,
    "/v1/responses": {"model": "counts", "input": TEXT},
}
KEYS = {
    "root": ("--scope", "admin"),
    "reader": ("--scope", "read"),
    "limited": ("--models", "other*,counts"),
    "slow": ("--rate", "1/h"),
    "small": ("--tokens", "5"),
    "single": ("--concurrent", "1"),
    "free": (),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("access"), "--hang-timeout", "0") as running:
        for name in ("counts", "plain", "other-wide"):
            running.model(name)
        running.model("stalls", "--stall-after", "2")
        yield running


@pytest.fixture(scope="module")
def keys(server: Server) -> dict[str, str]:
    """Add the keys to the running server; return their secrets."""
    return {name: command(server, "keys", "add", name, *options) for name, options in KEYS.items()}


def command(server: Server, *words: str, key: str = "") -> str:
    env = server.env | {"OLLAMA_HOST": server.url, "OLLAMA_API_KEY": key}
    run = [sys.executable, "-m", "vllama", *words]
    return subprocess.run(run, env=env, check=True, capture_output=True, text=True).stdout.strip()


def ask(server: Server, key: str, path: str, body: Any = None, method: str = "") -> tuple[int, Any]:
    method = method or ("GET" if body is None else "POST")
    status, headers, content = server.request(
        method, path, body, {"authorization": f"Bearer {key}"} if key else {}
    )
    try:
        return status, json.loads(content) | {"headers": headers}
    except ValueError:
        return status, {"text": content}


def usage(server: Server, keys: dict[str, str], name: str) -> tuple[int, int, int]:
    rows = ask(server, keys["root"], "/api/usage?by=key")[1]["usage"]
    row = next((row for row in rows if row["key"] == name), None)
    names = ("requests", "prompt_tokens", "generated_tokens")
    return tuple(row[name] for name in names) if row else (0, 0, 0)  # type: ignore[return-value]


def test_what_the_scopes_allow(server: Server, keys: dict[str, str]) -> None:
    asked = [
        ("GET", "/api/tags", None, "root reader free"),
        ("GET", "/v1/models", None, "root reader free"),
        ("GET", "/api/version", None, "root reader free"),
        ("POST", "/api/chat", CHAT, "root free"),
        ("GET", "/api/engines", None, "root reader"),
        ("GET", "/api/config", None, "root"),
        ("GET", "/api/logs", None, "root"),
        ("GET", "/api/captures", None, "root"),
        ("DELETE", "/api/delete", {"model": "nothing"}, "root"),
        ("POST", "/api/copy", {"source": "nothing", "destination": "x"}, "root"),
    ]
    for method, path, body, names in asked:
        for name in ("root", "reader", "free", ""):
            status, _ = ask(server, keys.get(name, ""), path, body, method)
            expected = {401} if not name else {403} if name not in names.split() else {200, 404}
            assert status in expected, (path, name, status)


def test_a_key_sees_and_uses_its_models_only(server: Server, keys: dict[str, str]) -> None:
    key = keys["limited"]
    assert ask(server, key, "/api/chat", CHAT | {"stream": False})[0] == 200
    listed = {row["name"] for row in ask(server, key, "/api/tags")[1]["models"]}
    assert listed == {"counts:latest", "other-wide:latest"}
    assert {row["id"] for row in ask(server, key, "/v1/models")[1]["data"]} == listed
    assert ask(server, keys["free"], "/api/chat", CHAT | {"model": "plain"})[0] == 200
    loaded = {row["name"] for row in ask(server, key, "/api/ps")[1]["models"]}
    assert loaded == {"counts:latest"}
    for path, body in (
        *((path, body | {"model": "plain"}) for path, body in ROUTES.items()),
        ("/api/embed", {"model": "plain", "input": "x"}),
        ("/api/show", {"model": "plain"}),
        ("/api/tokenize", {"model": "plain", "text": "x"}),
        ("/v1/models/plain", None),
        ("/v1/messages/count_tokens", CHAT | {"model": "plain"}),
    ):
        status, answer = ask(server, key, path, body)
        assert status == 403 and "does not allow it" in json.dumps(answer, default=str), path


FORMS = ("{}", "~/{0.name}", "~/x.gguf", "{0.parent}/x/../{0.name}", "/", "..", "./x.gguf")
FORMS += ("file://{}", " {}", "{0.parent}", "/nowhere/x.gguf")


@pytest.mark.parametrize("form", FORMS)
def test_a_path_names_a_model_for_an_admin_only(
    form: str, server: Server, keys: dict[str, str]
) -> None:
    """Whether a file is there or not, and by every route that takes the name of a model."""
    file = Path(server.env["HOME"]) / "unlisted.gguf"
    if not file.exists():
        write_tiny_gguf(file, n_ctx=4096)
    name = form.format(file)
    asked: list[tuple[str, Any]] = [(path, body | {"model": name}) for path, body in ROUTES.items()]
    asked += [
        *((path, {"model": name, "input": "x"}) for path in ("/api/embed", "/v1/embeddings")),
        ("/api/embeddings", {"model": name, "prompt": "x"}),
        ("/api/generate", {"model": name}),
        ("/api/show", {"model": name}),
        ("/api/show", {"name": name}),
        ("/api/plan", {"model": name}),
        ("/api/tokenize", {"model": name, "text": "x"}),
        ("/api/detokenize", {"model": name, "tokens": [1]}),
        ("/v1/messages/count_tokens", CHAT | {"model": name}),
        ("/v1/rerank", {"model": name, "query": "x", "documents": ["y"]}),
        ("/instance/previews?model=" + quote(name, safe=""), None),
        ("/api/create", {"model": "made", "from": name}),
        ("/api/copy", {"source": name, "destination": "made"}),
    ]
    for path, body in asked:
        for key in ("free", "reader", "limited"):
            status, answer = ask(server, keys[key], path, body)
            assert status == 403, (path, key, answer)
    if form == "{}":
        assert ask(server, keys["root"], "/api/show", {"model": name})[0] == 200
        assert ask(server, keys["root"], "/api/chat", CHAT | {"model": name})[0] == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_each_answer_is_counted_as_its_client_is_told(
    path: str, stream: bool, server: Server, keys: dict[str, str]
) -> None:
    before = usage(server, keys, "free")
    headers = {"x-api-key": keys["free"]}
    body = ROUTES[path] | {"stream": stream}
    status, _, content = server.request("POST", path, body, headers)
    assert status == 200 and content
    after = usage(server, keys, "free")
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 3, 5]


def test_choices_and_vectors_are_counted(server: Server, keys: dict[str, str]) -> None:
    before = usage(server, keys, "free")
    answer = ask(server, keys["free"], "/v1/chat/completions", CHAT | {"n": 3})[1]["usage"]
    middle = usage(server, keys, "free")
    counted = [new - old for new, old in zip(middle, before, strict=True)]
    assert counted == [1, answer["prompt_tokens"], answer["completion_tokens"]]
    ask(server, keys["free"], "/api/embed", {"model": "counts", "input": ["a b", "c"]})
    after = usage(server, keys, "free")
    assert [new - old for new, old in zip(after, middle, strict=True)] == [1, 3, 0]


def test_an_unload_is_no_use_of_a_model(server: Server, keys: dict[str, str]) -> None:
    before = usage(server, keys, "free")
    for path in ("/api/chat", "/api/generate"):
        unload = {"model": "plain", "keep_alive": 0}
        assert ask(server, keys["free"], path, unload)[1]["done_reason"] == "unload"
    assert usage(server, keys, "free") == before


def test_a_list_of_prompts_is_logged_as_it_is_counted(server: Server, keys: dict[str, str]) -> None:
    before = usage(server, keys, "free")
    asked = {"model": "counts", "prompt": [TEXT, TEXT, TEXT], "n": 2}
    told = ask(server, keys["free"], "/v1/completions", asked)[1]["usage"]
    after = usage(server, keys, "free")
    assert (told["prompt_tokens"], told["completion_tokens"]) == (9, 30)
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 9, 30]
    server.wait_for(r"POST /v1/completions 200 \S+ counts:latest 9\+30 tokens")


@pytest.mark.parametrize("name", ["slow", "small", "single"])
def test_a_key_at_its_limit_may_unload(name: str, server: Server, keys: dict[str, str]) -> None:
    connection = server.connect()
    asked = CHAT | {"model": "stalls" if name == "single" else "counts"}
    connection.request(
        "POST", "/api/chat", json.dumps(asked), {"authorization": f"Bearer {keys[name]}"}
    )
    connection.getresponse().readline()  # that of "stalls" does not end
    assert ask(server, keys[name], "/api/chat", CHAT)[0] == 429
    for path in ("/api/chat", "/api/generate"):
        for keep_alive in (0, "0s"):
            unload = {"model": "plain", "keep_alive": keep_alive}
            assert ask(server, keys[name], path, unload)[1]["done_reason"] == "unload"
    assert ask(server, keys[name], "/api/chat", CHAT)[0] == 429
    connection.close()


def test_errors_are_not_counted(server: Server, keys: dict[str, str]) -> None:
    before = usage(server, keys, "free")
    for body in (CHAT | {"model": "nothing"}, CHAT | {"messages": 7}, b"{"):
        assert ask(server, keys["free"], "/api/chat", body)[0] in (400, 404)
    assert usage(server, keys, "free") == before


def test_an_answer_whose_client_has_left_is_counted(server: Server, keys: dict[str, str]) -> None:
    before = usage(server, keys, "free")
    connection = server.connect()
    body = json.dumps(CHAT | {"model": "stalls"})
    connection.request("POST", "/api/chat", body, {"authorization": f"Bearer {keys['free']}"})
    answer = connection.getresponse()
    lines = [answer.readline() for _ in range(2)]
    connection.close()
    deadline_s = time.monotonic() + LIMIT_S
    while (after := usage(server, keys, "free")) == before:
        assert time.monotonic() < deadline_s
    assert (after[0] - before[0], after[2] - before[2]) == (1, 2), lines


REFUSALS = {
    "/api/chat": ("error",),
    "/v1/chat/completions": ("error", "code"),
    "/v1/messages": ("error", "type"),
}


@pytest.mark.parametrize("path", REFUSALS)
def test_limits_are_refused_in_the_dialect_of_the_route(
    path: str, server: Server, keys: dict[str, str]
) -> None:
    for name, kind, words in (
        ("slow", "requests", "is limited to 1 request per h"),
        ("small", "tokens", "has used its 5 tokens of today"),
    ):
        for _ in range(3):  # the first one is admitted, and one more if a day ends meanwhile
            status, answer = ask(server, keys[name], path, ROUTES[path])
            if status == 429:
                break
        headers = answer["headers"]
        assert status == 429 and words in json.dumps(answer, default=str)
        # at the end of a day there is little to wait, and clients may do so by themselves
        waits = int(headers["retry-after"])
        assert waits > 0 and headers.get("x-should-retry") == ("false" if waits > 60 else None)
        value: Any = answer
        for field in REFUSALS[path]:
            value = value[field]
        assert path == "/api/chat" or value in ("rate_limit_exceeded", "rate_limit_error")
        if path == "/v1/messages":
            assert headers[f"anthropic-ratelimit-{kind}-remaining"] == "0"
            assert headers[f"anthropic-ratelimit-{kind}-reset"].endswith("Z")
        else:
            assert headers[f"x-ratelimit-remaining-{kind}"] == "0"
            assert headers[f"x-ratelimit-reset-{kind}"].endswith("s")


def test_an_answer_that_ends_makes_room_at_once(server: Server, keys: dict[str, str]) -> None:
    for _ in range(20):
        status, answer = ask(server, keys["single"], "/api/chat", CHAT | {"stream": False})
        assert status == 200, answer


def test_a_key_sees_and_ends_its_own_requests_only(server: Server, keys: dict[str, str]) -> None:
    connection = server.connect()
    body = json.dumps(CHAT | {"model": "stalls"})
    headers = {"authorization": f"Bearer {keys['free']}", "x-request-id": "mine"}
    connection.request("POST", "/api/chat", body, headers)
    answer = connection.getresponse()
    answer.readline()

    def list_ids(name: str) -> list[str]:
        rows = ask(server, keys[name], "/api/requests")[1]["requests"]
        return [row["id"] for row in rows if row["key"] == "free"]

    assert [list_ids(name) for name in ("limited", "reader", "root", "free")] == [
        *([], ["mine"], ["mine"], ["mine"]),
    ]
    statuses = [
        ask(server, keys[name], "/api/requests/mine", method="DELETE")[0]
        for name in ("limited", "reader", "free")
    ]
    assert statuses == [404, 403, 200]
    assert b"was stopped" in answer.read()
    connection.close()


def test_a_burst_of_one_key_leaves_the_next_turn_to_another(
    server: Server, keys: dict[str, str]
) -> None:
    def wait_for(count: int) -> list[dict[str, Any]]:
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            rows = ask(server, keys["root"], "/api/requests")[1]["requests"]
            if len(rows) == count:
                return rows
            assert time.monotonic() < deadline_s, rows

    threads = []
    for count, name in enumerate(("free",) * 6 + ("root",), start=1):
        arguments = (server, keys[name], "/api/chat", CHAT | {"model": "stalls", "stream": False})
        threads.append(threading.Thread(target=ask, args=arguments))
        threads[-1].start()
        wait_for(count)
    rows = wait_for(7)
    places = [(row["queue_place"], row["key"]) for row in rows if row["queue_place"]]
    assert sorted(places)[:3] == [(1, "free"), (2, "root"), (3, "free")]
    while rows := ask(server, keys["root"], "/api/requests")[1]["requests"]:
        for row in rows:
            ask(server, keys["root"], f"/api/requests/{row['id']}", method="DELETE")
    for thread in threads:
        thread.join(LIMIT_S)


def test_what_a_key_may_see_of_usage(server: Server, keys: dict[str, str]) -> None:
    ask(server, keys["free"], "/api/chat", CHAT | {"stream": False})
    ask(server, keys["limited"], "/api/chat", CHAT | {"stream": False})
    seen = {
        name: {row["key"] for row in ask(server, keys[name], "/api/usage")[1]["usage"]}
        for name in ("limited", "reader")
    }
    assert seen["limited"] == {"limited"} and {"limited", "free"} <= seen["reader"]
    wrong = ("by=nothing", "since=yesterday", "since=2026-13-01", "until=2026-02-30", "key=free")
    for query in wrong:
        assert ask(server, keys["reader"], f"/api/usage?{query}")[0] == 400
    nothing = ask(server, keys["reader"], "/api/usage?since=2026-11-23&until=2026-11-22")
    assert nothing[0] == 200 and nothing[1]["usage"] == []
    table = command(server, "usage", "--by", "key", "--csv", key=keys["reader"])
    assert table.splitlines()[0] == (
        "key,requests,prompt_tokens,cached_tokens,generated_tokens,seconds,spend,unpriced"
    )
    metrics = ask(server, keys["reader"], "/metrics")[1]["text"].decode()
    assert 'vllama_key_tokens_total{key="free",kind="generated",model="counts:latest"}' in metrics
    server.wait_for(r" key free \[")


def test_a_revoked_key_and_a_rotated_one(server: Server, keys: dict[str, str]) -> None:
    old = command(server, "keys", "add", "guest", "--expires", "30d")
    assert ask(server, old, "/api/version")[0] == 200
    new = command(server, "keys", "rotate", "guest")
    assert [ask(server, key, "/api/version")[0] for key in (old, new)] == [401, 200]
    command(server, "keys", "revoke", "guest")
    status, answer = ask(server, new, "/v1/models")
    assert status == 401 and "has been revoked" in answer["error"]["message"]


def test_a_server_that_requires_keys_and_has_lost_them(tmp_path: Path) -> None:
    with Server(tmp_path, "--require-keys") as server:
        status, answer = ask(server, "", "/api/tags")
        assert status == 401 and "requires a key, but no key exists" in answer["error"]
        assert server.request("GET", "/readyz")[0] == 200
        server.wait_for("all requests are rejected: ")
        secret = command(server, "keys", "add", "ann")
        assert ask(server, secret, "/api/tags")[0] == 200
        command(server, "keys", "open")
        assert ask(server, "", "/api/tags")[0] == 401
