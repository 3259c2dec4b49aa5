"""OpenAI's routes over a real socket, with the official client where it can."""

from __future__ import annotations

import base64
import json
import re

import httpx
import openai
import pytest

from tests.routes.test_external import Elsewhere
from tests.routes.test_ollama_chat import WORDS, sse, user
from tests.server_process import Server

# real processes, one after another: not for every save
pytestmark = pytest.mark.slow


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def more(server):
    """The models of this page."""
    server.model("ranks", ranks=True)
    server.model("hears")
    server.model("writes")
    return server


# -- completions ------------------------------------------------------------------------------


def test_a_prompt_is_a_turn_of_a_conversation(server, client):
    reply = client.completions.create(model="plain", prompt="hello")
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == (WORDS, "stop")
    assert reply.usage.prompt_tokens == len("user: hello\nassistant: ")
    sent = server.sent("plain")
    assert sent["messages"] == [{"role": "user", "content": "hello"}] and "prompt" not in sent
    parts = list(client.completions.create(model="plain", prompt="hello", stream=True))
    assert "".join(part.choices[0].text for part in parts) == WORDS
    assert {part.id for part in parts} == {parts[0].id} and parts[0].object == "text_completion"


def test_no_proxy_may_keep_events_back(server):
    for path in ("/v1/completions", "/v1/messages", "/v1/responses", "/v1/chat/completions"):
        body = {"model": "plain", "stream": True, "max_tokens": 2, "prompt": "x", "input": "x"}
        said = body | {"messages": [{"role": "user", "content": "x"}]}
        _, headers, _ = server.request("POST", path, said)
        assert headers["cache-control"] == "no-cache", path
    _, headers, _ = server.request("GET", "/v1/models")
    assert "cache-control" not in headers


def test_errors_are_ollamas_in_its_order(server):
    for path, body, status, said in (
        ("chat/completions", {"model": "no"}, 400, "[] is too short - 'messages'"),
        ("chat/completions", {"model": "no", "messages": [{"role": "user"}]}, 400, "got null"),
        ("chat/completions", {"messages": [{"content": "x"}]}, 400, "model is required"),
        ("completions", {"model": "no", "prompt": ["a"]}, 404, "model 'no' not found"),
        ("completions", {"prompt": "x"}, 404, "model '' not found"),
        ("embeddings", {"model": "no"}, 400, "invalid input"),
        ("embeddings", {"model": "no", "input": "x"}, 404, "try pulling it first"),
        ("messages", {"max_tokens": 0}, 400, "model is required"),
        ("messages", {"model": "no"}, 400, "max_tokens is required and must be positive"),
        ("messages", {"model": "no", "max_tokens": 1}, 400, "messages is required"),
        ("responses", {"model": "no", "input": 5}, 400, "expected a string or an array"),
        ("responses", {"model": "no"}, 404, "model 'no' not found"),
    ):
        got, answer = server.post(f"/v1/{path}", body)
        assert got == status and said in answer["error"]["message"], (path, body, answer)


def test_responses_without_input_load_the_model(server):
    status, answer = server.post("/v1/responses", {"model": "plain"})
    assert status == 200 and answer["output"][0]["content"][0]["text"] == ""
    assert answer["usage"]["total_tokens"] == 0 and answer["reasoning"] is None


@pytest.mark.parametrize("effort", ["low", None])
def test_what_a_model_lacks_is_told_in_ollamas_order(server, effort):
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    body = {"model": "plain", "input": "hi", "tools": tools, "reasoning": {"effort": effort}}
    status, answer = server.post("/v1/responses", body)
    lacks = "tools" if effort is None else "thinking"
    assert status == 400 and answer["error"]["message"].endswith(f"does not support {lacks}")


def test_finished_text_goes_as_it_is(server, client):
    reply = client.completions.create(
        model="plain", prompt="hello", max_tokens=3, extra_body={"raw": True}
    )
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("tok0 tok1 tok2 ", "length")
    assert reply.usage.prompt_tokens == len("hello")
    assert server.sent("plain")["prompt"] == "hello"


def test_prompts_and_choices(server, client):
    asked = {"model": "plain", "prompt": ["a", "bb"], "n": 2, "max_tokens": 2, "seed": 7}
    reply = client.completions.create(**asked, echo=True)
    texts = [(choice.index, choice.text) for choice in reply.choices]
    assert texts == [(0, "atok0 tok1 "), (1, "atok0 tok1 "), (2, "bbtok0 tok1 "),
                     (3, "bbtok0 tok1 ")]  # fmt: skip
    prompts = len("user: a\nassistant: ") + len("user: bb\nassistant: ")
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (prompts, 8)
    bodies = [body for body in server.stats("plain")["bodies"] if "stream" in body][-4:]
    assert [body["seed"] for body in bodies] == [7, 8, 7, 8]
    body = asked | {"stream": True, "stream_options": {"include_usage": True}, "best_of": 5}
    status, headers, _ = server.request("POST", "/v1/completions", body)
    assert (status, headers["x-vllama-ignored"]) == (200, "best_of")
    events = sse(server, "/v1/completions", body)
    said = {}
    for event in events[:-1]:
        (choice,) = event["choices"]
        said[choice["index"]] = said.get(choice["index"], "") + choice["text"]
    assert said == dict.fromkeys(range(4), "tok0 tok1 ")
    assert len({event["id"] for event in events}) == 1
    assert events[-1]["choices"] == [] and events[-1]["usage"]["total_tokens"] == prompts + 8


def test_an_empty_prompt_loads(server, client):
    assert client.completions.create(model="plain", prompt="").choices[0].finish_reason == "load"
    none = client.completions.create(model="plain", prompt="x", max_tokens=0, echo=True)
    assert (none.choices[0].text, none.choices[0].finish_reason) == ("x", "length")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"prompt": [1, 2]}, "cannot use token IDs as 'prompt'"),
        ({"suffix": "end"}, "plain:latest does not support insert"),
        ({"n": 1000}, "Invalid value for 'n': expected an integer <= 128."),
        (
            {"prompt": "word " * 2000, "extra_body": {"truncate": False}},
            "exceeds the context length",
        ),
    ],
)
def test_completions_refused(client, more, text):
    with pytest.raises(openai.BadRequestError, match=re.escape(text)):
        client.completions.create(**{"model": "plain", "prompt": "x"} | more)


# -- chat -------------------------------------------------------------------------------------


def test_several_choices(server, client):
    asked = {"model": "plain", **user("hi"), "n": 3, "max_tokens": 2}
    reply = client.chat.completions.create(**asked)
    assert [(c.index, c.message.content) for c in reply.choices] == [
        (n, "tok0 tok1 ") for n in range(3)
    ]
    one = len("user: hi\nassistant: ")
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (one, 6)
    said = {}
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options=options):
        for choice in chunk.choices:
            said[choice.index] = said.get(choice.index, "") + (choice.delta.content or "")
    assert said == dict.fromkeys(range(3), "tok0 tok1 ")
    assert chunk.usage.completion_tokens == 6


def test_one_of_several_choices_fails(server):
    name = server.model("choices-die", "--die-after", "1", once=True)
    body = {"model": name, **user(), "n": 3, "stream": True}
    events = sse(server, "/v1/chat/completions", body)
    assert "error" in events[-1] and sum("error" in event for event in events) == 1
    name = server.model("choices-fail", "--error-after-200")
    status, reply = server.post("/v1/chat/completions", {"model": name, **user(), "n": 2})
    assert status == 502 and "after its 200" in reply["error"]["message"]


def test_ollamas_own_fields(server, client):
    reply = client.chat.completions.create(
        model="plain", **user(),
        extra_body={"options": {"top_k": 3, "temperature": 0.3}, "keep_alive": -1, "think": False,
                    "num_ctx": 512},
    )  # fmt: skip
    assert reply.choices[0].message.content == WORDS
    sent = server.sent("plain")
    assert (sent["top_k"], sent["temperature"], sent["top_p"]) == (3, 0.3, 1.0)
    row = next(row for row in server.get("/api/ps")["models"] if row["name"] == "plain:latest")
    assert row["expires_at"] > "2200"
    client.chat.completions.create(model="plain", **user(), extra_body={"keep_alive": "5m"})
    for extra in ({"think": True}, {"reasoning_effort": "high"}):
        with pytest.raises(openai.BadRequestError, match="does not support thinking"):
            client.chat.completions.create(model="plain", **user(), extra_body=extra)
    assert client.chat.completions.create(model="plain", **user(), reasoning_effort="none")


LONG = [
    {"role": "user", "content": "old" * 1000}, {"role": "assistant", "content": "x" * 2000},
    {"role": "user", "content": "new"},
]  # fmt: skip


def test_what_was_cut_is_told(server):
    body = {"model": "plain", "messages": LONG}
    status, headers, _ = server.request("POST", "/v1/chat/completions", body)
    assert (status, headers["x-vllama-truncated"]) == (200, "1")
    assert headers["x-vllama-truncated-tokens"] == str(3000 + len("user: \n"))
    assert server.sent("plain")["messages"] == LONG[1:]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("by", ["field", "header"])
def test_strict(server, path, by):
    body = {"model": "plain", "messages": LONG, "max_tokens": 9}
    if path == "/v1/responses":
        body = {"model": "plain", "input": LONG, "truncation": "auto"}
    header = {"X-Vllama-Truncate": "False"} if by == "header" else {}
    body |= {"truncate": False} if by == "field" else {}
    status, _, data = server.request("POST", path, body, header)
    assert status == 400
    assert "5040 tokens" in json.loads(data)["error"]["message"]


def test_a_header_that_is_neither_true_nor_false(server):
    body = {"model": "plain", **user()}
    status, _, data = server.request(
        "POST", "/v1/chat/completions", body, {"x-vllama-truncate": "1"}
    )
    assert status == 400 and b"not true or false" in data


# -- models -----------------------------------------------------------------------------------


def test_models(server, client):
    cards = {card.id: card for card in client.models.list()}
    assert cards["plain:latest"].owned_by == "library"
    assert abs(cards["plain:latest"].created - (server.models / "plain.gguf").stat().st_mtime) < 1
    assert client.models.retrieve("plain").id == "plain"
    for name in ("hf.co/org/repo:Q4_K_M", "a/b", "nobody"):
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve(name)
        assert caught.value.type == "not_found_error"


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("HEAD", "/v1/models", 405, "GET"),
        ("POST", "/v1/models", 405, "GET"),
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("DELETE", "/v1/models/plain", 405, "GET"),
        ("GET", "/v1/nothing", 404, None),
        ("GET", "/v1/models/", 301, None),
        ("POST", "/v1/embeddings/", 307, None),
    ],
)
def test_methods(server, method, path, status, allow):
    got, headers, data = server.request(method, path)
    assert (got, headers["allow"]) == (status, allow)
    if status == 405:
        assert data == (b"" if method == "HEAD" else b"405 method not allowed")


# -- vectors ----------------------------------------------------------------------------------


def test_vectors_of_tokens_are_those_of_the_text(server, client):
    tokens = [ord(char) for char in "some text"]
    by_text, by_tokens = (
        client.embeddings.create(model="vectors", input=given).data[0].embedding
        for given in ("some text", tokens)
    )
    assert by_tokens == by_text
    both = client.embeddings.create(model="vectors", input=[tokens, tokens[:4]])
    assert both.data[0].embedding == by_text and both.data[1].index == 1
    with pytest.raises(openai.BadRequestError, match="'vectors' has no token 1000000"):
        client.embeddings.create(model="vectors", input=[1000000])


def test_fewer_dimensions(client):
    whole, part = (
        client.embeddings.create(model="vectors", input="ab", dimensions=size).data[0].embedding
        for size in (100, 3)
    )
    length = sum(value * value for value in whole[:3]) ** 0.5
    assert part == pytest.approx([value / length for value in whole[:3]], abs=1e-6)


def test_long_inputs_are_cut_and_counted(server):
    body = {"model": "vectors", "input": ["a" * 5000, "short"]}
    status, headers, _ = server.request("POST", "/v1/embeddings", body)
    assert (status, headers["x-vllama-truncated"]) == (200, "1")
    assert headers["x-vllama-truncated-tokens"] == str(5000 - 4095)
    for more, header in (({"truncate": False}, {}), ({}, {"x-vllama-truncate": "false"})):
        status, _, data = server.request("POST", "/v1/embeddings", body | more, header)
        assert status == 400
        assert json.loads(data)["error"]["code"] == "context_length_exceeded"


# -- rerank -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/v1/rerank", "/v1/reranking", "/v2/rerank", "/rerank", "/reranking"]
)
def test_rerank(more, path):
    body = {"model": "ranks", "query": "a c", "documents": ["b", "a c", {"text": "c"}], "top_n": 2}
    status, reply = more.post(path, body)
    assert (status, reply["model"]) == (200, "ranks")
    assert reply["results"] == [
        {"index": 1, "relevance_score": 1.0, "document": {"text": "a c"}},
        {"index": 2, "relevance_score": 0.5, "document": {"text": "c"}},
    ]
    status, reply = more.post(path, body | {"query": None})
    assert status == 400 and "'query'" in reply["error"]["message"]


def test_rerank_for_clients_of_text_embeddings_inference(more):
    body = {"model": "ranks", "query": "a c", "texts": ["b", "a c"]}
    assert more.post("/rerank", body) == (
        200, [{"index": 1, "score": 1.0}, {"index": 0, "score": 0.0}],
    )  # fmt: skip


def test_score(more):
    body = {"model": "ranks", "text_1": "a c", "text_2": ["b", "a c", "c"]}
    status, reply = more.post("/v1/score", body)
    assert (status, [row["score"] for row in reply["data"]]) == (200, [0.0, 1.0, 0.5])
    status, reply = more.post("/score", body | {"text_1": ["a", "b", "c"]})
    assert (status, [row["score"] for row in reply["data"]]) == (200, [0.0, 0.0, 1.0])
    status, reply = more.post("/v1/score", body | {"text_1": ["a", "b"]})
    assert status == 400 and "'text_1'" in reply["error"]["message"]


@pytest.mark.parametrize(
    ("more_fields", "text"),
    [
        ({"query": None}, "'query'"), ({"documents": [5]}, "'documents[0]'"),
    ],
)  # fmt: skip
def test_rerank_refused(more, more_fields, text):
    body = {"model": "ranks", "query": "a", "documents": ["b"]} | more_fields
    status, reply = more.post("/v1/rerank", body)
    assert status == 400 and text in reply["error"]["message"]


# -- audio ------------------------------------------------------------------------------------

SOUND = b"RIFF\r\n\x00\xff--sound"


def test_a_recording_for_an_engine_with_such_a_route(more, client):
    reply = client.audio.transcriptions.create(model="writes", file=("a.wav", SOUND), language="en")
    assert json.loads(reply.text) == {
        "model": "writes", "language": "en", "file": f"{len(SOUND)} bytes",
    }  # fmt: skip
    plain = client.audio.transcriptions.create(
        model="writes", file=("a.wav", SOUND), response_format="text"
    )
    assert json.loads(plain)["response_format"] == "text"
    answer = translated(more, "writes", "a.wav")
    assert answer.status_code == 501
    assert answer.json()["error"]["message"].startswith("cannot translate with 'writes'")


def test_a_recording_for_a_model_that_hears_in_a_chat(more, client):
    reply = client.audio.transcriptions.create(
        model="hears", file=("a.wav", SOUND), language="en", prompt="birds"
    )
    assert reply.text == WORDS.strip()
    sent = more.sent("hears")
    assert sent["temperature"] == 0
    system, question = sent["messages"]
    assert "The language is en." in system["content"] and "birds" in system["content"]
    sound = question["content"][0]["input_audio"]
    assert sound["format"] == "wav" and sound["data"].startswith("UklGR")
    assert translated(more, "hears", "a.mp3", response_format="text").text == WORDS.strip()
    assert more.sent("hears")["messages"][1]["content"][0]["input_audio"]["format"] == "mp3"


def translated(server, model, name, **fields):
    """Post what the official client calls deprecated."""
    return httpx.post(
        f"{server.url}/v1/audio/translations", data={"model": model, **fields},
        files={"file": (name, SOUND)}, timeout=240,
    )  # fmt: skip


def test_recordings_refused(more, client):
    with pytest.raises(openai.APIStatusError, match="its engine does not accept audio") as caught:
        client.audio.transcriptions.create(model="plain", file=("a.wav", SOUND))
    assert caught.value.status_code == 501
    with pytest.raises(openai.NotFoundError):
        client.audio.transcriptions.create(model="nobody", file=("a.wav", SOUND))
    with pytest.raises(openai.BadRequestError, match="audio file is empty"):
        client.audio.transcriptions.create(model="hears", file=("a.wav", b""))
    with pytest.raises(openai.BadRequestError, match="'response_format': 'srt'"):
        client.audio.transcriptions.create(
            model="hears", file=("a.wav", SOUND), response_format="srt"
        )
    path = "/v1/audio/transcriptions"
    for body, headers, status in (
        (b"{}", {"content-type": "application/json"}, 400),
        (b"--x\r\n\r\n", {"content-type": "multipart/form-data; boundary=x"}, 400),
        (b"--x--\r\n", {"content-type": "multipart/form-data; boundary=x"}, 400),
        (b"", {"content-type": "multipart/form-data; boundary=x"}, 400),
        (b"x" * 27_000_000, {"content-type": "multipart/form-data; boundary=x"}, 413),
        (b"--x\r\n" + b"X: y\r\n" * 99, {"content-type": "multipart/form-data; boundary=x"}, 413),
    ):
        got, _, data = more.request("POST", path, body, headers)
        assert got == status and "message" in json.loads(data)["error"]


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v1/audio/speech", {"model": "plain", "input": "x"}, 501, "cannot make speech with"),
        ("/v1/audio/speech", {"model": "plain"}, 400, "Missing required parameter: 'input'"),
        ("/v1/audio/speech", {"model": "plain", "input": "x", "response_format": [1]}, 400,
         "Invalid value for 'response_format'"),
        ("/v1/audio/speech", {"model": "plain", "input": "x", "response_format": "ogg"}, 400,
         "Invalid value for 'response_format'"),
        ("/v1/images/generations", {"model": "plain", "prompt": "x"}, 501, "cannot make images"),
        ("/v1/images/generations", {"model": "plain"}, 400, "Missing required parameter: 'prompt'"),
        ("/v1/images/generations", {"model": "nope", "prompt": "x"}, 404, "model 'nope' not found"),
    ],
)  # fmt: skip
def test_what_no_engine_here_makes(server, path, body, status, text):
    got, reply = server.post(path, body)
    assert got == status and reply["error"]["message"].startswith(text)


# -- a server that runs already ---------------------------------------------------------------


def test_routes_of_a_server_elsewhere(tmp_path):
    elsewhere = Elsewhere()
    try:
        with Server(tmp_path, "--upstream", elsewhere.url, fake=False) as server:
            name = "org/big"
            body = {"model": name, "query": "a", "documents": ["b", "a"], "top_n": 1}
            status, reply = server.post("/v1/rerank", body)
            assert (status, reply["model"], reply["results"][0]["index"]) == (200, name, 1)
            answer = httpx.post(
                f"{server.url}/v1/audio/transcriptions", data={"model": name},
                files={"file": ("a.wav", SOUND)}, timeout=240,
            )  # fmt: skip
            assert json.loads(answer.json()["text"])["file"] == f"{len(SOUND)} bytes"
            lacks = translated(server, name, "a.wav")
            assert lacks.status_code == 501 and "the engine does not support it" in lacks.text
            asked = {"model": name, **user("hi"), "n": 2, "max_tokens": 2}
            status, reply = server.post("/v1/chat/completions", asked)
            assert [choice["index"] for choice in reply["choices"]] == [0, 1]
            status, reply = server.post("/v1/completions", {"model": name, "prompt": "hi"})
            assert (status, reply["choices"][0]["text"]) == (200, WORDS)
            assert "messages" in elsewhere.stats()["bodies"][-1]
            said = {"model": name, "input": "hello", "voice": "alloy", "response_format": "wav"}
            status, headers, data = server.request("POST", "/v1/audio/speech", said)
            assert (status, headers["content-type"], json.loads(data)) == (200, "audio/wav", said)
            drawn = {"model": name, "prompt": "a cat", "size": "64x64"}
            status, reply = server.post("/v1/images/generations", drawn)
            assert status == 200
            assert json.loads(base64.b64decode(reply["data"][0]["b64_json"])) == drawn
            edited = httpx.post(
                f"{server.url}/v1/images/edits", data={"model": name, "prompt": "a dog"},
                files={"image": ("a.png", b"--pixels")}, timeout=240,
            )  # fmt: skip
            form = base64.b64decode(edited.json()["data"][0]["b64_json"])
            assert edited.status_code == 200
            assert all(part in form for part in (b"a dog", b"a.png", b"--pixels", name.encode()))
            stop = {"model": name, "max_tokens": 99, "stop_sequences": ["tok2"], **user()}
            status, reply = server.post("/v1/messages", stop)
            assert (status, reply["stop_sequence"]) == (200, "tok2")
    finally:
        elsewhere.stop()


TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"tools": [TOOL]}),
        ("/v1/messages", {"tools": [{"name": "f", "input_schema": {}}], "max_tokens": 9}),
        ("/v1/responses", {"tools": [{"type": "function", "name": "f", "parameters": {}}]}),
    ],
)
def test_a_model_without_tools_says_so(server, path, more):
    turn = [{"role": "user", "content": "hi"}]
    body = {"model": "plain", "messages": turn, "input": turn, **more}
    status, reply = server.post(path, body)
    assert status == 400
    text = reply["error"]["message"]
    assert text == "registry.ollama.ai/library/plain:latest does not support tools"
    status, _ = server.post(path, body | {"tools": []})
    assert status == 200


def test_too_many_stop_sequences(server):
    stops = [str(number) for number in range(1_001)]
    user = [{"role": "user", "content": "x"}]
    for path, body in (
        ("/api/chat", {"messages": user, "options": {"stop": stops}}),
        ("/api/generate", {"prompt": "x", "options": {"stop": stops}}),
        ("/v1/chat/completions", {"messages": user, "stop": stops}),
        ("/v1/completions", {"prompt": "x", "stop": stops}),
        ("/v1/messages", {"messages": user, "max_tokens": 9, "stop_sequences": stops}),
    ):
        status, answer = server.post(path, {"model": "plain", **body})
        assert status == 400 and "stop sequences" in str(answer["error"]), path
