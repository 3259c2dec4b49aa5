"""`/v1/responses` over a real socket, with the official client where it can."""

from __future__ import annotations

import gzip
import json
import sys
import tracemalloc
import zlib

import openai
import pytest

from tests.routes.test_ollama_chat import WORDS
from tests.server_process import Server
from vllama.base.errors import BadRequest
from vllama.net.http.content_encoding import (
    MAX_FRAMES,
    BodyTooLarge,
    UnknownEncoding,
    decompress,
)

# real processes, one after another: not for every save
pytestmark = pytest.mark.slow

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_a_whole_response(server, client):
    response = client.responses.create(
        model="plain", input="hello", instructions="be kind", temperature=0.5
    )
    assert response.output_text == WORDS
    assert (response.status, response.model, response.temperature) == ("completed", "plain", 0.5)
    assert response.instructions == "be kind"
    assert response.usage.input_tokens == len("system: be kind\nuser: hello\nassistant: ")
    assert response.usage.output_tokens == 8
    sent = server.sent("plain")
    assert sent["messages"][0] == {"role": "system", "content": "be kind"}
    assert (sent["temperature"], sent["top_p"]) == (0.5, 0.9)


def test_a_stream(server, client):
    with client.responses.stream(model="plain", input="hello") as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == WORDS
    assert server.sent("plain")["temperature"] == 1.0
    events = list(
        client.responses.create(model="counts", input="hello", stream=True, max_output_tokens=16)
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [events[0].type, events[1].type, events[-1].type] == [
        "response.created", "response.in_progress", "response.completed",
    ]  # fmt: skip
    assert events[-1].response.usage.total_tokens == 9
    cut = client.responses.create(model="plain", input="hello", max_output_tokens=3)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_the_clients_stream_takes_a_cut_answer(client):
    asked = {"model": "plain", "input": "hello", "max_output_tokens": 3}
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"  # the only end of which the client gives the response
    assert (final.output_text, final.status) == ("tok0 tok1 tok2 ", "incomplete")
    assert final.incomplete_details.reason == "max_output_tokens"


def test_what_is_echoed(server, client):
    response = client.responses.create(
        model="plain", input="hello", metadata={"a": "b"}, store=True, truncation="auto",
        service_tier="auto", prompt_cache_key="k", user="me", max_output_tokens=50,
    )  # fmt: skip
    assert response.metadata == {"a": "b"} and response.truncation == "auto"
    assert response.to_dict()["store"] is True
    assert (response.prompt_cache_key, response.user) == ("k", "me")
    assert (response.max_output_tokens, response.previous_response_id) == (50, None)


def test_conversations_elsewhere_are_not_known(client):
    raw = client.responses.with_raw_response.create(
        model="plain", input="hello", conversation="conv_1"
    )
    assert raw.headers["x-vllama-ignored"] == "conversation"
    assert raw.parse().output_text == WORDS


@pytest.mark.parametrize("streamed", [False, True])
def test_going_on_from_a_response(server, client, streamed):
    def ask(**asked):
        if not streamed:
            return client.responses.create(model="plain", **asked)
        with client.responses.stream(model="plain", **asked) as stream:
            for _ in stream:
                pass
            return stream.get_final_response()

    first = ask(input="one", instructions="be kind")
    assert first.to_dict()["store"] is False  # by default, as Ollama's
    second = ask(input=[{"role": "user", "content": "two"}], previous_response_id=first.id)
    assert second.previous_response_id == first.id
    third = ask(input="three", previous_response_id=second.id, instructions="be short")
    said = [(turn["role"], turn["content"]) for turn in server.sent("plain")["messages"]]
    assert said == [
        ("system", "be short"), ("user", "one"), ("assistant", WORDS), ("user", "two"),
        ("assistant", WORDS), ("user", "three"),
    ]  # fmt: skip
    assert client.responses.retrieve(third.id).output_text == WORDS
    listed = client.responses.input_items.list(third.id)
    assert [item.role for item in listed] == ["user", "assistant", "user", "assistant", "user"]
    assert listed.data[0].content[0].text == "three"
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        client.responses.cancel(second.id)
    client.responses.delete(second.id)
    for gone in (
        lambda: client.responses.retrieve(second.id),
        lambda: client.responses.cancel(second.id),
        lambda: client.responses.delete(second.id),
        lambda: client.responses.input_items.list(third.id),
    ):
        with pytest.raises(openai.NotFoundError, match=f"Response with id '{second.id}'"):
            gone()
    with pytest.raises(openai.NotFoundError, match=f"Previous response with id '{second.id}'"):
        ask(input="four", previous_response_id=third.id)


def test_what_is_not_stored_cannot_be_gone_on_from(client):
    first = client.responses.create(model="plain", input="one", store=False)
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.create(model="plain", input="two", previous_response_id=first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_calls_of_a_response_are_answered_by_their_id(server, client):
    output = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
    first = client.responses.create(
        model="plain",
        input=[
            {"role": "user", "content": "weather?"},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            output,
        ],
    )
    client.responses.create(model="plain", input="and?", previous_response_id=first.id)
    turns = server.sent("plain")["messages"]
    # a template that knows no tools gets them as text
    assert [turn["role"] for turn in turns][::2] == ["user"] * 3 and "sunny" in turns[2]["content"]


def test_references_to_items_are_what_was_kept(server, client):
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
    first = client.responses.create(model="plain", input=[{"role": "user", "content": "one"}])
    earlier = client.responses.input_items.list(first.id).data
    named = [{"id": earlier[0].id}, {"type": "item_reference", "id": first.output[0].id}]
    lost = {"type": "item_reference", "id": "msg_" + "0" * 26}
    asked = {"model": "plain", "input": [*named, lost, call, {"role": "user", "content": "two"}]}
    status, told, _ = server.request("POST", "/v1/responses", asked)
    turns = server.sent("plain")["messages"]
    assert status == 200 and told["x-vllama-ignored"] == "input[2]_item_reference"
    assert turns[0]["content"] == "one" and turns[1]["content"].startswith(WORDS)
    assert turns[-1]["content"] == "two"
    asked = {
        "input": [named[1], {"role": "user", "content": "two"}],
        "previous_response_id": first.id,
    }
    status, told, _ = server.request("POST", "/v1/responses", {"model": "plain", **asked})
    assert status == 200 and "x-vllama-ignored" not in told
    assert [turn["content"] for turn in server.sent("plain")["messages"]] == ["one", WORDS, "two"]


def test_a_stored_response_outlives_the_server_and_belongs_to_its_key(tmp_path):
    keys = ("--api-key", "sk-a", "--api-key", "sk-b")

    def client_of(server, key):
        return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)

    with Server(tmp_path, *keys) as server:
        server.model("plain")
        with client_of(server, "sk-a") as client:
            first = client.responses.create(model="plain", input="one", store=True)
            fleeting = client.responses.create(model="plain", input="one")
    with Server(tmp_path, *keys) as server:
        with client_of(server, "sk-a") as client:
            assert client.responses.retrieve(first.id).output_text == WORDS
            client.responses.create(model="plain", input="two", previous_response_id=first.id)
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(fleeting.id)
        with client_of(server, "sk-b") as client, pytest.raises(openai.NotFoundError):
            client.responses.retrieve(first.id)


def test_pictures_and_reasoning_come_back(server, client):
    pixel = "data:image/png;base64,iVBORw0KGgo="
    turns = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "hm"},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "yes", "annotations": []}]},
        {"role": "user", "content": [{"type": "input_text", "text": "and?"}]},
    ]  # fmt: skip
    response = client.responses.create(model="plain", input=turns)
    assert response.output_text == WORDS
    assert [turn["content"] for turn in server.sent("plain")["messages"]] == ["yes", "and?"]
    seen = [{"role": "user", "content": [{"type": "input_image", "image_url": pixel}]}]
    with pytest.raises(openai.BadRequestError, match="does not support vision"):
        client.responses.create(model="plain", input=seen)


def test_items_and_tools(server, client):
    response = client.responses.create(
        model="plain",
        input=[
            {"role": "developer", "content": "d"},
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        ],
        tools=[TOOL, {"type": "web_search"}],
        tool_choice="required",
    )
    assert response.output_text == WORDS
    sent = server.sent("plain")
    assert [turn["role"] for turn in sent["messages"]] == [
        "developer", "user", "assistant", "tool",
    ]  # fmt: skip
    assert sent["tool_choice"]["function"]["name"] == "weather"
    assert response.tools[1].type == "web_search"


def test_the_oldest_turns_may_be_dropped(server, client):
    turns = [{"role": "user", "content": "old" * 800}, {"role": "assistant", "content": "x" * 2000},
             {"role": "user", "content": "new"}]  # fmt: skip
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="plain", input=turns)
    assert caught.value.code == "context_length_exceeded"
    body = {"model": "plain", "input": turns, "truncation": "auto"}
    status, headers, data = server.request("POST", "/v1/responses", body)
    assert status == 200
    assert headers["x-vllama-truncated"] == "1"
    assert headers["x-vllama-truncated-tokens"] == str(2400 + len("user: \n"))
    assert json.loads(data)["truncation"] == "auto"
    assert server.sent("plain")["messages"] == turns[1:]


def deflate(body):
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(body) + made.flush()


PACKS = [
    ("zstd", zstd.compress), ("gzip", gzip.compress), ("deflate", zlib.compress),
    ("deflate", deflate), ("identity", bytes),
]  # fmt: skip
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(("encoding", "pack"), PACKS)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hello"}),
        ("/v1/chat/completions", HELLO),
        ("/v1/messages", {**HELLO, "max_tokens": 64}),
        ("/api/chat", {**HELLO, "stream": False}),
        ("/api/show", {}),
    ],
)
def test_compressed_bodies(server, encoding, pack, path, body):
    packed = pack(json.dumps({"model": "plain", **body}).encode())
    headers = {"content-encoding": encoding}
    status, _, data = server.request("POST", path, packed, headers)
    assert status == 200
    assert path == "/api/show" or WORDS.strip() in data.decode()
    status, _, data = server.request("POST", path, packed[:-5] + b"x", headers)
    assert status == 400


def test_an_unknown_encoding_is_named(server):
    status, _, data = server.request("POST", "/api/chat", b"x", {"content-encoding": "br"})
    assert status == 415
    assert "unknown encoding 'br'" in data.decode() and "zstd" in data.decode()


@pytest.mark.parametrize(("name", "pack"), PACKS[:4])
def test_decompression_is_bounded(name, pack):
    assert decompress(pack(b"x" * 1000), name.upper(), 1000) == b"x" * 1000
    with pytest.raises(BodyTooLarge):
        decompress(pack(b"x" * 1001), name, 1000)
    with pytest.raises(BodyTooLarge):
        decompress(pack(bytes(5_000_000)), name, 1000)
    for broken in (b"", pack(b"hello" * 100)[:-3], b"nonsense"):
        with pytest.raises(BadRequest):
            decompress(broken, name, 1000)


@pytest.mark.parametrize(("name", "pack"), [("zstd", zstd.compress), ("gzip", gzip.compress)])
def test_frames_in_a_row_are_bounded(name, pack):
    assert decompress(pack(b"a") + pack(b"") + pack(b"b"), name) == b"ab"
    long = bytes(range(256)) * 1000
    assert decompress(pack(long) * 3, name) == long * 3
    with pytest.raises(BodyTooLarge):
        decompress(pack(b"x" * 600) * 2, name, 1000)
    empty = pack(b"")
    assert decompress(empty * MAX_FRAMES, name) == b""
    # the rest is not looked at, or this would take hours
    with pytest.raises(BadRequest, match=f"more than {MAX_FRAMES} frames"):
        decompress(empty * 3_000_000, name)
    with pytest.raises(BadRequest, match="not valid"):
        decompress(pack(b"a") + b"nonsense", name)


@pytest.mark.parametrize(("name", "pack"), [("zstd", zstd.compress), ("gzip", gzip.compress)])
def test_a_bomb_takes_little_more_memory_than_the_limit(name, pack):
    bomb, limit = pack(bytes(100_000_000)), 8_000_000
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            decompress(bomb, name, limit)
        assert tracemalloc.get_traced_memory()[1] < 1.5 * limit
    finally:
        tracemalloc.stop()


def test_other_encodings():
    assert decompress(b"x", "") == decompress(b"x", "identity") == b"x"
    with pytest.raises(UnknownEncoding):
        decompress(b"x", "br")


@pytest.mark.parametrize(
    ("body", "status", "kind", "text"),
    [
        (b"", 400, "invalid_request_error", "missing request body"),
        (b"[]", 400, "invalid_request_error", "expected an object, got an array"),
        ({"input": "x"}, 400, "invalid_request_error", "model is required"),
        ({"model": "nobody", "input": "x"}, 404, "not_found_error", "model 'nobody' not found"),
        (
            {"model": "plain", "input": [{"role": "user", "content": [{"type": "x"}]}]},
            400,
            "invalid_request_error",
            "invalid message format",
        ),
    ],
)
def test_errors_have_openais_shape(server, body, status, kind, text):
    got, _, data = server.request("POST", "/v1/responses", body)
    error = json.loads(data)["error"]
    assert (got, error["type"]) == (status, kind)
    assert text in error["message"]


def test_failures(server, client):
    name = server.model("responses-dies", "--die-after", "3", once=True)
    events = list(client.responses.create(model=name, input="hello", stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.code == "server_error"
    late = server.model("responses-late", "--error-after-200")
    with pytest.raises(openai.InternalServerError):
        client.responses.create(model=late, input="hello", stream=True)
