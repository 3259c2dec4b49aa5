"""A stream that waits for its first token shows that it is alive, and loses nothing by that."""

from __future__ import annotations

import http.client
import json
import threading
from contextlib import ExitStack

import anthropic
import ollama
import openai
import pytest

from tests.routes.test_ollama_chat import user
from tests.scripted import Scripted, list_models
from tests.server_process import LIMIT_S, Server

pytestmark = pytest.mark.slow

HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat")
SIGNS = {
    "/v1/chat/completions": b": waiting",
    "/v1/responses": b": waiting",
    "/v1/messages": b"event: ping",
    "/api/chat": b'"content":""',
}
ERRORS = {
    "/v1/chat/completions": b'data: {"error":{"message":"',
    "/v1/responses": b'event: error\ndata: {"type":"error","code":',
    "/v1/messages": b'event: error\ndata: {"type":"error","error":{',
    "/api/chat": b'{"error":"',
}


class Silent:
    """An upstream that answers a model only when the test says so."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()

    def chat(self, body):
        assert self.may_answer.wait(LIMIT_S)
        if body["model"] == "bad":
            return 503, {}, {"error": {"message": "it is overloaded"}}
        events = [
            HEAD | {"choices": [{"index": 0, "delta": {"content": "Hello"}}]},
            HEAD | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        ]
        data = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        return 200, {"Content-Type": "text/event-stream"}, [data.encode()]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    silent = Silent()
    routes = {"/v1/models": list_models("m", "bad"), "/v1/chat/completions": silent.chat}
    with (
        Scripted(routes) as there,
        Server(
            tmp_path_factory.mktemp("life"),
            *("--upstream", there.url, "--early-head", "0.1s"),
            fake=False,
        ) as server,
    ):
        yield silent, server


def make_body(path, model):
    body = {"model": model, "stream": True, "max_tokens": 9}
    return body | ({"input": "hi"} if path == "/v1/responses" else user("hi"))


def read(served, path, model):
    """Return the response, its bytes until a second sign has come, and the rest."""
    silent, server = served
    silent.may_answer.clear()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    connection.request("POST", path, json.dumps(make_body(path, model)))
    response = connection.getresponse()  # the head comes before the upstream has said anything
    early = b""
    while early.count(SIGNS[path]) < 2:
        early += response.read1()
    silent.may_answer.set()
    rest = response.read()
    connection.close()
    return response, early, rest


@pytest.mark.parametrize("path", PATHS)
def test_signs_come_before_the_first_token(served, path):
    response, early, rest = read(served, path, "m")
    assert response.status == 200
    kind = "application/x-ndjson" if path == "/api/chat" else "text/event-stream"
    assert response.headers["content-type"].startswith(kind)
    assert b"Hello" not in early and b"Hello" in rest


@pytest.mark.parametrize("path", PATHS)
def test_an_error_after_a_sign_is_an_event(served, path):
    response, _, rest = read(served, path, "bad")
    assert response.status == 200
    assert ERRORS[path] in rest
    assert b"overloaded" in rest
    _, server = served
    assert server.wait_for(rf"POST {path} .*\b503\b|{path}\S* 503")


def test_a_whole_response_has_its_status(served):
    silent, server = served
    silent.may_answer.set()
    status, _ = server.post("/api/chat", {"model": "bad", "stream": False, **user("hi")})
    assert status == 503


def test_clients_read_over_the_signs(served):
    silent, server = served

    def asked(ask):
        silent.may_answer.clear()
        timer = threading.Timer(0.5, silent.may_answer.set)
        timer.start()
        try:
            return ask()
        finally:
            timer.join()

    one = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
    two = anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0)
    three = ollama.Client(host=server.url)
    open_clients = ExitStack()
    for each in (one, two, three._client):
        open_clients.callback(each.close)
    turns = user("hi")["messages"]

    def chat(model):
        chunks = one.chat.completions.create(model=model, messages=turns, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    def messages():
        with two.messages.stream(model="m", max_tokens=9, messages=turns) as stream:
            return stream.get_final_text()

    def respond():
        with one.responses.stream(model="m", input="hi") as stream:
            return stream.get_final_response().output_text

    def tell():
        return "".join(part.message.content for part in three.chat("m", turns, stream=True))

    with open_clients:
        asks = (lambda: chat("m"), messages, respond, tell)
        assert [asked(ask) for ask in asks] == ["Hello"] * 4
        with pytest.raises(openai.APIError, match="overloaded"):
            asked(lambda: chat("bad"))
