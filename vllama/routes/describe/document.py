"""The OpenAPI document (3.1): every route with its requests, answers, streams and errors."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from vllama import __version__
from vllama.base.errors import VllamaError
from vllama.base.meaning import Schema, make_object, make_word
from vllama.chat.inspect import Inspect
from vllama.routes.describe.examples import EXAMPLES, MODEL
from vllama.routes.describe.schemas import make_schemas, polish
from vllama.routes.guards import HEADERS
from vllama.routes.route import (
    Dialect,
    Framing,
    Parameter,
    Route,
    RouteKind,
    Stream,
    Tag,
)

_ABOUT = (
    "vllama serves Ollama's API, and the APIs of OpenAI and Anthropic, in front of the official "
    "engines. Requests may have fields that are not described here; unknown fields are ignored or "
    "passed on to the engine."
)
_TAGS = {
    Tag.OLLAMA: 'Ollama\'s API. Errors are `{"error": text}`.',
    Tag.OPENAI: "OpenAI's API, and compatible extensions of it.",
    Tag.ANTHROPIC: "Anthropic's Messages API.",
    Tag.SERVER: "This server: health, metrics, requests and settings.",
}
_ERRORS = {dialect: type(dialect.make_error(VllamaError(""))) for dialect in Dialect}
_MEANINGS = {
    200: "Done",
    201: "Stored",
    202: "Started",
    301: "Redirect to the usual spelling of the path",
    307: "Redirect to the usual spelling of the path",
    400: "Invalid request",
    401: "An API key or an account is required",
    403: "Not allowed on this server",
    404: "No such model or object",
    409: "Conflict with the current state",
    413: "The body is too large",
    415: "Unsupported encoding of the body",
    429: "A limit of the API key is reached",
    500: "The model cannot be loaded, or its engine failed",
    501: "The model's engine does not support this",
    502: "An upstream server failed",
    503: "Unavailable: the queue is full, or the server is starting or stopping",
    507: "The disk is full",
}
_LINES, _EVENTS = "application/x-ndjson", "text/event-stream"
_EVENT = "one event of the stream"
_COMMON_ERRORS = (400, 403, 500, 503)
_MODEL_ERRORS = (404, 413, 501, 502)
_KEYS: tuple[dict[str, list[str]], ...] = ({"bearer": []}, {"apiKey": []})


@lru_cache(maxsize=2)
def encode_document(routes: tuple[Route, ...], *, needs_key: bool) -> bytes:
    """Return the document as JSON; `needs_key`: this server answers only who shows a key."""
    return msgspec.json.encode(build_document(routes, needs_key=needs_key))


def build_document(routes: Iterable[Route], *, needs_key: bool) -> dict[str, Any]:
    """Return the document."""
    described = [route for route in routes if route.described]
    writer = _Writer(described, needs_key=needs_key)
    paths: dict[str, dict[str, Any]] = {}
    for route in described:
        for path in route.paths:
            for method in map(str.lower, route.methods):
                paths.setdefault(path, {})[method] = writer.describe(route, path, method)
    document: dict[str, Any] = {
        "openapi": "3.1.1",
        "info": {
            "title": "vllama",
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "."}],  # relative to the document, also behind a proxy that adds a path
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
                for name, text in HEADERS.items()
            },
            "schemas": writer.components,
        },
    }
    return document


class _Writer:
    """Describes routes by the schemas of their types."""

    def __init__(self, routes: Collection[Route], *, needs_key: bool) -> None:
        self._needs_key = needs_key
        types = [*_list_types_of_routes(routes), *_ERRORS.values(), Inspect]
        self._schemas, self.components = make_schemas(types)

    def describe(self, route: Route, path: str, method: str) -> dict[str, Any]:
        """Return the Operation Object of a method and a path."""
        summary, text = route.read_docstring()
        described: dict[str, Any] = {
            "operationId": "_".join([method, *re.findall(r"[a-z0-9]+", path)]) or method,
            "tags": [str(route.tag)],
            "summary": summary,
            "responses": self._describe_answers(route, path, has_content=method != "head"),
        }
        if text:
            described["description"] = text
        if route.parameters:
            described["parameters"] = [_describe_parameter(one, path) for one in route.parameters]
        if route.keyless:
            described["security"] = []
        if route.upload and method == "post":
            binary: dict[str, Any] = {"application/octet-stream": {"schema": {}}}
            described["requestBody"] = {"content": binary}
        if route.body is not None:
            described["requestBody"] = self._describe_body(route.body, is_form=route.form)
        return described

    def _describe_body(self, body: type[Struct], *, is_form: bool) -> dict[str, Any]:
        content: dict[str, Any] = {"schema": self._schemas[body]}
        named = {"model": MODEL} if "model" in body.__struct_fields__ else {}
        if examples := EXAMPLES.get(body.__name__):
            content["examples"] = {
                title: {"summary": title, "value": {**named, **value}}
                for title, value in examples.items()
            }
        media = "multipart/form-data" if is_form else "application/json"
        return {"required": True, "content": {media: content}}

    def _describe_answers(self, route: Route, path: str, *, has_content: bool) -> dict[str, Any]:
        error = _ERRORS[route.dialect]
        content: dict[str, Any] = {}
        if route.answer is not None:
            content["application/json"] = {"schema": self._find_answer(route.answer)}
        if route.stream is not None:
            content |= self._describe_stream(route.stream, error)
        content |= {media: {"schema": schema} for media, schema in route.media.items()}
        headers = {name: {"$ref": f"#/components/headers/{name}"} for name in HEADERS}
        answers: dict[str, Any] = {}
        for status in route.statuses:
            answers[str(status)] = {"description": _MEANINGS[status]}
            if route.kind is RouteKind.MODEL:
                answers[str(status)]["headers"] = headers
            if content and has_content:
                answers[str(status)]["content"] = content
        form = {"application/json": {"schema": self._find_answer(error)}}
        for status in sorted(self._list_errors(route, path)):
            if str(status) not in answers:
                answers[str(status)] = {"description": _MEANINGS[status]}
                if has_content:
                    answers[str(status)]["content"] = form
        return answers

    def _list_errors(self, route: Route, path: str) -> set[int]:
        errors = {*_COMMON_ERRORS, *route.errors}
        if "{" in path:
            errors.add(404)
        if route.kind is RouteKind.MODEL:
            errors.update(_MODEL_ERRORS)
            if self._needs_key:
                errors.add(429)
        if self._needs_key and not route.keyless:
            errors.add(401)
        return errors

    def _describe_stream(self, stream: Stream, error: Any) -> dict[str, Any]:
        """Return the content of a stream: the schema of its lines, or of its events."""
        if stream.framing is Framing.NAMED_EVENTS:  # among which are the errors
            data = _make_data(self._find_answer(stream.type))
            event = make_object(data=data, event={"type": "string"})
            return {_EVENTS: {"schema": event | {"description": _EVENT}}}
        item = self._find_answer((*_list_types(stream.type), error))
        if stream.framing is Framing.NDJSON:
            return {_LINES: {"schema": {"description": "one line of the stream", **item}}}
        event = make_object(data={"anyOf": [make_word("[DONE]"), _make_data(item)]})
        return {_EVENTS: {"schema": event | {"description": _EVENT}}}

    def _find_answer(self, wanted: Any) -> Schema:
        """Return the schema of an answer's type, or of several."""
        found = [self._schemas[type_] for type_ in _list_types(wanted)]
        return found[0] if len(found) == 1 else {"anyOf": found}


def _list_types(answer: Any) -> tuple[Any, ...]:
    return answer if isinstance(answer, tuple) else (answer,)


def _list_types_of_routes(routes: Iterable[Route]) -> Iterator[Any]:
    for route in routes:
        if route.body is not None:
            yield route.body
        streamed = route.stream.type if route.stream else ()
        for wanted in (() if route.answer is None else route.answer, streamed):
            yield from _list_types(wanted)


def _make_data(schema: Schema) -> Schema:
    return {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}


def _describe_parameter(parameter: Parameter, path: str) -> dict[str, Any]:
    is_part = f"{{{parameter.name}}}" in path
    described: dict[str, Any] = {
        "name": parameter.name,
        "in": "path" if is_part else "query",
        "required": parameter.required or is_part,
        "description": parameter.help,
        "schema": polish(parameter.schema),
    }
    if parameter.example is not None:
        described["example"] = parameter.example
    return described
