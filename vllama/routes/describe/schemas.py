"""The schemas of the types that routes name: msgspec makes them, and fields say what they mean.

In a `Body` null is absent, so what has a default may be null, and more fields may be there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from vllama.base.meaning import Schema
from vllama.chat.bodies import Body
from vllama.models.names.ref import HUB_HOSTS, HUB_TAG, NAMESPACE, REPO
from vllama.models.names.ref import MODEL as MODEL_PART

_NULL: Schema = {"type": "null"}

# all but names that servers elsewhere have given
_NAMESPACE, _TAGGED = NAMESPACE.pattern, f"{MODEL_PART.pattern}(:{MODEL_PART.pattern})?"
_HOST = "[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}(:[0-9]{1,5})?"
_AT = "(@[A-Za-z0-9_][A-Za-z0-9_+-]{0,40}([%s][A-Za-z0-9_+-]{1,40}){0,3})?"
_REPO = f"{_NAMESPACE}/{REPO.pattern}"
_HUB_HOSTS = "|".join(sorted(HUB_HOSTS)).replace(".", "[.]")
_HUB = f"(hf://{_REPO}{_AT % '.'}|((https?://)?({_HUB_HOSTS})/)?{_REPO}{_AT % './'})"
_LIBRARY = f"((ollama://)?({_NAMESPACE}/)?|(https?://)?{_HOST}/{_NAMESPACE}/){_TAGGED}"
_FILE = f"hf://{_REPO}(/[A-Za-z0-9_-]{{1,80}}){{0,3}}/[A-Za-z0-9_][A-Za-z0-9_-]{{0,79}}[.]gguf"
_PULLED = f"{_LIBRARY}|{_HUB}(:{HUB_TAG.pattern})?|{_FILE}"
_PATH = "~?(/[^/\\x00-\\x1f]{1,100}){1,20}[.]gguf"  # a folder that has a model is taken, too
MODEL_NAMES: dict[str, Schema] = {
    "model": {
        "description": "`model[:tag]`, `namespace/model[:tag]`, `hf.co/organization/model`, or the "
        "path of a file on the server",
        "pattern": f"^({_PULLED}|{_PATH})$",
    },
    "pulled-model": {
        "description": "`model[:tag]`, `namespace/model[:tag]` or `hf.co/organization/model`",
        "pattern": f"^({_PULLED})$",
    },
    "new-model": {
        "description": "`model[:tag]` or `namespace/model[:tag]`",
        "pattern": f"^({_NAMESPACE}/)?{_TAGGED}$",
    },
}
"""The grammar of models' names (`models.names.ref`), by the formats of fields."""


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
