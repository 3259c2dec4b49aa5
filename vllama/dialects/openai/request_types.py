"""OpenAI's requests as Ollama declares them (`openai/openai.go`).

Fields that only vllama reads are checked where they are read.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from vllama.chat.go_json import MAX_MESSAGES, check_messages
from vllama.dialects.go_structs import find_struct, list_of, make_struct
from vllama.dialects.go_types import Walk
from vllama.dialects.go_values import Float32, Int, LimitedList, described, string
from vllama.dialects.ollama.request_types import Tool

_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}


@described({"anyOf": [{"type": "string"}, _TEXTS]})
def _prompt(value: object, walk: Walk) -> object:
    """Check a prompt. Ollama refuses all lists; lists of texts are taken here."""
    texts = isinstance(value, list) and value and all(isinstance(item, str) for item in value)
    return value if texts else string(value, walk)


StreamOptions = make_struct(
    "openai.StreamOptions", "What a stream has beside its text.", include_usage=bool
)
CalledFunction = make_struct(
    "",
    name=str,
    arguments=str,
    go_shown='struct { Name string "json:\\"name\\""; Arguments string "json:\\"arguments\\"" }',
)
CallStruct = make_struct(
    "openai.ToolCall",
    "A call that the model made.",
    id=str,
    index=Int,
    type=str,
    function=CalledFunction,
)
MessageStruct = make_struct(
    "openai.Message",
    "A turn of the conversation.",
    role=str,
    content=Any,
    reasoning=str,
    tool_calls=list_of(CallStruct),
    name=str,
    tool_call_id=str,
)
JsonSchema = make_struct("openai.JsonSchema", "A JSON schema with a name.", schema=Any)
ResponseFormat = make_struct(
    "openai.ResponseFormat", "The form of the answer.", type=str, json_schema=JsonSchema
)
Reasoning = make_struct("openai.Reasoning", "How the model thinks.", effort=str)
MESSAGE = find_struct(MessageStruct)
Messages: Any = Annotated[
    list_of(MessageStruct),
    msgspec.Meta(max_length=MAX_MESSAGES),
    LimitedList(MESSAGE, "[]openai.Message", check_messages),
]
OwnBody = make_struct("openai.Request", model=str)
ChatBody = make_struct(
    "openai.ChatCompletionRequest",
    model=str,
    messages=Messages,
    stream=bool,
    stream_options=StreamOptions,
    max_tokens=Int,
    seed=Int,
    stop=Any,
    temperature=float,
    frequency_penalty=float,
    presence_penalty=float,
    top_p=float,
    response_format=ResponseFormat,
    tools=list_of(Tool),
    reasoning=Reasoning,
    reasoning_effort=str,
    logprobs=bool,
    top_logprobs=Int,
    _debug_render_only=bool,
)
CompletionBody = make_struct(
    "openai.CompletionRequest",
    model=str,
    prompt=Annotated[str | Annotated[list[str], msgspec.Meta(min_length=1)], _prompt],
    frequency_penalty=Float32,
    max_tokens=Int,
    presence_penalty=Float32,
    seed=Int,
    stop=Any,
    stream=bool,
    stream_options=StreamOptions,
    temperature=Float32,
    top_p=Float32,
    suffix=str,
    logprobs=Int,
    _debug_render_only=bool,
)
EmbeddingBody = make_struct(
    "openai.EmbedRequest", input=Any, model=str, dimensions=Int, encoding_format=str
)
OWN = find_struct(OwnBody)
CHAT = find_struct(ChatBody)
COMPLETION = find_struct(CompletionBody)
EMBEDDING = find_struct(EmbeddingBody)
