"""The bodies of requests to models, in Ollama's API and at the routes that vllama has beside it."""

from __future__ import annotations

from typing import Any

from vllama.dialects.go_types import Schema
from vllama.dialects.ollama import request_types as requests
from vllama.routes.fields import (
    FORMAT,
    OPTIONS,
    TEXT,
    TEXT_OR_NULL,
    TOP_LOGPROBS,
    WHOLE_NUMBER,
    make_object,
)
from vllama.routes.operation import Body

_INFERENCE: dict[str, Schema] = {
    "options": OPTIONS,
    "format": FORMAT,
    "top_logprobs": TOP_LOGPROBS,
}
_QUESTION = {"role": "user", "content": "Why is the sky blue?"}
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a city",
        "parameters": make_object(city=TEXT),
    },
}
CHAT = Body(
    type=requests.CHAT,
    fields=_INFERENCE,
    examples={
        "A question": {"messages": [_QUESTION]},
        "With a limit, and not streamed": {
            "messages": [_QUESTION],
            "stream": False,
            "options": {"num_predict": 20, "temperature": 0},
        },
        "With a tool": {
            "messages": [{"role": "user", "content": "How is the weather in Oslo?"}],
            "tools": [_TOOL],
        },
    },
)
GENERATE = Body(
    type=requests.GENERATE,
    fields=_INFERENCE | {"context": {"items": WHOLE_NUMBER}},
    examples={
        "A prompt": {"prompt": "The capital of Norway is"},
        "JSON of a schema": {
            "prompt": "Name a colour.",
            "stream": False,
            "format": {"type": "object", "properties": {"colour": TEXT}},
        },
        "Load the model": {},
    },
)
EMBED = Body(
    type=requests.EMBED,
    fields={
        "options": OPTIONS,
        "input": {
            "description": "a text, or several",
            "anyOf": [TEXT_OR_NULL, {"type": "array", "items": TEXT}],
        },
    },
    examples={"Two texts": {"model": "all-minilm", "input": ["one text", "another"]}},
)
LEGACY_EMBED = Body(
    type=requests.LEGACY_EMBED,
    fields={"options": OPTIONS},
    examples={"A text": {"model": "all-minilm", "prompt": "one text"}},
)
TOKENIZE = Body(
    type=requests.TOKENIZE,
    required=("text",),
    fields={"text": TEXT},
    examples={"A text": {"text": "Hello, world"}},
)
DETOKENIZE = Body(
    name="DetokenizeRequest",
    type=requests.TOKENIZE,
    required=("tokens",),
    fields={"tokens": {"type": "array", "items": WHOLE_NUMBER | {"minimum": 0}}},
    examples={"Three tokens": {"tokens": [19556, 28, 905]}},
)
