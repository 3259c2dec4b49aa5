from __future__ import annotations

import json
from typing import Any

import pytest

from tests.chat.bodies import adapt_chat
from tests.chat.test_engine_request import LCP, VLLM
from vllama.base.errors import BadRequest
from vllama.dialects.openai.read import read_chat
from vllama.dialects.responses.items import make_input_items
from vllama.dialects.responses.read import ResponsesRequest, continue_from, parse_responses

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "name": "weather", "description": "d", "strict": True,
           "parameters": SCHEMA}  # fmt: skip
NOW = {"type": "function", "name": "now", "parameters": None, "description": None}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def parse(**fields: Any) -> ResponsesRequest:
    body = {"model": "m", "input": "Hi"} | fields
    given = {name: value for name, value in body.items() if value != "absent"}
    return parse_responses(json.dumps(given).encode())


def turns(*items: Any, **fields: Any) -> Any:
    return parse(input=list(items), **fields).chat["messages"]


def test_the_least() -> None:
    asked = parse()
    assert asked.chat == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": False,
    }
    assert asked.echo["temperature"] == 1.0
    assert asked.echo["tool_choice"] == "auto" and asked.echo["tools"] == []
    assert asked.echo["text"] == {"format": {"type": "text"}}
    assert not asked.chat["stream"] and not asked.truncate and not asked.ignored


def test_parameters() -> None:
    asked = parse(
        instructions="be kind", stream=True, temperature=0.2, top_p=0.5, max_output_tokens=7.0,
        reasoning={"effort": "low", "summary": "auto"}, truncation="auto", store=True,
        include=["reasoning.encrypted_content"], metadata={"a": "b"}, service_tier="auto",
        prompt_cache_key="x", previous_response_id=None, conversation=None, user="me",
        background=True, presence_penalty=0.5,
    )  # fmt: skip
    assert asked.chat["stream"] and asked.truncate and asked.ignored == ("background",)
    assert asked.chat["messages"][0] == {"role": "system", "content": "be kind"}
    assert asked.chat["reasoning_effort"] == "low"
    sent = adapt_chat(asked.chat, VLLM)[0]
    assert (sent["temperature"], sent["top_p"], sent["max_tokens"]) == (0.2, 0.5, 7)
    assert sent["reasoning_effort"] == "low"
    echo = asked.echo
    assert (echo["instructions"], echo["temperature"], echo["top_p"]) == ("be kind", 0.2, 0.5)
    assert echo["metadata"] == {"a": "b"} and echo["reasoning"]["effort"] == "low"
    assert echo["store"] is True and echo["previous_response_id"] is None
    assert (echo["background"], echo["presence_penalty"]) == (True, 0.5)
    assert (echo["frequency_penalty"], echo["service_tier"]) == (0, "default")
    assert (echo["truncation"], echo["prompt_cache_key"]) == ("auto", "x")


@pytest.mark.parametrize(
    ("name", "value"), [("conversation", "conv_1"), ("previous_response_id", 5)]
)
def test_what_was_kept_elsewhere_is_ignored_but_said(name: str, value: object) -> None:
    asked = parse(**{name: value})
    assert list(asked.ignored) == [name] and asked.echo["previous_response_id"] is None


@pytest.mark.parametrize(
    ("given", "store", "echo"),
    [({}, None, False), ({"store": True}, True, True), ({"store": False}, False, False),
     ({"store": "yes"}, None, False)],
)  # fmt: skip
def test_whether_it_is_to_be_stored(given: dict[str, object], store: object, echo: bool) -> None:
    asked = parse(**given)
    assert asked.store is store and asked.echo["store"] is echo


def test_a_conversation_goes_on_with_its_own_instructions() -> None:
    asked = parse(previous_response_id="resp_1", instructions="be short", input="two")
    assert (asked.previous, asked.echo["previous_response_id"]) == ("resp_1", "resp_1")
    own = make_input_items(asked.input, "5eed")
    assert own == [
        {
            "id": "msg_in5eed00", "type": "message", "role": "user", "status": "completed",
            "content": [{"type": "input_text", "text": "two"}],
        }
    ]  # fmt: skip
    answer = {
        "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "1", "annotations": []}],
    }  # fmt: skip
    turns = continue_from(asked, [{"role": "user", "content": "one"}, answer], own).chat["messages"]
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user"]
    assert asked.chat["messages"] != turns


def test_ollamas_own_fields() -> None:
    asked = parse(options={"temperature": 0.1, "num_ctx": 512}, keep_alive="1m", think=False)
    assert asked.chat["temperature"] == 0.1 and asked.chat["reasoning_effort"] == "none"
    assert asked.extras.options["num_ctx"] == 512 and asked.extras.keep_alive == 60
    asked = parse(think="high", reasoning={"effort": "low"}, temperature=0.7,
                  options={"temperature": 0.1})  # fmt: skip
    assert asked.chat["temperature"] == 0.7 and asked.chat["reasoning_effort"] == "low"


def test_messages() -> None:
    got = turns(
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "s"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "a"},
                                     {"type": "input_text", "text": "b"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "yes", "annotations": []},
                     {"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "see"},
                                     {"type": "input_image", "image_url": PIXEL}]},
    )  # fmt: skip
    assert [(m["role"], m["content"]) for m in got[:4]] == [
        ("developer", "d"), ("system", "s"), ("user", "a\nb"), ("assistant", "yesno"),
    ]  # fmt: skip
    assert got[4]["content"][1] == {"type": "image_url", "image_url": {"url": PIXEL}}
    sent = adapt_chat({"model": "m", "messages": got[:4]}, LCP)[0]
    assert sent["messages"][0]["role"] == "system"


def test_history_of_tools() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "weather",
            "arguments": '{"city": "Paris"}', "id": "fc_1", "status": "completed"}  # fmt: skip
    got = turns(
        {"role": "user", "content": "weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "hm"},
        {"role": "assistant", "content": "Let me"},
        call,
        {**call, "call_id": "c2", "name": "now", "namespace": "time", "arguments": ""},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2",
         "output": [{"type": "input_text", "text": "noon"},
                    {"type": "input_image", "image_url": PIXEL}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        {**call, "call_id": "c3", "arguments": "{nonsense"},
        {"type": "function_call_output", "call_id": "c3", "output": None},
    )  # fmt: skip
    assert [m["role"] for m in got] == [
        "user", "assistant", "tool", "tool", "user", "assistant", "tool",
    ]  # fmt: skip
    assert got[1]["reasoning"] == "hm" and got[1]["content"] == "Let me"
    assert [(c["id"], c["function"]["name"]) for c in got[1]["tool_calls"]] == [
        ("c1", "weather"), ("c2", "time.now"),
    ]  # fmt: skip
    assert got[1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris"}'
    assert got[1]["tool_calls"][1]["function"]["arguments"] == "{}"
    assert [got[2]["content"], got[3]["content"]] == ["rain", "noon"]
    assert got[4]["content"][0]["type"] == "image_url"
    assert got[5]["reasoning"] == "so" and got[5]["content"] is None
    arguments = json.loads(got[5]["tool_calls"][0]["function"]["arguments"])
    assert arguments == {"input": "{nonsense"}
    assert got[6] == {"role": "tool", "tool_call_id": "c3", "content": ""}


LEFT_OUT = (
    "[left out: image URLs are not currently supported, please use base64 encoded data instead]\n"
    "[left out: invalid image input]\n[left out: file inputs are not currently supported]"
)


@pytest.mark.parametrize(
    ("items", "calls", "results", "passed_over"),
    [
        ([{"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "x"},
          {"type": "custom_tool_call_output", "call_id": "a", "output": "done"}],
         [("a", "patch", {"input": "x"})], [("a", "done")], []),
        ([{"type": "local_shell_call", "id": "l", "call_id": "a", "status": "completed",
           "action": {"type": "exec", "command": ["ls"]}},
          {"type": "local_shell_call_output", "call_id": "a", "output": "file"}],
         [("a", "local_shell", {"action": {"type": "exec", "command": ["ls"]}})],
         [("a", "file")], []),
        ([{"type": "apply_patch_call", "call_id": "a", "operation": {"type": "delete_file"}},
          {"type": "apply_patch_call_output", "call_id": "a", "status": "completed"},
          {"type": "shell_call_output", "call_id": "b", "output": [{"stdout": "x"}]}],
         [("a", "apply_patch", {"operation": {"type": "delete_file"}})],
         [("a", ""), ("b", '[{"stdout":"x"}]')], []),
        ([{"type": "compaction", "encrypted_content": "x"}, {"type": "web_search_call", "id": "w"},
          {"type": "mcp_call", "id": "m", "name": "f", "output": "x"}, {"id": "msg_of_another"}],
         [], [], ["input[0] compaction", "input[1] web_search_call", "input[2] mcp_call",
                  "input[3] item_reference"]),
        ([{"role": "assistant", "content": [{"type": "smell"}, {"type": "text", "text": "a"}]}],
         [], [], ["input[0] smell"]),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}, {"role": "x"}]},
          {"role": "assistant", "content": ["a"]}],
         [], [], ["messages[0].content[0] input_file", "messages[0].content[1] None"]),
        ([{"role": "user", "content": {"type": "input_file", "file_data": "x"}},
          {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
          {"type": "function_call_output", "call_id": "a", "output": "b"}],
         [("a", "f", {})], [("a", "b")], ["messages[0].content[0] input_file"]),
        ([{"type": "function_call_output", "call_id": "a", "output": [
            {"type": "input_image", "image_url": "https://x/y.png"},
            {"type": "input_image", "image_url": "data:image/png;base64,A!="},
            {"type": "input_file"}]}],
         [], [("a", LEFT_OUT)], []),
        ([{"role": "assistant", "content": {"type": "output_text", "text": "a"}}, None],
         [], [], []),
    ],
)  # fmt: skip
def test_items_of_other_servers_are_carried_or_named(items, calls, results, passed_over) -> None:
    asked = parse(input=[*items, {"role": "user", "content": "go on"}])
    messages = asked.chat["messages"]
    made = [call for turn in messages for call in turn.get("tool_calls", ())]
    told = [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in made
    ]
    assert told == calls
    assert [(m["tool_call_id"], m["content"]) for m in messages if m["role"] == "tool"] == results
    assert [*asked.passed_over, *read_chat(asked.chat).passed_over] == passed_over
    assert messages[-1]["content"] in ("go on", [{"type": "text", "text": "go on"}])
    assert adapt_chat(asked.chat, VLLM)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"type": "input_file", "file_id": "x"}, "file inputs are not currently supported"),
        ({"type": "smell"}, "invalid message format"),
        ({"type": "input_text", "text": 5}, "invalid message format"),
        ({"type": "text", "text": {"x": 1}}, "invalid message format"),
        (5, "invalid message format"),
        ({"role": "x"}, "invalid message format"),
        ({"type": "input_image", "image_url": "https://x/y"}, "image URLs are not currently"),
    ],
)
def test_parts_of_the_last_turn_are_refused(part, text) -> None:
    said, turn = {"role": "assistant", "content": "a"}, {"role": "user", "content": [part]}
    for given in (
        [turn],
        [said, turn],
        [turn, said],
        [said, turn, {"role": "user", "content": "b"}],
    ):
        with pytest.raises(BadRequest, match=text):
            read_chat(parse(input=given).chat)
    assert read_chat(parse(input=[turn, said, {"role": "user", "content": "b"}]).chat)


@pytest.mark.parametrize(
    ("item", "thinking", "passed_over"),
    [
        ({"encrypted_content": "I think so."}, "I think so.", ()),
        ({"encrypted_content": "gAAAAABo" * 20 + "==", "summary": [{"text": "hm"}]}, "hm", ()),
        (
            {"encrypted_content": "gAAAAABo" * 20 + "==", "summary": []},
            None,
            ("input[0] reasoning",),
        ),
    ],
)
def test_thinking_that_another_server_has_encrypted(item, thinking, passed_over) -> None:
    said = {"role": "assistant", "content": "a"}
    asked = parse(input=[{"type": "reasoning", **item}, said])
    assert asked.chat["messages"][0].get("reasoning") == thinking
    assert asked.passed_over == passed_over


def test_pictures_do_not_part_the_results_of_parallel_calls() -> None:
    seen = [{"type": "input_image", "image_url": PIXEL}]
    calls = [
        {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"}
        for name in ("c1", "c2")
    ]
    results = [
        {"type": "function_call_output", "call_id": name, "output": seen} for name in ("c1", "c2")
    ]
    got = turns({"role": "user", "content": "look"}, *calls, *results)
    assert [m["role"] for m in got] == ["user", "assistant", "tool", "tool", "user"]
    assert [part["type"] for part in got[-1]["content"]] == ["image_url", "image_url"]


def test_formats() -> None:
    form = {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}
    asked = parse(text={"format": form, "verbosity": "low"})
    assert asked.echo["text"] == {"format": form, "verbosity": "low"}
    assert asked.chat["response_format"]["json_schema"] == {
        "name": "city", "schema": SCHEMA, "strict": True,
    }  # fmt: skip
    for traits in (VLLM, LCP):
        assert adapt_chat(asked.chat, traits)
    asked = parse(text={"format": {"type": "json_object"}})
    assert asked.chat["response_format"] == {"type": "json_object"}
    assert "response_format" not in parse(text={"format": {"type": "text"}}).chat
    assert "response_format" not in parse(text={}).chat
    for form in ({"type": "regex"}, {"type": "json_schema"}, {"schema": SCHEMA}):
        with pytest.raises(BadRequest, match="response_format"):
            adapt_chat(parse(text={"format": form}).chat, VLLM)


@pytest.mark.parametrize(
    ("choice", "wanted", "left"),
    [
        (None, None, 2),
        ("auto", None, 2),
        ("none", None, 0),
        ("required", "required", 2),
        (
            {"type": "function", "name": "now"},
            {"type": "function", "function": {"name": "now"}},
            2,
        ),
        (
            {"type": "allowed_tools", "mode": "required",
             "tools": [{"type": "function", "name": "now"}]},
            {"type": "function", "function": {"name": "now"}},
            1,
        ),
        ({"type": "custom", "name": "now"}, {"type": "function", "function": {"name": "now"}}, 2),
        ({"type": "web_search"}, None, 2),
    ],
)  # fmt: skip
def test_tools(choice: Any, wanted: Any, left: int) -> None:
    asked = parse(tools=[WEATHER, NOW], tool_choice=choice)
    assert len(asked.chat.get("tools", [])) == left
    assert asked.chat.get("tool_choice") == wanted
    if left == 2:
        assert asked.chat["tools"] == [
            {"type": "function",
             "function": {"name": "weather", "description": "d", "parameters": SCHEMA}},
            {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
        ]  # fmt: skip
    assert asked.echo["tool_choice"] == (choice or "auto")


def test_namespaces_are_flattened() -> None:
    space = {"type": "namespace", "name": "time", "description": "d",
             "tools": [NOW, {"type": "custom", "name": "free"}, {"type": "mcp"}]}  # fmt: skip
    asked = parse(
        tools=[space, WEATHER, {"type": "web_search"}],
        tool_choice={"type": "function", "name": "now", "namespace": "time"},
        parallel_tool_calls=False,
    )
    names = [tool["function"]["name"] for tool in asked.chat["tools"]]
    assert names == ["time.now", "time.free", "weather"]
    assert asked.names == {"time.now": ("time", "now"), "time.free": ("time", "free")}
    assert asked.customs == {"time.free"}
    assert asked.ignored == ("tools[0].tools[2] mcp", "tools[2] web_search")
    assert asked.chat["tool_choice"]["function"]["name"] == "time.now"
    assert asked.chat["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("item", "name", "said"),
    [
        ({"type": "function_call", "call_id": 5, "name": "f", "arguments": {"a": 1}},
         "f", '{"a":1}'),
        ({"type": "function_call", "name": None, "arguments": None}, "", "{}"),
        ({"type": "function_call_output", "call_id": 5, "output": {"ok": True}},
         None, '{"ok":true}'),
        ({"type": "function_call_output", "output": 5}, None, "5"),
        ({"type": "reasoning", "summary": 5, "encrypted_content": None}, None, None),
    ],
)  # fmt: skip
def test_what_is_in_a_conversation_is_accepted(item, name, said) -> None:
    messages = parse(input=[item, {"role": "user", "content": "go on"}]).chat["messages"]
    calls = [x["function"] for m in messages for x in m.get("tool_calls", ())]
    results = [m["content"] for m in messages if m["role"] == "tool"]
    assert calls == ([] if name is None else [{"name": name, "arguments": said}])
    assert results == ([said] if item["type"].endswith("output") else [])


def test_tools_that_come_in_the_input() -> None:
    space = {
        "type": "namespace",
        "name": "functions",
        "tools": [{"type": "custom", "name": "exec"}],
    }
    item = {"type": "additional_tools", "role": "developer", "id": "at_1", "tools": [space]}
    asked = parse(input=[item, {"role": "user", "content": "x"}], tools=[NOW])
    assert [tool["function"]["name"] for tool in asked.chat["tools"]] == ["now", "functions.exec"]
    assert asked.customs == {"functions.exec"} and not asked.passed_over
    assert len(asked.chat["messages"]) == 1


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"model": 5}, "Invalid value for 'model': expected a string, got an integer."),
        ({"input": 5}, "Invalid value for 'input': expected a string or an array, got an integer."),
        ({"input": ["Hi"]}, "Invalid value for 'input[0]': expected an object, got a string."),
        ({"input": [{}]}, "Invalid value for 'input[0]': it has neither a type nor a role."),
        (
            {"input": [{"type": 5}]},
            "Invalid value for 'input[0].type': expected a string, got an integer.",
        ),
        (
            {"input": [{"role": "user", "content": 5}]},
            "Invalid value for 'input[0].content': expected a string or an object or an array, got",
        ),
        (
            {"input": [{"type": "additional_tools", "tools": 5}]},
            "Invalid value for 'input[0].tools': expected an array, got an integer.",
        ),
        (
            {"instructions": 5},
            "Invalid value for 'instructions': expected a string, got an integer.",
        ),
        ({"stream": "yes"}, "Invalid value for 'stream': expected a boolean, got a string."),
        (
            {"temperature": "hot"},
            "Invalid value for 'temperature': expected a decimal, got a string.",
        ),
        (
            {"max_output_tokens": "5"},
            "Invalid value for 'max_output_tokens': expected an integer, got a string.",
        ),
        ({"reasoning": "low"}, "Invalid value for 'reasoning': expected an object, got a string."),
        ({"text": "x"}, "Invalid value for 'text': expected an object, got a string."),
        (
            {"text": {"format": "x"}},
            "Invalid value for 'text.format': expected an object, got a string.",
        ),
        ({"tools": {}}, "Invalid value for 'tools': expected an array, got an object."),
        ({"tools": [5]}, "Invalid value for 'tools[0]': expected an object, got an integer."),
        (
            {"tools": [NOW | {"parameters": {"properties": 5}}]},
            "wrong parameters of the tool 'now': Invalid value for 'properties': ",
        ),
    ],
)
def test_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(**fields)
    assert caught.value.message.startswith(text)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "message", "content": "Hi"},
        {"role": "user", "content": [{"type": "input_image", "file_id": "x"}]},
        {"type": "function_call", "call_id": "x"},
        {"type": "function_call", "name": "x"},
        {"type": "function_call_output", "output": "x"},
        {"type": "function_call_output"},
    ],
)
def test_what_ollama_takes_is_taken(item: dict[str, Any]) -> None:
    assert len(parse(input=[item]).chat["messages"]) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": 5},
        {"store": "x"},
        {"previous_response_id": 5},
        {"parallel_tool_calls": "x"},
        {"presence_penalty": True},
        {"user": []},
    ],
)
def test_fields_that_ollama_does_not_read_are_no_error(fields: dict[str, Any]) -> None:
    asked = parse(**fields)
    assert asked.ignored == tuple(fields)
    assert asked.echo == parse().echo and asked.chat == parse().chat


def test_tools_without_a_name_are_left_out() -> None:
    nameless = {"type": "function"}
    space = {"type": "namespace", "name": "s", "tools": [nameless, None]}
    asked = parse(tools=[nameless, None, NOW, space], tool_choice=5)
    assert [tool["function"]["name"] for tool in asked.chat["tools"]] == [NOW["name"]]
    assert asked.ignored == (
        "tools[0] function", "tools[1]", "tools[3].tools[0] function", "tools[3].tools[1]",
    )  # fmt: skip


def test_an_effort_is_checked_where_it_is_used() -> None:
    with pytest.raises(BadRequest, match="invalid reasoning value"):
        adapt_chat(parse(reasoning={"effort": "huge"}).chat, VLLM)


@pytest.mark.parametrize("empty", ["", None])
def test_an_item_with_an_empty_type_is_kept_as_the_message_that_it_was_read_as(empty: Any) -> None:
    item = {"type": empty, "role": "user", "content": "Hi"}
    assert turns(item) == [{"role": "user", "content": "Hi"}]
    assert make_input_items([item], "1")[0]["type"] == "message"


def test_what_earlier_responses_had_has_no_place_in_the_input() -> None:
    lost, turn = {"type": "web_search_call", "id": "w"}, {"role": "user", "content": "now"}
    asked = continue_from(parse(input=[turn, lost]), [lost, turn], [turn, lost])
    assert asked.passed_over == ("previous_response_id web_search_call", "input[1] web_search_call")
