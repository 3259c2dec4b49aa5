"""The bodies of requests in Ollama's API, and at the routes that vllama has beside it."""

from __future__ import annotations

from typing import Any

from vllama.base.meaning import Schema
from vllama.dialects.ollama import request_types as requests
from vllama.routes.describe.fields import (
    EXAMPLE_MODEL,
    FORMAT,
    INSPECT,
    MODEL,
    NEW_MODEL,
    OPTIONS,
    OWN_FIELDS,
    PULLED_MODEL,
    TEXT,
    TEXT_OR_NULL,
    TOP_LOGPROBS,
    WHOLE_NUMBER,
    make_object,
)
from vllama.routes.route import Body, Parameter

_INFERENCE: dict[str, Schema] = {
    "format": FORMAT,
    "think": OWN_FIELDS["think"],
    "top_logprobs": TOP_LOGPROBS,
    "inspect": INSPECT,
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
    type=requests.ChatBody,
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
    type=requests.GenerateBody,
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
    type=requests.EmbedBody,
    fields={
        "input": {
            "description": "a text, or several",
            "anyOf": [TEXT_OR_NULL, {"type": "array", "items": TEXT}],
        },
    },
    examples={"Two texts": {"model": "all-minilm", "input": ["one text", "another"]}},
)
LEGACY_EMBED = Body(
    type=requests.LegacyEmbedBody,
    examples={"A text": {"model": "all-minilm", "prompt": "one text"}},
)
TOKENIZE = Body(
    type=requests.TokenizeBody,
    required=("text",),
    fields={"text": TEXT},
    examples={"A text": {"text": "Hello, world"}},
)
DETOKENIZE = Body(
    name="DetokenizeRequest",
    type=requests.TokenizeBody,
    required=("tokens",),
    fields={"tokens": {"type": "array", "items": WHOLE_NUMBER | {"minimum": 0}}},
    examples={"Three tokens": {"tokens": [19556, 28, 905]}},
)


_NAME: Schema = {"description": "the word of older clients for `model`"}


def _name(model: Schema = MODEL) -> dict[str, Schema]:
    """Return the fields of a body that name its model."""
    return {"model": model, "name": _NAME}


_PART = "[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*"
_SHA256: Schema = {"type": "string", "pattern": "^sha256[:-][0-9a-fA-F]{64}$"}
DIGEST = Parameter(
    "digest",
    "the digest of the file: `sha256:` and 64 hexadecimal digits",
    _SHA256,
    example="sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
)
_UPLOADS: Schema = {
    "description": "files that were uploaded to `/api/blobs`: their digests by their names",
    "type": ["object", "null"],
    "propertyNames": {"pattern": f"^{_PART}(/{_PART})*$"},
    "additionalProperties": _SHA256,
}
SHOW = Body(
    type=requests.ShowBody,
    required=("model",),
    fields=_name(),
    examples={
        "A model": {"model": EXAMPLE_MODEL},
        "With its plan": {"model": EXAMPLE_MODEL, "plan": True},
    },
)
PULL = Body(
    type=requests.PullBody,
    required=("model",),
    fields=_name(PULLED_MODEL),
    examples={"A model": {"model": EXAMPLE_MODEL}},
)
STOP_PULL = Body(
    name="StopPullRequest", type=requests.PullBody, required=("model",), fields=_name()
)
CREATE = Body(
    type=requests.CreateBody,
    required=("model",),
    fields={
        **_name(NEW_MODEL),
        "from": MODEL | {"description": "the model that this one is made of, if not of `files`"},
        "files": _UPLOADS,
        "draft_files": _UPLOADS,
        "adapters": _UPLOADS,
        "parameters": OPTIONS,
        "license": {
            "description": "a text, or several",
            "anyOf": [TEXT_OR_NULL, {"type": "array", "items": TEXT_OR_NULL}],
        },
    },
    examples={
        "With a system message": {
            "model": "pirate",
            "from": EXAMPLE_MODEL,
            "system": "You are a pirate.",
        }
    },
)
COPY = Body(
    type=requests.CopyBody,
    required=("source", "destination"),
    fields={"source": MODEL, "destination": NEW_MODEL},
    examples={"A copy": {"source": EXAMPLE_MODEL, "destination": "smol"}},
)
DELETE = Body(
    type=requests.DeleteBody,
    required=("model",),
    fields=_name(),
    examples={"A model": {"model": "smol"}},
)
PUSH = Body(type=requests.PushBody, required=("model",), fields=_name())
