"""Types of requests: what Go's decoder says of the same bodies with Ollama's structs."""

import json

import pytest

from vllama.base.errors import BadRequest
from vllama.dialects.anthropic.request_types import MESSAGES
from vllama.dialects.go_structs import Struct, decode_request
from vllama.dialects.go_types import find_error
from vllama.dialects.ollama.request_types import CHAT, CREATE, EMBED, GENERATE, SHOW, ShowBody
from vllama.dialects.openai.request_types import CHAT as OPENAI_CHAT
from vllama.dialects.openai.request_types import COMPLETION
from vllama.dialects.responses.request_types import RESPONSES


def tool(parameters: object) -> dict[str, object]:
    return {"tools": [{"function": {"parameters": parameters}}]}


def call(arguments: object) -> dict[str, object]:
    return {"messages": [{"tool_calls": [{"function": {"arguments": arguments}}]}]}


IN_PROPERTIES = "ToolFunctionParameters.tools.function.parameters.properties"
NO_OBJECT = "Value looks like object, but can't find closing '}' symbol"
MISMATCHES: list[tuple[Struct, dict[str, object], str, str]] = [
    (CHAT, {"model": 5}, "number", "ChatRequest.model of type string"),
    (CHAT, {"MODEL": 5}, "number", "ChatRequest.model of type string"),
    (CHAT, {"stream": 5, "model": 5}, "number", "ChatRequest.stream of type bool"),
    (CHAT, {"messages": {}}, "object", "ChatRequest.messages of type []api.Message"),
    (CHAT, {"messages": ["x"]}, "string", "ChatRequest.messages of type api.Alias"),
    (
        CHAT,
        {"messages": [{"Content": 5}]},
        "number",
        "ChatRequest.messages.content of type string",
    ),
    (
        CHAT,
        {"messages": [{"tool_calls": [{"function": 5}]}]},
        "number",
        "ChatRequest.messages.tool_calls.function of type api.ToolCallFunction",
    ),
    (CHAT, {"tools": "x"}, "string", "ChatRequest.tools of type api.Tools"),
    (CHAT, {"tools": ["x"]}, "string", "ChatRequest.tools of type api.Tool"),
    (
        CHAT,
        tool([]),
        "array",
        "ToolFunction.tools.function.parameters of type api.ToolFunctionParameters",
    ),
    (CHAT, tool({"properties": {"a": 5}}), "number", f"{IN_PROPERTIES} of type api.ToolProperty"),
    (
        CHAT,
        tool({"properties": {"a": {"type": [5]}}}),
        "number",
        f"{IN_PROPERTIES}.type of type string",
    ),
    (
        CHAT,
        tool({"properties": {"a": {"properties": {"b": {"type": 5}}}}}),
        "number",
        f"{IN_PROPERTIES}.properties.type of type []string",
    ),
    (CHAT, {"top_logprobs": 1.5}, "number 1.5", "ChatRequest.top_logprobs of type int"),
    (GENERATE, {"context": ["a"]}, "string", "GenerateRequest.context of type int"),
    (EMBED, {"dimensions": "x"}, "string", "EmbedRequest.dimensions of type int"),
    (CREATE, {"files": {"a": 5}}, "number", "CreateRequest.files of type string"),
    (SHOW, {"name": 5}, "number", "ShowRequest.name of type string"),
    (
        OPENAI_CHAT,
        {"messages": [{"tool_calls": [{"function": {"name": 5}}]}]},
        "number",
        ".messages.tool_calls.function.name of type string",
    ),
    (
        OPENAI_CHAT,
        {"stream_options": {"include_usage": "x"}},
        "string",
        "StreamOptions.stream_options.include_usage of type bool",
    ),
    (COMPLETION, {"prompt": 5}, "number", "CompletionRequest.prompt of type string"),
    (COMPLETION, {"prompt": [], "seed": "a"}, "array", "CompletionRequest.prompt of type string"),
    (COMPLETION, {"prompt": ["a", 1]}, "array", "CompletionRequest.prompt of type string"),
    (COMPLETION, {"prompt": [1, 2]}, "array", "CompletionRequest.prompt of type string"),
    (COMPLETION, {"top_p": 1e60}, "number 1e60", "CompletionRequest.top_p of type float32"),
    (
        MESSAGES,
        {"messages": [{"content": [{"type": 5}]}]},
        "number",
        "MessagesRequest.messages.type of type string",
    ),
    (
        MESSAGES,
        {"messages": [{"content": {}}]},
        "object",
        "MessagesRequest.messages of type []anthropic.ContentBlock",
    ),
    (
        RESPONSES,
        {"text": {"format": 5}},
        "number",
        "ResponsesText.text.format of type openai.ResponsesTextFormat",
    ),
]


@pytest.mark.parametrize(("struct", "body", "found", "place"), MISMATCHES)
def test_a_wrong_type(struct: Struct, body: dict[str, object], found: str, place: str) -> None:
    said = f"json: cannot unmarshal {found} into Go struct field {place}"
    assert str(find_error(body, struct)) == said


@pytest.mark.parametrize(
    ("struct", "body", "said"),
    [
        (CHAT, call([]), NO_OBJECT),
        (CHAT, tool({"properties": 5}), NO_OBJECT),
        (CHAT, {"messages": [{"images": ["a!"]}]}, "illegal base64 data at input byte 1"),
        (CHAT, {"messages": [{"images": ["aGkxx"]}]}, "illegal base64 data at input byte 4"),
        # a type that decodes itself ends the decoding: what was wrong before it is not told
        (CHAT, {"stream": 5, "keep_alive": []}, "Unsupported type: '[]interface {}'"),
        (CHAT, {"keep_alive": "x"}, 'time: invalid duration "x"'),
        (MESSAGES, {"messages": [{"role": "user"}]}, "unexpected end of JSON input"),
        (
            RESPONSES,
            {"input": 5},
            "input must be a string or array: json: cannot unmarshal number "
            "into Go value of type []json.RawMessage",
        ),
    ],
)
def test_other_errors(struct: Struct, body: dict[str, object], said: str) -> None:
    assert str(find_error(body, struct)) == said


@pytest.mark.parametrize(
    ("struct", "body"),
    [
        (CHAT, call(None)),
        (CHAT, call({"a": 1})),
        (CHAT, {"messages": [None], "stream": None, "think": None, "unknown": {"a": []}}),
        (CHAT, tool({"properties": {"a": {"type": ["string", "null"]}, "b": None}})),
        (CHAT, {"top_logprobs": 3.0}),
        (COMPLETION, {"prompt": ["a", "b"]}),
        (MESSAGES, {"messages": [{"content": None}]}),
    ],
)
def test_right_types(struct: Struct, body: dict[str, object]) -> None:
    assert find_error(body, struct) is None


def test_fields_are_found_in_any_case_and_null_is_absent() -> None:
    body = json.dumps({"Model": "m", "VERBOSE": True, "system": None, "other": 1}).encode()
    assert decode_request(body, SHOW) == ShowBody(model="m", verbose=True)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "missing request body"),
        (b"5", "json: cannot unmarshal number into Go value of type api.ShowRequest"),
        (b"[]", "json: cannot unmarshal array into Go value of type api.ShowRequest"),
        (b"{", "unexpected EOF"),
    ],
)
def test_bodies_that_are_no_object(body: bytes, said: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode_request(body, SHOW)
    assert caught.value.message == said
    assert decode_request(b"null", SHOW) == ShowBody()
