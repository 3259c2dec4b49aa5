"""Types of requests: their schemas allow what is read, and what Ollama takes is taken."""

import json

import msgspec
import pytest
from jsonschema import Draft202012Validator

from vllama.base.errors import BadRequest
from vllama.chat.bodies import find_error
from vllama.dialects.anthropic.request_types import MessagesBody
from vllama.dialects.ollama import request_types as ollama
from vllama.dialects.ollama.read import decode_request
from vllama.dialects.openai import request_types as openai
from vllama.dialects.responses.request_types import ResponsesBody

VALUES = [
    *(True, False, 0, 1, -1, 1.5, 2.0, 2**70, "", "x", "high", "5m", "-1", "1h30m", "m"),
    *("YWJj", "YWI=", "YWI", "a b", [], {}, ["x"], [1], [["x"]], [{}], {"a": 1}, {"a": "x"}),
    *({"role": "user"}, {"content": "x"}, {"content": [{"type": "text", "text": "x"}]}),
    *({"content": 5}, {"function": {"name": "x"}}, {"function": "x"}, {"type": ["a"]}),
    *(["YWJj"], ["YWJj", "x"], [{"content": "x"}], [{"content": 5}], [{"function": "x"}]),
]
STRUCTS = [
    *(ollama.ChatBody, ollama.GenerateBody, ollama.EmbedBody, ollama.CreateBody, ollama.ShowBody),
    *(ollama.PullBody, ollama.TokenizeBody, openai.ChatCompletionBody, openai.CompletionBody),
    *(openai.EmbeddingBody, MessagesBody, ResponsesBody),
]


@pytest.mark.parametrize("python_type", STRUCTS)
def test_a_field_and_its_schema_allow_the_same(python_type):
    (described,), schemas = msgspec.json.schema_components(
        [python_type],
        schema_hook=lambda part: part.schema,
        ref_template="#/components/schemas/{name}",
    )
    _, tool = msgspec.json.schema_components(
        [ollama.Tool], ref_template="#/components/schemas/{name}"
    )
    for schema in schemas.values():
        schema.pop("additionalProperties", None)  # the document leaves it out, too
    validator = Draft202012Validator({**described, "components": {"schemas": tool | schemas}})
    for field in python_type.__struct_encode_fields__:
        if python_type is ResponsesBody and field == "input":
            continue  # the types of items are told apart by their names
        for value in VALUES:
            body = {field: value}
            assert validator.is_valid(body) is (not find_error(body, python_type)), body


TOOL = {
    "function": {"name": "f", "parameters": {"properties": {"a": {"type": ["string", "null"]}}}}
}


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "tool_calls": [{"function": {"arguments": {}}}]}]},
        {"messages": [{"role": "user", "images": ["YWJj\nYWJj", None]}, None]},
        {"messages": [{"ROLE": "user", "Content": None, "more": 1}]},
        {"tools": [TOOL, None, {**TOOL, "more": [1]}], "stream": None, "think": None, "unknown": 1},
        {"think": "high", "keep_alive": "1h30m", "options": {"temperature": 0, "x": []}},
        {"think": True, "keep_alive": -1, "top_logprobs": 3.0, "format": {"type": "object"}},
        {"Format": "json", "KEEP_ALIVE": 5.5, "Options": None},
    ],
)  # fmt: skip
def test_what_a_chat_may_have(fields):
    assert (
        decode_request(json.dumps({"model": "m"} | fields).encode(), ollama.ChatBody).model == "m"
    )


def test_tools_stay_as_they_were_written():
    tool = {
        "Type": "function",
        "function": {"parameters": {"additionalProperties": False, "x": None}},
    }
    assert decode_request(json.dumps({"tools": [tool]}).encode(), ollama.ChatBody).tools == [tool]


@pytest.mark.parametrize("parameters", [[], {"properties": 5}, {"properties": {"a": {"type": 5}}}])
def test_wrong_tools(parameters):
    tool = {"function": {"parameters": parameters}}
    with pytest.raises(BadRequest, match=r"'tools\[0\]\.function\.parameters"):
        decode_request(json.dumps({"tools": [tool]}).encode(), ollama.ChatBody)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"top_p": 1e60}, "'top_p': expected a decimal <"),
        ({"prompt": []}, "'prompt': expected an array of length >= 1"),
        ({"seed": 2**63}, "'seed': expected an integer <= 9223372036854775807"),
    ],
)
def test_limits_of_completions(body, problem):
    assert problem in find_error(body, openai.CompletionBody)
    assert not find_error({"prompt": ["a", "b"], "seed": 3.0, "top_p": 1}, openai.CompletionBody)
