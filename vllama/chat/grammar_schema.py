"""A JSON schema cut down to what the grammar of every engine can hold.

llama.cpp's Python server makes any JSON of a schema that it does not understand, and dies (signal
11) of grammars that come of many patterns, quotes in values and large bounds. Nothing of the kind
may reach it. What is left out is no longer enforced; all the rest is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from vllama.base.errors import BadRequest
from vllama.chat.schema import KINDS, References

_DEPTH = 32
_MOST_PARTS = 5_000
_MOST_REPEATS = 200  # larger bounds make grammars that take seconds to build
_ANY: Mapping[str, object] = {"type": ["string", "number", "boolean", "object", "array", "null"]}
_FORMATS = frozenset({"date", "time", "date-time", "uuid"})
# of more than 16 bits: written as two halves, which no token is
_SAFE_TEXT = re.compile(r"[^\\\x00-\x1f\x7f\ud800-\udfff\U00010000-\U0010ffff]*")
# one part of a simple pattern and how often it comes
_PART = re.compile(
    r"(?P<one>\\[dw.\-/]|\.|\[\^?(?:[A-Za-z0-9]-[A-Za-z0-9]|\\[dw]|[A-Za-z0-9 _:/@#,.+])+-?\]"
    r"|[A-Za-z0-9 _:/@#,%&=!~;-])(?P<many>[+*?]|\{(?P<low>\d{1,3})(?P<to>,(?P<high>\d{1,3})?)?\})?"
)
_DEFINITIONS = frozenset({"$defs", "definitions"})
_LISTS = frozenset({"anyOf", "oneOf", "prefixItems"})
# with these an object has more members than `properties` lists
_OPEN = frozenset({"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"})
_NOT_IN_STRINGS = r'"\\\x00-\x1f'
_CLASSES = {r"\d": "0-9", r"\w": "A-Za-z0-9_"}


def make_safe_schema(schema: object) -> dict[str, object]:
    """Return what of `schema` every engine can keep to. Raises BadRequest if it is too large.

    References are put in place; a schema within itself means any value there.
    """
    return _Cleaner(schema).clean(schema)


def close_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` with objects that have the members it lists and no others, unless it says so.

    llama.cpp's own converter would let others come, and a small model goes on with them to the end.
    It also knows neither references other than plain pointers (not `#`) nor schemas that are
    `true` or `false`, so that these are written as it knows them.
    """
    closer = _Closer(schema)
    out: dict[str, Any] = closer.close(schema)
    return out | {"$defs": closer.definitions} if closer.definitions else out


class _Closer:
    """Copies one schema for `close_schema`; what is referred to is collected in `definitions`."""

    def __init__(self, root: object) -> None:
        self._references = References(root)
        self._names: dict[int, str] = {}
        self.definitions: dict[str, Any] = {}

    def close(self, schema: Any, depth: int = 0) -> Any:
        if isinstance(schema, bool):
            return {} if schema else {"not": {}}
        if not isinstance(schema, Mapping) or depth > _DEPTH:
            return schema
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return {"$ref": self._refer(reference, depth)}
        out = {name: value for name, value in schema.items() if name not in _DEFINITIONS}
        for name, inner in schema.items():
            if name == "properties" and isinstance(inner, Mapping):
                out[name] = {
                    key: self.close(one, depth + 1)
                    for key, one in inner.items()
                    if one is not False  # there is no such member then
                }
            elif name in _LISTS and isinstance(inner, list):
                out[name] = [self.close(one, depth + 1) for one in inner]
            elif name == "items" and inner is False:  # no more than `prefixItems` has
                del out[name]
            elif name == "items":
                out[name] = self.close(inner, depth + 1)
        if out.get("properties") and not _OPEN & out.keys():
            out["additionalProperties"] = False
        return out

    def _refer(self, reference: str, depth: int) -> str:
        try:
            target = self._references.resolve(reference)
        except LookupError:
            return reference
        name = self._names.get(id(target))
        if name is None:
            name = self._names[id(target)] = f"r{len(self._names)}"
            self.definitions[name] = {}  # keeps its place
            self.definitions[name] = self.close(target, depth + 1)
        return f"#/$defs/{name}"


def is_safe(value: object) -> bool:
    """Tell whether a value can be written into a grammar: JSON that needs no escapes."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return _SAFE_TEXT.fullmatch(text) is not None


class _Cleaner:
    """Copies one schema: references put in place, only known keywords kept."""

    def __init__(self, root: object) -> None:
        self._references = References(root)
        self._left = _MOST_PARTS

    def clean(
        self, schema: object, depth: int = 0, seen: tuple[str, ...] = ()
    ) -> dict[str, object]:
        self._left -= 1
        if self._left < 0:
            raise BadRequest("cannot keep to the JSON schema: it is too large")
        if not isinstance(schema, Mapping) or depth > _DEPTH:
            return dict(_ANY)
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if reference in seen:  # a schema within itself: any value from here on
                return dict(_ANY)
            try:
                target = self._references.resolve(reference)
            except LookupError:  # in a tool's parameters, which are not checked
                target = None
            return self.clean(target, depth + 1, (*seen, reference))
        options = schema.get("anyOf", schema.get("oneOf"))
        if isinstance(options, list) and options and "properties" not in schema:
            return {"anyOf": [self.clean(option, depth + 1, seen) for option in options]}
        parts = schema.get("allOf")
        if isinstance(parts, list) and len(parts) == 1 and "properties" not in schema:
            return self.clean(parts[0], depth + 1, seen)
        if "const" in schema and is_safe(schema["const"]):
            return {"const": schema["const"]}
        values = schema.get("enum")
        if isinstance(values, list) and values and all(map(is_safe, values)):
            return {"enum": values}
        return self._of_kind(schema, depth, seen)

    def _of_kind(
        self, schema: Mapping[str, Any], depth: int, seen: tuple[str, ...]
    ) -> dict[str, object]:
        kind = schema.get("type")
        if isinstance(kind, list):
            kinds = [one for one in kind if one in KINDS]
            one_each = [self.clean({**schema, "type": one}, depth + 1, seen) for one in kinds]
            return {"anyOf": one_each} if one_each else dict(_ANY)
        if kind == "object" or (kind is None and isinstance(schema.get("properties"), Mapping)):
            return self._object(schema, depth, seen)
        if kind == "array" or (kind is None and "items" in schema):
            items = schema.get("items")
            out: dict[str, object] = {"type": "array"}
            if isinstance(items, Mapping):
                out["items"] = self.clean(items, depth + 1, seen)
                out |= _bounds(schema, ("minItems", "maxItems"))
            return out
        if kind == "string":
            return {"type": "string", **_string(schema)}
        return {"type": kind} if kind in KINDS else dict(_ANY)

    def _object(
        self, schema: Mapping[str, Any], depth: int, seen: tuple[str, ...]
    ) -> dict[str, object]:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not all(
            isinstance(name, str) and name and is_safe(name) for name in properties
        ):
            return {"type": "object"}
        members = {
            name: self.clean(inner, depth + 1, seen)
            for name, inner in properties.items()
            if inner is not False
        }
        out: dict[str, object] = {"type": "object", "properties": members}
        required = schema.get("required")
        if isinstance(required, list):
            out["required"] = [
                name for name in required if isinstance(name, str) and name in members
            ]
        if schema.get("additionalProperties") is False:
            out["additionalProperties"] = False
        return out


def _bounds(schema: Mapping[str, Any], names: tuple[str, str]) -> dict[str, object]:
    found: dict[str, Any] = {
        name: schema[name]
        for name in names
        if type(schema.get(name)) is int and 0 <= schema[name] <= _MOST_REPEATS
    }
    low, high = names
    # llama-server would build a grammar of these for ever
    return {} if found.get(low, 0) > found.get(high, _MOST_REPEATS) else found


def _string(schema: Mapping[str, Any]) -> dict[str, object]:
    """Return what limits a string: a pattern, else a format, else its length."""
    pattern = _pattern(schema.get("pattern"))
    if pattern is not None:
        return {"pattern": pattern}
    if schema.get("format") in _FORMATS:
        return {"format": schema["format"]}
    return _bounds(schema, ("minLength", "maxLength"))


def _pattern(pattern: object) -> str | None:
    """Return a pattern of plain parts from begin to end, written without escapes; else None."""
    if not isinstance(pattern, str) or not (pattern[:1] == "^" and pattern[-1:] == "$"):
        return None
    out, at = ["^"], 1
    while at < len(pattern) - 1:
        part = _PART.match(pattern, at, len(pattern) - 1)
        if part is None:
            return None
        low, high = (int(part[name] or 0) for name in ("low", "high"))
        if max(low, high) > _MOST_REPEATS or (part["high"] and high < low):
            return None
        one = "[^]" if part["one"] == "." else part["one"]
        for short, long in _CLASSES.items():
            one = one.replace(short, long if one[0] == "[" else f"[{long}]")
        one = one if one[0] == "[" else f"[{one[-1]}]"
        if one.startswith("[^"):  # never what would end the string
            one = f"[^{_NOT_IN_STRINGS}{one[2:]}"
        out.append(one + (part["many"] or ""))
        at = part.end()
    return "".join(out) + "$"
