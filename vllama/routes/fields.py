"""What the fields of requests mean, and what is known of their values beyond their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllama.dialects.go_types import Schema, make_nullable
from vllama.dialects.go_values import BASE64, integer
from vllama.dialects.ollama.options import describe_options
from vllama.dialects.ollama.request_types import THINK_LEVELS, keep_alive

EXAMPLE_MODEL = "qwen3:0.6b"
"""It can chat, call tools and think."""

_PART = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"
_NAMESPACE = "[A-Za-z0-9_][A-Za-z0-9_-]{0,79}"
_TAGGED = f"{_PART}(:{_PART})?$"
_HOST = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}(:[0-9]{1,5})?"
NEW_MODEL: Schema = {
    "type": "string",
    "pattern": f"^({_NAMESPACE}/)?{_TAGGED}",
    "description": "the name of a new model: `model[:tag]` or `namespace/model[:tag]`",
}
_FORMS: list[Schema] = [
    {"pattern": f"^({_NAMESPACE}/)?{_TAGGED}"},
    {"pattern": f"^((hf|ollama)://|(https?://)?{_HOST}/){_NAMESPACE}/{_TAGGED}"},
]
PULLED_MODEL: Schema = {
    "type": "string",
    "description": "a model: `model[:tag]`, `namespace/model[:tag]` or `hf.co/organisation/model`",
    "anyOf": _FORMS,
}
MODEL: Schema = {
    "type": "string",
    "description": "a model: `model[:tag]`, `namespace/model[:tag]`, `hf.co/organisation/model`, "
    "or the path of a file on the server",
    "anyOf": [*_FORMS, {"pattern": "^(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}){1,20}[.]gguf$"}],
}

HELP: dict[str, str] = {
    "messages": "the conversation so far, the oldest message first",
    "stream": "whether the answer comes piece by piece",
    "keep_alive": "how long the model stays loaded: `10m`, seconds, `-1` forever, `0` not at all",
    "options": "parameters of the model, such as `temperature`, `num_ctx` and `seed`",
    "think": "whether the model thinks first, or how much",
    "format": "`json`, or a JSON schema that the answer keeps to",
    "truncate": "whether a prompt that is longer than the context is cut, or refused",
    "shift": "whether the answer may go on when the context is full",
    "tools": "functions that the model may call",
    "logprobs": "whether the tokens' log probabilities are given",
    "top_logprobs": "how many alternatives to each token are given",
    "images": "pictures in base64",
    "suffix": "what comes after the text that is to be inserted",
    "system": "the system message, in place of the model's own",
    "template": "the template of the prompt, in place of the model's own",
    "raw": "the prompt is sent as it is, without a template",
    "context": "tokens of an earlier answer of `/api/generate`, to go on from",
    "dimensions": "how many numbers of each vector are kept",
    "max_tokens": "the most tokens that are generated",
    "stop": "texts that end the answer",
    "temperature": "how freely the next token is chosen; 0 always takes the likeliest",
    "top_p": "the next token is one of the likeliest that have this probability together",
    "seed": "with the same seed, the same request gets the same answer",
    "n": "how many answers are made",
    "response_format": "what form the answer has: text, JSON, or JSON of a schema",
    "reasoning_effort": "how much the model thinks first: `none` to `max`",
    "num_ctx": "the context in tokens",
    "num_predict": "the most tokens that are generated; `-1`: no limit",
    "num_keep": "how many tokens stay at the beginning of a prompt that is cut",
    "num_gpu": "how many layers of the model the GPU gets",
    "num_thread": "how many threads the engine has",
    "top_k": "the next token is one of so many",
    "min_p": "the next token has at least this part of the likeliest one's probability",
    "repeat_penalty": "how much less likely a token becomes by having been used",
    "repeat_last_n": "how far back tokens count as having been used",
    "presence_penalty": "how much less likely a token becomes once it was used",
    "frequency_penalty": "how much less likely a token becomes each time it was used",
    "role": "`system`, `user`, `assistant` or `tool`",
    "content": "the text",
    "thinking": "what the model thought before its answer",
    "tool_calls": "the functions that the model calls",
    "tool_name": "the function whose result it is",
    "tool_call_id": "the call whose result it is",
    "_debug_render_only": "answer with the prompt as the model would read it",
    "verbose": "give the long arrays of the model's file, too",
    "plan": "say by which plan the model is loaded, or would be",
    "background": "go on without a client",
    "insecure": "allow plain HTTP to a registry",
    "force": "also delete files that other programs share",
    "encoding_format": "`float` or `base64`",
    "stream_options": "`include_usage`: the stream ends with the number of tokens",
}
"""The meaning of a field wherever it stands; requests that mean something else by it say so."""


def refine(name: str, schema: Schema, refined: Schema | None) -> Schema:
    """Return a field's schema with what is known beyond its type, and with its meaning."""
    merged: dict[str, Any] = {**schema, **(refined or {})}
    if name in HELP and "description" not in merged:
        merged["description"] = HELP[name]
    return merged


def make_object(optional: Mapping[str, Schema] | None = None, /, **required: Schema) -> Schema:
    """Return the schema of an object with these fields."""
    fields = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": fields}


def make_array(items: Schema, **limits: int) -> Schema:
    """Return the schema of an array with at least one item, or as the limits say."""
    return {"type": "array", "items": items, "minItems": 1, **limits}


TEXT: Schema = {"type": "string"}
BINARY: Schema = {
    "type": "string",
    "contentMediaType": "application/octet-stream",
    "minLength": 1,
}
NON_EMPTY: Schema = {"type": "string", "minLength": 1}
IMAGE_URL: Schema = {
    "type": "string",
    "description": "the image as a data URI in base64; no other URL is fetched",
    "pattern": f"^data:(image/(jpeg|jpg|png|webp|gif))?;base64,{BASE64.removeprefix('^')}",
}
NUMBER: Schema = {"type": ["number", "null"]}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
WHOLE_NUMBER: Schema = integer.describe({})
INTEGER: Schema = make_nullable(WHOLE_NUMBER)
BOOLEAN: Schema = {"type": ["boolean", "null"]}
OPTIONS: Schema = describe_options()
OPTIONS["properties"] = {
    name: refine(name, schema, None) for name, schema in OPTIONS["properties"].items()
}

TOP_LOGPROBS: Schema = {"type": ["integer", "null"], "minimum": 0, "maximum": 20}
FORMAT: Schema = {"anyOf": [{"enum": ["json", "", None]}, {"type": "object"}]}

OWN_FIELDS: dict[str, Schema] = {
    "options": OPTIONS,
    "num_ctx": {"type": ["number", "null"]},
    "keep_alive": make_nullable(keep_alive.describe({})),
    "think": {"enum": [True, False, None, *THINK_LEVELS]},
    "truncate": {"type": ["boolean", "null"]},
    "shift": {"type": ["boolean", "null"]},
}
"""Ollama's fields, which the requests of the other APIs may have as well."""
