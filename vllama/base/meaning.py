"""Meanings and limits of fields, beside their types: for `/openapi.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import Meta

Schema: TypeAlias = dict[str, Any]
"""A JSON Schema (2020-12), or a part of one."""
TEXT: Schema = {"type": "string"}
BINARY: Schema = {"contentMediaType": "application/octet-stream", "minLength": 1}


def says(text: str = "", /, **schema: Any) -> Meta:
    """Return a field's description for `/openapi.json`: `size: Annotated[int, says("in bytes")]`.

    `schema` is what its type does not say, as in `says("the best first", minItems=1)`. Fields that
    have a default but have to be there say `required=True`.
    """
    return Meta(description=text or None, extra_json_schema=schema or None)


def make_integer(minimum: int = 1 - 2**63, maximum: int = 2**63 - 1) -> Schema:
    """Return the schema of an integer."""
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


def make_object(optional: Mapping[str, Schema] | None = None, /, **required: Schema) -> Schema:
    """Return the schema of an object with these fields."""
    fields = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": fields}


def make_word(*words: str) -> Schema:
    """Return the schema of a word, or of one of several."""
    return {"type": "string", **({"enum": list(words)} if words[1:] else {"const": words[0]})}


def make_array(items: Schema, **limits: int) -> Schema:
    """Return the schema of an array with at least one item, or as the limits say."""
    return {"type": "array", "items": items, "minItems": 1, **limits}
