"""Inference over a real socket, with the fake engine behind the real server."""

import json
import re
import socket
import threading
import time
from array import array

import pytest

from tests.server_process import LIMIT_S

pytestmark = pytest.mark.slow

ENDLESS = 50_000
"""Tokens that take longer than any test: whoever asks for them leaves before their end."""
WORDS = "".join(f"tok{n} " for n in range(8))
ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z"


def user(text="hello", **more):
    return {"messages": [{"role": "user", "content": text}], **more}


def until(condition, limit_s=LIMIT_S):
    """Poll for a state that another process reaches by itself."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_stream_is_one_object_a_line_and_the_last_is_done(server):
    lines = server.lines("/api/chat", {"model": "plain", **user()})
    assert "".join(line["message"]["content"] for line in lines) == WORDS
    assert all(line["message"]["role"] == "assistant" for line in lines)
    assert all(re.fullmatch(ISO, line["created_at"]) for line in lines)
    assert {line["model"] for line in lines} == {"plain"}
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    last = lines[-1]
    assert last["done_reason"] == "stop"
    assert last["eval_count"] == 8
    assert last["prompt_eval_count"] == len("user: hello\nassistant: ")
    for key in ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"):
        assert last[key] > 0
    assert last["total_duration"] >= last["load_duration"] + last["eval_duration"]


def test_a_whole_answer_is_one_object(server):
    status, headers, data = server.request(
        "POST", "/api/chat", {"model": "Plain:latest", **user(), "stream": False}
    )
    reply = json.loads(data)
    assert status == 200
    assert headers["content-type"].startswith("application/json")
    assert reply["model"] == "Plain:latest"
    assert reply["message"] == {"role": "assistant", "content": WORDS}
    assert reply["done"] is True
    assert reply["eval_count"] == 8


def test_generate(server):
    lines = server.lines("/api/generate", {"model": "plain", "prompt": "hi"})
    assert "".join(line["response"] for line in lines) == WORDS
    assert lines[-1]["context"]
    _, reply = server.post("/api/generate", {"model": "plain", "prompt": "hi", "stream": False})
    assert reply["response"] == WORDS
    follow = {"model": "plain", "prompt": "more", "context": reply["context"], "stream": False}
    status, more = server.post("/api/generate", follow)
    assert status == 200
    assert len(more["context"]) > len(reply["context"])
    body = server.sent("plain")
    assert body["prompt"].startswith("user: hi\nassistant: tok0")
    assert body["prompt"].endswith("user: more\nassistant: ")


def test_raw_goes_verbatim_and_has_no_context(server):
    _, reply = server.post(
        "/api/generate", {"model": "plain", "prompt": "<x>", "raw": True, "stream": False}
    )
    assert reply["response"] == WORDS
    assert "context" not in reply
    assert server.sent("plain")["prompt"] == "<x>"


def test_system_of_a_generation(server):
    body = {"model": "plain", "prompt": "hi", "system": "be brief", "stream": False}
    server.post("/api/generate", body)
    sent = server.sent("plain")["messages"]
    assert [message["role"] for message in sent] == ["system", "user"]


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_json_is_parsed_whatever_the_content_type(server, kind):
    headers = {"Content-Type": kind} if kind else {}
    body = json.dumps({"model": "plain", **user(), "stream": False}).encode()
    status, _, _ = server.request("POST", "/api/chat", body, headers)
    assert status == 200


def test_ollamas_defaults_are_sent_and_options_win(server):
    server.post("/api/chat", {"model": "plain", **user(), "stream": False})
    sent = server.sent("plain")
    assert (sent["temperature"], sent["top_k"], sent["top_p"], sent["min_p"]) == (0.8, 40, 0.9, 0)
    assert sent["stream"] is True
    options = {"temperature": 0, "num_predict": 3, "stop": ["x"], "seed": 7, "mirostat": 1}
    _, reply = server.post(
        "/api/chat", {"model": "plain", **user(), "stream": False, "options": options}
    )
    sent = server.sent("plain")
    assert (sent["temperature"], sent["max_tokens"], sent["stop"], sent["seed"]) == (0, 3, ["x"], 7)
    assert (reply["done_reason"], reply["eval_count"]) == ("length", 3)


def test_an_engine_that_counts_is_believed(server):
    _, reply = server.post("/api/chat", {"model": "counts", **user(), "stream": False})
    assert reply["eval_count"] == 8
    assert reply["prompt_eval_count"] > 0


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"options": {"num_predict": "x"}}, 400, 'option "num_predict" must be of type integer'),
        ({"keep_alive": "300"}, 400, "missing unit in duration"),
        ({"think": True}, 400, "does not support thinking"),
        ({"tools": [{"function": {"name": "f"}}]}, 400, "does not support tools"),
        ({"messages": [{"role": "user", "content": []}]}, 400, "[0].content': expected"),
        ({"messages": [{"role": "user", "content": "x", "images": ["iVBORw0KGgo="]}]}, 400,
         "does not support vision"),
        ({"options": {"num_ctx": 256}, "truncate": False,
          "messages": [{"role": "user", "content": "x" * 5000}]},
         400, "prompt exceeds the context"),
    ],
)  # fmt: skip
def test_bad_requests(server, body, status, text):
    got, reply = server.post("/api/chat", {"model": "plain", **user(), **body})
    assert got == status
    assert text in reply["error"]


def test_what_is_empty_counts_as_absent(server):
    body = {"model": "plain", **user(), "tools": [], "format": None, "think": False}
    body |= {"options": {"seed": None}, "keep_alive": None, "stream": False, "unknown": 1}
    assert server.post("/api/chat", body)[0] == 200


def test_old_turns_are_dropped_and_a_header_says_so(server):
    turns = [{"role": "system", "content": "rules"}]
    turns += [{"role": role, "content": "w" * 800} for role in ("user", "assistant") * 5]
    turns.append({"role": "user", "content": "last"})
    status, headers, data = server.request(
        "POST", "/api/chat", {"model": "plain", "messages": turns, "stream": False}
    )
    assert status == 200
    assert int(headers["x-vllama-truncated"]) > 0
    sent = server.sent("plain")["messages"]
    assert (sent[0]["content"], sent[-1]["content"]) == ("rules", "last")
    assert json.loads(data)["prompt_eval_count"] < 4096
    body = {"model": "plain", "messages": turns, "stream": False, "truncate": False}
    assert server.post("/api/chat", body)[0] == 400
    status, headers, _ = server.request(
        "POST", "/v1/chat/completions", {"model": "plain", "messages": turns}
    )
    assert (status, int(headers["x-vllama-truncated"]) > 0) == (200, True)
    sent = server.sent("plain")["messages"]
    assert (sent[0]["content"], sent[-1]["content"]) == ("rules", "last")


def test_old_turns_are_dropped_also_for_an_engine_that_counts_by_itself(server):
    turns = [{"role": "user", "content": "w" * 800} for _ in range(10)]
    asked = {"model": "counts", "messages": turns, "stream": False}
    status, headers, _ = server.request("POST", "/api/chat", asked)
    assert (status, int(headers["x-vllama-truncated"]) > 0) == (200, True)
    assert len(server.sent("counts")["messages"]) < 10
    assert server.post("/api/chat", asked | {"truncate": False})[0] == 400


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_an_empty_prompt_loads_and_unloads(server, path):
    status, reply = server.post(path, {"model": "plain", "keep_alive": "1h"})
    assert (status, reply["done"], reply["done_reason"]) == (200, True, "load")
    row = next(r for r in server.get("/api/ps")["models"] if r["name"] == "plain:latest")
    assert row["context_length"] == 4096
    assert row["size"] > 0
    assert row["size_vram"] == 0
    assert row["state"] == "ready"
    status, reply = server.post(path, {"model": "plain", "keep_alive": 0})
    assert (status, reply["done_reason"]) == (200, "unload")
    until(lambda: all(r["name"] != "plain:latest" for r in server.get("/api/ps")["models"]))
    assert server.post(path, {"model": "plain", "keep_alive": "0s"})[1]["done_reason"] == "unload"


def test_two_chats_at_once_are_both_whole(server):
    results = []

    def ask():
        results.append(server.post("/api/chat", {"model": "slow", **user(), "stream": False}))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [reply["message"]["content"] for _, reply in results] == [WORDS] * 4


def test_discovery_answers_while_a_chat_runs(server):
    client = open_stream(server, "/api/chat", {"model": "slow", **user(f"@tokens={ENDLESS}")})
    until(lambda: any(row["requests"] for row in server.get("/api/ps")["models"]))
    for path in ("/api/tags", "/api/ps", "/api/version"):
        assert server.get(path)
    assert any(row["requests"] for row in server.get("/api/ps")["models"])
    client.close()
    until(lambda: not any(row["requests"] for row in server.get("/api/ps")["models"]))


def open_stream(server, path, body):
    """Send a request and return its socket when the first bytes of the answer are there."""
    data = json.dumps(body).encode()
    client = socket.create_connection(("127.0.0.1", server.port), timeout=240)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
    client.sendall(head.encode() + data)
    return client


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_a_client_that_leaves_stops_the_engine(server, path, stream):
    server.post("/api/chat", {"model": "slow"})
    before = server.stats("slow")
    body = {"model": "slow", **user(f"@tokens={ENDLESS}"), "stream": stream}
    client = open_stream(server, path, body)
    until(lambda: server.stats("slow")["active"] == 1)
    client.close()
    until(lambda: server.stats("slow")["active"] == 0)
    assert server.stats("slow")["tokens"] - before["tokens"] < ENDLESS
    assert server.post("/api/chat", {"model": "slow", **user(), "stream": False})[0] == 200


def test_one_who_leaves_the_queue_is_never_served(server):
    server.post("/api/chat", {"model": "slow"})
    first = open_stream(server, "/api/chat", {"model": "slow", **user(f"@tokens={ENDLESS}")})
    until(lambda: server.stats("slow")["active"] == 1)
    second = open_stream(server, "/api/chat", {"model": "slow", **user("never")})
    until(lambda: any(row["queued"] for row in server.get("/api/ps")["models"]))
    second.close()
    until(lambda: not any(row["queued"] for row in server.get("/api/ps")["models"]))
    first.close()
    until(lambda: not any(row["requests"] for row in server.get("/api/ps")["models"]))
    assert "never" not in json.dumps(server.stats("slow")["bodies"])


def test_many_clients_on_a_wide_engine(server):
    results = []

    def ask():
        body = {"model": "wide", **user("@tokens=20"), "stream": True}
        results.append(server.lines("/api/chat", body))

    threads = [threading.Thread(target=ask) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 24
    for lines in results:
        assert lines[-1]["done"]
        assert lines[-1]["eval_count"] == 20


def test_a_slow_reader_gets_every_line(server):
    server.post("/api/chat", {"model": "plain"})
    before, count = server.stats("plain")["tokens"], 20_000
    body = {"model": "plain", **user(f"@tokens={count} @delay=0")}
    client = open_stream(server, "/api/chat", body)
    # nothing is read until much more is under way than one write holds
    until(lambda: server.stats("plain")["tokens"] - before > 5000)
    data = bytearray()
    while b'"done":true' not in data[-3000:]:
        part = client.recv(1 << 20)
        assert part
        data += part
    client.close()
    assert re.findall(rb'"content":"tok(\d+) "', data) == [str(n).encode() for n in range(count)]


def test_embeddings_are_pooled_and_normalized(server):
    _, reply = server.post("/api/embed", {"model": "vectors", "input": ["ab", "cde"]})
    assert len(reply["embeddings"]) == 2
    for vector in reply["embeddings"]:
        assert sum(value * value for value in vector) == pytest.approx(1.0)
    assert reply["prompt_eval_count"] > 0
    assert reply["total_duration"] > 0
    assert reply["load_duration"] > 0
    _, one = server.post("/api/embeddings", {"model": "vectors", "prompt": "ab"})
    # the older route has the same numbers, written as doubles
    assert one["embedding"] == array("f", reply["embeddings"][0]).tolist()
    _, short = server.post("/api/embed", {"model": "vectors", "input": "ab", "dimensions": 2})
    assert len(short["embeddings"][0]) == 2
    # what is no context counts as the smallest one
    for path in ("/api/embed", "/v1/embeddings"):
        for num_ctx in (0, -12):
            body = {"model": "vectors", "input": "a", "options": {"num_ctx": num_ctx}}
            assert server.post(path, body)[0] == 200
    assert server.post("/api/embed", {"model": "vectors"})[1]["embeddings"] == []
    assert server.post("/api/embeddings", {"model": "vectors", "prompt": ""})[1]["embedding"] == []
    status, error = server.post("/api/embed", {"model": "vectors", "input": 5})
    assert (status, error["error"]) == (400, "invalid input type")


def test_openai_embeddings_come_as_base64_when_asked(server):
    import base64
    import struct

    body = {"model": "vectors", "input": "ab", "encoding_format": "base64"}
    _, reply = server.post("/v1/embeddings", body)
    raw = base64.b64decode(reply["data"][0]["embedding"])
    vector = struct.unpack(f"<{len(raw) // 4}f", raw)
    _, plain = server.post("/v1/embeddings", {"model": "vectors", "input": "ab"})
    assert list(vector) == pytest.approx(plain["data"][0]["embedding"])
    assert reply["usage"]["prompt_tokens"] > 0


def sse(server, path, body):
    status, headers, data = server.request("POST", path, body)
    assert status == 200, data
    assert headers["content-type"].startswith("text/event-stream")
    events = [part.removeprefix("data: ") for part in data.decode().split("\n\n") if part]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def test_openai_chat_streams(server):
    body = {"model": "plain", **user(), "stream": True, "stream_options": {"include_usage": True}}
    events = sse(server, "/v1/chat/completions", body)
    text = "".join(
        event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]
    )
    assert text == WORDS
    assert {event["model"] for event in events} == {"plain"}
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 8
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    quiet = sse(server, "/v1/chat/completions", {"model": "plain", **user(), "stream": True})
    assert not any(event.get("usage") for event in quiet)


def test_openai_chat_whole(server):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    body = {"model": "plain", "messages": [{"role": "developer", "content": "x"},
            {"role": "user", "content": parts}], "max_completion_tokens": 3, "n": None}  # fmt: skip
    status, reply = server.post("/v1/chat/completions", body)
    assert status == 200
    choice = reply["choices"][0]
    assert choice["message"]["content"] == "tok0 tok1 tok2 "
    assert choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 3
    assert reply["object"] == "chat.completion"


def test_openai_completions(server):
    status, reply = server.post("/v1/completions", {"model": "plain", "prompt": "x"})
    assert status == 200
    assert reply["choices"][0]["text"] == WORDS
    events = sse(server, "/v1/completions", {"model": "plain", "prompt": "x", "stream": True})
    assert "".join(event["choices"][0]["text"] for event in events) == WORDS


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model":5}', b'{"model":"plain"}'])
def test_openai_errors_have_their_own_shape(server, body):
    status, _, data = server.request("POST", "/v1/chat/completions", body)
    assert status == 400
    assert set(json.loads(data)["error"]) >= {"message", "type"}


@pytest.mark.parametrize("tokens", [[10**8], [-1], [5, 10**6]])
def test_tokens_of_another_model_are_refused_before_an_engine_sees_them(server, tokens):
    server.post("/api/chat", {"model": "plain"})
    requests = server.stats("plain")["requests"]
    body = {"model": "plain", "prompt": "x", "context": tokens, "stream": False}
    status, reply = server.post("/api/generate", body)
    assert (status, reply["error"]) == (
        400,
        "cannot use 'context': it has tokens of another model",
    )
    assert server.stats("plain")["requests"] == requests


@pytest.mark.parametrize("path", ["/api/embed", "/v1/embeddings"])
def test_one_who_leaves_ends_a_long_list_of_embeddings(server, path):
    name = server.model("vectors-slow", "--embed-per-token")
    server.post("/api/embed", {"model": name, "input": "x"})
    client = open_stream(server, path, {"model": name, "input": ["some text"] * 20_000})
    until(lambda: any(row["requests"] for row in server.get("/api/ps")["models"]))
    client.close()
    until(lambda: not any(row["requests"] for row in server.get("/api/ps")["models"]))
    assert server.stats(name)["requests"] < 20_000


def test_a_load_does_not_wait_for_an_answer_under_way(server):
    with server.open("/api/generate", {"model": "slow", "prompt": "hello"}) as stream:
        assert stream.readline()
        for path in ("/api/generate", "/api/chat"):
            status, reply = server.post(path, {"model": "slow", "keep_alive": "7m"})
            assert (status, reply["done_reason"]) == (200, "load")
        assert stream.readline()


def test_a_context_that_cannot_be_is_told(server):
    """It is clamped to what the model was trained for, as in Ollama, but not in silence."""
    for asked, told in ((10**7, True), (256, False)):
        body = user(model="counts", stream=False, options={"num_ctx": asked})
        status, headers, _ = server.request("POST", "/api/chat", body)
        assert (status, int(headers.get("x-vllama-num-ctx", 0)) >= 4096) == (200, told)


def test_other_layers_than_those_that_run_are_told_and_reload_nothing(server):
    seen = set()
    for asked, told in ((5, "0"), (None, None)):
        body = user(model="counts", stream=False, options={"num_gpu": asked} if asked else {})
        status, headers, _ = server.request("POST", "/api/chat", body)
        assert (status, headers.get("x-vllama-num-gpu")) == (200, told)
        rows = server.get("/api/ps")["models"]
        seen |= {row["pid"] for row in rows if row["name"].startswith("counts")}
    assert len(seen) == 1
