"""The fake engine does what the tests that use it count on."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fake_engine.engine import KEPT
from tests.ports import free_port

ENGINE = Path(__file__).with_name("engine.py")
CHAT = "/v1/chat/completions"


class Client:
    """Talks to one fake engine."""

    def __init__(self, port: int) -> None:
        self.port = port

    @contextmanager
    def request(
        self, path: str, body: Any = None, key: str | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and give the answer, not read yet; close the connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=240)
        data = None if body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        with closing(connection):
            connection.request("POST" if data is not None else "GET", path, data, headers)
            with connection.getresponse() as response:
                yield response

    def status(self, path: str, body: Any = None, key: str | None = None) -> int:
        """Return the status of an answer."""
        with self.request(path, body, key) as response:
            return response.status

    def json(self, path: str, body: Any = None) -> Any:
        """Return the JSON of an answer."""
        with self.request(path, body) as response:
            return json.loads(response.read())

    def events(self, body: dict[str, Any], path: str = CHAT) -> list[Any]:
        """Return the events of a stream, with `[DONE]` as a string."""
        with self.request(path, {**body, "stream": True}) as response:
            assert response.status == 200
            lines = response.read().decode().split("\n\n")
        texts = [line.removeprefix("data: ") for line in lines if line]
        return [text if text == "[DONE]" else json.loads(text) for text in texts]


@contextmanager
def running(*flags: str) -> Iterator[Client]:
    """Run a fake engine until it answers."""
    port = free_port()
    argv = [sys.executable, "-I", "-S", str(ENGINE), "--port", str(port), *flags]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as proc:
        try:
            client = Client(port)
            eventually(lambda: answers(client))
            yield client
        finally:
            proc.kill()


def answers(client: Client) -> bool:
    try:
        return client.status("/__stats") == 200
    except OSError:
        return False


def eventually(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """One engine for all the tests without faults."""
    with running() as client:
        yield client


def chat(text: str = "hi there", **options: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": text}], **options}


@pytest.mark.parametrize(
    ("text", "options", "tokens", "reason"),
    [
        ("hi", {}, 8, "stop"),
        ("hi", {"max_tokens": 3}, 3, "length"),
        ("hi", {"max_tokens": 8}, 8, "length"),
        ("hi", {"max_tokens": 9}, 8, "stop"),
        ("hi @tokens=50 @delay=0.001", {}, 50, "stop"),
        ("@tokens=50", {"max_completion_tokens": 20}, 20, "length"),
    ],
)
def test_chat_whole_and_streamed(
    client: Client, text: str, options: dict[str, Any], tokens: int, reason: str
) -> None:
    expected = "".join(f"tok{n} " for n in range(tokens))
    whole = client.json(CHAT, chat(text, **options))
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": expected}
    assert whole["choices"][0]["finish_reason"] == reason
    assert whole["usage"]["completion_tokens"] == tokens
    usage = {"stream_options": {"include_usage": True}}
    *events, last, done = client.events(chat(text, **options, **usage))
    assert done == "[DONE]" and last["choices"] == [] and last["usage"] == whole["usage"]
    choices = [event["choices"][0] for event in events]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == expected
    assert [choice["finish_reason"] for choice in choices] == [None] * (tokens + 1) + [reason]


def test_text_completion(client: Client) -> None:
    body = {"model": "fake", "prompt": "@tokens=2"}
    assert client.json("/v1/completions", body)["choices"][0]["text"] == "tok0 tok1 "
    events = client.events(body, "/v1/completions")
    assert [e["choices"][0]["text"] for e in events[:-1]] == ["tok0 ", "tok1 ", ""]


def test_embeddings_and_tokens(client: Client) -> None:
    one = client.json("/v1/embeddings", {"input": "a b"})["data"]
    two = client.json("/v1/embeddings", {"input": ["a b", "c"]})["data"]
    assert one[0]["embedding"] == two[0]["embedding"] != two[1]["embedding"]
    text = "grüß € 𝄞"
    tokens = client.json("/extras/tokenize", {"input": text})["tokens"]
    assert client.json("/extras/tokenize/count", {"input": text}) == {"count": len(tokens)}
    assert client.json("/extras/detokenize", {"tokens": tokens}) == {"text": text}


def test_a_client_that_leaves_is_counted(client: Client) -> None:
    before = client.json("/__stats")["gone"]
    with client.request(CHAT, chat("@tokens=100000 @delay=0.001", stream=True)) as response:
        assert response.readline()
    eventually(lambda: client.json("/__stats")["gone"] == before + 1)
    eventually(lambda: client.json("/__stats")["active"] == 0)


def test_stats_keep_the_bodies(client: Client) -> None:
    client.json(CHAT, chat("remember"))
    stats = client.json("/__stats")
    assert stats["bodies"][-1] == chat("remember")
    assert stats["requests"] >= 1 and stats["tokens"] >= 8 and len(stats["bodies"]) <= KEPT


def test_bad_requests(client: Client) -> None:
    assert client.status("/nothing") == 404
    assert client.status("/nothing", {}) == 404


def test_keys() -> None:
    with running("--api-key", "k") as client:
        assert client.status("/health") == 200
        assert client.status("/__stats") == 200
        for path, body in (("/v1/models", None), (CHAT, chat())):
            assert client.status(path, body) == 401
            assert client.status(path, body, "wrong") == 401
            assert client.status(path, body, "k") == 200


def test_faults_after_the_200() -> None:
    with running("--error-after-200") as client:
        error, done = client.events(chat())
        assert error["error"]["code"] == 500 and done == "[DONE]"
    with running("--empty-200") as client, client.request(CHAT, chat(stream=True)) as response:
        assert response.status == 200 and response.read() == b""


@pytest.mark.parametrize("flag", ["--reset-after", "--die-after"])
def test_faults_in_the_stream(flag: str) -> None:
    with running(flag, "2") as client:
        with (
            client.request(CHAT, chat(stream=True)) as response,
            pytest.raises((http.client.IncompleteRead, ConnectionResetError)) as broken,
        ):
            response.read()
        if isinstance(broken.value, http.client.IncompleteRead):
            assert b"tok2" not in broken.value.partial


def test_stall_concurrency_and_no_usage() -> None:
    with running("--stall-after", "1", "--max-concurrency", "1") as client:
        with client.request(CHAT, chat(stream=True)) as first:
            assert first.read(9)
            eventually(lambda: client.json("/__stats")["active"] == 1)
        with client.request(CHAT, chat(stream=True)) as second:  # its slot was the first's
            assert second.status == 200
    with running("--no-usage", "--embed-per-token") as client:
        events = client.events(chat(stream_options={"include_usage": True}))
        assert all("usage" not in event for event in events[:-1])
        (row,) = client.json("/v1/embeddings", {"input": "a b c"})["data"]
        assert len(row["embedding"]) == 3
