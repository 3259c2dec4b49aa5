"""The OpenAPI document (3.1): every route with its requests, answers, streams and errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from vllama import __version__
from vllama.dialects.anthropic.answer_types import AnthropicError
from vllama.dialects.go_types import Schema
from vllama.dialects.ollama.answer_types import OllamaError
from vllama.dialects.openai.answer_types import OpenAIError
from vllama.openapi import (
    anthropic,
    media,
    ollama,
    ollama_models,
    openai,
    responses,
    scores,
    server,
)
from vllama.openapi.fields import refine
from vllama.openapi.operation import Body, Operation, Parameter, Stream, StreamKind, Tag

OPERATIONS: tuple[Operation, ...] = (
    *ollama.OPERATIONS,
    *ollama_models.OPERATIONS,
    *openai.OPERATIONS,
    *responses.OPERATIONS,
    *scores.OPERATIONS,
    *media.OPERATIONS,
    *anthropic.OPERATIONS,
    *server.OPERATIONS,
)

_ABOUT = (
    "vllama serves Ollama's API, and the APIs of OpenAI and Anthropic, in front of the official "
    "engines. Requests may have more fields than are described; what is not known is ignored, or "
    "passed on to the engine."
)
_TAGS = {
    Tag.OLLAMA: 'Ollama\'s API. Errors are `{"error": text}`.',
    Tag.OPENAI: "The routes of OpenAI, and of others who follow its form.",
    Tag.ANTHROPIC: "Anthropic's messages.",
    Tag.SERVER: "What this server does: its health, metrics and requests.",
}
_ERRORS: Mapping[Tag, Any] = {
    Tag.OLLAMA: OllamaError,
    Tag.SERVER: OllamaError,
    Tag.OPENAI: OpenAIError,
    Tag.ANTHROPIC: AnthropicError,
}
_MEANINGS = {
    200: "Done",
    201: "Stored",
    202: "Begun",
    301: "The path has another spelling",
    307: "The path has another spelling",
    400: "The request is wrong",
    401: "A key is needed, or an account",
    403: "This server does not allow it",
    404: "There is no such model, or nothing of this name",
    413: "The body is too large",
    415: "The body has an unknown encoding",
    429: "The key has reached a limit",
    500: "The model cannot be loaded, or its engine failed",
    501: "The model's engine has no such function",
    502: "A server behind this one failed",
    503: "Not now: the queue is full, or the server is starting or stopping",
    507: "The disk is full",
}
_COMMON_ERRORS = (400, 403, 500, 503)
_MODEL_ERRORS = (404, 413, 501, 502)
_HEADERS = {
    "x-request-id": "the request's id, as it stands in the log",
    "x-vllama-truncated": "how many messages or inputs were cut to fit the context",
    "x-vllama-truncated-tokens": "how many tokens that were",
    "x-vllama-num-ctx": "the context in use, if `num_ctx` asked for more than the model knows",
    "x-vllama-ignored": "parts of the request without effect",
    "x-vllama-token-count": "`estimate` if the counts are not exact",
    "x-vllama-queue-position": "the place in the queue at which the request waited",
}
_KEYS: tuple[dict[str, list[str]], ...] = ({"bearer": []}, {"apiKey": []})


@lru_cache(maxsize=2)
def encode_document(*, needs_key: bool) -> bytes:
    """Return the document as JSON; `needs_key`: this server answers only who shows a key."""
    return msgspec.json.encode(build_document(needs_key=needs_key))


def build_document(*, needs_key: bool) -> dict[str, Any]:
    """Return the document."""
    writer = _Writer(needs_key=needs_key)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        for path in operation.paths:
            for method in operation.methods:
                paths.setdefault(path, {})[method] = writer.describe(operation, path, method)
    document: dict[str, Any] = {
        "openapi": "3.1.1",
        "info": {
            "title": "vllama",
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": str(tag), "description": text} for tag, text in _TAGS.items()],
        "security": list(_KEYS) if needs_key else [{}, *_KEYS],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "headers": {
                name: {"description": text, "schema": {"type": "string"}}
                for name, text in _HEADERS.items()
            },
            "schemas": writer.schemas,
        },
    }
    return document


class _Writer:
    """Describes operations, and collects the schemas that they refer to."""

    def __init__(self, *, needs_key: bool) -> None:
        self._needs_key = needs_key
        types = [*_list_answer_types(OPERATIONS), *dict.fromkeys(_ERRORS.values())]
        described, components = msgspec.json.schema_components(
            types, ref_template="#/components/schemas/{name}"
        )
        self._answers = list(zip(types, described, strict=True))
        structs: dict[str, Schema] = {}
        for operation in OPERATIONS:
            if operation.body is not None and operation.body.type is not None:
                operation.body.type.describe(structs)
        self._structs = {name: _add_help(schema) for name, schema in structs.items()}
        whole = {one.body.type.name for one in OPERATIONS if one.body and one.body.type}
        parts = {name: one for name, one in self._structs.items() if name not in whole}
        self.schemas: dict[str, Any] = {**components, **parts}

    def describe(self, operation: Operation, path: str, method: str) -> dict[str, Any]:
        """Return the Operation Object of a method and a path."""
        described: dict[str, Any] = {
            "operationId": "_".join([method, *re.findall(r"[a-z0-9]+", path)]) or method,
            "tags": [str(operation.tag)],
            "summary": operation.summary,
            "responses": self._describe_answers(operation, has_content=method != "head"),
        }
        if operation.help:
            described["description"] = operation.help
        if operation.parameters:
            described["parameters"] = [_describe_parameter(one) for one in operation.parameters]
        if operation.keyless:
            described["security"] = []
        if operation.upload and method == "post":
            binary: dict[str, Any] = {"application/octet-stream": {"schema": {}}}
            described["requestBody"] = {"content": binary}
        if operation.body is not None:
            described["requestBody"] = self._describe_body(operation.body)
        return described

    def _describe_body(self, body: Body) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object", "properties": {}}
        if body.type is not None:
            name = body.type.name
            schema["title"] = name.rpartition(".")[2]
            schema["properties"] = dict(self._structs[name]["properties"])
        for name, refined in body.fields.items():
            schema["properties"][name] = refine(name, schema["properties"].get(name, {}), refined)
        if body.required:
            schema["required"] = list(body.required)
        if body.either:
            schema["anyOf"] = list(body.either)
        content: dict[str, Any] = {"schema": schema}
        if body.examples:
            content["examples"] = {
                title: {"summary": title, "value": value} for title, value in body.examples.items()
            }
        media = "multipart/form-data" if body.form else "application/json"
        return {"required": True, "content": {media: content}}

    def _describe_answers(self, operation: Operation, *, has_content: bool) -> dict[str, Any]:
        content: dict[str, Any] = {}
        if operation.answer is not None:
            content["application/json"] = {"schema": self._find_answer(operation.answer)}
        if operation.stream is not None:
            schema = self._describe_stream(operation.stream)
            content[str(operation.stream.kind)] = {"schema": schema}
        content |= {media: {"schema": schema} for media, schema in operation.media.items()}
        headers = {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS}
        answers: dict[str, Any] = {}
        for status in operation.statuses:
            answers[str(status)] = {"description": _MEANINGS[status]}
            if operation.runs_model:
                answers[str(status)]["headers"] = headers
            if content and has_content:
                answers[str(status)]["content"] = content
        form = self._find_answer(_ERRORS[operation.error_form or operation.tag])
        for status in sorted(self._list_errors(operation)):
            if str(status) not in answers:
                answers[str(status)] = {"description": _MEANINGS[status]}
                if has_content:
                    answers[str(status)]["content"] = {"application/json": {"schema": form}}
        return answers

    def _list_errors(self, operation: Operation) -> set[int]:
        errors = {*_COMMON_ERRORS, *operation.errors}
        if operation.runs_model:
            errors.update(_MODEL_ERRORS)
            if self._needs_key:
                errors.add(429)
        if self._needs_key and not operation.keyless:
            errors.add(401)
        return errors

    def _describe_stream(self, stream: Stream) -> Schema:
        """Return the schema of one line, or of one event of a stream."""
        item = self._find_answer(stream.type)
        if stream.kind is StreamKind.NDJSON:
            return {"description": "one line of the stream", **item}
        data: Schema = {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": item,
        }
        if stream.ends_with is not None:
            data = {"anyOf": [{"const": stream.ends_with}, data]}
        properties: dict[str, Any] = {"data": data}
        required = ["data"]
        if stream.named:
            properties["event"] = {"type": "string"}
            required.append("event")
        return {
            "description": "one event of the stream",
            "type": "object",
            "properties": properties,
            "required": required,
        }

    def _find_answer(self, wanted: Any) -> Schema:
        """Return the schema of an answer's type, or of several."""
        known = self._answers
        found = [next(s for one, s in known if one == type_) for type_ in _list_types(wanted)]
        return found[0] if len(found) == 1 else {"anyOf": found}


def _list_types(answer: Any) -> tuple[Any, ...]:
    if answer is None:
        return ()
    return answer if isinstance(answer, tuple) else (answer,)


def _list_answer_types(operations: Iterable[Operation]) -> list[Any]:
    found: list[Any] = []
    for operation in operations:
        streamed = None if operation.stream is None else operation.stream.type
        for one in (*_list_types(operation.answer), *_list_types(streamed)):
            if one not in found:
                found.append(one)
    return found


def _add_help(schema: Schema) -> Schema:
    fields = schema.get("properties", {})
    return {**schema, "properties": {name: refine(name, one, None) for name, one in fields.items()}}


def _describe_parameter(parameter: Parameter) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required or parameter.where == "path",
        "description": parameter.help,
        "schema": parameter.schema,
    }
    if parameter.example is not None:
        described["example"] = parameter.example
    return described
