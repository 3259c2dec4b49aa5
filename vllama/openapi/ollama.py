"""Ollama's routes that ask a model, and those that vllama has beside them."""

from __future__ import annotations

from typing import Any

from vllama.dialects.go_types import Schema
from vllama.dialects.ollama import answer_types as answers
from vllama.dialects.ollama import request_types as requests
from vllama.openapi.fields import (
    EXAMPLE_MODEL,
    FORMAT,
    MODEL,
    OPTIONS,
    TOP_LOGPROBS,
    WHOLE_NUMBER,
)
from vllama.openapi.operation import Body, Operation, Stream, StreamKind, Tag

_LINES = StreamKind.NDJSON
_INFERENCE: dict[str, Schema] = {
    "model": MODEL,
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
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
OPERATIONS: tuple[Operation, ...] = (
    Operation(
        paths=("/api/chat",),
        tag=Tag.OLLAMA,
        summary="Continue a conversation",
        help="An empty conversation loads the model; with `keep_alive` 0 it is unloaded.",
        body=Body(
            type=requests.CHAT,
            required=("model",),
            fields=_INFERENCE,
            examples={
                "A question": {"model": EXAMPLE_MODEL, "messages": [_QUESTION]},
                "With a limit, and not streamed": {
                    "model": EXAMPLE_MODEL,
                    "messages": [_QUESTION],
                    "stream": False,
                    "options": {"num_predict": 20, "temperature": 0},
                },
                "With a tool": {
                    "model": "qwen3:0.6b",
                    "messages": [{"role": "user", "content": "How is the weather in Oslo?"}],
                    "tools": [_TOOL],
                },
            },
        ),
        answer=answers.ChatAnswer,
        stream=Stream(kind=_LINES, type=(answers.ChatAnswer, answers.OllamaError)),
        runs_model=True,
    ),
    Operation(
        paths=("/api/generate",),
        tag=Tag.OLLAMA,
        summary="Continue a prompt",
        help="An empty prompt loads the model; with `keep_alive` 0 it is unloaded.",
        body=Body(
            type=requests.GENERATE,
            required=("model",),
            fields=_INFERENCE | {"context": {"items": WHOLE_NUMBER}},
            examples={
                "A prompt": {"model": EXAMPLE_MODEL, "prompt": "The capital of Norway is"},
                "JSON of a schema": {
                    "model": EXAMPLE_MODEL,
                    "prompt": "Name a colour.",
                    "stream": False,
                    "format": {"type": "object", "properties": {"colour": {"type": "string"}}},
                },
                "Load the model": {"model": EXAMPLE_MODEL},
            },
        ),
        answer=answers.GenerateAnswer,
        stream=Stream(kind=_LINES, type=(answers.GenerateAnswer, answers.OllamaError)),
        runs_model=True,
    ),
    Operation(
        paths=("/api/embed",),
        tag=Tag.OLLAMA,
        summary="Make embeddings of texts",
        body=Body(
            type=requests.EMBED,
            required=("model",),
            fields={
                "model": MODEL,
                "options": OPTIONS,
                "input": {
                    "description": "a text, or several",
                    "anyOf": [
                        {"type": ["string", "null"]},
                        {"type": "array", "items": {"type": "string"}},
                    ],
                },
            },
            examples={"Two texts": {"model": "all-minilm", "input": ["one text", "another"]}},
        ),
        answer=answers.EmbedAnswer,
        runs_model=True,
    ),
    Operation(
        paths=("/api/embeddings",),
        tag=Tag.OLLAMA,
        summary="Make the embedding of a text (the older route)",
        body=Body(
            type=requests.LEGACY_EMBED,
            required=("model",),
            fields={"model": MODEL, "options": OPTIONS},
            examples={"A text": {"model": "all-minilm", "prompt": "one text"}},
        ),
        answer=answers.LegacyEmbedAnswer,
        runs_model=True,
    ),
    Operation(
        paths=("/api/tokenize",),
        tag=Tag.OLLAMA,
        summary="Turn a text into tokens",
        help="A route of vllama's own. One of `text`, `content` and `prompt` is needed.",
        body=Body(
            type=requests.TOKENIZE,
            required=("model", "text"),
            fields={"model": MODEL, "text": {"type": "string"}},
            examples={"A text": {"model": EXAMPLE_MODEL, "text": "Hello, world"}},
        ),
        answer=answers.TokenizedText,
        runs_model=True,
    ),
    Operation(
        paths=("/api/detokenize",),
        tag=Tag.OLLAMA,
        summary="Turn tokens into a text",
        help="A route of vllama's own.",
        body=Body(
            type=requests.TOKENIZE,
            required=("model", "tokens"),
            fields={
                "model": MODEL,
                "tokens": {"type": "array", "items": WHOLE_NUMBER | {"minimum": 0}},
            },
            examples={"Three tokens": {"model": EXAMPLE_MODEL, "tokens": [19556, 28, 905]}},
        ),
        answer=answers.DetokenizedText,
        runs_model=True,
    ),
)
