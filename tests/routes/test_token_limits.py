"""Limits of tokens hold whatever many requests do at once; whoever leaves has used the prompt."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.routes.test_access import ask, command, usage
from tests.routes.test_external import Elsewhere
from tests.routes.test_fallback import Chained
from tests.routes.test_ollama_chat import until
from tests.server_process import Server
from vllama.chat.request import ChatRequest, Message
from vllama.routes.inference.demand import size_prompt

pytestmark = pytest.mark.slow

LIMIT, AT_ONCE, TOKENS, WORDS = 1000, 30, 200, "some words of a prompt"
SAY = f"@tokens={TOKENS} {WORDS}"
MESSAGES = [{"role": "user", "content": SAY}]
FAN_OUT: dict[str, dict[str, Any]] = {
    "/api/chat": {"messages": MESSAGES, "options": {"num_predict": 500}},
    "/api/generate": {"prompt": SAY, "options": {"num_predict": 500}, "stream": False},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 500},
    "/v1/completions": {"prompt": [SAY, SAY], "max_tokens": 500, "n": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 500, "stream": True},
    "/v1/responses": {"input": SAY, "max_output_tokens": 500},
    "/v1/chat/completions unbounded": {"messages": MESSAGES, "stream": True},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    with Server(tmp_path_factory.mktemp("tokens"), "--hang-timeout", "0") as running:
        running.model("wide-counts")
        running.model("vectors", "--embed-per-token")
        yield running


@pytest.fixture(scope="module")
def keys(server: Server) -> dict[str, str]:
    return {"root": command(server, "keys", "add", "root", "--scope", "admin")}


def add_key(server: Server, keys: dict[str, str], name: str, *options: str) -> str:
    return command(server, "keys", "add", name, *options, key=keys["root"])


def count_used(server: Server, keys: dict[str, str], name: str) -> int:
    _, prompt, generated = usage(server, keys, name)
    return prompt + generated


@pytest.mark.parametrize(
    ("name", "period"),
    [*((name, "day") for name in FAN_OUT), ("/api/chat", "minute"), ("/api/chat", "month")],
)
def test_many_at_once_exceed_a_limit_by_one_answer(
    server: Server, keys: dict[str, str], name: str, period: str
) -> None:
    path, key_name = name.split()[0], f"fan-{period}{name.replace('/', '-').replace(' ', '-')}"
    key = add_key(server, keys, key_name, "--tokens", f"{LIMIT}/{period}")
    small = {"model": "wide-counts", "messages": [{"role": "user", "content": "@tokens=1"}]}
    assert ask(server, key, "/api/chat", small | {"stream": False})[0] == 200
    body = {"model": "wide-counts", **FAN_OUT[name]}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [pool.submit(ask, server, key, path, body) for _ in range(AT_ONCE)]
        statuses = [one.result()[0] for one in asked]
    answered, used = statuses.count(200), count_used(server, keys, key_name)
    assert answered + statuses.count(429) == AT_ONCE
    one_answer = 4 * (TOKENS + 50) if path == "/v1/completions" else TOKENS + 50
    assert LIMIT <= used < LIMIT + one_answer, (used, answered)
    status, told = ask(server, key, path, body)
    assert (status == 429 and told["headers"]["x-should-retry"] == "false") or period == "minute"
    kind = "anthropic-ratelimit-tokens-remaining"
    if path != "/v1/messages":
        kind = "x-ratelimit-remaining-tokens"
    assert told["headers"][kind] == "0" and int(told["headers"]["retry-after"]) >= 1


def test_there_is_room_for_the_prompt_of_a_template_itself() -> None:
    for few in (1, 40):
        asked = ChatRequest(model="m", messages=(Message(role="user", content="hi"),) * few)
        own, around = 250, 15
        assert size_prompt(asked) >= own + few * (around + len("hi"))


def test_small_requests_run_side_by_side(server: Server, keys: dict[str, str]) -> None:
    key = add_key(server, keys, "parallel", "--tokens", "100k/day")
    say = [{"role": "user", "content": "@tokens=1 @delay=3600"}]
    body = {"model": "wide-counts", "messages": say, "max_tokens": 300}
    with ExitStack() as stack:
        for _ in range(3):
            connection = server.connect()
            stack.callback(connection.close)
            headers = {"authorization": f"Bearer {key}"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        until(lambda: [row["state"] for row in list_rows(server, keys)] == ["running"] * 3)
    until(lambda: not list_rows(server, keys))


def test_inputs_are_reserved_too(server: Server, keys: dict[str, str]) -> None:
    key = add_key(server, keys, "embeds", "--tokens", "20/day")
    body = {"model": "vectors", "input": "one two three four"}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        paths = ["/v1/embeddings", "/api/embed"] * (AT_ONCE // 2)
        asked = [pool.submit(ask, server, key, path, body) for path in paths]
        statuses = [one.result()[0] for one in asked]
    assert 200 in statuses and 429 in statuses
    assert 20 <= count_used(server, keys, "embeds") < 20 + 10


@pytest.mark.parametrize("pieces", [0, 2])
@pytest.mark.parametrize(
    "upstream",
    [
        None,
        ("--owner", "vllm", "--counts", "tokenize"),
        (),  # nobody counts: a quarter of its bytes
    ],
)
def test_the_prompt_of_who_leaves_counts(
    tmp_path: Path, upstream: tuple[str, ...] | None, pieces: int
) -> None:
    there = Elsewhere("--token-interval", "0.02", *upstream) if upstream is not None else None
    options = ("--upstream", there.url) if there is not None else ()
    try:
        with Server(tmp_path, *options, fake=there is None) as server:
            name = "org/big"
            if there is None:
                name = server.model("wide-counts", "--token-interval", "0.02")
            check_departures(server, name, pieces)
    finally:
        if there is not None:
            there.stop()


def check_departures(server: Server, name: str, pieces: int) -> None:
    """Leave answers of `name` after some pieces, in each dialect, and look what was counted."""
    keys = {"root": command(server, "keys", "add", "root", "--scope", "admin")}
    text = "@tokens=400 @delay=0.5 " + "word " * 40
    chat = {"model": name, "messages": [{"role": "user", "content": text}], "max_tokens": 500}
    bodies = dict.fromkeys(("/api/chat", "/v1/chat/completions", "/v1/messages"), chat)
    bodies["/v1/responses"] = {"model": name, "input": text}
    prompt = ask(server, keys["root"], "/v1/messages/count_tokens", chat)[1]["input_tokens"]
    for path, body in bodies.items():
        key_name = path.replace("/", "-").strip("-")
        headers = {"authorization": f"Bearer {add_key(server, keys, key_name)}"}
        counted = 0
        while not counted:  # it may leave before the engine has its request
            connection = server.connect()
            connection.request("POST", path, json.dumps(body | {"stream": True}), headers)
            if pieces:
                answer = connection.getresponse()
                for _ in range(3 * pieces):
                    answer.readline()
                answer.close()
            else:
                until(lambda: [row["state"] for row in list_rows(server, keys)] == ["running"])
            connection.close()
            until(lambda: not list_rows(server, keys))
            _, counted, _ = usage(server, keys, key_name)
        assert counted == pytest.approx(prompt, abs=3), path
    headers = {"authorization": f"Bearer {keys['root']}"}
    metrics = server.request("GET", "/metrics", headers=headers)[2].decode().splitlines()
    sums = [line.split()[-1] for line in metrics if line.startswith("vllama_prompt_tokens_total{")]
    assert sum(map(float, sums)) == pytest.approx(prompt * len(bodies), abs=12)
    if pieces:
        server.wait_for(rf"POST /api/chat 200 \S+ \S+ {counted}\+")


def list_rows(server: Server, keys: dict[str, str]) -> list[dict[str, Any]]:
    return ask(server, keys["root"], "/api/requests")[1]["requests"]


def test_a_chain_has_one_reservation(tmp_path: Path) -> None:
    """A link that fails leaves nothing reserved."""
    there = Elsewhere("--token-interval", "0.01")
    text = f"""
[models."virtual"]
fallback = ["http://127.0.0.1:9#nothing", "{there.url}#org/big"]
"""
    try:
        with Chained(tmp_path, text) as server:
            keys = {"root": command(server, "keys", "add", "root", "--scope", "admin")}
            key = add_key(server, keys, "ann", "--tokens", "2k/day")
            say = {"messages": [{"role": "user", "content": "@tokens=100"}], "stream": False}
            body = {"model": "virtual", "max_tokens": 900, **say}
            with ThreadPoolExecutor(6) as pool:
                asked = [
                    pool.submit(ask, server, key, "/v1/chat/completions", body) for _ in range(6)
                ]
                assert [one.result()[0] for one in asked] == [200] * 6
            assert 600 <= count_used(server, keys, "ann") < 2000
            assert ask(server, key, "/v1/chat/completions", body)[0] == 200
    finally:
        there.stop()
