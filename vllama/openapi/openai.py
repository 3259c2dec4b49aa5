"""OpenAI's chats, completions, embeddings and models."""

from __future__ import annotations

from vllama.dialects.go_types import Schema
from vllama.dialects.openai import answer_types as answers
from vllama.dialects.openai import request_types as requests
from vllama.openapi.fields import (
    BOOLEAN,
    EXAMPLE_MODEL,
    IMAGE_URL,
    INTEGER,
    MODEL,
    NUMBER,
    OWN_FIELDS,
    TEXT,
    TOP_LOGPROBS,
    WHOLE_NUMBER,
)
from vllama.openapi.operation import Body, Operation, Parameter, Stream, StreamKind, Tag

_DONE = "[DONE]"
_EFFORT: Schema = {
    "enum": ["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max", "", None]
}
_TOKEN: Schema = WHOLE_NUMBER | {"minimum": 0}
_N: Schema = {"type": ["integer", "null"], "minimum": 1, "maximum": 128}
_SAMPLING: dict[str, Schema] = {
    **OWN_FIELDS,
    "model": MODEL,
    "n": _N,
    "top_k": INTEGER,
    "min_p": NUMBER,
    "typical_p": NUMBER,
    "repeat_penalty": NUMBER,
    "repeat_last_n": INTEGER,
    "num_keep": INTEGER,
    "max_completion_tokens": INTEGER,
}
_QUESTION = {
    "model": EXAMPLE_MODEL,
    "messages": [{"role": "user", "content": "Why is the sky blue?"}],
}
_PARTS: Schema = {
    "type": "array",
    "items": {
        "anyOf": [
            TEXT,
            {
                "type": "object",
                "required": ["type", "text"],
                "properties": {"type": {"const": "text"}, "text": TEXT},
            },
            {
                "type": "object",
                "required": ["type", "image_url"],
                "properties": {
                    "type": {"const": "image_url"},
                    "image_url": {
                        "type": "object",
                        "required": ["url"],
                        "properties": {"url": IMAGE_URL},
                    },
                },
            },
            {
                "type": "object",
                "required": ["type", "input_audio"],
                "properties": {
                    "type": {"const": "input_audio"},
                    "input_audio": {
                        "type": "object",
                        "required": ["data"],
                        "properties": {"data": TEXT},
                    },
                },
            },
        ]
    },
}
_CALL: Schema = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "function": {"type": "object", "required": ["name"], "properties": {"name": TEXT}}
    },
}
_MESSAGE: Schema = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "content": {"anyOf": [TEXT, _PARTS]},
        "tool_calls": {"items": _CALL},
    },
}
_NAMED: Schema = {"type": "object", "required": ["name"], "properties": {"name": TEXT}}
_TOOL_CHOICE: Schema = {
    "description": "whether the model may, must or must not call a function, and which",
    "anyOf": [
        {"enum": ["auto", "none", "required", "any", "", None]},
        {
            "type": "object",
            "required": ["type", "function"],
            "properties": {"type": {"const": "function"}, "function": _NAMED},
        },
        {
            "type": "object",
            "required": ["type", "allowed_tools"],
            "properties": {
                "type": {"const": "allowed_tools"},
                "allowed_tools": {
                    "type": "object",
                    "required": ["tools"],
                    "properties": {"tools": {"type": "array"}},
                },
            },
        },
    ],
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        paths=("/v1/chat/completions",),
        tag=Tag.OPENAI,
        summary="Continue a conversation",
        help="Fields that only the engine knows are passed on to it.",
        body=Body(
            type=requests.CHAT,
            required=("model", "messages"),
            fields=_SAMPLING
            | {
                "messages": {"type": "array", "minItems": 1, "allOf": [{"items": _MESSAGE}]},
                "tools": {"allOf": [{"items": {"type": "object"}}]},
                "top_logprobs": TOP_LOGPROBS,
                "reasoning_effort": _EFFORT,
                "tool_choice": _TOOL_CHOICE,
                "parallel_tool_calls": {},
                "logit_bias": {"type": ["object", "null"]},
            },
            examples={
                "A question": _QUESTION,
                "Streamed": _QUESTION | {"stream": True, "max_tokens": 50},
            },
        ),
        answer=answers.ChatCompletion,
        stream=Stream(
            kind=StreamKind.EVENTS,
            type=(answers.ChatChunk, answers.OpenAIError),
            ends_with=_DONE,
        ),
        runs_model=True,
    ),
    Operation(
        paths=("/v1/completions",),
        tag=Tag.OPENAI,
        summary="Continue prompts",
        help="A prompt goes through the model's template; with `raw` it is sent as it is.",
        body=Body(
            type=requests.COMPLETION,
            required=("model",),
            fields=_SAMPLING
            | {
                "logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
                "prompt": {
                    "description": "a text, or several",
                    "anyOf": [
                        {"type": ["string", "null"]},
                        {"type": "array", "minItems": 1, "items": TEXT},
                    ],
                },
                "stop": {"items": TEXT},  # what is no list is ignored, as with Ollama
                "echo": BOOLEAN | {"description": "the answer begins with the prompt"},
                "raw": BOOLEAN,
            },
            examples={
                "A prompt": {"model": EXAMPLE_MODEL, "prompt": "One, two,", "max_tokens": 10},
                "Streamed": {
                    "model": EXAMPLE_MODEL,
                    "prompt": "One, two,",
                    "max_tokens": 10,
                    "stream": True,
                },
            },
        ),
        answer=answers.TextCompletion,
        stream=Stream(
            kind=StreamKind.EVENTS,
            type=(answers.TextCompletion, answers.OpenAIError),
            ends_with=_DONE,
        ),
        runs_model=True,
    ),
    Operation(
        paths=("/v1/embeddings",),
        tag=Tag.OPENAI,
        summary="Make embeddings of texts or tokens",
        body=Body(
            type=requests.EMBEDDING,
            required=("model", "input"),
            fields={
                "model": MODEL,
                **OWN_FIELDS,
                "input": {
                    "description": "a text, texts, tokens, or lists of tokens",
                    "anyOf": [
                        TEXT,
                        {"type": "array", "minItems": 1, "items": TEXT},
                        {"type": "array", "minItems": 1, "items": _TOKEN},
                        {
                            "type": "array",
                            "minItems": 1,
                            "items": {
                                "type": "array",
                                "minItems": 1,
                                "items": _TOKEN,
                            },
                        },
                    ],
                },
                "encoding_format": {"enum": ["float", "base64", "", None]},
            },
            examples={"A text": {"model": "all-minilm", "input": "one text"}},
        ),
        answer=answers.Embeddings,
        runs_model=True,
    ),
    Operation(
        paths=("/v1/models",),
        methods=("get",),
        tag=Tag.OPENAI,
        summary="List the models of this machine",
        answer=answers.OpenAIModels,
    ),
    Operation(
        paths=("/v1/models/{model}",),
        methods=("get",),
        tag=Tag.OPENAI,
        summary="Describe a model",
        parameters=(
            Parameter(
                name="model",
                help="the model's name, which may contain slashes",
                schema=MODEL,
                example=EXAMPLE_MODEL,
            ),
        ),
        answer=answers.OpenAIModel,
        errors=(404,),
    ),
)
