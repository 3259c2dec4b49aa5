"""Fallback chains, of a whole server: every dialect, with upstreams that die and come back."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.routes.test_external import Elsewhere
from tests.routes.test_ollama_chat import ENDLESS, WORDS, until, user
from tests.server_process import Server

pytestmark = pytest.mark.slow

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
SERVED_BY = "x-vllama-served-by"
ROUTES = {
    "/api/chat": HELLO,
    "/api/generate": {"prompt": "hello"},
    "/v1/chat/completions": HELLO,
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {**HELLO, "max_tokens": 64},
}
"""A request of every route that writes text."""


class Chained(Server):
    """A server with fake engines, and a config file of its own."""

    def __init__(self, home: Path, text: str) -> None:
        home.mkdir(exist_ok=True)
        file = home / "config.toml"
        file.write_text(text)
        super().__init__(home, env={"VLLAMA_CONFIG": str(file)})

    def ask(self, model: str, path: str, **more: object) -> tuple[int, str, bytes]:
        """Return the status, who served, and the body of an answer."""
        body = {"model": model, "stream": False, **ROUTES.get(path, {}), **more}
        status, headers, data = self.request("POST", path, body)
        return status, headers.get(SERVED_BY, ""), data


@pytest.fixture(scope="module")
def three() -> Iterator[list[Elsewhere]]:
    servers = [Elsewhere() for _ in range(3)]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def chained(three, tmp_path_factory) -> Iterator[Chained]:
    one, two, last = three
    text = f"""
[models."broken"]
fallback = ["nowhere:big", "{one.url}#org/big"]
[models."counted"]
fallback = ["plain"]
[models."plain"]
fallback = ["{one.url}#org/big"]
[models."slow"]
fallback_after = "0.5s"
fallback = ["plain"]
[models."virtual"]
aliases = ["gpt-x"]
fallback = ["one:org/big", "{two.url}#org/big", "{last.url}#org/big"]
[models."refused"]
fallback = ["one:mapped"]
[models."tagged"]
fallback = ["no such:model:at all", "one:big:8b"]
[models."by-url"]
fallback = ["{two.url}#big:8b"]
[models."hopeless"]
fallback = ["no-such-model"]
[upstreams.one]
url = "{one.url}/v1"
key = "secret-key"
models = {{ "mapped" = "org/big", "big:8b" = "org/big" }}
"""
    with Chained(tmp_path_factory.mktemp("chained"), text) as server:
        server.model("broken", "--exit-before-ready", "--exit-code", "3")
        server.model("counted", "--exit-before-ready", "--exit-code", "3")
        server.model("plain")
        server.model("slow", "--stall-after", "0")
        server.model("refused", "--die-after", "3")
        yield server


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_a_model_that_cannot_load_is_answered_for(chained, three, path, stream):
    status, served_by, data = chained.ask("broken", path, stream=stream)
    assert (status, served_by) == (200, f"{three[0].url}#org/big"), data
    assert b"tok7" in data and b'"error":{' not in data


@pytest.mark.parametrize("path", ROUTES)
def test_a_model_that_can_answer_answers_itself(chained, path):
    status, served_by, _ = chained.ask("plain", path)
    assert (status, served_by) == (200, "plain:latest")


def test_embeddings_fall_back_too(chained, three):
    status, served_by, data = chained.ask("broken", "/api/embed", input="x")
    assert (status, served_by) == (200, f"{three[0].url}#org/big"), data


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/tokenize", {"text": "hello"}),
        ("/api/detokenize", {"tokens": [104, 105]}),
        ("/v1/messages/count_tokens", HELLO),
    ],
)
def test_what_only_counts_tokens_falls_back_too(chained, path, body):
    status, headers, data = chained.request("POST", path, {"model": "counted", **body})
    assert (status, headers.get(SERVED_BY)) == (200, "plain"), data


def test_a_model_that_gives_no_token_in_time_is_answered_for(chained):
    status, served_by, data = chained.ask("slow", "/api/chat")
    assert (status, served_by) == (200, "plain")
    assert json.loads(data)["message"]["content"] == WORDS


def test_a_whole_answer_whose_engine_dies_is_made_anew(chained):
    status, served_by, data = chained.ask("refused", "/v1/chat/completions")
    assert (status, served_by) == (200, "one:mapped")
    assert json.loads(data)["choices"][0]["message"]["content"] == WORDS


def test_a_stream_whose_engine_dies_ends_with_an_error(chained):
    chained.post("/api/generate", {"model": "refused", "keep_alive": 0})
    until(lambda: chained.get("/api/ps")["models"] is not None)
    status, served_by, data = chained.ask("refused", "/api/chat", stream=True)
    lines = [json.loads(line) for line in data.splitlines()]
    if served_by == "one:mapped":  # it has failed lately, and was passed over
        assert lines[-1]["done"]
    else:
        assert status == 200 and "error" in lines[-1]


def test_a_request_that_is_wrong_goes_nowhere_else(chained, three):
    seen = three[0].stats()["requests"]
    status, _, data = chained.ask("plain", "/api/chat", options={"temperature": "hot"})
    assert status == 400 and b"temperature" in data
    assert three[0].stats()["requests"] == seen


def test_an_alias_and_a_model_that_is_nowhere_but_in_a_chain(chained, three):
    for name in ("gpt-x", "virtual", "virtual:latest", "mapped"):
        status, served_by, data = chained.ask(name, "/api/chat")
        assert status == 200, data
        assert json.loads(data)["model"] == name
        assert served_by == "one:org/big", name
    listed = {row["name"] for row in chained.get("/api/tags")["models"]}
    assert {"virtual:latest", "gpt-x:latest", "mapped:latest"} <= listed
    # the links are no models of their own, and no address but theirs is asked
    assert not [name for name in listed if "://" in name]
    assert chained.ask("http://127.0.0.1:9#org/big", "/api/chat")[0] in (400, 404)


@pytest.mark.parametrize(
    ("name", "server"), [("tagged", "one:org/big"), ("by-url", "http://127.0.0.1:")]
)
def test_links_name_models_with_tags(chained, name, server):
    status, served_by, data = chained.ask(name, "/api/chat")
    assert status == 200, data
    assert served_by.startswith(server), served_by


def test_the_error_of_a_chain_names_each_link(chained):
    status, _, data = chained.ask("hopeless", "/api/chat")
    assert status == 404, data
    text = chained.get("/api/config")
    assert "secret-key" not in json.dumps(text)
    rows = {row["key"]: row["text"] for row in text["settings"]}
    assert rows["models.hopeless.fallback"] == "no-such-model"


def test_a_client_that_leaves_stops_the_chain(chained, three):
    many = user(f"@tokens={ENDLESS}")
    with chained.open("/api/chat", {"model": "virtual", **many}) as answer:
        assert json.loads(answer.readline())["message"]
    until(lambda: not chained.get("/api/requests")["requests"])


def test_metrics_and_log_tell_of_it(chained):
    chained.ask("broken", "/api/chat")
    _, _, data = chained.request("GET", "/metrics")
    lines = [line for line in data.splitlines() if line.startswith(b"vllama_fallbacks_total{")]
    assert any(b'link="broken:latest"' in x and b'"engine_start_failed"' in x for x in lines)
    chained.wait_for("broken: it failed")


def test_no_request_fails_while_one_link_lives(three, tmp_path):
    links = ", ".join(f'"{server.url}#org/big"' for server in three)
    chance = random.Random(7)
    done = threading.Event()
    kills = 0
    with Chained(tmp_path / "x", f'[models."any"]\nfallback = [{links}]\n') as server:

        def ask(number: int) -> list[str]:
            """Return what went wrong with the requests of one client."""
            own, wrong = random.Random(number), []
            for asked in itertools.count():
                if asked >= 12 and kills >= 20:
                    break
                path, stream = own.choice(list(ROUTES)), own.random() < 0.5
                status, _, data = server.ask("any", path, stream=stream)
                told = stream and b"error" in data
                if status != 200 or not (told or b"tok7" in data):
                    wrong.append(f"{path} stream={stream}: {status} {data[:300]!r}")
            return wrong

        def kill_and_revive() -> None:
            nonlocal kills
            dead: Elsewhere | None = None
            while not done.is_set():
                victim = chance.choice([each for each in three if each is not dead])
                if dead is not None:
                    dead.start()  # which waits until it answers: so one lives at any time
                victim.stop()
                dead, kills = victim, kills + 1
            if dead is not None:
                dead.start()

        chaos = threading.Thread(target=kill_and_revive)
        chaos.start()
        try:
            with ThreadPoolExecutor(20) as clients:
                wrong = [line for lines in clients.map(ask, range(20)) for line in lines]
        finally:
            done.set()
            chaos.join()
    assert not wrong, "\n".join(wrong[:5])
