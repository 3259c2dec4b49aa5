"""JSON schemas cut down to what the grammar of an engine can hold.

Of a schema with one keyword that they do not know, engines make any text (llguidance in llama.cpp),
what they know (xgrammar, llama.cpp's own converter), or an end of their process (llama.cpp's Python
server). So a schema is written again in words that each is known to hold, and what is left out is
named: docs/reference/engines.md#schemas.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vllama.base.errors import BadRequest
from vllama.chat.schema import References
from vllama.chat.schema_merge import (
    CONSTRAINTS,
    KEYWORDS,
    NEVER_HELD,
    Schema,
    are_distinct,
    merge,
    simplify,
)
from vllama.chat.schema_pattern import MOST_REPEATS, is_plain, spell_out_pattern

_DEPTH = 32
_MOST_PARTS = 5_000
_MOST_NUMBER = 2**53  # llguidance gives up on a bound of more than 10**17, such as those of int64
_ANY: Schema = {"type": ["string", "number", "boolean", "object", "array", "null"]}
# of more than 16 bits: written as two halves, which no token is
_SAFE_TEXT = re.compile(r"[^\\\x00-\x1f\x7f\ud800-\udfff\U00010000-\U0010ffff]*")


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """A compiler of grammars; `keywords` are those that not all hold.

    `combines`: a string may have a pattern, a format and a length at once, an object patterns of
    names. `converts`: llama.cpp's own. `is_fragile`: it dies of escapes and of large numbers.
    `writes_raw`: control characters come as they are in a string that only has a length.
    """

    formats: frozenset[str]
    keywords: frozenset[str] = frozenset()
    combines: bool = False
    converts: bool = False
    is_fragile: bool = False
    writes_raw: bool = False


_FEW = frozenset({"date", "time", "date-time", "uuid"})
_FORMATS = _FEW | {"duration", "email", "hostname", "ipv4", "ipv6"}
_COUNTS = frozenset({"minProperties", "maxProperties"})
LLGUIDANCE = Compiler(
    formats=_FORMATS, keywords=_COUNTS | KEYWORDS["number"] | {"patternProperties"}, combines=True
)
XGRAMMAR = Compiler(
    formats=_FORMATS | {"uri", "uri-reference", "uri-template"},
    keywords=_COUNTS | KEYWORDS["number"] - {"multipleOf"},
    writes_raw=True,
)
CONVERTER = Compiler(formats=_FEW, converts=True)
FRAGILE = Compiler(formats=_FEW, converts=True, is_fragile=True)
COMPILERS = (LLGUIDANCE, XGRAMMAR, CONVERTER, FRAGILE)


def is_safe(value: object) -> bool:
    """Tell whether a value can be written into a grammar: JSON that needs no escapes."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return _SAFE_TEXT.fullmatch(text) is not None


class SchemaWriter:
    """Writes schemas for a compiler; `left_out` has the paths of the keywords that it cannot hold.

    They allow less than they might, never more: objects have the members that are listed, and lists
    the items, unless the schema says otherwise, as small models go on with others to the end.
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._any: Schema = _ANY if compiler.is_fragile else {}
        self._references = References({})
        self._names: dict[int, str] = {}
        self._definitions: dict[str, Schema | None] = {}
        self._roots: list[object] = []  # kept, so that their parts keep their ids
        self._open: set[int] = set()
        self._parts = 0
        self.left_out: dict[str, None] = {}

    def write(self, schema: Mapping[str, Any], where: str) -> Schema | None:
        """Return a schema, whose references `finish` completes; None: no value fits it.

        Raises BadRequest if it is too large, or if nothing of it can be held.
        """
        self._roots.append(schema)
        self._references, before = References(schema), len(self.left_out)
        out = self._write(schema, where, 0)
        if out == self._any and len(self.left_out) > before:
            first = [*self.left_out][before]
            raise BadRequest(f"cannot enforce the JSON schema: the engine does not support {first}")
        return out

    def finish(self, schema: Schema) -> Schema:
        """Return a schema with the definitions that written ones refer to."""
        known = {name: x for name, x in self._definitions.items() if x is not None}
        return schema | ({"$defs": known} if known else {})

    def _leave_out(self, where: str, names: Iterable[str]) -> None:
        self.left_out |= {f"{where}.{name}": None for name in sorted(names)}

    def _write(self, schema: object, where: str, depth: int) -> Schema | None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise BadRequest("cannot enforce the JSON schema: it is too large")
        while isinstance(schema, Mapping) and CONSTRAINTS & schema.keys() == {"allOf"}:
            if len(schema["allOf"]) > 1:
                break
            schema = schema["allOf"][0]  # around a reference, in older drafts
        if not isinstance(schema, Mapping):
            return None if schema is False else self._any
        if "$ref" in schema and CONSTRAINTS & schema.keys() == {"$ref"}:
            return self._refer(schema["$ref"], where, depth)
        flat = self._flatten(schema, where, depth)
        if flat is None:
            return None
        options = flat.pop("anyOf", None)
        if options is None:
            return self._write_kinds(flat, where, depth)
        if flat:
            options = [{"allOf": [flat, option]} for option in options]
        return self._join(
            self._write(option, f"{where}.anyOf[{number}]", depth + 1)
            for number, option in enumerate(options)
        )

    def _join(self, options: Iterable[Schema | None]) -> Schema | None:
        """Return the schema of values that fit one of these."""
        found = [option for option in options if option is not None]
        if self._any in found:
            return self._any
        return {"anyOf": found} if len(found) > 1 else found[0] if found else None

    def _refer(self, reference: str, where: str, depth: int) -> Schema | None:
        target = self._references.end(reference, where)
        if self._compiler.is_fragile:  # it does not know them
            if id(target) in self._open:  # a schema within itself
                self._leave_out(where, ["$ref"])
                return self._any
            self._open.add(id(target))
            out = self._write(target, where, depth + 1)
            self._open.discard(id(target))
            return out
        name = self._names.get(id(target))
        if name is None:
            name = self._names[id(target)] = f"r{len(self._names)}"
            self._definitions[name] = {}  # keeps its place
            self._definitions[name] = self._write(target, where, depth + 1)
        return None if self._definitions[name] is None else {"$ref": f"#/$defs/{name}"}

    def _flatten(self, schema: Mapping[str, Any], where: str, depth: int) -> Schema | None:
        """Return one schema without references, `allOf` and `oneOf`; None: no value fits it."""
        if depth > _DEPTH:
            self._leave_out(where, CONSTRAINTS & schema.keys())
            return {}
        flat = simplify(schema)
        if flat.get("not") in (True, {}):
            return None
        self._leave_out(where, NEVER_HELD & flat.keys())
        parts = flat.pop("allOf", [])
        if (reference := flat.pop("$ref", None)) is not None:
            parts = [self._references.end(reference, where), *parts]
        if (options := flat.pop("oneOf", None)) is not None:
            before = dict(self.left_out)
            known = [self._flatten(one, where, depth + 1) for one in options if one is not False]
            self.left_out = before  # they are looked at again
            if not are_distinct([one for one in known if one is not None]):
                self._leave_out(where, ["oneOf"])
            parts = [*parts, {"anyOf": options}]
        out: Schema | None = {name: x for name, x in flat.items() if name not in NEVER_HELD}
        for part in parts:
            more = self._flatten(part, where, depth + 1) if isinstance(part, Mapping) else {}
            if part is False or more is None or out is None:
                return None
            out = merge(out, more, lambda name: self._leave_out(where, [name]))
        return out

    def _write_kinds(self, flat: Schema, where: str, depth: int) -> Schema | None:
        kinds = flat.get("type")
        if (values := flat.pop("enum", None)) is not None:
            fitting = [x for x in values if kinds is None or _find_kinds(x) & {*kinds}]
            if not self._compiler.is_fragile or all(map(is_safe, fitting)):
                self._leave_out(where, flat.keys() - {"type"})
                return {"enum": fitting} if fitting else None
            self._leave_out(where, ["enum"])
        if kinds is None:
            kinds = [kind for kind, names in KEYWORDS.items() if names & flat.keys()]
        if "number" in kinds:
            kinds = [kind for kind in kinds if kind != "integer"]
        written = [self._write_kind(kind, flat, where, depth) for kind in kinds]
        return self._join(written) if written else self._any

    def _write_kind(self, kind: str, flat: Schema, where: str, depth: int) -> Schema | None:
        own = KEYWORDS.get("number" if kind == "integer" else kind, frozenset())
        flat = {name: x for name, x in flat.items() if name in own}
        if kind == "array":
            return self._write_array(flat, where, depth)
        if kind == "object":
            return self._write_object(flat, where, depth)
        held = self._hold_string(flat) if kind == "string" else self._hold_number(kind, flat)
        self._leave_out(where, flat.keys() - held.keys())
        for low, high in (("minLength", "maxLength"), ("minimum", "maximum")):
            if held.get(low, -math.inf) > held.get(high, math.inf):
                return None
        if {"minLength", "maxLength"} & held.keys() and self._compiler.writes_raw:
            low, high = held.get("minLength", 0), held.get("maxLength", "")
            held = {"pattern": f'^[^"\\\\\\x00-\\x1f]{{{low},{high}}}$'}
        return {"type": kind, **held}

    def _hold_string(self, flat: Schema) -> Schema:
        held: Schema = {}
        compiler = self._compiler
        pattern = flat.get("pattern")
        if isinstance(pattern, str) and compiler.converts:
            pattern = spell_out_pattern(pattern)
        if isinstance(pattern, str) and (compiler.converts or is_plain(pattern)):
            held["pattern"] = pattern
        if flat.get("format") in compiler.formats and (compiler.combines or not held):
            held["format"] = flat["format"]
        # llguidance gives up on the lengths of what has groups
        is_single = not held or (compiler.combines and "(" not in held.get("pattern", "("))
        return held | (self._count(flat, "Length") if is_single else {})

    def _hold_number(self, kind: str, flat: Schema) -> Schema:
        known: Collection[str] = self._compiler.keywords
        flat = {name: x for name, x in flat.items() if abs(x) <= _MOST_NUMBER}
        if not _is_short(flat.get("multipleOf", 1)):
            del flat["multipleOf"]
        if kind == "number" or self._compiler.is_fragile:
            return {name: x for name, x in flat.items() if name in known}
        held = {name: x for name, x in flat.items() if name in known or name != "multipleOf"}
        if "minimum" in held:
            held["minimum"] = math.ceil(held["minimum"])
        if "maximum" in held:
            held["maximum"] = math.floor(held["maximum"])
        return held

    def _count(self, flat: Schema, what: str) -> Schema:
        """Return the counts that the engine can hold, as whole numbers."""
        is_small = self._compiler.converts or (what == "Length" and self._compiler.writes_raw)
        most = MOST_REPEATS if is_small else math.inf
        names = (f"min{what}", f"max{what}")
        return {name: int(flat[name]) for name in names if name in flat and flat[name] <= most}

    def _write_array(self, flat: Schema, where: str, depth: int) -> Schema | None:
        counts = self._count(flat, "Items")
        self._leave_out(where, flat.keys() & {"minItems", "maxItems"} - counts.keys())
        least, most = counts.get("minItems", 0), counts.get("maxItems", math.inf)
        prefix: list[Schema] = []
        for number, inner in enumerate(flat.get("prefixItems", ())):
            item = self._write(inner, f"{where}.prefixItems[{number}]", depth + 1)
            if item is None or number >= most:
                most = number
                break
            prefix.append(item)
        rest = flat.get("items", not prefix or least > len(prefix))
        items = self._write(rest, f"{where}.items", depth + 1) if len(prefix) < most else None
        if items is None:
            most = len(prefix)
        if least > most:
            return None
        counts |= {} if most == math.inf else {"maxItems": most}
        if not prefix:
            is_any = self._compiler.is_fragile and items in (None, self._any)
            return {"type": "array", **({} if is_any else {"items": items or self._any}), **counts}
        if not self._compiler.converts:
            shown = False if items is None else items
            return {"type": "array", "prefixItems": prefix, "items": shown, **counts}
        if self._compiler.is_fragile or least > len(prefix):
            self._leave_out(where, ["prefixItems"])
            return {"type": "array"}
        return {"type": "array", "prefixItems": prefix}  # it knows tuples that are complete

    def _write_object(self, flat: Schema, where: str, depth: int) -> Schema | None:
        members, required = dict(flat.get("properties", {})), flat.get("required", [])
        patterns, rest = flat.get("patternProperties", {}), flat.get("additionalProperties")
        is_open, each = not members, True if rest is None else rest
        names = flat.get("propertyNames", True)
        names = {} if names is True else names or {"enum": []}
        if (names := self._flatten(names, f"{where}.propertyNames", depth + 1)) is None:
            names = {"enum": []}
        if names.keys() - {"type"} == {"enum"} and not (members or patterns):  # zod's records
            members = {name: each for name in names["enum"] if isinstance(name, str)}
            rest = False
        elif names.keys() - {"type"} == {"pattern"} and not (members or patterns):
            patterns, rest = {names["pattern"]: each}, False
        elif names.keys() - {"type"}:
            self._leave_out(where, ["propertyNames"])
        members = dict.fromkeys(required, each) | members
        written = {
            name: self._write(inner, f"{where}.properties.{name}", depth + 1)
            for name, inner in members.items()
        }
        known = {name: inner for name, inner in written.items() if inner is not None}
        if not known.keys() >= {*required}:
            return None
        if self._compiler.is_fragile and not all(name and is_safe(name) for name in known):
            self._leave_out(where, ["properties"])
            return {"type": "object"}
        out: Schema = {"type": "object"}
        out |= {"properties": known} if members or "properties" in flat else {}
        out |= {"required": required} if required else {}
        rest = False if rest is None and not is_open else rest
        if patterns:
            inner = {
                key: self._write(one, f"{where}.patternProperties", depth + 1)
                for key, one in patterns.items()
            }
            plain = None not in inner.values() and all(map(is_plain, inner))
            if plain and "patternProperties" in self._compiler.keywords:
                out["patternProperties"] = inner
            elif plain and not (self._compiler.converts or members or len(inner) > 1):
                out["patternProperties"], rest = inner, False
            else:
                self._leave_out(where, ["patternProperties"])
        if rest is not None:
            more = self._write(rest, f"{where}.additionalProperties", depth + 1)
            if self._compiler.is_fragile and more is not None:
                self._leave_out(where, ["additionalProperties"] if more != self._any else [])
            else:
                out["additionalProperties"] = False if more is None else more
        counts = {name: flat[name] for name in _COUNTS & flat.keys()}
        if counts.keys() <= self._compiler.keywords and known.keys() <= {*required}:
            return out | counts
        self._leave_out(where, counts)
        return out


def _is_short(step: float) -> bool:
    """Tell whether llguidance can count in steps of that: as it shifts the point, in 32 bits."""
    while step % 1:
        step *= 10
    return step < 2**32


def _find_kinds(value: object) -> set[str]:
    """Return the types that a value has."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int | float):
        return {"number", "integer"} if value == int(value) else {"number"}
    names = {str: "string", list: "array", type(None): "null"}
    return {names.get(type(value), "object")}
