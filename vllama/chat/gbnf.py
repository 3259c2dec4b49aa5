r"""A JSON schema as a grammar, for engines whose completions take no schema.

GBNF is llama.cpp's form (its `grammars/README.md`): rules of literals, character classes, names and
repetitions. What comes in is what `make_safe_schema` leaves of a schema, so nothing here needs a
case for what it does not know, and no rule is named that is not written: llama.cpp's Python server
dies of a grammar with a fault. White space is where writers of JSON put it, one line feed with its
indentation at most, and never behind the value: an answer ends with its last bracket.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

_SPACE = r'( " " | "\n" [ \t]{0,20} )?'
_COMMA, _COLON = '"," space', '":" space'
_DIGITS = "[0-9]{1,15}"
_HOUR, _MINUTE = '( [01] [0-9] | "2" [0-3] )', "[0-5] [0-9]"
_DATE = '[0-9]{4} "-" ( "0" [1-9] | "1" [0-2] ) "-" ( "0" [1-9] | [12] [0-9] | "3" [01] )'
_TIME = (
    f'{_HOUR} ":" {_MINUTE} ":" {_MINUTE} ( "." [0-9]{{3}} )? ( "Z" | [+-] {_HOUR} ":" {_MINUTE} )'
)
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": ' "-" '.join(f"[0-9a-fA-F]{{{count}}}" for count in (8, 4, 4, 4, 12)),
}
_ALWAYS = {
    "space": _SPACE,
    "value": "object | array | string | number | boolean | null",
    "object": f'"{{" space ( member ( {_COMMA} member )* space )? "}}"',
    "member": f"string {_COLON} value",
    "array": f'"[" space ( value ( {_COMMA} value )* space )? "]"',
    "string": r'"\"" char* "\""',
    "char": r'[^"\\\x00-\x1f\x7f] | "\\" ( ["\\/bfnrt] | "u" [0-9a-fA-F]{4} )',
    "number": f'integer ( "." {_DIGITS} )? ( [eE] [+-]? [0-9]{{1,3}} )?',
    "integer": '"-"? ( "0" | [1-9] [0-9]{0,15} )',
    "boolean": '"true" | "false"',
    "null": '"null"',
}
_PART = re.compile(r"\[(?:\\.|[^\]\\])*\](?:[+*?]|\{[0-9,]+\})?")


def make_grammar(schema: Mapping[str, Any]) -> str:
    """Return the grammar of `schema`, which `make_safe_schema` made."""
    writer = _Writer()
    root = writer.name(schema)
    rules = {"root": root, **_ALWAYS, **writer.rules}
    return "\n".join(f"{name} ::= {body}" for name, body in rules.items())


class _Writer:
    """Collects the rules of one grammar; rules that are alike are written once."""

    def __init__(self) -> None:
        self.rules: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def name(self, schema: Mapping[str, Any]) -> str:
        """Return the rule of one schema."""
        if "anyOf" in schema:
            return self._rule(" | ".join(self.name(one) for one in schema["anyOf"]))
        if "const" in schema:
            return self._rule(_literal(schema["const"]))
        if "enum" in schema:
            return self._rule(" | ".join(map(_literal, schema["enum"])))
        kind = schema["type"]
        if kind == "object" and "properties" in schema:
            return self._object(schema["properties"], schema.get("required", ()))
        if kind == "array" and "items" in schema:
            return self._array(schema)
        if kind == "string" and len(schema) > 1:
            return self._rule(rf'"\"" {_characters(schema)} "\""')
        return kind if isinstance(kind, str) else "value"

    def _object(self, properties: Mapping[str, Any], required: Iterable[str]) -> str:
        """Write members in the order of the schema; each of the optional ones may be left out.

        From the last to the first there are two rules for what is left: `first` if no member came
        before, and `after` one, where a comma comes first. An alternative is never empty: what
        follows it would be read as part of it.
        """
        needed = set(required)
        after, first = "", ""
        for key, inner in reversed(list(properties.items())):
            member = f"{_literal(key)} {_COLON} {self.name(inner)}"
            if key in needed:
                first = self._rule(f"{member} {after}")
                after = self._rule(f"{_COMMA} {member} {after}")
            else:
                first = self._rule(f"{member} {after} | {first}" if first else f"( {member} )?")
                after = self._rule(f"( {_COMMA} {member} )? {after}")
        return self._rule(f'"{{" space {first} space "}}"')

    def _array(self, schema: Mapping[str, Any]) -> str:
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        if high is not None:
            high = max(low, high)
        item = self.name(schema["items"])
        rest = None if high is None else max(0, high - 1)
        more = _repeated(f"( {_COMMA} {item} )", max(0, low - 1), rest)
        some = "" if high == 0 else f"( {item} {more} ){'' if low else '?'}"
        return self._rule(f'"[" space {some} space "]"')

    def _rule(self, body: str) -> str:
        name = self._names.setdefault(body, f"r{len(self._names)}")
        self.rules[name] = body
        return name


def _literal(value: object) -> str:
    """Return the text of a value, which has no escapes (`grammar_schema`)."""
    text = json.dumps(value, ensure_ascii=False).replace('"', r"\"")
    return f'"{text}"'


def _characters(schema: Mapping[str, Any]) -> str:
    if "pattern" in schema:
        return " ".join(_PART.findall(schema["pattern"]))
    if "format" in schema:
        return _FORMATS[schema["format"]]
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    return _repeated("char", low, None if high is None else max(low, high))


def _repeated(item: str, low: int, high: int | None) -> str:
    if high == 0:
        return ""
    return f"{item}{{{low},{'' if high is None else high}}}"
