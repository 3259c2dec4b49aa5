"""Three equal upstreams of which one is faulty: no client notices before the first byte."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.routes.test_ollama_chat import until
from tests.scripted import Scripted, list_models
from tests.server_process import Server

pytestmark = pytest.mark.slow

HELLO = "hello"
TOKENS = [f"{number} " for number in range(6)]
USAGE = {"prompt_tokens": 1, "total_tokens": 1}
FAULTS = ["500", "503", "429", "404", "proxy", "garbage", "closes", "hangs", "stalls"]
FIRST_BYTE_FAULTS = [fault for fault in FAULTS if fault != "stalls"]


class Equal:
    """A server with the model `m` that tests make faulty, and well again."""

    def __init__(self) -> None:
        self.fault = ""
        self.retry_after = "1"
        self.may_go_on = threading.Event()
        self.server = Scripted(
            {
                "/v1/models": list_models("m"),
                "/v1/chat/completions": self.answer,
                "/v1/embeddings": self.embed,
            }
        )

    @property
    def prompts(self) -> int:
        """How many requests of clients have come, unlike those of probes."""
        return sum(path.endswith("completions") and HELLO in json.dumps(body)
                   for path, body in list(self.server.asked))  # fmt: skip

    def recover(self) -> None:
        self.fault = ""
        self.may_go_on.set()

    def answer(self, body):
        match self.fault:
            case "500" | "503" | "429":
                headers = {"Retry-After": self.retry_after} if self.fault == "429" else {}
                return int(self.fault), headers, {"error": {"message": "it fails"}}
            case "404":
                return 404, {}, {"error": {"message": "The model `m` does not exist."}}
            case "proxy":
                return 404, {"Content-Type": "text/plain"}, b"404 page not found\n"
            case "garbage":
                return 200, {"Content-Type": "text/html"}, b"<html>an error</html>"
            case "closes":
                return None
            case "hangs":
                self.may_go_on.wait()
                return None
        return 200, {"Content-Type": "text/event-stream"}, self.stream(self.fault == "stalls")

    def embed(self, body):
        if self.fault:
            return self.answer(body)
        rows = [{"object": "embedding", "index": 0, "embedding": [1.0]}]
        return 200, {}, {"object": "list", "model": "m", "data": rows, "usage": USAGE}

    def stream(self, stalls: bool) -> Iterator[bytes]:
        for number, token in enumerate(TOKENS):
            if stalls and number == 2:
                self.may_go_on.wait()
                return
            yield encode({"content": token}, None)
        yield encode({}, "stop")
        yield b"data: [DONE]\n\n"


def encode(delta, reason) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    event = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m",
             "choices": [choice]}  # fmt: skip
    return b"data: " + json.dumps(event).encode() + b"\n\n"


@pytest.fixture
def three(tmp_path) -> Iterator[tuple[Server, list[Equal]]]:
    equals = [Equal() for _ in range(3)]
    with ExitStack() as stack:
        for each in equals:
            stack.enter_context(each.server)
        text = 'hang_timeout = "2s"\n' + "".join(
            f'[upstreams.u{number}]\nurl = "{each.server.url}"\n'
            for number, each in enumerate(equals)
        )
        text += '[models.chained]\nfallback = ["u0:m", "u1:m"]\n'
        (tmp_path / "config.toml").write_text(text)
        server = stack.enter_context(
            Server(tmp_path / "home", "--config", str(tmp_path / "config.toml"), fake=False)
        )
        for each in equals:
            stack.callback(each.recover)
        until(lambda: server.request("GET", "/readyz")[0] == 200)
        yield server, equals


def ask(server: Server, number: int) -> tuple[str, str]:
    """Return "answered", "begun" (its end is an error) or "failed", and who served."""
    path = ("/api/chat", "/v1/chat/completions")[number % 2]
    stream = number % 4 < 2
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": f"{HELLO} {number}"}],
        "stream": stream,
    }
    try:
        status, headers, data = server.request("POST", path, body)
    except (OSError, http.client.HTTPException):
        return "begun", ""
    if status != 200:
        return "failed", ""
    served_by = headers["x-vllama-served-by"]
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n") if line.strip()]
    events = [json.loads(line) for line in lines if line != b"[DONE]"]
    if any("error" in event for event in events):
        return "begun", served_by
    return ("answered" if b"5 " in data else "failed"), served_by


def ask_many(server: Server, count: int = 60) -> list[str]:
    with ThreadPoolExecutor(6) as pool:
        return [end for end, _ in pool.map(lambda number: ask(server, number), range(count))]


@pytest.mark.parametrize("fault", FAULTS)
def test_no_request_fails_before_its_first_byte(three, fault):
    server, equals = three
    equals[1].fault = fault
    ends = ask_many(server)
    assert "failed" not in ends
    assert "begun" not in ends or fault == "stalls"
    assert sum(each.prompts for each in equals) <= 2 * len(ends)


@pytest.mark.parametrize("fault", FIRST_BYTE_FAULTS)
def test_vectors_come_from_another_one(three, fault):
    server, equals = three
    faulty = equals[0]
    faulty.fault = fault
    body = {"model": "m", "input": HELLO}
    until(lambda: server.request("POST", "/api/embed", body)[0] == 200 and faulty.server.asked)
    for _ in range(6):
        assert server.request("POST", "/api/embed", body)[0] == 200
    paths = [path for path, body in faulty.server.asked if body and HELLO in json.dumps(body)]
    assert paths == ["/v1/embeddings"]


def test_vectors_come_from_the_next_link(three):
    server, equals = three
    equals[0].fault = "hangs"
    status, headers, _ = server.request("POST", "/api/embed", {"model": "chained", "input": HELLO})
    assert (status, headers["x-vllama-served-by"]) == (200, "u1:m")


@pytest.mark.parametrize("fault", FIRST_BYTE_FAULTS)
def test_a_failing_one_gets_no_requests_until_a_probe_succeeds(three, fault):
    server, equals = three
    faulty = equals[0]
    faulty.fault = fault
    numbers = itertools.count()
    until(lambda: ask(server, next(numbers))[0] == "answered" and faulty.prompts)
    before = faulty.prompts
    assert before == 1
    probes = len(faulty.server.asked)
    until(lambda: len(faulty.server.asked) > probes)
    for _ in range(12):
        assert ask(server, next(numbers))[0] == "answered"
    assert faulty.prompts == before
    row = server.get("/api/ps")["models"][0]
    assert "the upstream 'u0' gets no requests until a probe succeeds" in row["cause"]
    faulty.recover()
    until(lambda: ask(server, next(numbers))[1] == "u0:m")
    assert "cause" not in server.get("/api/ps")["models"][0]


def test_a_model_that_only_one_still_has_is_found_there(three):
    server, equals = three
    for number, last in enumerate((*equals, None)):
        for each in equals:
            each.fault = "" if each is last else "404"
        if last is not None:
            until(lambda: ask(server, 0)[0] == "answered")  # a probe has found it well
            assert ask_many(server, 20).count("answered") == 20
            continue
        for path in ("/api/chat", "/v1/chat/completions", "/v1/messages", "/v1/responses"):
            talk = [{"role": "user", "content": f"{HELLO} {number}"}]
            body = {"messages": talk, "input": HELLO, "max_tokens": 9}
            for model in ("m", "chained"):
                status, _, data = server.request("POST", path, body | {"model": model})
                assert status == 404, (path, model, data)


def test_one_that_is_busy_is_left_alone_as_long_as_it_asks(three):
    server, equals = three
    busy = equals[0]
    busy.fault, busy.retry_after = "429", "3600"
    numbers = itertools.count()
    until(lambda: ask(server, next(numbers))[0] == "answered" and busy.prompts)
    busy.recover()
    chats = [path for path, _ in busy.server.asked].count("/v1/chat/completions")
    for _ in range(12):
        assert ask(server, next(numbers))[0] == "answered"
    assert [path for path, _ in busy.server.asked].count("/v1/chat/completions") == chats


def test_one_that_fails_its_health_check_gets_no_requests(three):
    server, equals = three
    ill = equals[0]
    numbers = itertools.count()
    until(lambda: ask(server, next(numbers)) and ill.prompts)
    ill.server.routes["/v1/models"] = (500, {}, {"error": "broken"})
    server.wait_for("is not available: /v1/models returned HTTP 500")
    before = ill.prompts
    for _ in range(12):
        assert ask(server, next(numbers))[0] == "answered"
    assert ill.prompts == before
