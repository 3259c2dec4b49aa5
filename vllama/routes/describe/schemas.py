"""The schemas of the types that routes name: msgspec makes them, and fields say what they mean.

In a `Body` null is absent, so what has a default may be null, and more fields may be there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from vllama.base.meaning import Schema
from vllama.chat.bodies import Body
from vllama.routes.describe.names import MODEL_NAMES

_NULL: Schema = {"type": "null"}


def make_schemas(types: Iterable[Any]) -> tuple[dict[Any, Schema], dict[str, Schema]]:
    """Return the schemas of types, and the components that these refer to."""
    wanted = list(dict.fromkeys(types))
    place = "#/components/schemas/{name}"
    schemas, components = msgspec.json.schema_components(wanted, ref_template=place)
    lenient = set(_list_names(Body))
    for name in lenient & components.keys():
        del components[name]["additionalProperties"]
    polished = {
        name: polish(schema, is_lenient=name in lenient) for name, schema in components.items()
    }
    return dict(zip(wanted, schemas, strict=True)), polished


def _list_names(base: type[Any]) -> Iterator[str]:
    for one in base.__subclasses__():
        yield one.__name__
        yield from _list_names(one)


def polish(schema: Schema, *, is_lenient: bool = False) -> Schema:
    """Return a schema whose texts are sentences, at any depth; `is_lenient`: null is absent.

    A default that an answer leaves out is not stated: generated clients would expect the field.
    """
    name = MODEL_NAMES.get(schema.get("format", ""), {})
    left_out = {"default", "title", "required", "format" if name else ""}
    polished = name | {key: value for key, value in schema.items() if key not in left_out}
    if polished.get("type") == "array":
        polished.setdefault("items", {})  # generators of clients want it
    for key in ("items", "additionalProperties", "contentSchema"):
        if isinstance(polished.get(key), dict):
            polished[key] = polish(polished[key], is_lenient=is_lenient)
    if "anyOf" in polished:
        polished["anyOf"] = [polish(one, is_lenient=is_lenient) for one in polished["anyOf"]]
    if text := polished.get("description"):
        polished["description"] = text[0].upper() + text[1:].removesuffix(".") + "."
    if fields := schema.get("properties"):
        marked = {name for name, one in fields.items() if one.get("required") is True}
        required = marked.union(schema.get("required", ()))
        polished["required"] = [name for name in fields if name in required]
        polished["properties"] = {}
        for name, one in fields.items():
            field = polish(one, is_lenient=is_lenient)
            if is_lenient or name in marked:
                field = _set_null(field, allowed=name not in required)
            polished["properties"][name] = field
    return polished


def _set_null(schema: Schema, *, allowed: bool) -> Schema:
    """Return the schema of a field that may be null, or may not."""
    forms = [one for one in schema.get("anyOf", ()) if one != _NULL]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    if len(forms) == 1:
        return _set_null({**forms[0], **rest}, allowed=allowed)
    if forms:
        return {**rest, "anyOf": [*forms, _NULL] if allowed else forms}
    kind = schema.get("type")
    if not allowed or "null" in (kind or ()) or not rest.keys() & {"type", "enum", "$ref"}:
        return schema
    if kind and not rest.keys() & {"enum", "const"}:
        return {**schema, "type": [kind, "null"]}
    text = {"description": rest.pop("description")} if "description" in rest else {}
    return {**text, "anyOf": [rest, _NULL]}
