"""The fields of OpenAI's requests and their types, as Ollama declares them (`openai/openai.go`).

Fields that only vllama reads are checked where they are read.
"""

from __future__ import annotations

from vllama.dialects.go_types import Struct, Walk
from vllama.dialects.go_values import (
    ListOf,
    MessagesOf,
    anything,
    boolean,
    described,
    float32,
    float64,
    integer,
    string,
)
from vllama.dialects.ollama.request_types import TOOL

_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}


@described({"anyOf": [{"type": "string"}, _TEXTS]})
def _prompt(value: object, walk: Walk) -> None:
    """Check a prompt. Ollama refuses all lists; lists of texts are taken here."""
    texts = isinstance(value, list) and value and all(isinstance(item, str) for item in value)
    if not texts:
        string(value, walk)


STREAM_OPTIONS = Struct("openai.StreamOptions", {"include_usage": boolean})
CALLED_FUNCTION = Struct(
    "",
    {"name": string, "arguments": string},
    shown='struct { Name string "json:\\"name\\""; Arguments string "json:\\"arguments\\"" }',
)
TOOL_CALL = Struct(
    "openai.ToolCall",
    {"id": string, "index": integer, "type": string, "function": CALLED_FUNCTION},
)
MESSAGE = Struct(
    "openai.Message",
    {
        "role": string,
        "content": anything,
        "reasoning": string,
        "tool_calls": ListOf(TOOL_CALL, "[]openai.ToolCall"),
        "name": string,
        "tool_call_id": string,
    },
)
RESPONSE_FORMAT = Struct(
    "openai.ResponseFormat",
    {"type": string, "json_schema": Struct("openai.JsonSchema", {"schema": anything})},
)
CHAT = Struct(
    "openai.ChatCompletionRequest",
    {
        "model": string,
        "messages": MessagesOf(MESSAGE, "[]openai.Message"),
        "stream": boolean,
        "stream_options": STREAM_OPTIONS,
        "max_tokens": integer,
        "seed": integer,
        "stop": anything,
        "temperature": float64,
        "frequency_penalty": float64,
        "presence_penalty": float64,
        "top_p": float64,
        "response_format": RESPONSE_FORMAT,
        "tools": ListOf(TOOL, "[]api.Tool"),
        "reasoning": Struct("openai.Reasoning", {"effort": string}),
        "reasoning_effort": string,
        "logprobs": boolean,
        "top_logprobs": integer,
        "_debug_render_only": boolean,
    },
)
COMPLETION = Struct(
    "openai.CompletionRequest",
    {
        "model": string,
        "prompt": _prompt,
        "frequency_penalty": float32,
        "max_tokens": integer,
        "presence_penalty": float32,
        "seed": integer,
        "stop": anything,
        "stream": boolean,
        "stream_options": STREAM_OPTIONS,
        "temperature": float32,
        "top_p": float32,
        "suffix": string,
        "logprobs": integer,
        "_debug_render_only": boolean,
    },
)
EMBEDDING = Struct(
    "openai.EmbedRequest",
    {"input": anything, "model": string, "dimensions": integer, "encoding_format": string},
)
