"""Tools and thinking before an engine that leaves all of it in the text, on every dialect."""

import json

import pytest

from tests.server_process import Server

pytestmark = pytest.mark.slow

# as Qwen 3's in short: tools, calls whose arguments it walks through, a switch for thinking
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]"
    "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments|items %}"
    "<{{ k }}={{ v }}>{% endfor %}{% endfor %}"
    "{{ m.content }}\n{% endfor %}"
    "{% if tools %}tools: {{ tools|tojson }}\n{% endif %}[assistant]"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
OPENS = "{% if enable_thinking|default(true) %}<think>\n{% endif %}"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
THOUGHT = "<think>\nI look.\n</think>\n\nOne moment. " + CALL
HARMONY = (
    "<|channel|>analysis<|message|>I look.<|start|>assistant<|channel|>commentary<|message|>"
    "One moment. <|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json"
    '<|message|>{"city": "Paris"}'
)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
ASK = [{"role": "user", "content": "Weather?"}]
HISTORY = [
    *ASK,
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "call_1", "type": "function",
         "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return a server with models that answer what families of models answer."""
    with Server(tmp_path_factory.mktemp("families")) as running:
        running.model("bare", "--say", json.dumps(THOUGHT), template=TEMPLATE)
        running.model("bare-oss", "--say", json.dumps(HARMONY), template=TEMPLATE)
        running.model("bare-json", "--say", json.dumps('{"a": 1}'),
                      template=TEMPLATE + "<think>\n")  # fmt: skip
        running.model("bare-counts", "--say", json.dumps("I look.\n</think>\n\nHello."),
                      template=TEMPLATE + "<think>\n")  # fmt: skip
        running.model("bare-switch", "--say", json.dumps("I look.\n</think>\n\nHello."),
                      template=TEMPLATE + OPENS)  # fmt: skip
        call = '{"name": "weather", "arguments": {"city": "Paris"}}'
        running.model("bare-call", "--say", json.dumps(call))
        yield running


def chat(server, path="/v1/chat/completions", model="bare", **fields):
    """Return the whole answer."""
    status, reply = server.post(path, {"model": model, "messages": ASK, "stream": False, **fields})
    assert status == 200, reply
    return reply


@pytest.mark.parametrize("model", ["bare", "bare-oss"])
def test_each_dialect_tells_thinking_text_and_calls_apart(server, model):
    message = chat(server, model=model, tools=[TOOL])["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("I look.", "One moment. ")
    assert message["tool_calls"][0]["function"] == {
        "name": "weather", "arguments": '{"city":"Paris"}',
    }  # fmt: skip
    message = chat(server, "/api/chat", model=model, tools=[TOOL])["message"]
    assert (message["thinking"], message["content"]) == ("I look.", "One moment. ")
    assert message["tool_calls"][0]["function"]["arguments"] == {"city": "Paris"}
    lines = server.lines("/api/chat", {"model": model, "messages": ASK, "tools": [TOOL]})
    assert "".join(line["message"]["content"] for line in lines) == "One moment. "
    assert sum(len(line["message"].get("tool_calls", ())) for line in lines) == 1
    blocks = chat(server, "/v1/messages", model=model, max_tokens=99,
                  tools=[{"name": "weather", "input_schema": PARAMETERS}])["content"]  # fmt: skip
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
    assert blocks[2]["input"] == {"city": "Paris"}
    items = chat(server, "/v1/responses", model=model, input="Weather?",
                 tools=[{"type": "function", **TOOL["function"]}])["output"]  # fmt: skip
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]


@pytest.mark.parametrize("fields", [{}, {"reasoning_effort": "none"}])
def test_a_switch_that_the_engine_does_not_take_leaves_no_thinking_in_the_text(server, fields):
    message = chat(server, model="bare-switch", **fields)["choices"][0]["message"]
    assert message["content"] == "Hello."
    assert "messages" in server.sent("bare-switch")  # the engine renders


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_to_a_finished_prompt_is_a_chat(server, stream):
    body = {"model": "bare", "messages": ASK, "reasoning_effort": "none", "stream": stream}
    status, _, data = server.request("POST", "/v1/chat/completions", body)
    assert status == 200
    if stream:
        chunks = [
            json.loads(line[6:]) for line in data.split(b"\n\n") if line.startswith(b"data: {")
        ]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        assert "".join(delta.get("reasoning") or "" for delta in deltas) == "I look."
        text = "".join(delta.get("content") or "" for delta in deltas)
    else:
        reply = json.loads(data)
        assert reply["object"] == "chat.completion"
        text = reply["choices"][0]["message"]["content"]
    assert text == "One moment. " + CALL  # no tools were given, so this is text


def test_thinking_that_the_prompt_has_opened_with_an_engine_that_counts_by_itself(server):
    message = chat(server, model="bare-counts")["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("I look.", "Hello.")
    message = chat(server, "/api/chat", model="bare-counts")["message"]
    assert (message["thinking"], message["content"]) == ("I look.", "Hello.")
    lines = server.lines("/api/chat", {"model": "bare-counts", "messages": ASK})
    assert "".join(line["message"]["content"] for line in lines) == "Hello."
    reply = chat(server, "/api/generate", model="bare-counts", prompt="Weather?")
    assert (reply["thinking"], reply["response"]) == ("I look.", "Hello.")
    blocks = chat(server, "/v1/messages", model="bare-counts", max_tokens=99)["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"]
    items = chat(server, "/v1/responses", model="bare-counts", input="Weather?")["output"]
    assert [item["type"] for item in items] == ["reasoning", "message"]


def test_a_format_is_an_answer_though_the_prompt_opens_the_thinking(server):
    for fields in ({"format": "json"}, {"format": PARAMETERS}):
        reply = chat(server, "/api/chat", model="bare-json", think=False, **fields)
        assert reply["message"]["content"] == '{"a": 1}'
        assert not reply["message"].get("thinking")
    asked = {"response_format": {"type": "json_object"}, "reasoning_effort": "none"}
    message = chat(server, model="bare-json", **asked)["choices"][0]["message"]
    assert message["content"] == '{"a": 1}'
    # without a format it begins inside the tag
    message = chat(server, "/api/chat", model="bare-json")["message"]
    assert message["thinking"] == '{"a": 1}'


def test_a_forced_call_of_a_model_without_tools(server):
    reply = chat(server, model="bare-call", tools=[TOOL], tool_choice="required")
    sent = server.sent("bare-call")
    assert sent["response_format"]["schema"]["properties"]["name"] == {"const": "weather"}
    assert "weather" in sent["messages"][0]["content"]
    assert "tools" not in sent
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == ""
    status, refused = server.post(
        "/api/chat", {"model": "bare-call", "messages": ASK, "tools": [TOOL]}
    )
    assert status == 400 and "does not support tools" in refused["error"]


def test_special_tokens_are_asked_for_where_they_are_looked_for(server):
    def asked(model, **fields):
        chat(server, model=model, **fields)
        return server.sent(model).get("skip_special_tokens")

    assert asked("bare") is False  # it may think
    assert asked("bare-call") is None
    assert asked("bare-call", skip_special_tokens=True) is True
    assert asked("bare-call", tools=[TOOL], tool_choice="required") is False
    assert asked("bare", skip_special_tokens=True) is False


def test_a_history_with_tools_for_a_model_without_tools(server):
    chat(server, model="bare-call", messages=HISTORY)
    roles = [message["role"] for message in server.sent("bare-call")["messages"]]
    assert roles == ["user", "assistant", "user"]
    ollama = [*HISTORY[:1], {"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}]},
        {"role": "tool", "tool_name": "weather", "content": "rain"}]  # fmt: skip
    chat(server, "/api/chat", model="bare-call", messages=ollama)
    sent = server.sent("bare-call")["messages"]
    assert [message["content"] for message in sent] == [
        "Weather?", '(Called weather with {"city":"Oslo"})', "Result of weather: rain",
    ]  # fmt: skip
