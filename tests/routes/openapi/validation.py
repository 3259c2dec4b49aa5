"""Checks an answer against the description of its route, its status and its type."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from vllama.routes.describe.document import encode_document
from vllama.routes.route_table import ROUTES

DOCUMENT = json.loads(encode_document(ROUTES, needs_key=True))


def find_operation(method: str, path: str) -> dict[str, Any] | None:
    """Return the description of a request; None if it has none."""
    path = path.partition("?")[0]
    exact = DOCUMENT["paths"].get(path)
    patterns = (
        methods
        for template, methods in DOCUMENT["paths"].items()
        if "{" in template and re.fullmatch(re.sub(r"\{\w+\}", ".+", template), path)
    )
    methods = exact or next(patterns, {})
    return methods.get(method.lower())


def find_errors(method: str, path: str, status: int, media: str, body: str) -> list[str]:
    """Return how an answer differs from its description; `media` is its content type."""
    operation = find_operation(method, path)
    if operation is None:
        return [f"{method} {path} is not described"]
    described = operation["responses"].get(str(status))
    if described is None:
        return [f"status {status} is not described"]
    content = described.get("content", {})
    if not body and not content:
        return []
    media = media.partition(";")[0]
    if method == "HEAD":
        return []
    if media not in content:
        return [f"type {media!r} is not described for status {status}"]
    return [
        f"{best_match([one]).message[:300]} at {'/'.join(map(str, one.absolute_path))}"
        for value, schema in read_values(media, body, content[media]["schema"])
        for one in make_validator(json.dumps(schema)).iter_errors(value)
    ]


def read_values(media: str, body: str, schema: Any) -> Iterator[tuple[object, Any]]:
    """Yield the values of an answer, or of each step of a stream, with their schemas."""
    if media == "application/json":
        yield json.loads(body), schema
    elif media == "application/x-ndjson":
        for line in body.splitlines():
            yield json.loads(line), schema
    elif media == "text/event-stream":
        for event in filter(None, body.split("\n\n")):
            fields = dict(line.split(": ", 1) for line in event.strip().splitlines())
            yield fields, schema
            data = schema["properties"]["data"]
            choices = data.get("anyOf", [data])
            if fields["data"] not in [one.get("const") for one in choices]:
                yield json.loads(fields["data"]), choices[-1]["contentSchema"]
    else:
        yield body, schema


@lru_cache(maxsize=1000)
def make_validator(schema: str) -> Draft202012Validator:
    """Return what checks values; a field that is not described is an error."""
    closed = close(json.loads(schema))
    return Draft202012Validator({**closed, "components": CLOSED_COMPONENTS})


def make_open_validator(schema: Any) -> Draft202012Validator:
    """Return what checks values, which may have fields that are not described."""
    return Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def close(schema: Any) -> Any:
    """Return a schema whose objects have no other fields than those that are described."""
    if isinstance(schema, list):
        return [close(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {name: close(value) for name, value in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        out.setdefault("additionalProperties", False)
    return out


CLOSED_COMPONENTS = {"schemas": close(DOCUMENT["components"]["schemas"])}
