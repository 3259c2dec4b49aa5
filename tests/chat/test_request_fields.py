"""Which fields of a request reach an engine: lists for each engine, and what is never passed on."""

import json
import re
from typing import Any

import msgspec
import pytest

from vllama.base.errors import BadRequest, Forbidden
from vllama.chat.engine.request import make_chat_call, make_completion_call
from vllama.chat.engine.request_fields import (
    CODE_FIELDS,
    HARMLESS,
    STANDARD,
    check_code,
    find_code_field,
    may_send_code,
)
from vllama.chat.engine.traits import Traits
from vllama.chat.prepare import prepare_chat
from vllama.chat.request import Sampling
from vllama.dialects.ollama.read import parse_chat
from vllama.dialects.openai.multipart import FormPart, FormReader, pass_form
from vllama.dialects.openai.read import read_chat
from vllama.dialects.rerank import parse_rerank
from vllama.engines.external import KNOWN, UNKNOWN
from vllama.engines.request_body import LLAMACPP, SGLANG, VLLM

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('{"vllm_xargs": {"apply_hooks": "x"}}', "vllm_xargs"),
        ('{"\\u0076llm_xargs": {"a": 1}}', "vllm_xargs"),
        ('{"VLLM_Xargs": {"a": 1}}', "VLLM_Xargs"),
        ('{"vllm_xargs": null, "vllm_xargs": {"a": 1}}', "vllm_xargs"),
        ('{"vllm_xargs": null, "VLLM_XARGS": {"a": 1}}', "VLLM_XARGS"),
        ('{"extra_body": {"kv_transfer_params": {}}}', "extra_body.kv_transfer_params"),
        ('{"options": {"lora_path": "/x"}}', "options.lora_path"),
        ('{"extra_body": {"Extra_Body": {"lora": 1}}}', "extra_body.Extra_Body.lora"),
        (
            '{"extra_body": {"chat_template_kwargs": {"tokenize": 0}}}',
            "extra_body.chat_template_kwargs.tokenize",
        ),
        ('{"chat_template_kwargs": {"chat_template": "x"}}', "chat_template_kwargs.chat_template"),
        ('{"chat_template_kwargs": {"tokenize": false}}', "chat_template_kwargs.tokenize"),
        ('{"Chat_Template_Kwargs": {"chat_template": ""}}', "Chat_Template_Kwargs.chat_template"),
        ('{"chat_template_kwargs": {"enable_thinking": false}}', None),
        ('{"vllm_xargs": null}', None),
        ('{"truncation": "auto", "max_length": 3}', None),
        ('{"tools": [{"function": {"parameters": {"properties": {"chat_template": 1}}}}]}', None),
        ("{}", None),
    ],
)
def test_what_may_be_code_is_found_however_it_is_written(body: str, found: str | None) -> None:
    assert find_code_field(json.loads(body)) == found


def test_only_who_may_send_code_passes_the_gate_and_the_list() -> None:
    body = CHAT | {"vllm_xargs": {"a": 1}}
    with pytest.raises(Forbidden, match="pass on 'vllm_xargs'"):
        check_code(body)
    # a body that came past the gate is stopped by the list
    assert prepare_chat(read_chat(body), KNOWN["vllm"], None).ignored == ("vllm_xargs",)
    token = may_send_code.set(True)
    try:
        check_code(body)
        assert prepare_chat(read_chat(body), UNKNOWN, None).extra == {"vllm_xargs": {"a": 1}}
    finally:
        may_send_code.reset(token)


@pytest.mark.parametrize(
    ("tool", "found"),
    [
        ({"type": "function", "server_url": "http://x"}, "tools[0].server_url"),
        ({"connector_id": "x"}, "tools[0].connector_id"),
        ({"function": {"name": "f"}, "Server_URL": "http://x"}, "tools[0].Server_URL"),
        ({"function": {"name": "f", "server_url": "http://x"}}, "tools[0].server_url"),
        ({"function": {"name": "f"}, "vllm_xargs": 1}, "tools[0].vllm_xargs"),
    ],
)
def test_tools_that_an_engine_would_run_are_for_administrators(tool, found) -> None:
    body = CHAT | {"tools": [tool]}
    with pytest.raises(Forbidden, match=re.escape(f"pass on '{found}'")):
        read_chat(body)
    token = may_send_code.set(True)
    try:
        assert read_chat(body).tools == (tool,)
    finally:
        may_send_code.reset(token)


MCP = {"type": "mcp", "server_url": "http://169.254.169.254/"}


@pytest.mark.parametrize("tool", [MCP, {"type": "local_shell"}, {"type": "web_search"}])
def test_tools_of_servers_are_passed_over_by_name(tool) -> None:
    mine = {"type": "function", "function": {"name": "f"}}
    body = CHAT | {"tools": [tool, mine, None]}
    for asked in (read_chat(body), parse_chat(json.dumps(body).encode())):
        assert asked.tools == (mine,)
        assert asked.passed_over == (tool["type"],)
        assert prepare_chat(asked, UNKNOWN, None).ignored == (tool["type"],)
    token = may_send_code.set(True)
    try:
        assert read_chat(body).tools == (tool, mine)
    finally:
        may_send_code.reset(token)


@pytest.mark.parametrize(
    ("more", "found"),
    [
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [MCP]}}},
            "tool_choice.allowed_tools.tools[0] of type mcp",
        ),
        ({"tool_choice": {"type": "function", "vllm_xargs": 1}}, "tool_choice.vllm_xargs"),
        (
            {"messages": [{"role": "user", "content": "", "lora_path": "x"}]},
            "messages[0].lora_path",
        ),
        (
            {"messages": [{"role": "developer", "content": "", "tools": [MCP]}]},
            "messages[0].tools[0] of type mcp",
        ),
        (
            {"messages": [{"role": "a", "tool_calls": [{"function": {"name": "f"}, "lora": 1}]}]},
            "messages[0].tool_calls[0].lora",
        ),
    ],
)
def test_what_may_be_code_is_found_in_the_parts_of_a_body(more, found) -> None:
    with pytest.raises(Forbidden, match=re.escape(f"pass on '{found}'")):
        read_chat(CHAT | more)


def test_the_tools_of_ollama_s_clients_are_functions_of_the_client() -> None:
    tool = {"function": {"name": "f", "parameters": {"type": "object"}}}
    body = CHAT | {"tools": [tool | {"type": "web_search"}]}
    assert parse_chat(json.dumps(body).encode()).tools == (tool | {"type": "function"},)
    with pytest.raises(Forbidden, match="server_url"):
        parse_chat(json.dumps(CHAT | {"tools": [tool | {"server_url": "http://x"}]}).encode())


@pytest.mark.parametrize("data", ["/etc/passwd", "http://x/a.wav", "../a.wav", "data:,x", "a"])
def test_sound_is_never_a_path_or_an_address(data: str) -> None:
    sound = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    with pytest.raises(BadRequest, match="input_audio"):
        read_chat(CHAT | {"messages": [{"role": "user", "content": [sound]}]})


def test_tools_that_the_client_runs_are_passed_on() -> None:
    function = {"name": "f", "parameters": {"properties": {"server_url": {"type": "string"}}}}
    tools = [{"type": "function", "function": function}, {"function": function}]
    assert read_chat(CHAT | {"tools": tools}).tools == tuple(tools)


@pytest.mark.parametrize(
    ("custom", "described"),
    [
        ({"name": "sql"}, ""),
        ({"name": "sql", "description": "Ask."}, "Ask."),
        (
            {"name": "sql", "format": {"type": "grammar", "syntax": "lark", "definition": "a: b"}},
            "`input` follows this lark grammar:\na: b",
        ),
        (
            {"name": "sql", "format": {"grammar": {"syntax": "regex", "definition": "a+"}}},
            "`input` follows this regex grammar:\na+",
        ),
    ],
)
def test_a_custom_tool_is_a_function_of_one_text(custom, described) -> None:
    for tool in ({"type": "custom", "custom": custom}, {"type": "custom", **custom}):
        asked = read_chat(CHAT | {"tools": [tool]})
        (read,) = asked.tools
        assert asked.customs == {"sql"}
        assert read["type"] == "function"
        assert read["function"]["name"] == "sql"
        assert read["function"]["description"] == described
        assert read["function"]["parameters"]["required"] == ["input"]


@pytest.mark.parametrize("listed", [STANDARD, HARMLESS, VLLM, SGLANG, LLAMACPP])
def test_no_list_opens_what_may_be_code_or_touches_the_requests_of_others(listed) -> None:
    others = {"priority", "request_id", "rid", "session_id", "id_slot", "data_parallel_rank"}
    assert listed.isdisjoint(CODE_FIELDS | others)


@pytest.mark.parametrize(
    ("traits", "kept", "ignored"),
    [
        (
            UNKNOWN,
            {"user", "min_tokens", "chat_template_kwargs"},
            {"mirostat", "regex", "provider"},
        ),
        (KNOWN["vllm"], {"user", "min_tokens", "bad_words"}, {"mirostat", "regex", "priority"}),
        (KNOWN["sglang"], {"user", "regex", "stop_token_ids"}, {"mirostat", "rid", "bad_words"}),
        (KNOWN["llamacpp"], {"user", "mirostat", "dry_base"}, {"regex", "id_slot", "bad_words"}),
        (Traits(context_length=1, passed_fields=frozenset({"own"})), {"user", "own"}, {"regex"}),
    ],
)
def test_each_engine_has_its_list(traits, kept, ignored) -> None:
    asked = read_chat(CHAT | dict.fromkeys([*kept, *ignored], 1) | {"user": "x"})
    chat = prepare_chat(asked, traits, None)
    assert (set(chat.extra), set(chat.ignored)) == (kept, ignored)


@pytest.mark.parametrize(
    ("more", "is_whole"),
    [
        ({}, True),
        ({"stream": False}, True),
        ({"stream": True}, False),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, False),
    ],
)
def test_only_who_needs_no_pieces_gets_larger_ones(more: dict[str, Any], is_whole: bool) -> None:
    fields = {"stream_interval": 16, "stream_options": {"include_usage": True, "c": True}}
    traits = Traits(context_length=64, whole_fields=fields)
    asked = read_chat({"model": "m", "messages": [{"role": "user", "content": "a"}]} | more)
    chat = prepare_chat(asked, traits, None)
    for call in (
        make_chat_call(chat, Sampling(), traits),
        make_completion_call(chat, "a", Sampling(), traits),
    ):
        body = msgspec.json.decode(call.encode())
        assert body["stream"] is True
        assert (fields.items() <= body.items()) is is_whole


def test_parts_of_a_form() -> None:
    def part(name: str, filename: str | None = None) -> FormPart:
        return FormPart(name=name, data=b"x", filename=filename)

    kept = [
        part("file", "a.wav"), part("image[]", "a.png"), part("mask", "m.png"), part("language"),
        part("timestamp_granularities[]"), part("own"),
    ]  # fmt: skip
    left = [
        part("image"),  # its address
        part("file"), part("vllm_xargs[a]"), part("unknown"), part("model", "a.bin"),
        part("chat_template_kwargs[chat_template]"), part("Language"),
    ]  # fmt: skip
    sent = [part("model"), *kept]
    call, ignored = pass_form("/x", [*sent, *left], {"own"}, model="theirs", seed="1")
    assert [*ignored] == [each.name for each in left]
    reader = FormReader(call.content_type)
    reader.feed(call.encode())
    found = [(each.name, each.filename, each.data) for each in reader.parts()]
    wanted = [(each.name, each.filename, each.data) for each in kept]
    assert found == [("model", None, b"theirs"), *wanted]


@pytest.mark.parametrize(
    "document",
    [
        {"image": "http://169.254.169.254/"},
        {"content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]},
        json.loads('{"image": "ftp:\\/\\/x"}'),
        {"image": "/etc/passwd"},
        {"Image_URL": "../a.png"},
        {"content": [{"type": "video_url", "video_url": {"url": "a.mp4"}}]},
    ],
)
def test_no_engine_opens_addresses_in_documents(document) -> None:
    with pytest.raises(BadRequest, match="URLs in 'documents'"):
        parse_rerank({"query": "q", "documents": ["a", document]})
    fine = ["http://x is a text", {"text": "http://x"}, {"image": "data:image/png;base64,aaaa"}]
    fine += [{"image": "aaaa"}, {"title": "a.b", "body": "/x"}]
    assert parse_rerank({"query": "q", "documents": fine}).documents == tuple(fine)
