"""Ollama's routes that ask a model, and those that vllama has beside them."""

from __future__ import annotations

from typing import Any

from vllama.dialects.go_types import Schema
from vllama.dialects.ollama import answer_types as answers
from vllama.dialects.ollama import request_types as requests
from vllama.routes.ollama import chat, embed
from vllama.routes.openapi.fields import (
    FORMAT,
    OPTIONS,
    TEXT,
    TEXT_OR_NULL,
    TOP_LOGPROBS,
    WHOLE_NUMBER,
    make_object,
)
from vllama.routes.openapi.operation import Body, Framing, Operation, Stream
from vllama.routes.server import tokens

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
OPERATIONS = {
    chat.chat: Operation(
        "Continue a conversation",
        help="An empty conversation loads the model; with `keep_alive` 0 it is unloaded.",
        body=Body(
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
        ),
        answer=answers.ChatAnswer,
        stream=Stream(Framing.NDJSON, answers.ChatAnswer),
    ),
    chat.generate: Operation(
        "Continue a prompt",
        help="An empty prompt loads the model; with `keep_alive` 0 it is unloaded.",
        body=Body(
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
        ),
        answer=answers.GenerateAnswer,
        stream=Stream(Framing.NDJSON, answers.GenerateAnswer),
    ),
    embed.embed: Operation(
        "Make embeddings of texts",
        body=Body(
            type=requests.EMBED,
            fields={
                "options": OPTIONS,
                "input": {
                    "description": "a text, or several",
                    "anyOf": [TEXT_OR_NULL, {"type": "array", "items": TEXT}],
                },
            },
            examples={"Two texts": {"model": "all-minilm", "input": ["one text", "another"]}},
        ),
        answer=answers.EmbedAnswer,
    ),
    embed.legacy_embed: Operation(
        "Make the embedding of a text (the older route)",
        body=Body(
            type=requests.LEGACY_EMBED,
            fields={"options": OPTIONS},
            examples={"A text": {"model": "all-minilm", "prompt": "one text"}},
        ),
        answer=answers.LegacyEmbedAnswer,
    ),
    tokens.tokenize: Operation(
        "Turn a text into tokens",
        help="A route of vllama's own. One of `text`, `content` and `prompt` is needed.",
        body=Body(
            type=requests.TOKENIZE,
            required=("text",),
            fields={"text": TEXT},
            examples={"A text": {"text": "Hello, world"}},
        ),
        answer=answers.TokenizedText,
    ),
    tokens.detokenize: Operation(
        "Turn tokens into a text",
        help="A route of vllama's own.",
        body=Body(
            type=requests.TOKENIZE,
            required=("tokens",),
            fields={"tokens": {"type": "array", "items": WHOLE_NUMBER | {"minimum": 0}}},
            examples={"Three tokens": {"tokens": [19556, 28, 905]}},
        ),
        answer=answers.DetokenizedText,
    ),
}
