"""Schemas in fewer words that mean the same, and what two of them mean together. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Schema = dict[str, Any]
_LOW = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_HIGH = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
KEYWORDS: Mapping[str, frozenset[str]] = {
    "string": frozenset({"pattern", "format", "minLength", "maxLength"}),
    "number": frozenset(
        {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    ),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "object": frozenset({
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames",
        "minProperties", "maxProperties",
    }),
}  # fmt: skip
"""What bounds values of a kind, of which engines hold some; `integer` has those of `number`."""
_EVALUATED = {"items": "unevaluatedItems", "additionalProperties": "unevaluatedProperties"}
NEVER_HELD = frozenset({
    "if", "contains", "uniqueItems", "dependentRequired", "dependentSchemas", "dependencies",
    "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef", "not",
    "extends", "disallow", "divisibleBy",  # of draft 3
})  # fmt: skip
CONSTRAINTS = NEVER_HELD.union(
    {"$ref", "type", "enum", "const", "anyOf", "allOf", "oneOf", "additionalItems"},
    *KEYWORDS.values(),
)


MOST_OPTIONS = 100
"""Pairs of options that two `anyOf` make together; each further `anyOf` multiplies them."""


def simplify(schema: Mapping[str, Any]) -> Schema:
    """Return one schema, not those within it, in words of draft 2020-12, with `type` a list."""
    out = {
        name: value for name, value in schema.items() if name in CONSTRAINTS and value is not None
    }
    for name, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(is_out := out.get(name), bool):
            del out[name]
            if is_out and limit in out:
                out[name] = out.pop(limit)
    more = out.pop("additionalItems", None)
    if isinstance(out.get("items"), list):
        out["prefixItems"] = out.pop("items")
        out |= {} if more is None else {"items": more}
    if "const" in out:
        out["enum"] = [out.pop("const")]
    if isinstance(out.get("type"), str):
        out["type"] = [out["type"]]
    for kept, late in _EVALUATED.items():
        if late in out and not out.keys() & {"anyOf", "oneOf", "allOf", "$ref"}:
            out.setdefault(kept, out.pop(late))
    return {name: x for name, x in out.items() if x is not False or name not in NEVER_HELD}


def to_key(value: object) -> str:
    """Return a text that is the same for equal JSON values only."""
    return json.dumps(value, sort_keys=True)


def merge(one: Schema, other: Schema, leave_out: Callable[[str], None]) -> Schema | None:
    """Return the conjunction of two simple schemas, None if no value fits both.

    `leave_out` is called with a keyword that cannot be kept.
    """
    out = dict(one)
    for first, second in ((one, other), (other, one)):
        more = second.get("properties", {}).keys() - first.get("properties", {}).keys()
        if more and first.get("additionalProperties", True) is not True:
            leave_out("additionalProperties")
    for name, value in other.items():
        if name not in out or to_key(out[name]) == to_key(value):
            out[name] = value
        elif name in _LOW | _HIGH:
            out[name] = (max if name in _LOW else min)(out[name], value)
        elif name in ("properties", "patternProperties"):
            common = out[name].keys() & value.keys()
            both = {key: {"allOf": [out[name][key], value[key]]} for key in common}
            out[name] = {**out[name], **value, **both}
        elif name == "required":
            out[name] = list(dict.fromkeys([*out[name], *value]))
        elif name in ("items", "additionalProperties", "propertyNames"):
            out[name] = {"allOf": [out[name], value]}
        elif name == "anyOf" and len(out[name]) * len(value) <= MOST_OPTIONS:
            out[name] = [{"allOf": [a, b]} for a in out[name] for b in value]
        elif name == "enum":
            out[name] = [x for x in out[name] if to_key(x) in map(to_key, value)]
        elif name == "type":
            out[name] = sorted(_with_integer(out[name]) & _with_integer(value))
        else:
            leave_out(name)
    return None if out.get("type") == [] or out.get("enum") == [] else out


def _with_integer(kinds: Sequence[str]) -> set[str]:
    return {*kinds, "integer"} if "number" in kinds else {*kinds}


def are_distinct(options: Sequence[Schema]) -> bool:
    """Tell whether no value fits two of these, by their types or a member that all need."""
    kinds = [[("number" if x == "integer" else x) for x in one.get("type", ())] for one in options]
    if _differ(kinds) or _differ([[*map(to_key, one.get("enum", ()))] for one in options]):
        return True
    members = [
        {name: simplify(inner).get("enum", ()) for name, inner in one["properties"].items()
         if isinstance(inner, Mapping) and name in one.get("required", ())}
        for one in options if one.get("type") == ["object"] and "properties" in one
    ]  # fmt: skip
    return len(members) == len(options) and any(
        _differ([[*map(to_key, one.get(name, ()))] for one in members]) for name in members[0]
    )


def _differ(values: Sequence[Sequence[str]]) -> bool:
    return all(values) and sum(map(len, values)) == len({x for each in values for x in each})
