"""Anthropic's routes over a real socket, with the official client where it can."""

from __future__ import annotations

import json
import re

import anthropic
import pytest

from tests.routes.test_ollama_chat import WORDS, until

# real processes, one after another: not for every save
pytestmark = pytest.mark.slow

HI = [{"role": "user", "content": "hello"}]
TOOL = {"name": "weather", "input_schema": {"type": "object"}}


@pytest.fixture
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


def ask(**more):
    return {"model": "plain", "max_tokens": 100, "messages": HI} | more


def test_a_whole_message(server, client):
    message = client.messages.create(**ask(system="be kind", stop_sequences=["zzz"]))
    assert message.content[0].text == WORDS
    assert (message.model, message.role, message.stop_reason) == ("plain", "assistant", "end_turn")
    assert message.id.startswith("msg_") and message._request_id.startswith("req_")
    assert message.usage.input_tokens == len("system: be kind\nuser: hello\nassistant: ")
    assert message.usage.output_tokens == 8
    sent = server.sent("plain")
    assert sent["messages"] == [{"role": "system", "content": "be kind"}, *HI]
    assert (sent["max_tokens"], sent["temperature"]) == (100, 0.8)


def test_a_stream(server, client):
    with client.messages.stream(**ask()) as stream:
        assert "".join(stream.text_stream) == WORDS
        final = stream.get_final_message()
    assert final.usage.input_tokens == len("user: hello\nassistant: ")
    assert final.usage.output_tokens == 8
    events = list(client.messages.create(**ask(stream=True, max_tokens=3)))
    assert [events[0].type, events[-2].type, events[-1].type] == [
        "message_start", "message_delta", "message_stop",
    ]  # fmt: skip
    assert events[0].message.usage.input_tokens == len("user: hello\nassistant: ")
    assert events[-2].delta.stop_reason == "max_tokens"
    assert events[-2].usage.output_tokens == 3


def test_a_stop_sequence_is_named(server, client):
    """The fake engine heeds none, as little as it tells: what ends the answer is the front."""
    asked = ask(stop_sequences=["zzz", "tok3"])
    message = client.messages.create(**asked)
    assert message.content[0].text == "tok0 tok1 tok2 "
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "tok3")
    assert "stop" not in server.sent("plain")
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == "tok0 tok1 tok2 "
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "tok3")


def test_the_engine_is_free_once_a_stop_sequence_is_met(server, client):
    before = server.stats("slow")["gone"] if loaded(server, "slow") else 0
    long = [{"role": "user", "content": "@tokens=2000"}]
    message = client.messages.create(**ask(model="slow", messages=long, stop_sequences=["tok5 "],
                                           max_tokens=3000))  # fmt: skip
    assert message.content[0].text == "tok0 tok1 tok2 tok3 tok4 "
    assert message.usage.output_tokens == 6
    until(lambda: server.stats("slow")["gone"] == before + 1)
    assert server.stats("slow")["tokens"] < 2000
    counted = client.messages.create(**ask(model="counts", stop_sequences=["tok1"]))
    assert counted.stop_sequence == "tok1" and counted.usage.input_tokens > 0


def loaded(server, name):
    return any(row["name"].startswith(name) for row in server.get("/api/ps")["models"])


def test_a_prompt_too_long_has_anthropics_words(server, client):
    long = [{"role": "user", "content": "old" * 2000}, {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "new"}]  # fmt: skip
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**ask(messages=long))
    error = caught.value.body["error"]
    assert error["type"] == "invalid_request_error"
    assert re.match(r"prompt is too long: 60\d\d tokens > 4096 maximum", error["message"])
    assert client.messages.count_tokens(model="plain", messages=long).input_tokens > 6000
    # cut instead, where that is asked for
    for more, header in (({"truncate": True}, {}), ({}, {"x-vllama-truncate": "true"})):
        status, headers, _ = server.request(
            "POST", "/v1/messages", ask(messages=long, **more), header
        )
        assert (status, headers["x-vllama-truncated"]) == (200, "1")
        assert server.sent("plain")["messages"] == long[1:]


def test_ollamas_own_fields(server):
    more = {"options": {"top_k": 7, "temperature": 0.2}, "keep_alive": "7m", "think": False}
    status, _, _ = server.request("POST", "/v1/messages", ask(**more))
    sent = server.sent("plain")
    assert (status, sent["top_k"], sent["temperature"]) == (200, 7, 0.2)
    assert not {"options", "keep_alive", "think"} & set(sent)


def test_an_engine_that_counts_by_itself(server, client):
    with client.messages.stream(**ask(model="counts")) as stream:
        starts = [event.message.usage for event in stream if event.type == "message_start"]
        final = stream.get_final_message()
    assert starts[0].input_tokens == final.usage.input_tokens == 1
    count = client.messages.count_tokens(model="counts", messages=HI)
    assert count.input_tokens == len("user: hello\nassistant: ")


def test_count_tokens(server, client):
    count = client.messages.count_tokens(model="plain", messages=HI, system="x")
    assert count.input_tokens == len("system: x\nuser: hello\nassistant: ")
    long = [{"role": "user", "content": "x" * 9000}]
    assert client.messages.count_tokens(model="plain", messages=long).input_tokens > 9000
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="nobody", messages=HI)


def test_what_is_too_long_is_said_in_the_words_clients_know(client):
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: .* tokens"):
        client.messages.create(**ask(messages=[{"role": "user", "content": "x" * 9000}]))


def test_tools_and_their_history(server, client):
    history = [
        *HI,
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}]},
    ]  # fmt: skip
    message = client.messages.create(
        **ask(messages=history, tools=[TOOL], tool_choice={"type": "any"}, extra_body={"top_k": 5})
    )
    assert message.content[0].text == WORDS
    sent = server.sent("plain")
    assert [turn["role"] for turn in sent["messages"]] == ["user", "assistant", "tool"]
    assert sent["messages"][2]["tool_call_id"] == "toolu_1"
    assert sent["tools"][0]["function"]["name"] == "weather"
    assert sent["tool_choice"]["function"]["name"] == "weather"
    assert sent["top_k"] == 5


def test_tools_of_the_cloud_are_named_in_a_header(server):
    search = {"type": "web_search_20250305", "name": "web_search"}
    now = {"name": "now", "input_schema": {"type": "object"}}
    forced = {"tool_choice": {"type": "any"}}  # which any model can do
    said = ask(tools=[search, now], **forced)
    status, headers, _ = server.request("POST", "/v1/messages", said)
    assert status == 200
    assert headers["x-vllama-ignored"] == "web_search_20250305"
    status, headers, _ = server.request("POST", "/v1/messages", ask(tools=[search]))
    assert (status, headers["x-vllama-ignored"]) == (200, "web_search_20250305")
    alone = {"model": "plain", "input": "hi", "tools": [{"type": "web_search"}]}
    status, headers, _ = server.request("POST", "/v1/responses", alone)
    assert (status, headers["x-vllama-ignored"]) == (200, "tools[0]_web_search")
    odd = [{"type": f"a\r\nx-{number}: b"} for number in range(50)]
    said = ask(tools=[*odd, now], **forced)
    status, headers, _ = server.request("POST", "/v1/messages", said)
    assert status == 200 and "x-0" not in headers
    assert headers["x-vllama-ignored"].startswith("a__x-0__b, ")
    assert len(headers["x-vllama-ignored"]) < 200


@pytest.mark.parametrize(
    ("body", "status", "kind", "text"),
    [
        (b"", 400, "invalid_request_error", "missing request body"),
        (b"{", 400, "invalid_request_error", "invalid JSON"),
        (b"[]", 400, "invalid_request_error", "expected an object, got an array"),
        ({"model": "plain"}, 400, "invalid_request_error", "max_tokens is required"),
        (ask(model="nobody"), 404, "not_found_error", "model 'nobody' not found"),
        (ask(messages=[]), 400, "invalid_request_error", "messages is required"),
        (ask(temperature="x"), 400, "invalid_request_error", "temperature"),
    ],
)
def test_errors_have_their_own_shape(server, body, status, kind, text):
    got, headers, data = server.request("POST", "/v1/messages", body)
    value = json.loads(data)
    assert (got, value["type"], value["error"]["type"]) == (status, "error", kind)
    assert text in value["error"]["message"]
    assert value["request_id"].startswith("req_") and headers["request-id"].startswith("req_")


def test_keys_and_versions_are_ignored(server):
    headers = {
        "authorization": "Bearer x", "x-api-key": "y", "anthropic-version": "2026-10-21",
        "anthropic-beta": "a,b",
    }  # fmt: skip
    status, _, _ = server.request("POST", "/v1/messages?beta=true", ask(), headers)
    assert status == 200


def test_failures(server, client):
    name = server.model("anthropic-dies", "--die-after", "3", once=True)
    with pytest.raises(anthropic.APIStatusError) as caught:
        list(client.messages.create(**ask(model=name, stream=True)))
    assert caught.value.body["error"]["type"] == "api_error"
    late = server.model("anthropic-late", "--error-after-200")
    with pytest.raises(anthropic.InternalServerError):
        client.messages.create(**ask(model=late, stream=True))
