"""Ollama's routes, and those that vllama has beside them."""

from __future__ import annotations

from typing import Any

from vllama.dialects.go_types import Schema
from vllama.dialects.ollama import answer_types as answers
from vllama.dialects.ollama import request_types as requests
from vllama.openapi.fields import EXAMPLE_MODEL, FORMAT, MODEL, NEW_MODEL, OPTIONS, TOP_LOGPROBS
from vllama.openapi.operation import Body, Operation, Parameter, Stream, StreamKind, Tag
from vllama.web.page_text import Page

_LINES = StreamKind.NDJSON
_TEXT: Schema = {"type": ["string", "null"]}
_NOTHING: Schema = {"enum": ["", None]}


def _name(model: Schema = MODEL) -> tuple[Schema, ...]:
    """Return the forms of a body that names its model: older clients say `name`."""
    return (
        {"required": ["model"], "properties": {"model": model}},
        {"required": ["name"], "properties": {"name": model, "model": _NOTHING}},
    )


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
_DIGEST = Parameter(
    name="digest",
    help="the digest of the file: `sha256:` and 64 hexadecimal digits",
    schema={"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
    example="sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
)

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
            fields=_INFERENCE
            | {"context": {"type": ["array", "null"], "items": {"type": "integer"}}},
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
                "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            },
            examples={"Three tokens": {"model": EXAMPLE_MODEL, "tokens": [19556, 28, 905]}},
        ),
        answer=answers.DetokenizedText,
        runs_model=True,
    ),
    Operation(
        paths=("/api/tags",),
        methods=("get", "head"),
        tag=Tag.OLLAMA,
        summary="List the models of this machine",
        answer=answers.Tags,
    ),
    Operation(
        paths=("/api/ps",),
        methods=("get",),
        tag=Tag.OLLAMA,
        summary="List the loaded models",
        answer=answers.LoadedModels,
    ),
    Operation(
        paths=("/api/show",),
        tag=Tag.OLLAMA,
        summary="Describe a model",
        body=Body(
            type=requests.SHOW,
            either=_name(),
            examples={
                "A model": {"model": EXAMPLE_MODEL},
                "With its plan": {"model": EXAMPLE_MODEL, "plan": True},
            },
        ),
        answer=answers.ShownModel,
        errors=(404,),
    ),
    Operation(
        paths=("/api/pull",),
        tag=Tag.OLLAMA,
        summary="Download a model",
        help="A client that leaves stops the download; the next one goes on from there.",
        body=Body(
            type=requests.PULL,
            either=_name(),
            examples={"A model": {"model": EXAMPLE_MODEL}},
        ),
        answer=answers.Success,
        stream=Stream(kind=_LINES, type=(answers.Progress, answers.OllamaError)),
    ),
    Operation(
        paths=("/api/create",),
        tag=Tag.OLLAMA,
        summary="Make a model of another one, or of uploaded files",
        body=Body(
            type=requests.CREATE,
            either=_name(NEW_MODEL),
            fields={
                "from": {"anyOf": [MODEL, _NOTHING]},
                "parameters": OPTIONS,
                "license": {
                    "description": "a text, or several",
                    "anyOf": [_TEXT, {"type": "array", "items": _TEXT}],
                },
            },
            examples={
                "With a system message": {
                    "model": "pirate",
                    "from": EXAMPLE_MODEL,
                    "system": "You are a pirate.",
                }
            },
        ),
        answer=answers.Success,
        stream=Stream(kind=_LINES, type=(answers.Progress, answers.OllamaError)),
        errors=(404, 413, 502, 507),
    ),
    Operation(
        paths=("/api/copy",),
        tag=Tag.OLLAMA,
        summary="Give a model a second name",
        body=Body(
            type=requests.COPY,
            required=("source", "destination"),
            fields={"source": MODEL, "destination": NEW_MODEL},
            examples={"A copy": {"source": EXAMPLE_MODEL, "destination": "smol"}},
        ),
        errors=(404,),
    ),
    Operation(
        paths=("/api/delete",),
        methods=("delete",),
        tag=Tag.OLLAMA,
        summary="Delete a model",
        body=Body(
            type=requests.DELETE,
            either=_name(),
            examples={"A model": {"model": "smol"}},
        ),
        errors=(404,),
    ),
    Operation(
        paths=("/api/blobs/{digest}",),
        methods=("head", "post"),
        tag=Tag.OLLAMA,
        summary="Look for, or upload, a file of a model",
        parameters=(_DIGEST,),
        upload=True,
        statuses=(200, 201),
        errors=(404, 413, 507),
    ),
    Operation(
        paths=("/api/push",),
        tag=Tag.OLLAMA,
        summary="Upload a model: refused, since nobody is signed in",
        body=Body(type=requests.PUSH, either=_name()),
        stream=Stream(kind=_LINES, type=(answers.Progress, answers.OllamaError)),
        errors=(401, 404),
    ),
    Operation(
        paths=("/api/web_search", "/api/experimental/web_search"),
        tag=Tag.OLLAMA,
        summary="Search the web",
        help="Needs a SearXNG of yours: `--searxng URL`.",
        body=Body(
            required=("query",),
            fields={
                "query": {"type": "string", "pattern": r"\S"},
                "max_results": {"type": ["integer", "null"], "minimum": 1, "maximum": 10},
            },
            examples={"A question": {"query": "height of the Eiffel tower", "max_results": 3}},
        ),
        answer=answers.SearchResults,
        errors=(502,),
    ),
    Operation(
        paths=("/api/web_fetch", "/api/experimental/web_fetch"),
        tag=Tag.OLLAMA,
        summary="Fetch a page of the public internet as text",
        help="Needs the setting `--searxng URL`, too.",
        body=Body(
            required=("url",),
            fields={"url": {"type": "string", "pattern": "^https?://"}},
            examples={"A page": {"url": "https://example.com"}},
        ),
        answer=Page,
        errors=(502,),
    ),
    Operation(
        paths=("/api/version",),
        methods=("get", "head"),
        tag=Tag.OLLAMA,
        summary="Tell the versions of the API and of vllama",
        answer=answers.Version,
    ),
    Operation(
        paths=("/api/status",),
        methods=("get",),
        tag=Tag.OLLAMA,
        summary="Tell that ollama.com is not used",
        answer=answers.CloudStatus,
    ),
    Operation(
        paths=("/api/me",),
        tag=Tag.OLLAMA,
        summary="Tell that nobody is signed in",
        statuses=(),
        errors=(401,),
    ),
    Operation(
        paths=("/api/signout",),
        tag=Tag.OLLAMA,
        summary="Sign out: refused, since nobody is signed in",
        statuses=(),
        errors=(401,),
    ),
    Operation(
        paths=("/api/user/keys/{key}",),
        methods=("delete",),
        tag=Tag.OLLAMA,
        summary="Remove a key of an account: refused, since nobody is signed in",
        parameters=(Parameter(name="key", help="a public key"),),
        statuses=(),
        errors=(401, 404),
    ),
    Operation(
        paths=("/api/experimental/model-recommendations",),
        methods=("get",),
        tag=Tag.OLLAMA,
        summary="Recommend models: none",
        answer=answers.Recommendations,
    ),
)
